"""Which offsets of a queue a group is done with: a floor, and a sparse set above it.

    0 ──────── floor ─────────────────────────────────▶ offsets
    all done   │ 0 1 1 0 1 … in chunks of 512 bits, only where a bit is set

Chunks are plain integers: setting a bit costs the same however many offsets are done,
which one big integer (quadratic above a stuck floor) and a set (66 bytes an offset) do not.
"""

CHUNK_BITS = 512
_SHIFT = 9
_LOW = CHUNK_BITS - 1
_FULL = (1 << CHUNK_BITS) - 1


class DoneSet:
    """Offsets done: every one below `floor`, and those added above it."""

    __slots__ = ("chunks", "floor")

    def __init__(self, floor: int) -> None:
        self.floor = floor
        # Chunk number → bits. Bits below the floor in its own chunk are meaningless.
        self.chunks: dict[int, int] = {}

    def __contains__(self, queue_offset: int) -> bool:
        if queue_offset < self.floor:
            return True
        return bool(self.chunks.get(queue_offset >> _SHIFT, 0) >> (queue_offset & _LOW) & 1)

    def add(self, queue_offset: int) -> None:
        """Mark one offset done; again is fine."""
        if queue_offset == self.floor:
            self.floor = queue_offset + 1
            if self.chunks:
                self._absorb()
        elif queue_offset > self.floor:
            chunk = queue_offset >> _SHIFT
            self.chunks[chunk] = self.chunks.get(chunk, 0) | 1 << (queue_offset & _LOW)

    def add_range(self, start: int, end: int) -> None:
        """Mark [start, end) done."""
        start = max(start, self.floor)
        if start >= end:
            return
        if start == self.floor:
            self.floor = end
            self._drop_below()
            self._absorb()
            return
        chunk = start >> _SHIFT
        while start < end:
            stop = min(end, (chunk + 1) << _SHIFT)
            bits = ((1 << (stop - start)) - 1) << (start & _LOW)
            self.chunks[chunk] = self.chunks.get(chunk, 0) | bits
            start = stop
            chunk += 1

    def add_mask(self, base: int, mask: int) -> None:
        """Mark base + i done for every bit i of `mask`."""
        while mask:
            low = (mask & -mask).bit_length() - 1
            ones = (~(mask >> low) & ((mask >> low) + 1)).bit_length() - 1
            self.add_range(base + low, base + low + ones)
            mask &= ~(((1 << ones) - 1) << low)

    def _drop_below(self) -> None:
        if self.chunks:
            chunk = self.floor >> _SHIFT
            for passed in [number for number in self.chunks if number < chunk]:
                del self.chunks[passed]

    def _absorb(self) -> None:
        """Move the floor over the done offsets that now touch it."""
        chunks = self.chunks
        while chunks:
            chunk = self.floor >> _SHIFT
            if not self.floor & _LOW:
                chunks.pop(chunk - 1, None)
            bits = chunks.get(chunk, 0) >> (self.floor & _LOW)
            ones = (~bits & (bits + 1)).bit_length() - 1
            if not ones:
                return
            self.floor += ones
            if self.floor & _LOW:
                return

    @property
    def end(self) -> int:
        """One past the last offset done."""
        above = self.above_floor()
        if not above:
            return self.floor
        chunk, bits = above[-1]
        return (chunk << _SHIFT) + bits.bit_length()

    def count(self, start: int, end: int) -> int:
        """How many offsets of [start, end) are done."""
        below = min(max(self.floor, start), end)
        done = below - start
        for chunk, bits in self.above_floor():
            first = chunk << _SHIFT
            inside = bits >> max(0, below - first) << max(0, below - first)
            if first + CHUNK_BITS > end:
                inside &= (1 << max(0, end - first)) - 1
            done += inside.bit_count()
        return done

    def above_floor(self) -> list[tuple[int, int]]:
        """The chunks with meaningful bits, by number: the canonical form for rows."""
        first = self.floor >> _SHIFT
        meaningful = []
        for chunk in sorted(self.chunks):
            bits = self.chunks[chunk]
            if chunk == first:
                bits &= _FULL << (self.floor & _LOW)
            if chunk >= first and bits:
                meaningful.append((chunk, bits))
        return meaningful
