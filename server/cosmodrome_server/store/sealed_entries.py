"""The consume queues of the segments that take no more frames, oldest first.

    segment   3          4          5                   6 is active (store.consume_queue)
              .idx       .idx       memory, until the background thread has written its file

A file is mapped when it is first asked (store.sealed_index), and verified then; a map holds a
descriptor, so some hundred are at a time. One that is damaged, or lies where the disk cannot be
read for good, is made again from its segment and stays in memory.

All calls on the loop's thread, but `write`.
"""

import heapq
import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from cosmodrome_server.errors import CorruptFrame, ReadFailed
from cosmodrome_server.store import sealed_index
from cosmodrome_server.store.files import Files
from cosmodrome_server.store.first_offsets import FirstOffsets, read_first_offsets
from cosmodrome_server.store.patience import Patience
from cosmodrome_server.store.queue_columns import QueueColumns
from cosmodrome_server.store.sealed_index import WORDS, IndexHeader, MappedIndex, Run
from cosmodrome_server.store.segment import SegmentHeader

_log = logging.getLogger(__name__)

# Queues whose runs are remembered; all are forgotten when there are so many.
_CACHED_MAX = 4_096
# Indexes mapped at a time, of 64 GiB of log; beyond it a quarter goes.
_MAPPED_MAX = 512
# Queues of which it is known where they ended when some segment began: 16 bytes each.
_FIRSTS_MAX = 1_000_000

# (segment, whether a sector that cannot be read raises OSError) → its entries
Rebuild = Callable[[SegmentHeader, bool], dict[int, Run]]


class MemoryEntries:
    """The entries of a segment whose index is in no file.

    Args:
        awake: By key.
        resting: The rest.
    """

    def __init__(self, awake: dict[int, Run], resting: QueueColumns) -> None:
        self._awake = awake
        self._resting = resting

    def run(self, key: int) -> Run | None:
        """The offsets of a queue here; None if there are none."""
        return self._awake.get(key) or self._resting.get(key)

    def __iter__(self) -> Iterator[tuple[int, Run]]:
        """Each (key, offsets), by key."""
        return heapq.merge(sorted(self._awake.items()), self._resting)

    def last_ms(self) -> int:
        """No entry is of a later time; 0 if there is none."""
        awake = max((run.time(run.end - 1) for run in self._awake.values()), default=0)
        resting = [words[WORDS - 1 :: WORDS] for words in self._resting.entry_words() if words]
        return max([awake, *map(max, resting)])


class SealedEntries:
    """The entries of one sealed segment: in memory until they are in a file."""

    def __init__(
        self,
        segment: SegmentHeader,
        last_ms: int,
        oldest_position: int,
        memory: MemoryEntries | None,
    ) -> None:
        self.segment = segment
        self.last_ms = last_ms
        self.oldest_position = oldest_position
        # None: they are in the file.
        self.memory = memory
        self.mapped: MappedIndex | None = None
        self.is_verified = False

    @property
    def index_name(self) -> str:
        """The name of its file."""
        return sealed_index.path_of(Path(), self.segment.number).name


class SealedSegments:
    """The index of a shard's sealed segments.

    Args:
        files: Where index files are.
        directory: Of the shard.
        rebuild: Makes the entries of a segment again, when its index is found damaged.
        mapped_max: How many indexes are mapped at a time.
    """

    def __init__(
        self, files: Files, directory: Path, rebuild: Rebuild, mapped_max: int = _MAPPED_MAX
    ) -> None:
        self._files = files
        self._directory = directory
        self._rebuild = rebuild
        self._patience = Patience()
        self._sealed: list[SealedEntries] = []
        self._runs: dict[int, Run] = {}
        self._mapped_max = mapped_max
        # Those that are mapped, in the order they were.
        self._mapped: dict[int, SealedEntries] = {}
        # By the number of the segment, once it was asked; None if its first frame is lost.
        self._firsts: dict[int, FirstOffsets | None] = {}

    def load(self, sealed: Iterable[tuple[SegmentHeader, IndexHeader]]) -> None:
        """Take back the segments of an earlier run, in order."""
        self._sealed = [
            SealedEntries(segment, header.last_ms, header.oldest_position, None)
            for segment, header in sealed
        ]

    # Reading

    def first_offset(self, key: int) -> int | None:
        """The first offset of a queue; None if none is sealed.

        Raises:
            ReadFailed: The disk refuses to say now.
        """
        if not self._sealed:
            return None
        firsts = self._first_offsets(self._sealed[0].segment)
        if firsts is not None:
            return firsts.of(key)
        for sealed in self._sealed:
            run = self._run_in(sealed, key)
            if run is not None:
                return run.base
        return None

    def _first_offsets(self, header: SegmentHeader) -> FirstOffsets | None:
        """Where queues ended when a segment began; raises as `first_offset`."""
        number = header.number
        if number not in self._firsts:
            firsts: FirstOffsets | None = None
            try:
                firsts = read_first_offsets(self._files, self._directory, header)
            except FileNotFoundError:
                pass  # Lost: the indexes say what is left.
            except OSError as error:
                what = f"the first frame of segment {number}"
                refusal = self._patience.refused(what, what, error)
                if isinstance(refusal, ReadFailed):
                    raise refusal from error
            self._firsts[number] = firsts
            known = [held for held in self._firsts.values() if held is not None]
            if len(known) > 1 and sum(map(len, known)) > _FIRSTS_MAX:
                self._firsts = {number: firsts}
        return self._firsts[number]

    def offset_at(self, key: int, timestamp_ms: int) -> int | None:
        """The first offset stored then or later; None if none is sealed."""
        first = bisect_left(self._sealed, timestamp_ms, key=lambda sealed: sealed.last_ms)
        for sealed in self._sealed[first:]:
            run = self._run_in(sealed, key)
            if run is not None and run.time(run.end - 1) >= timestamp_ms:
                return run.first_at(timestamp_ms)
        return None

    def last_ms(self, number: int, key: int) -> int:
        """When the last message of a queue in a segment was stored; 0 for none."""
        sealed = next(sealed for sealed in self._sealed if sealed.segment.number == number)
        run = self._run_in(sealed, key)
        return 0 if run is None else run.time(run.end - 1)

    def in_files(self, key: int) -> Iterator[tuple[SegmentHeader, Run]]:
        """The segments whose index file holds offsets of a queue, in order."""
        for sealed in self._sealed:
            run = self._run_in(sealed, key)
            if run is not None and sealed.memory is None:
                yield sealed.segment, run

    def known_run(self, key: int, queue_offset: int) -> Run | None:
        """What `run_of` found for a queue last, if it holds an offset."""
        run = self._runs.get(key)
        return run if run is not None and run.base <= queue_offset < run.end else None

    def run_of(self, key: int, queue_offset: int) -> Run | None:
        """The run that holds an offset of a queue; None if it is not sealed."""
        run = self._search(key, queue_offset)
        # One of memory would keep all of its segment's entries there.
        if run is not None and isinstance(run.words, memoryview):
            if len(self._runs) >= _CACHED_MAX:
                self._runs.clear()
            self._runs[key] = run
        return run

    def following(self, key: int, queue_offset: int) -> Run | None:
        """The first run of a queue that begins behind an offset; None if none is sealed."""
        for sealed in self._sealed:
            run = self._run_in(sealed, key)
            if run is not None and run.base > queue_offset:
                return run
        return None

    def _search(self, key: int, queue_offset: int) -> Run | None:
        """Halve the segments."""
        low, high = 0, len(self._sealed)
        while low < high:
            middle = (low + high) // 2
            run = self._run_in(self._sealed[middle], key)
            if run is None:
                low, high = self._narrow(key, queue_offset, (low, middle, high))
            elif queue_offset < run.base:
                high = middle
            elif queue_offset < run.end:
                return run
            else:
                low = middle + 1
        return None

    def _narrow(self, key: int, queue_offset: int, among: tuple[int, int, int]) -> tuple[int, int]:
        """Where to go on where the segment in the middle has nothing of a queue."""
        low, middle, high = among
        try:
            firsts = self._first_offsets(self._sealed[middle].segment)
        except ReadFailed:
            firsts = None
        if firsts is not None:
            return (low, middle) if queue_offset < firsts.of(key) else (middle + 1, high)
        # The next one that knows the queue has to say.
        for probe in range(middle + 1, high):
            run = self._run_in(self._sealed[probe], key)
            if run is not None:
                return (low, middle) if queue_offset < run.base else (probe, high)
        return low, middle

    def _run_in(self, sealed: SealedEntries, key: int) -> Run | None:
        memory = sealed.memory
        if memory is not None:
            return memory.run(key)
        if sealed.mapped is None:
            opened = self._open(sealed.segment, is_verified=sealed.is_verified)
            if isinstance(opened, MemoryEntries):
                sealed.memory = opened
                return opened.run(key)
            self._keep_mapped(sealed, opened)
            return opened.run(key)
        return sealed.mapped.run(key)

    def _keep_mapped(self, sealed: SealedEntries, opened: MappedIndex) -> None:
        if len(self._mapped) >= self._mapped_max:
            for number in list(self._mapped)[: max(1, self._mapped_max // 4)]:
                self._mapped.pop(number).mapped = None
            # They hold them, too.
            self._runs.clear()
        sealed.mapped, sealed.is_verified = opened, True
        self._mapped[sealed.segment.number] = sealed

    def _open(self, segment: SegmentHeader, *, is_verified: bool) -> MappedIndex | MemoryEntries:
        """The index of a segment: its file or, if that is no good, made again.

        Raises:
            ReadFailed: The disk refuses it, or the segment, now.
        """
        is_strict = True
        try:
            try:
                return sealed_index.open_index(
                    self._files, self._directory, segment, is_verified=is_verified
                )
            except (FileNotFoundError, CorruptFrame) as error:
                _log.exception("index_damaged segment=%d error=%s", segment.number, error)
                return MemoryEntries(self._rebuild(segment, is_strict), QueueColumns())
        except OSError as error:
            what = f"the index of segment {segment.number}"
            refusal = self._patience.refused(segment.number, what, error)
            if isinstance(refusal, ReadFailed):
                raise refusal from error
            _log.exception("index_unreadable segment=%d; made again", segment.number)
            return MemoryEntries(self._rebuild(segment, not is_strict), QueueColumns())

    # Sealing, retention

    def seal(
        self, segment: SegmentHeader, memory: MemoryEntries, ended_ms: int, oldest_position: int
    ) -> SealedEntries:
        """A segment takes no more frames.

        Args:
            segment: Who it is.
            memory: Its entries.
            ended_ms: The time of its last frame.
            oldest_position: The lowest position an entry points to.
        """
        # Without an entry it may still hold delayed messages: as old as its last frame.
        last_ms = memory.last_ms() or ended_ms
        last_ms = max(last_ms, self._sealed[-1].last_ms if self._sealed else 0)
        self._sealed.append(sealed := SealedEntries(segment, last_ms, oldest_position, memory))
        return sealed

    def write(self, sealed: SealedEntries) -> None:
        """Write the index file of a segment; in the background thread.

        Raises:
            OSError: It is not written; the entries stay in memory.
        """
        memory = sealed.memory
        if memory is not None:
            bounds = (sealed.last_ms, sealed.oldest_position)
            sealed_index.write(self._files, self._directory, sealed.segment, memory, bounds)
            # Readers look at `memory` first and then at the file.
            sealed.memory = None

    def bounds(self) -> list[tuple[int, int, int]]:
        """(segment number, latest time, oldest position pointed to) of each, oldest first."""
        return [(s.segment.number, s.last_ms, s.oldest_position) for s in self._sealed]

    def forget_runs(self, keys: Iterable[int]) -> None:
        """These queues are gone with their topic."""
        for key in keys:
            self._runs.pop(key, None)

    def forget_before(self, number: int) -> None:
        """Retention took the segments before `number`."""
        self._sealed = [sealed for sealed in self._sealed if sealed.segment.number >= number]
        self._mapped = {held: sealed for held, sealed in self._mapped.items() if held >= number}
        self._firsts = {held: firsts for held, firsts in self._firsts.items() if held >= number}
        self._runs.clear()
