"""Queue offset → log position, tag hash and time, for every queue of the shard.

    queue (7, 0)   ┌ segment 3 ┐┌── segment 4 ──┐            ┌─ segment 6 (active) ─┐
    offsets        0 1 2 3 4 5 6 7 8 9 10 11 12 13           14 15 16 17 ◀─ next offset
                   └ sealed: store.sealed_entries ┘            └ in memory: one array ┘

Entries of the segment that takes frames now are in memory, 24 bytes each. When it is sealed
they are written to its index file by the background thread, and read from memory until that
is done. Some thousand queues are awake: those touched last, and long ones. The others are at
rest (store.queue_columns), until a message comes for them; to be read they need not wake.

Nothing here is durable by itself: checkpoints save what is new, and recovery hands the same
entries in again. All calls on the loop's thread, but `write_sealed`.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from struct import Struct
from typing import cast

from cosmodrome_server.errors import CorruptFrame, MessageNotFound
from cosmodrome_server.model.log import RecordKind, Replayed
from cosmodrome_server.store.files import Files
from cosmodrome_server.store.queue_columns import (
    ENTRIES_MAX,
    UNKNOWN,
    NewEntries,
    QueueColumns,
    RestingQueue,
)
from cosmodrome_server.store.record import decode_queue_ends
from cosmodrome_server.store.sealed_entries import (
    MemoryEntries,
    Rebuild,
    SealedEntries,
    SealedSegments,
)
from cosmodrome_server.store.sealed_index import WORDS, IndexHeader, Run
from cosmodrome_server.store.segment import SegmentHeader

_ENTRY = Struct("<QQQ")
_NOWHERE = 1 << 63
# Queues that are awake, without the long ones.
_AWAKE_MAX = 4_096
# Lost offsets that are read as one run.
_HOLE_MAX = 4_096


def key_of(topic_id: int, queue_id: int) -> int:
    """The key of a queue."""
    return topic_id << 32 | queue_id


class _Queue:
    """An awake queue.

    `words` holds the offsets [base, next_offset); those below `saved` are in a checkpoint.
    """

    __slots__ = ("base", "first", "next_offset", "saved", "words")

    def __init__(self, queue: RestingQueue) -> None:
        self.next_offset, unsaved, self.first, self.words = queue
        self.base = self.next_offset - len(self.words) // WORDS
        self.saved = self.next_offset - unsaved

    @property
    def run(self) -> Run:
        """Its entries."""
        return Run(self.base, self.next_offset, self.words, 0)

    def at_rest(self) -> RestingQueue:
        """The inverse of making it."""
        return RestingQueue(self.next_offset, self.next_offset - self.saved, self.first, self.words)

    def begin_segment(self) -> None:
        """What it held is sealed."""
        self.base = self.next_offset
        self.first = UNKNOWN
        self.words = array("Q")


class ConsumeQueues:
    """The index of one shard.

    Args:
        files: Where index files are.
        directory: Of the shard.
        rebuild: Makes the entries of a segment again, when its index is found damaged.
        awake_max: How many queues are awake, without the long ones.
    """

    def __init__(
        self, files: Files, directory: Path, rebuild: Rebuild, awake_max: int = _AWAKE_MAX
    ) -> None:
        # Each queue is in one of them.
        self._queues: dict[int, _Queue] = {}
        self._resting = QueueColumns()
        self._sealed = SealedSegments(files, directory, rebuild)
        self._awake_max = self._lay_at = awake_max
        # No queue that was ever awake has a number as high.
        self._queue_ids = 0
        self._dropped = array("Q")
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
        *,
        is_saved: bool = True,
    ) -> None:
        """Take back what an earlier run of the broker knew.

        Args:
            sealed: The sealed segments before the one that is replayed, in order.
            ends: The next offset of every queue.
            runs: (key, base, entries) of the segment that is replayed, in order.
            is_saved: Whether all this is from a checkpoint; else the next one must save it.
        """
        self._sealed.load(sealed)
        self._resting = QueueColumns.of(ends, is_saved=is_saved)
        for key, base, entries in runs:
            if key not in ends:
                continue  # Of a topic deleted since.
            end = base + len(entries) // _ENTRY.size
            queue = self._queues.get(key)
            if queue is None:
                if self._resting.append(key, end, entries):
                    continue
                queue = self._wake(key)
            if not queue.words:
                queue.base = base
            queue.words.frombytes(entries)
            queue.next_offset = queue.saved = end

    def begin(self, base: int) -> None:
        """The segment whose byte 0 is position `base` takes frames from now on."""
        self._active_base = base
        # What a checkpoint knew of it; else there is nothing.
        for queue in self._queues.values():
            self._note_oldest(queue.words)
        for words in self._resting.entry_words():
            self._note_oldest(words)

    def started(self) -> None:
        """Replay is over: from now on offsets have no gaps."""
        self._holes_allowed = False

    def last_ms(self) -> int:
        """No message is of a later time; 0 if there is none."""
        sealed = self._sealed.bounds()[-1:]
        active = MemoryEntries(self._awake_runs(), self._resting)
        return max([active.last_ms(), *(last_ms for _, last_ms, _ in sealed)])

    def _awake_runs(self) -> dict[int, Run]:
        return {key: queue.run for key, queue in self._queues.items() if queue.words}

    # Appending

    def index(
        self, topic_id: int, queue_id: int, queue_offset: int, entry: tuple[int, int, int]
    ) -> None:
        """See `model.log.Log.index`. The hot path of every send."""
        queue = self._queues.get(topic_id << 32 | queue_id)
        if queue is None:
            queue = self._wake(topic_id << 32 | queue_id)
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

    def pass_over(self, topic_id: int, queue_id: int, queue_offset: int, timestamp_ms: int) -> None:
        """See `model.log.Log.pass_over`."""
        if queue_offset > self.max_offset(topic_id, queue_id):
            queue = self._queues.get(key_of(topic_id, queue_id))
            if queue is None:
                queue = self._wake(key_of(topic_id, queue_id))
            missing = queue_offset - queue.next_offset
            queue.words.frombytes(_ENTRY.pack(0, 0, timestamp_ms) * missing)
            queue.next_offset = queue_offset

    def pass_snapshot(self, record: Replayed) -> None:
        """In replay, after damage: a snapshot knows where queues ended, whatever was lost.

        The next start may begin there, and what came since must not lie before that.
        """
        if record.kind is RecordKind.QUEUE_ENDS:
            for key, end in decode_queue_ends(record.payload).items():
                self.pass_over(key >> 32, key & 0xFFFFFFFF, end, record.timestamp_ms)

    def _note_oldest(self, words: "array[int]") -> None:
        foreign = [position for position in words[::WORDS] if 0 < position < self._active_base]
        self._oldest_foreign = min([self._oldest_foreign, *foreign])

    def _wake(self, key: int) -> _Queue:
        if len(self._queues) >= self._lay_at:
            self._lay_down()
        resting = self._resting.take(key)
        if resting is None:
            resting = RestingQueue(0, 0, UNKNOWN, array("Q"))
        queue = self._queues[key] = _Queue(resting)
        self._queue_ids = max(self._queue_ids, (key & 0xFFFFFFFF) + 1)
        return queue

    def _lay_down(self) -> None:
        """Let those rest that woke first, but for the long."""
        found, long = [], 0
        for key, queue in self._queues.items():
            if len(queue.words) > WORDS * ENTRIES_MAX:
                long += 1
            else:
                found.append(key)
                if len(found) > self._awake_max // 16:
                    break
        for key in found:
            self._resting.lay(key, self._queues.pop(key).at_rest())
        self._lay_at = self._awake_max + long

    def _fill_hole(self, queue: _Queue, queue_offset: int, timestamp_ms: int) -> None:
        """Offsets whose frame was quarantined stay empty; times must not go back."""
        missing = queue_offset - queue.next_offset
        assert self._holes_allowed, f"offset {queue_offset} is not {queue.next_offset}"
        if missing < 0:
            # A frame was given up, its offsets were given anew, and now it can be read again:
            # what was stored since counts.
            queue.base = min(queue.base, queue_offset)
            del queue.words[WORDS * (queue_offset - queue.base) :]
            queue.saved = min(queue.saved, queue_offset)
            return
        queue.words.frombytes(_ENTRY.pack(0, 0, timestamp_ms) * missing)

    def drop(self, topic_id: int) -> None:
        """Forget the queues of a topic."""
        first, end = key_of(topic_id, 0), key_of(topic_id + 1, 0)
        # Thousands of topics of one queue may go at once, and thousands of queues be awake.
        keys: Iterable[int] = range(first, first + self._queue_ids)
        if self._queue_ids > len(self._queues):
            keys = list(self._queues)
        awake = [key for key in keys if first <= key < end and key in self._queues]
        for key in awake:
            del self._queues[key]
        dropped = self._resting.drop(first, end)
        dropped.extend(awake)
        self._sealed.forget_runs(dropped)
        # A checkpoint must forget them too.
        self._dropped.extend(dropped)

    # Reading

    def max_offset(self, topic_id: int, queue_id: int) -> int:
        """See `model.log.QueueReader.max_offset`."""
        key = topic_id << 32 | queue_id
        queue = self._queues.get(key)
        return self._resting.end(key) if queue is None else queue.next_offset

    def min_offset(self, topic_id: int, queue_id: int) -> int:
        """See `model.log.QueueReader.min_offset`."""
        key = topic_id << 32 | queue_id
        queue = self._queues.get(key)
        if queue is None:
            return self._resting.first(key, self._sealed.first_offset)
        if not queue.base:
            return 0
        if queue.first == UNKNOWN:
            first = self._sealed.first_offset(key)
            queue.first = queue.base if first is None else first
        return queue.first

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
                raise self._not_stored(topic_id, queue_id, queue_offset)
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

    def _not_stored(self, topic_id: int, queue_id: int, queue_offset: int) -> MessageNotFound:
        stored = (self.min_offset(topic_id, queue_id), self.max_offset(topic_id, queue_id))
        return MessageNotFound(
            f"offset {queue_offset} of queue {queue_id} of topic {topic_id} is not stored: "
            f"[{stored[0]}, {stored[1]}) is"
        )

    def positions(self, topic_id: int, queue_id: int, start: int, end: int) -> list[int]:
        """Where the messages of [start, end) lie; 0 where there is none."""
        key = topic_id << 32 | queue_id
        queue = self._queues.get(key)
        if queue is not None and queue.base <= start and end <= queue.next_offset:
            at, stop = WORDS * (start - queue.base), WORDS * (end - queue.base)
            return queue.words[at:stop:WORDS].tolist()
        run = self._run_of(key, start)
        if run is not None and end <= run.end:
            at = run.start + WORDS * (start - run.base)
            return run.words[at : at + WORDS * (end - start) : WORDS].tolist()
        positions: list[int] = []
        for queue_offset in range(start, end):
            try:
                positions.append(self.entry(topic_id, queue_id, queue_offset)[0])
            except (CorruptFrame, MessageNotFound):
                positions.append(0)
        return positions

    def timestamp(self, topic_id: int, queue_id: int, queue_offset: int) -> int:
        """See `model.log.QueueReader.timestamp`."""
        run = self._run_of(topic_id << 32 | queue_id, queue_offset)
        if run is None:
            raise self._not_stored(topic_id, queue_id, queue_offset)
        return run.time(queue_offset)

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
        found = self._sealed.offset_at(key, timestamp_ms)
        if found is not None:
            return found
        queue = self._queues.get(key)
        run = self._resting.get(key) if queue is None else queue.run
        return self.max_offset(topic_id, queue_id) if run is None else run.first_at(timestamp_ms)

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
        return self._sealed.in_files(topic_id << 32 | queue_id)

    def _run_of(self, key: int, queue_offset: int) -> Run | None:
        queue = self._queues.get(key)
        if queue is not None and queue_offset >= queue.base:
            return queue.run if queue_offset < queue.next_offset else None
        run = self._sealed.known_run(key, queue_offset)
        if run is None and queue is None:
            run = self._resting.get(key)
            if run is not None and not run.base <= queue_offset < run.end:
                run = None
        return run or self._sealed.run_of(key, queue_offset) or self._hole(key, queue_offset)

    def _hole(self, key: int, queue_offset: int) -> Run | None:
        """Lost offsets up to the next one there is, as old as that; None if nothing was lost.

        The index of a segment may be lost together with the frame that says what lay in it.
        """
        topic_id, queue_id = key >> 32, key & 0xFFFFFFFF
        if not self.min_offset(topic_id, queue_id) <= queue_offset:
            return None
        if queue_offset >= self.max_offset(topic_id, queue_id):
            return None
        queue = self._queues.get(key)
        active = self._resting.get(key) if queue is None else queue.run
        following = self._sealed.following(key, queue_offset) or active
        if following is None or following.base == following.end:
            return None
        lost = array("Q", (0, 0, following.time(following.base)))
        end = min(following.base, queue_offset + _HOLE_MAX)
        return Run(queue_offset, end, lost * (end - queue_offset), 0)

    # Sealing, checkpoints, retention

    def seal(self, segment: SegmentHeader, ended_ms: int) -> SealedEntries:
        """The active segment takes no more frames; `write_sealed` takes what is returned."""
        memory = MemoryEntries(self._awake_runs(), self._resting.seal())
        for queue in self._queues.values():
            queue.begin_segment()
        oldest = min(self._oldest_foreign, self._active_base)
        self._oldest_foreign = _NOWHERE
        return self._sealed.seal(segment, memory, ended_ms, oldest)

    def write_sealed(self, sealed: SealedEntries) -> None:
        """Write the index file of a sealed segment; in the background thread.

        Raises:
            OSError: It is not written; the entries stay in memory.
        """
        self._sealed.write(sealed)

    def ends(self) -> Iterator[tuple["array[int]", "array[int]"]]:
        """(keys, next offsets) of all queues, in parts."""
        awake = self._queues.values()
        yield array("Q", self._queues), array("Q", [queue.next_offset for queue in awake])
        yield from self._resting.ends()

    def take_new(self) -> list[Iterable[NewEntries]]:
        """What a checkpoint must save, in parts; taking it marks it saved."""
        gone = [NewEntries(key, 0, 0, b"") for key in self._dropped]
        self._dropped = array("Q")
        awake = []
        for key, queue in self._queues.items():
            if queue.saved < queue.next_offset:
                base = max(queue.saved, queue.base)
                words = queue.words[WORDS * (base - queue.base) :]
                awake.append(NewEntries(key, queue.next_offset, base, words.tobytes()))
                queue.saved = queue.next_offset
        return [gone, awake, *self._resting.take_unsaved()]

    def sealed_bounds(self) -> list[tuple[int, int, int]]:
        """(segment number, latest time, oldest position pointed to) of each, oldest first."""
        return self._sealed.bounds()

    def sealed_ms(self, number: int, key: int) -> int:
        """When the last message of a queue in a sealed segment was stored; 0 for none."""
        return self._sealed.last_ms(number, key)

    @property
    def oldest_foreign_position(self) -> int:
        """The lowest position before the active segment that its entries point to."""
        return self._oldest_foreign

    def forget_before(self, number: int) -> None:
        """Retention took the segments before `number`."""
        self._sealed.forget_before(number)
        self._resting.forget_firsts()
        for queue in self._queues.values():
            queue.first = UNKNOWN
