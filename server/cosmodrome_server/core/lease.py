"""Messages in flight: one lease per pop call, and all leases of one progress.

    lease 7 · base 40 · mask 1011        offsets 40, 41 and 43 are hidden until its deadline

A lease is an object, which is cheap for a batch and dear for one message: 360 bytes with its
places in a dict and in a heap. So leases of one message that pile up are packed:

    Leases ─┬─ unpacked   7 ▶ Lease · 9 ▶ Lease …
            └─ blocks     ids       12 + 0 1 3 4 …   ascending, also from block to block
                          offsets   80 + 0 1 3 4 …   16 bytes a lease
                          terms     deadline · attempt · whether it is suspended

Which are packed depends on what else was in flight when they were (`core.consumptions`), so
it is never to be seen from outside: not in rows, not in what expires, not in its order.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from heapq import merge
from operator import attrgetter

import msgspec

# Taking out one lease costs the length of its block, whose objects cost 3 bytes a lease.
_BLOCK_MAX = 128
# Below it a block is no cheaper than objects.
_BLOCK_MIN = 16
# A term: deadline, 16 bits of attempt, 1 bit. Deadlines from here on do not fit (year 6429).
_DEADLINE_SHIFT = 17
_DEADLINE_END = 1 << 64 - _DEADLINE_SHIFT
_ATTEMPT_BITS = 0xFFFF
# How far ids, and offsets, of one block may be apart.
_SPAN = 1 << 32


class Lease(msgspec.Struct, eq=False, gc=False):
    """Messages handed out by one pop, hidden until a deadline; numbers and a name, so no cycles.

    Attributes:
        lease_id: Unique in the shard.
        base: The queue offset of bit 0.
        mask: Bit i: base + i is in flight under this lease.
        deadline_ms: When what is left becomes ready, on the lease clock.
        attempt: The delivery attempt of its messages.
        popped_ms: When it began, if somebody renews it: renewing is bounded from here.
        renewals: How often it was renewed.
        is_suspended: Whether the next delivery is the same attempt again.
        client_id: Who renews it, "" for nobody.
    """

    lease_id: int
    base: int
    mask: int
    deadline_ms: int
    attempt: int
    popped_ms: int = 0
    renewals: int = 0
    is_suspended: bool = False
    client_id: str = ""

    def holds(self, queue_offset: int) -> bool:
        """Whether the message is in flight under this lease."""
        bit = queue_offset - self.base
        return bit >= 0 and bool(self.mask >> bit & 1)

    def offsets(self) -> list[int]:
        """The queue offsets in flight, ascending."""
        found = []
        mask = self.mask
        while mask:
            low = mask & -mask
            found.append(self.base + low.bit_length() - 1)
            mask ^= low
        return found

    @property
    def is_packable(self) -> bool:
        """Whether a block can hold all there is to know of it."""
        return (
            self.mask == 1
            and not self.client_id
            and not self.renewals
            and not self.popped_ms
            and self.deadline_ms < _DEADLINE_END
            and self.attempt <= _ATTEMPT_BITS
        )


_by_id = attrgetter("lease_id")


class LeaseBlock:
    """Leases of one message each, nobody's to renew, as columns of numbers."""

    __slots__ = ("_base", "_first_id", "_ids", "_offsets", "_terms", "last_id")

    def __init__(self, leases: list[Lease]) -> None:
        """Pack leases that ascend by id and are `are_near`."""
        first_id, base = leases[0].lease_id, min(lease.base for lease in leases)
        self._first_id, self._base = first_id, base
        self._ids = array("I", [lease.lease_id - first_id for lease in leases])
        self._offsets = array("I", [lease.base - base for lease in leases])
        self._terms = array(
            "Q",
            [
                lease.deadline_ms << _DEADLINE_SHIFT | lease.attempt << 1 | lease.is_suspended
                for lease in leases
            ],
        )
        # Stays when that lease goes: blocks are found by it.
        self.last_id = leases[-1].lease_id

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def ids(self) -> list[int]:
        """The leases in it, ascending."""
        return [self._first_id + number for number in self._ids]

    @property
    def first_deadline_ms(self) -> int:
        """When the first of them is due; there must be one."""
        return min(self._terms) >> _DEADLINE_SHIFT

    def index(self, lease_id: int) -> int:
        """Where a lease is; -1 if it is not here."""
        wanted = lease_id - self._first_id
        at = bisect_left(self._ids, wanted)
        return at if at < len(self._ids) and self._ids[at] == wanted else -1

    def lease(self, at: int) -> Lease:
        """The lease at an index, as an object."""
        term = self._terms[at]
        lease = Lease(
            self._first_id + self._ids[at],
            self._base + self._offsets[at],
            mask=1,
            deadline_ms=term >> _DEADLINE_SHIFT,
            attempt=term >> 1 & _ATTEMPT_BITS,
        )
        lease.is_suspended = bool(term & 1)
        return lease

    def remove(self, at: int) -> None:
        """Forget the lease at an index."""
        del self._ids[at], self._offsets[at], self._terms[at]

    def take_due(self, until_ms: int) -> list[Lease]:
        """Take out those due at or before `until_ms`."""
        end = until_ms + 1 << _DEADLINE_SHIFT
        due = [at for at, term in enumerate(self._terms) if term < end]
        leases = [self.lease(at) for at in due]
        for at in reversed(due):
            self.remove(at)
        return leases

    def clear(self) -> None:
        """Forget all."""
        del self._ids[:], self._offsets[:], self._terms[:]


def are_near(leases: list[Lease]) -> bool:
    """Whether leases that ascend by id fit into one block."""
    offsets = [lease.base for lease in leases]
    return leases[-1].lease_id - leases[0].lease_id < _SPAN and max(offsets) - min(offsets) < _SPAN


class Leases:
    """The leases of one progress, by id."""

    __slots__ = ("_blocks", "_unpacked")

    def __init__(self) -> None:
        self._unpacked: dict[int, Lease] = {}
        self._blocks: list[LeaseBlock] = []

    def __len__(self) -> int:
        return len(self._unpacked) + sum(map(len, self._blocks))

    def __bool__(self) -> bool:
        return bool(self._unpacked or self._blocks)

    def __contains__(self, lease_id: int) -> bool:
        return lease_id in self._unpacked or self._find(lease_id) is not None

    def __iter__(self) -> Iterator[Lease]:
        """All of them, by id; not to be changed meanwhile."""
        unpacked = sorted(self._unpacked.values(), key=_by_id)
        packed = (block.lease(at) for block in self._blocks for at in range(len(block)))
        return merge(unpacked, packed, key=_by_id) if self._blocks else iter(unpacked)

    @property
    def inflight(self) -> int:
        """How many messages are leased."""
        unpacked = sum(lease.mask.bit_count() for lease in self._unpacked.values())
        return unpacked + sum(map(len, self._blocks))

    def get(self, lease_id: int) -> Lease | None:
        """A lease, None if it has ended; changed only by `take` and between `discard` and `add`."""
        lease = self._unpacked.get(lease_id)
        if lease is None and self._blocks:
            found = self._find(lease_id)
            if found is not None:
                return found[0].lease(found[1])
        return lease

    def _find(self, lease_id: int) -> tuple[LeaseBlock, int] | None:
        number = bisect_left(self._blocks, lease_id, key=_last_id)
        if number == len(self._blocks):
            return None
        block = self._blocks[number]
        at = block.index(lease_id)
        return None if at < 0 else (block, at)

    def add(self, lease: Lease) -> None:
        """Begin a lease."""
        self._unpacked[lease.lease_id] = lease

    def leave(self, lease_id: int, queue_offset: int) -> Lease | None:
        """A message leaves its lease, which ends with its last; None if that does not hold it."""
        lease = self._unpacked.get(lease_id)
        if lease is None:
            return self._leave_block(lease_id, queue_offset) if self._blocks else None
        bit = queue_offset - lease.base
        if bit < 0 or not lease.mask >> bit & 1:
            return None
        lease.mask ^= 1 << bit
        if not lease.mask:
            del self._unpacked[lease_id]
        return lease

    def _leave_block(self, lease_id: int, queue_offset: int) -> Lease | None:
        found = self._find(lease_id)
        if found is None:
            return None
        block, at = found
        lease = block.lease(at)
        if lease.base != queue_offset:
            return None
        lease.mask = 0
        block.remove(at)
        self._drop_if_empty(block)
        return lease

    def take(self, lease: Lease, mask: int) -> None:
        """Messages leave a lease; it ends with its last."""
        lease.mask &= ~mask
        if not lease.mask:
            self.discard(lease.lease_id)

    def discard(self, lease_id: int) -> None:
        """End a lease, if it has not."""
        if self._unpacked.pop(lease_id, None) is not None:
            return
        found = self._find(lease_id)
        if found is not None:
            block, at = found
            block.remove(at)
            self._drop_if_empty(block)

    def _drop_if_empty(self, block: LeaseBlock) -> None:
        if not len(block):
            del self._blocks[bisect_left(self._blocks, block.last_id, key=_last_id)]

    def clear(self) -> None:
        """End all."""
        self._unpacked.clear()
        for block in self._blocks:
            block.clear()
        self._blocks.clear()

    def pack(self) -> list[LeaseBlock]:
        """Pack leases of one message if there are many; return the blocks made.

        Only such as are younger than those packed before, so that ids ascend.
        """
        if len(self._unpacked) < _BLOCK_MIN:
            return []
        after = self._blocks[-1].last_id if self._blocks else -1
        unpacked = [lease for lease in self._unpacked.values() if lease.is_packable]
        young = sorted((lease for lease in unpacked if lease.lease_id > after), key=_by_id)
        made = []
        for first in range(0, len(young) - _BLOCK_MIN + 1, _BLOCK_MAX):
            leases = young[first : first + _BLOCK_MAX]
            if are_near(leases):
                made.append(LeaseBlock(leases))
                for lease in leases:
                    del self._unpacked[lease.lease_id]
        self._blocks += made
        if made:
            # A dict never shrinks by itself.
            self._unpacked = dict(self._unpacked)
        return made

    def unpack_due(self, block: LeaseBlock, until_ms: int) -> list[Lease]:
        """Make those of a block that are due by then objects again; return them."""
        due = block.take_due(until_ms)
        self._unpacked.update((lease.lease_id, lease) for lease in due)
        if due:
            self._drop_if_empty(block)
        return due


_last_id = attrgetter("last_id")
