"""Queue offset → log position, tag hash and time, for every queue of the shard.

    queue (7, 0)   ┌ segment 3 ┐┌── segment 4 ──┐            ┌─ segment 6 (active) ─┐
    offsets        0 1 2 3 4 5 6 7 8 9 10 11 12 13           14 15 16 17 ◀─ next offset
                   └── sealed: a map of the .idx file ──┘      └ in memory: one array ┘

Entries of the segment that takes frames now are in memory, 24 bytes each. When it is sealed
they are written to its index file (store.sealed_index) by the background thread, and read
from memory until that is done. A queue that was not touched since the last seal costs 24
bytes. Nothing here is durable by itself: checkpoints save what is new, and recovery hands
the same entries in again.

All calls on the loop's thread, but `write_sealed`.
"""

import logging
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from struct import Struct
from typing import NamedTuple, cast

from cosmodrome_server.errors import CorruptFrame, MessageNotFound, ReadFailed
from cosmodrome_server.store import sealed_index
from cosmodrome_server.store.files import Files
from cosmodrome_server.store.patience import Patience
from cosmodrome_server.store.sealed_index import WORDS, IndexHeader, MappedIndex, Run
from cosmodrome_server.store.segment import SegmentHeader

_log = logging.getLogger(__name__)

_ENTRY = Struct("<QQQ")
# Queues whose sealed runs are remembered; all are forgotten when there are so many.
_CACHED_MAX = 16_384
_NOT_SEALED = -1
_NOT_LOOKED_FOR = -2
_NOWHERE = 1 << 63

# (segment, whether a sector that cannot be read raises OSError) → its entries
Rebuild = Callable[[SegmentHeader, bool], dict[int, Run]]


class NewEntries(NamedTuple):
    """What one queue got since the last checkpoint.

    Attributes:
        key: Of the queue.
        next_offset: Where it ends; 0 if it is gone with its topic.
        base: The offset of the first new entry.
        entries: The new entries, 24 bytes each.
    """

    key: int
    next_offset: int
    base: int
    entries: bytes


def key_of(topic_id: int, queue_id: int) -> int:
    """The key of a queue."""
    return topic_id << 32 | queue_id


class _Queue:
    """A queue touched since the last seal.

    `words` holds the offsets [base, next_offset); those below `saved` are in a checkpoint.
    """

    __slots__ = ("base", "next_offset", "saved", "words")

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self.base = next_offset
        self.saved = next_offset
        self.words = array("Q")


class SealedEntries:
    """The entries of one sealed segment: in memory until they are in a file."""

    def __init__(
        self,
        segment: SegmentHeader,
        last_ms: int,
        oldest_position: int,
        memory: Mapping[int, Run] | None,
    ) -> None:
        self.segment = segment
        self.last_ms = last_ms
        self.oldest_position = oldest_position
        # None: they are in the file.
        self.memory = memory
        self.mapped: sealed_index.MappedIndex | None = None


class ConsumeQueues:
    """The index of one shard.

    Args:
        files: Where index files are.
        directory: Of the shard.
        rebuild: Makes the entries of a segment again, when its index is found damaged.
    """

    def __init__(self, files: Files, directory: Path, rebuild: Rebuild) -> None:
        self._files = files
        self._directory = directory
        self._rebuild = rebuild
        self._patience = Patience()
        self._queues: dict[int, _Queue] = {}
        # Queues not touched since the last seal: sorted keys, and where each ends.
        self._idle_keys = array("Q")
        self._idle_ends = array("Q")
        self._sealed: list[SealedEntries] = []
        self._runs: dict[int, Run] = {}
        # Of each of them the first offset in the sealed segments, once it was looked for.
        self._idle_firsts = array("q")
        self._dropped: list[int] = []
        self._holes_allowed = True
        self._active_base = 0
        # The lowest position in an earlier segment that the active one points to.
        self._oldest_foreign = _NOWHERE

    # Start

    def load(
        self,
        sealed: Iterable[tuple[SegmentHeader, IndexHeader]],
        ends: Mapping[int, int],
        runs: Iterable[tuple[int, int, bytes]],
    ) -> None:
        """Take back what an earlier run of the broker knew.

        Args:
            sealed: The sealed segments before the one that is replayed, in order.
            ends: The next offset of every queue.
            runs: (key, base, entries) of the segment that is replayed, in order.
        """
        self._sealed = [
            SealedEntries(segment, header.last_ms, header.oldest_position, None)
            for segment, header in sealed
        ]
        self._set_idle(ends)
        for key, base, entries in runs:
            if key not in ends:
                continue  # Of a topic deleted since.
            queue = self._queues.get(key)
            if queue is None:
                queue = self._queues[key] = _Queue(base)
            queue.words.frombytes(entries)
            queue.next_offset = queue.saved = base + len(entries) // _ENTRY.size

    def begin(self, base: int) -> None:
        """The segment whose byte 0 is position `base` takes frames from now on."""
        self._active_base = base
        # What a checkpoint knew of it; else there is nothing.
        for queue in self._queues.values():
            self._note_oldest(queue.words)

    def started(self) -> None:
        """Replay is over: from now on offsets have no gaps."""
        self._holes_allowed = False

    # Appending

    def index(
        self, topic_id: int, queue_id: int, queue_offset: int, entry: tuple[int, int, int]
    ) -> None:
        """See `model.log.Log.index`. The hot path of every send."""
        queue = self._queues.get(topic_id << 32 | queue_id)
        if queue is None:
            queue = self._touch(topic_id << 32 | queue_id)
        if queue_offset != queue.next_offset:
            self._fill_hole(queue, queue_offset, entry[2])
        if entry[0] < self._active_base:
            self._oldest_foreign = min(self._oldest_foreign, entry[0])
        queue.words.frombytes(_ENTRY.pack(*entry))
        queue.next_offset = queue_offset + 1

    def index_run(
        self,
        topic_id: int,
        queue_id: int,
        queue_offset: int,
        entries: Sequence[tuple[int, int, int]],
    ) -> None:
        """See `model.log.Log.index_run`."""
        self.index(topic_id, queue_id, queue_offset, entries[0])
        queue = self._queues[topic_id << 32 | queue_id]
        # Behind the first one there is no hole, and all of it lies in the active segment.
        queue.words.extend(array("Q", list(chain.from_iterable(entries[1:]))))
        queue.next_offset = queue_offset + len(entries)

    def _note_oldest(self, words: "array[int]") -> None:
        foreign = [position for position in words[::WORDS] if 0 < position < self._active_base]
        self._oldest_foreign = min([self._oldest_foreign, *foreign])

    def _touch(self, key: int) -> _Queue:
        queue = self._queues[key] = _Queue(self._idle_end(key))
        return queue

    def _idle_end(self, key: int) -> int:
        at = bisect_left(self._idle_keys, key)
        if at < len(self._idle_keys) and self._idle_keys[at] == key:
            return self._idle_ends[at]
        return 0

    def _fill_hole(self, queue: _Queue, queue_offset: int, timestamp_ms: int) -> None:
        """Offsets whose frame was quarantined stay empty; times must not go back."""
        missing = queue_offset - queue.next_offset
        assert self._holes_allowed, f"offset {queue_offset} is not {queue.next_offset}"
        assert missing > 0, f"offset {queue_offset} comes twice, {queue.next_offset} is next"
        queue.words.frombytes(_ENTRY.pack(0, 0, timestamp_ms) * missing)

    def drop(self, topic_id: int) -> None:
        """Forget the queues of a topic."""
        first, end = key_of(topic_id, 0), key_of(topic_id + 1, 0)
        low, high = bisect_left(self._idle_keys, first), bisect_left(self._idle_keys, end)
        touched = [key for key in self._queues if first <= key < end]
        # A checkpoint must forget them too.
        self._dropped += {*self._idle_keys[low:high], *touched}
        for key in touched:
            del self._queues[key]
        for column in (self._idle_keys, self._idle_ends, self._idle_firsts):
            del column[low:high]
        self._runs.clear()

    # Reading

    def max_offset(self, topic_id: int, queue_id: int) -> int:
        """See `model.log.QueueReader.max_offset`."""
        key = topic_id << 32 | queue_id
        queue = self._queues.get(key)
        return self._idle_end(key) if queue is None else queue.next_offset

    def min_offset(self, topic_id: int, queue_id: int) -> int:
        """See `model.log.QueueReader.min_offset`."""
        key = topic_id << 32 | queue_id
        first = self._first_sealed(key) if self._sealed else _NOT_SEALED
        if first != _NOT_SEALED:
            return first
        queue = self._queues.get(key)
        return self._idle_end(key) if queue is None else queue.base

    def _first_sealed(self, key: int) -> int:
        at = bisect_left(self._idle_keys, key)
        if at == len(self._idle_keys) or self._idle_keys[at] != key:
            return _NOT_SEALED  # Its first message came after the last seal.
        if self._idle_firsts[at] == _NOT_LOOKED_FOR:
            self._idle_firsts[at] = self._find_first_sealed(key)
        return self._idle_firsts[at]

    def _find_first_sealed(self, key: int) -> int:
        for sealed in self._sealed:
            run = self._run_in(sealed, key)
            if run is not None:
                return run.base
        return _NOT_SEALED

    def entry(self, topic_id: int, queue_id: int, queue_offset: int) -> tuple[int, int, int]:
        """Position, tag hash and store timestamp of one message.

        Raises:
            MessageNotFound: The offset is not stored.
            CorruptFrame: Its message was lost to corruption.
            ReadFailed: The disk refuses the index now; so do all that read it.
        """
        queue = self._queues.get(topic_id << 32 | queue_id)
        if queue is not None and queue.base <= queue_offset < queue.next_offset:
            # Nearly every read is of the active segment: no run is made for it.
            at, words = WORDS * (queue_offset - queue.base), queue.words
        else:
            run = self._run_of(topic_id << 32 | queue_id, queue_offset)
            if run is None:
                stored = (self.min_offset(topic_id, queue_id), self.max_offset(topic_id, queue_id))
                raise MessageNotFound(
                    f"offset {queue_offset} of queue {queue_id} of topic {topic_id} is not stored: "
                    f"[{stored[0]}, {stored[1]}) is"
                )
            at = run.start + WORDS * (queue_offset - run.base)
            # A map's words read like an array's.
            words = cast("array[int]", run.words)
        position = words[at]
        if not position:
            raise CorruptFrame(
                f"offset {queue_offset} of queue {queue_id} of topic {topic_id} was lost to "
                f"corruption; cosmodrome store check says more"
            )
        return position, words[at + 1], words[at + 2]

    def entries(
        self, topic_id: int, queue_id: int, start: int, end: int
    ) -> list[tuple[int, int, int] | None]:
        """The entries of [start, end); None where there is none."""
        queue = self._queues.get(topic_id << 32 | queue_id)
        if queue is not None and queue.base <= start and end <= queue.next_offset:
            words = iter(queue.words[WORDS * (start - queue.base) : WORDS * (end - queue.base)])
            return [entry if entry[0] else None for entry in zip(words, words, words, strict=True)]
        found: list[tuple[int, int, int] | None] = []
        for queue_offset in range(start, end):
            try:
                found.append(self.entry(topic_id, queue_id, queue_offset))
            except (CorruptFrame, MessageNotFound):
                found.append(None)
        return found

    def timestamp(self, topic_id: int, queue_id: int, queue_offset: int) -> int:
        """See `model.log.QueueReader.timestamp`."""
        return self.entry(topic_id, queue_id, queue_offset)[2]

    def tag_hashes(self, topic_id: int, queue_id: int, start: int, end: int) -> Sequence[int]:
        """See `model.log.QueueReader.tag_hashes`."""
        key = topic_id << 32 | queue_id
        found: list[int] = []
        while start < end:
            run = self._run_of(key, start)
            if run is None:
                raise MessageNotFound(f"offset {start} of queue {queue_id} is not stored")
            stop = min(end, run.end)
            first = run.start + WORDS * (start - run.base)
            last = run.start + WORDS * (stop - run.base)
            tags = run.words[first + 1 : last + 1 : WORDS].tolist()
            found = found + tags if found else tags
            start = stop
        return found

    def offset_at(self, topic_id: int, queue_id: int, timestamp_ms: int) -> int:
        """See `model.log.QueueReader.offset_at`."""
        key = topic_id << 32 | queue_id
        first = bisect_left(self._sealed, timestamp_ms, key=lambda sealed: sealed.last_ms)
        for sealed in self._sealed[first:]:
            run = self._run_in(sealed, key)
            if run is not None and run.time(run.end - 1) >= timestamp_ms:
                return run.first_at(timestamp_ms)
        queue = self._queues.get(key)
        if queue is None:
            return self._idle_end(key)
        return Run(queue.base, queue.next_offset, queue.words, 0).first_at(timestamp_ms)

    def runs(self, topic_id: int, queue_id: int, start: int, end: int) -> Iterator[Run]:
        """The stored parts of [start, end), in order; their words must be copied at once."""
        key = topic_id << 32 | queue_id
        while start < end:
            run = self._run_of(key, start)
            if run is None:
                return
            stop = min(end, run.end)
            yield Run(start, stop, run.words, run.start + WORDS * (start - run.base))
            start = stop

    def sealed_runs(self, topic_id: int, queue_id: int) -> Iterator[tuple[SegmentHeader, Run]]:
        """The segments whose index file holds offsets of a queue, in order."""
        for sealed in self._sealed:
            run = self._run_in(sealed, topic_id << 32 | queue_id)
            if run is not None and sealed.memory is None:
                yield sealed.segment, run

    def _run_of(self, key: int, queue_offset: int) -> Run | None:
        queue = self._queues.get(key)
        if queue is not None and queue_offset >= queue.base:
            if queue_offset >= queue.next_offset:
                return None
            return Run(queue.base, queue.next_offset, queue.words, 0)
        run = self._runs.get(key)
        if run is not None and run.base <= queue_offset < run.end:
            return run
        run = self._search(key, queue_offset)
        if run is not None:
            if len(self._runs) >= _CACHED_MAX:
                self._runs.clear()
            self._runs[key] = run
        return run

    def _search(self, key: int, queue_offset: int) -> Run | None:
        """Halve the sealed segments; where one does not know the queue, ask the next."""
        low, high = 0, len(self._sealed)
        while low < high:
            middle = probe = (low + high) // 2
            run = None
            while probe < high and run is None:
                run = self._run_in(self._sealed[probe], key)
                probe += 1
            if run is None or queue_offset < run.base:
                high = middle
            elif queue_offset < run.end:
                return run
            else:
                low = probe
        return None

    def _run_in(self, sealed: SealedEntries, key: int) -> Run | None:
        memory = sealed.memory
        if memory is not None:
            return memory.get(key)
        if sealed.mapped is None:
            opened = self._open_sealed(sealed.segment)
            if isinstance(opened, dict):
                sealed.memory = opened
                return opened.get(key)
            sealed.mapped = opened
        return sealed.mapped.run(key)

    def _open_sealed(self, segment: SegmentHeader) -> MappedIndex | dict[int, Run]:
        """The index of a sealed segment: its file or, if that is no good, made again.

        Raises:
            ReadFailed: The disk refuses it, or the segment, now.
        """
        is_strict = True
        try:
            try:
                return sealed_index.open_index(self._files, self._directory, segment)
            except (FileNotFoundError, CorruptFrame) as error:
                _log.exception("index_damaged segment=%d error=%s", segment.number, error)
                return self._rebuild(segment, is_strict)
        except OSError as error:
            what = f"the index of segment {segment.number}"
            refusal = self._patience.refused(segment.number, what, error)
            if isinstance(refusal, ReadFailed):
                raise refusal from error
            _log.exception("index_unreadable segment=%d; made again", segment.number)
            return self._rebuild(segment, not is_strict)

    # Sealing, checkpoints, retention

    def seal(self, segment: SegmentHeader, ended_ms: int) -> SealedEntries:
        """The active segment takes no more frames; `write_sealed` takes what is returned."""
        # Without an entry it may still hold delayed messages: as old as its last frame.
        memory = {
            key: Run(queue.base, queue.next_offset, queue.words, 0)
            for key, queue in self._queues.items()
            if queue.words
        }
        last_ms = max((run.time(run.end - 1) for run in memory.values()), default=ended_ms)
        last_ms = max(last_ms, self._sealed[-1].last_ms if self._sealed else 0)
        oldest = min(self._oldest_foreign, self._active_base)
        self._sealed.append(sealed := SealedEntries(segment, last_ms, oldest, memory))
        # The next checkpoint must know where a queue ends, though not its entries.
        unsaved = [key for key, queue in self._queues.items() if queue.saved < queue.next_offset]
        self._set_idle(self.ends())
        self._queues = {}
        for key in unsaved:
            self._touch(key).saved -= 1
        self._oldest_foreign = _NOWHERE
        return sealed

    def _set_idle(self, ends: Mapping[int, int]) -> None:
        keys = sorted(ends)
        self._idle_keys = array("Q", keys)
        self._idle_ends = array("Q", [ends[key] for key in keys])
        self._idle_firsts = array("q", [_NOT_LOOKED_FOR]) * len(self._idle_keys)

    def write_sealed(self, sealed: SealedEntries) -> None:
        """Write the index file of a sealed segment; in the background thread.

        Raises:
            OSError: It is not written; the entries stay in memory.
        """
        memory = sealed.memory
        if memory is not None:
            bounds = (sealed.last_ms, sealed.oldest_position)
            sealed_index.write(self._files, self._directory, sealed.segment, memory, bounds)
            # Readers look at `memory` first and then at the file.
            sealed.memory = None

    def ends(self) -> dict[int, int]:
        """The next offset of every queue."""
        ends = dict(zip(self._idle_keys, self._idle_ends, strict=True))
        ends.update((key, queue.next_offset) for key, queue in self._queues.items())
        return ends

    def take_new(self) -> list[NewEntries]:
        """What a checkpoint must save; taking it marks it saved."""
        found = [NewEntries(key, 0, 0, b"") for key in self._dropped]
        self._dropped.clear()
        for key, queue in self._queues.items():
            if queue.saved < queue.next_offset:
                base = max(queue.saved, queue.base)
                words = queue.words[WORDS * (base - queue.base) :]
                found.append(NewEntries(key, queue.next_offset, base, words.tobytes()))
                queue.saved = queue.next_offset
        return found

    def sealed_bounds(self) -> list[tuple[int, int, int]]:
        """(segment number, latest time, oldest position pointed to) of each, oldest first."""
        return [(s.segment.number, s.last_ms, s.oldest_position) for s in self._sealed]

    @property
    def oldest_foreign_position(self) -> int:
        """The lowest position before the active segment that its entries point to."""
        return self._oldest_foreign

    def forget_before(self, number: int) -> None:
        """Retention took the segments before `number`."""
        self._sealed = [sealed for sealed in self._sealed if sealed.segment.number >= number]
        self._runs.clear()
        self._idle_firsts = array("q", [_NOT_LOOKED_FOR]) * len(self._idle_keys)
