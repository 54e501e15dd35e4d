"""A `Log` that keeps everything in memory: what tests of `core` and `broker` stand on.

It passes the conformance suite of the real one (tests/server/store/test_log_conformance.py).
By default a commit is durable at once. With `holding = True` frames wait, as if the writer
were busy, until `release()`; `crashed()` gives the log that the next start would find.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from cosmodrome_server.errors import CorruptFrame, MessageNotFound, StoreFailed, StoreFull
from cosmodrome_server.model.log import (
    KeptLonger,
    LogTail,
    MessageRecord,
    MessageState,
    RecordKind,
    Replayed,
)

Row = tuple[bytes, bytes]


class MemoryLog:
    """See the module.

    Attributes:
        holding: Commits wait for `release`.
        is_full: `stage_message` raises StoreFull.
        now_ms: The time of the frames; set it as the test's clock goes.
        rows_saved: The rows of the last checkpoint.
    """

    def __init__(self, frames: Sequence[list[Replayed]] = (), first_lsn: int = 1) -> None:
        self.holding = False
        self.is_full = False
        self.now_ms = 0
        self.rows_saved: dict[bytes, bytes] = {}
        self.damages: list[str] = []
        self._frames = list(frames)
        self._checkpoint_lsn = 0
        self._entries_saved: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        self._open: list[Replayed] = []
        self._open_lsn = len(self._frames) + first_lsn
        self._durable_lsn = self._open_lsn - 1
        self._queues: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        self._trimmed: dict[tuple[int, int], int] = {}
        self._messages: dict[int, MessageRecord] = {
            record.position: record.message
            for frame in self._frames
            for record in frame
            if record.message is not None
        }
        self._next_position = 64 + sum(
            _length(record.message) for frame in self._frames for record in frame
        )
        self._held: Callable[[], None] | None = None
        self._on_idle: Callable[[], None] = lambda: None
        self._on_failed: Callable[[Exception], None] = lambda _: None
        self._failure: Exception | None = None
        self._is_replaying = False
        self._waiting_checkpoint: Callable[[], None] = lambda: None

    # Start

    def rows(self) -> Iterable[Row]:
        """See `Log`."""
        for queue, entries in self._entries_saved.items():
            self._queues[queue] = list(entries)
        return list(self.rows_saved.items())

    def replay(self) -> Iterator[Replayed]:
        """See `Log`."""
        self._is_replaying = True
        for frame in self._frames[self._checkpoint_lsn :]:
            yield from frame
        self._is_replaying = False

    # Writing

    def stage_message(self, record: MessageRecord) -> int:
        """See `Log`."""
        self._check_alive()
        if self.is_full:
            raise StoreFull("no space for messages: the test says so")
        position = self._stage(RecordKind.MESSAGE, b"", msgspec.structs.replace(record))
        self._messages[position] = msgspec.structs.replace(record)
        return position

    def stage_messages(self, records: Sequence[MessageRecord]) -> list[int]:
        """See `Log`."""
        return [self.stage_message(record) for record in records]

    def stage(self, kind: RecordKind, payload: bytes) -> int:
        """See `Log`."""
        self._check_alive()
        return self._stage(kind, bytes(payload), None)

    def _stage(self, kind: RecordKind, payload: bytes, message: MessageRecord | None) -> int:
        position = self._next_position
        self._next_position += _length(message)
        self._open.append(Replayed(kind, position, self.now_ms, payload, message))
        return position

    def index(
        self, topic_id: int, queue_id: int, queue_offset: int, entry: tuple[int, int, int]
    ) -> None:
        """See `Log`."""
        entries = self._queues.setdefault((topic_id, queue_id), [])
        if self._is_replaying:
            # As in the real one: lost offsets are as old as what follows.
            entries.extend([(0, 0, entry[2])] * (queue_offset - len(entries)))
        assert queue_offset == len(entries), f"{queue_offset=}, the queue ends at {len(entries)}"
        entries.append(entry)

    def index_run(
        self,
        topic_id: int,
        queue_id: int,
        queue_offset: int,
        entries: Sequence[tuple[int, int, int]],
    ) -> None:
        """See `Log`."""
        for at, entry in enumerate(entries, queue_offset):
            self.index(topic_id, queue_id, at, entry)

    def pass_over(self, topic_id: int, queue_id: int, queue_offset: int, timestamp_ms: int) -> None:
        """See `Log`."""
        entries = self._queues.setdefault((topic_id, queue_id), [])
        entries.extend([(0, 0, timestamp_ms)] * (queue_offset - len(entries)))

    def drop_queues(self, topic_id: int) -> None:
        """See `Log`."""
        for queue in [queue for queue in self._queues if queue[0] == topic_id]:
            del self._queues[queue]

    # Committing

    @property
    def open_lsn(self) -> int:
        """See `Log`."""
        return self._open_lsn

    @property
    def end_position(self) -> int:
        """See `Log`."""
        return self._next_position

    @property
    def durable_lsn(self) -> int:
        """See `Log`."""
        return self._durable_lsn

    @property
    def synced_lsn(self) -> int:
        """See `Log`."""
        return self._durable_lsn

    @property
    def has_staged(self) -> bool:
        """See `Log`."""
        return bool(self._open)

    def commit(self, on_durable: Callable[[], None]) -> bool:
        """See `Log`."""
        if self._failure is not None or self._held is not None:
            return False
        frame, self._open = self._open, []
        self._open_lsn += 1

        def become_durable() -> None:
            self._frames.append(frame)
            self._durable_lsn += 1
            self._waiting_checkpoint()
            self._waiting_checkpoint = lambda: None
            on_durable()

        if self.holding:
            self._held = become_durable
        else:
            become_durable()
            self._on_idle()
        return True

    def positions(self) -> list[int]:
        """Where messages lie, in their order."""
        return list(self._messages)

    def release(self) -> None:
        """Let the frame that is being written become durable."""
        if self._held is not None:
            held, self._held = self._held, None
            held()
            self._on_idle()

    def fail(self, error: Exception) -> None:
        """Let the writer fail: what is not durable never will be."""
        self._failure, self._held = error, None
        self._on_failed(error)

    def set_on_idle(self, callback: Callable[[], None]) -> None:
        """See `Log`."""
        self._on_idle = callback

    def set_on_failed(self, callback: Callable[[Exception], None]) -> None:
        """See `Log`."""
        self._on_failed = callback

    @property
    def tail(self) -> LogTail:
        """See `Log`; nobody waits for a start from memory."""
        return LogTail(0, 0)

    def checkpoint(self, rows: Iterable[tuple[bytes, bytes | None]], lsn: int) -> None:
        """See `Log`."""
        assert not self.has_staged, "a checkpoint reflects whole frames"
        assert lsn == self._open_lsn - 1, "the state reflects the frame given last"
        saved = list(rows)
        entries = {queue: list(held) for queue, held in self._queues.items()}
        if lsn > self._durable_lsn:
            self._waiting_checkpoint = lambda: self._save(saved, entries, lsn)
        else:
            self._save(saved, entries, lsn)

    def _save(
        self,
        rows: list[tuple[bytes, bytes | None]],
        entries: dict[tuple[int, int], list[tuple[int, int, int]]],
        lsn: int,
    ) -> None:
        for key, value in rows:
            if value is None:
                self.rows_saved.pop(key, None)
            else:
                self.rows_saved[key] = value
        self._checkpoint_lsn = lsn
        self._entries_saved = entries

    def set_snapshot(self, snapshot: Callable[[], Iterable[Row]]) -> None:
        """See `Log`; a memory log has one segment."""

    def retain(self, now_ms: int, floor_position: int, longer: Iterable[KeptLonger] = ()) -> int:
        """See `Log`; tests say with `trim` what retention takes."""
        return 0

    def close(self) -> None:
        """See `Log`."""
        self.release()
        if self._open and self._failure is None:
            self.holding = False
            self.commit(lambda: None)

    def crashed(self) -> "MemoryLog":
        """The log that a process started now would find: durable frames only."""
        log = MemoryLog(self._frames)
        log.now_ms = self.now_ms
        log.rows_saved = dict(self.rows_saved)
        log._checkpoint_lsn = self._checkpoint_lsn
        log._entries_saved = {queue: list(held) for queue, held in self._entries_saved.items()}
        log._trimmed = dict(self._trimmed)
        return log

    @property
    def frames(self) -> list[list[Replayed]]:
        """What is durable, frame by frame."""
        return list(self._frames)

    def forget_messages(self) -> None:
        """Let retention take every message stored so far; queues keep their numbers."""
        self._messages.clear()

    def forget_checkpoint(self) -> None:
        """Lose the checkpoint: the next start replays everything."""
        self.rows_saved.clear()
        self._checkpoint_lsn = 0
        self._entries_saved.clear()

    # Reading

    def trim(self, topic_id: int, queue_id: int, min_offset: int) -> None:
        """Let retention take what lies before an offset."""
        self._trimmed[topic_id, queue_id] = min_offset

    def min_offset(self, topic_id: int, queue_id: int) -> int:
        """See `Log`."""
        return self._trimmed.get((topic_id, queue_id), 0)

    def max_offset(self, topic_id: int, queue_id: int) -> int:
        """See `Log`."""
        return len(self._queues.get((topic_id, queue_id), ()))

    def tag_hashes(self, topic_id: int, queue_id: int, start: int, end: int) -> Sequence[int]:
        """See `Log`."""
        return [entry[1] for entry in self._queues.get((topic_id, queue_id), [])[start:end]]

    def timestamp(self, topic_id: int, queue_id: int, queue_offset: int) -> int:
        """See `Log`."""
        return self._place(topic_id, queue_id, queue_offset)[2]

    def offset_at(self, topic_id: int, queue_id: int, timestamp_ms: int) -> int:
        """See `Log`."""
        entries = self._queues.get((topic_id, queue_id), [])
        start = self.min_offset(topic_id, queue_id)
        return bisect_left(entries, timestamp_ms, lo=start, key=lambda entry: entry[2])

    def read(self, topic_id: int, queue_id: int, queue_offset: int) -> MessageRecord:
        """See `Log`."""
        position, tag_hash, timestamp_ms = self._entry(topic_id, queue_id, queue_offset)
        record = self.read_position(position)
        if record.state is MessageState.VISIBLE:
            return record
        return msgspec.structs.replace(
            record,
            topic_id=topic_id,
            queue_id=queue_id,
            queue_offset=queue_offset,
            tag_hash=tag_hash,
            store_timestamp_ms=timestamp_ms,
        )

    def read_many(
        self, topic_id: int, queue_id: int, start: int, end: int
    ) -> list[MessageRecord | None]:
        """See `Log`."""
        found: list[MessageRecord | None] = []
        for queue_offset in range(start, end):
            try:
                found.append(self.read(topic_id, queue_id, queue_offset))
            except (CorruptFrame, MessageNotFound):
                found.append(None)
        return found

    def read_position(self, position: int) -> MessageRecord:
        """See `Log`."""
        record = self._messages.get(position)
        if record is None:
            raise MessageNotFound(f"no message at log position {position}")
        return record

    def position(self, topic_id: int, queue_id: int, queue_offset: int) -> int:
        """See `Log`."""
        return self._entry(topic_id, queue_id, queue_offset)[0]

    def _entry(self, topic_id: int, queue_id: int, queue_offset: int) -> tuple[int, int, int]:
        entry = self._place(topic_id, queue_id, queue_offset)
        if not entry[0]:
            raise CorruptFrame(f"offset {queue_offset} of queue {queue_id} was lost")
        return entry

    def _place(self, topic_id: int, queue_id: int, queue_offset: int) -> tuple[int, int, int]:
        entries = self._queues.get((topic_id, queue_id), [])
        if not self.min_offset(topic_id, queue_id) <= queue_offset < len(entries):
            raise MessageNotFound(f"no message at offset {queue_offset} of queue {queue_id}")
        return entries[queue_offset]

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise StoreFailed(f"an earlier write failed: {self._failure}")


def _length(message: MessageRecord | None) -> int:
    """What a record takes of the log: bodies, and little else."""
    return 1 if message is None else 1 + len(message.body)
