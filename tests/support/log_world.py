"""A small state machine on a `CommitLog` on a `FaultyFiles`: what crash tests drive.

The state is as simple as it can be and still need everything the log promises: queues of
messages, and counters that records change, kept as rows. `World.state()` is one value that is
equal for equal states; a test remembers it for every frame and compares after a crash.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from cosmodrome_server.errors import CorruptFrame, MessageNotFound
from cosmodrome_server.model.log import (
    END_TRANSACTION_HEAD,
    MessageRecord,
    MessageState,
    RecordKind,
    Replayed,
    ReplayedDeliveries,
    ReplayedItem,
    ReplayedRow,
    ReplayedRun,
)
from cosmodrome_server.store.commit_log import CommitLog
from cosmodrome_server.store.group_commit import Durability
from cosmodrome_server.store.platform import LogOptions, Platform
from cosmodrome_server.store.segment import path_of
from tests.support.faulty_files import FaultyFiles
from tests.support.inline_worker import InlineWorker
from tests.support.memory_checkpoints import MemoryCheckpoints

DIRECTORY = Path("/data/shard-0000")
SMALL = LogOptions(
    segment_bytes=8_192,
    reserve_bytes=2_048,
    staged_bytes_max=1 << 20,
    retention_ms=0,
    scrub_bytes_s=0,
)
State = tuple[tuple[object, ...], ...]


class SteadyClock:
    """A clock that a test sets."""

    def __init__(self, now_ms: int = 1_790_000_000_000) -> None:
        self.time_ms = now_ms

    def now_ms(self) -> int:
        """See `Clock`."""
        return self.time_ms

    def monotonic_ms(self) -> int:
        """See `Clock`."""
        return self.time_ms


def message(topic_id: int, queue_id: int, queue_offset: int, body: bytes) -> MessageRecord:
    """A visible message."""
    return MessageRecord(
        MessageState.VISIBLE, topic_id, queue_id, queue_offset, 7, 1_000 + queue_offset, 0,
        b"\x1a\x02id", b"", body,
    )  # fmt: skip


@dataclass
class World:
    """A log and the state it carries.

    Attributes:
        disk: The files.
        checkpoints: Kept beside them.
        options: Of the log.
        acked_lsn: The last frame whose durability was announced.
        failed: Errors announced by the writer.
    """

    disk: FaultyFiles = field(default_factory=FaultyFiles)
    checkpoints: MemoryCheckpoints = field(default_factory=MemoryCheckpoints)
    options: LogOptions = SMALL
    clock: SteadyClock = field(default_factory=SteadyClock)
    acked_lsn: int = 0
    failed: list[Exception] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.writer, self.background = InlineWorker(), InlineWorker()
        self.counters: dict[bytes, int] = {}
        self.halves: dict[bytes, int] = {}
        self._dirty: set[bytes] = set()
        self._salts = Random(20)
        platform = Platform(
            self.disk, self.clock, self.checkpoints, self.writer, self.background, self._salt
        )
        self.log = CommitLog(DIRECTORY, self.options, platform)
        self.log.set_on_failed(self.failed.append)
        for key, value in self.log.rows():
            self._restore(key, int.from_bytes(value, "little"))
        for record in self.log.replay():
            self._apply(record)
        self.log.set_snapshot(self.rows)

    def _salt(self, length: int) -> bytes:
        return self._salts.randbytes(length)

    # The state machine

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """All of the state."""
        for key, value in [*self.counters.items(), *self.halves.items()]:
            yield key, value.to_bytes(8, "little")

    def _restore(self, key: bytes, value: int) -> None:
        (self.halves if key.startswith(b"half") else self.counters)[key] = value

    def _apply(self, record: ReplayedItem) -> None:
        if isinstance(record, ReplayedRow):
            return  # this world knows it
        if isinstance(record, ReplayedRun):
            self.log.index_run(*record[:4])
            return
        assert not isinstance(record, ReplayedDeliveries), "acks of this world are too short"
        if record.message is not None:
            self._index(record.message, record.position)
        elif record.kind is RecordKind.ACK:
            self.counters[record.payload] = self.counters.get(record.payload, 0) + 1
            self._dirty.add(record.payload)
        elif record.kind is RecordKind.END_TRANSACTION:
            _, position, _, _, _, queue_offset, _, is_commit = END_TRANSACTION_HEAD.unpack_from(
                record.payload
            )
            name = record.payload[END_TRANSACTION_HEAD.size :]
            self.halves.pop(name, None)
            self._dirty.add(name)
            if is_commit:
                self.log.index(2, 0, queue_offset, (position, 9, 5_000))

    def _index(self, record: MessageRecord, position: int) -> None:
        if record.state is MessageState.HALF:
            self.halves[b"half" + record.body[:8]] = position
            self._dirty.add(b"half" + record.body[:8])
            return
        entry = (position, record.tag_hash, record.store_timestamp_ms)
        self.log.index(record.topic_id, record.queue_id, record.queue_offset, entry)

    # Verbs

    def send(self, queue_id: int, body: bytes) -> None:
        """Stage a message for a queue of topic 1."""
        record = message(1, queue_id, self.log.max_offset(1, queue_id), body)
        self._index(record, self.log.stage_message(record))

    def send_half(self, body: bytes) -> None:
        """Stage a half message; its name is the first 8 bytes of its body."""
        record = message(2, 0, 0, body)
        record.state = MessageState.HALF
        self._index(record, self.log.stage_message(record))

    def end(self, name: bytes) -> None:
        """Stage the commit of a half message."""
        place = (2, 0, self.log.max_offset(2, 0))
        head = END_TRANSACTION_HEAD.pack(0, self.halves[b"half" + name], 5_000, *place, 9, True)
        self._stage(RecordKind.END_TRANSACTION, head + b"half" + name)

    def roll_back(self, name: bytes) -> None:
        """Stage the rollback of a half message."""
        head = END_TRANSACTION_HEAD.pack(0, 0, 5_000, 2, 0, 0, 9, False)
        self._stage(RecordKind.END_TRANSACTION, head + b"half" + name)

    def ack(self, key: bytes) -> None:
        """Stage a record that counts."""
        self._stage(RecordKind.ACK, key)

    def _stage(self, kind: RecordKind, payload: bytes) -> None:
        position = self.log.stage(kind, payload)
        self._apply(Replayed(kind, position, 0, payload, None))

    def commit(self) -> int:
        """Commit; return the frame's number."""
        lsn = self.log.open_lsn

        def durable() -> None:
            self.acked_lsn = lsn

        self.log.commit(durable)
        return lsn

    def checkpoint(self) -> None:
        """Save a checkpoint of the state."""
        changed: list[tuple[bytes, bytes | None]] = []
        for key in sorted(self._dirty):
            value = self.halves.get(key) if key.startswith(b"half") else self.counters.get(key)
            changed.append((key, None if value is None else value.to_bytes(8, "little")))
        self._dirty.clear()
        self.log.checkpoint(changed, self.log.open_lsn - 1)

    def random_step(self, random: Random) -> int:
        """Do something and commit it; return the frame's number."""
        for _ in range(random.randint(1, 4)):
            choice = random.random()
            name = b"%08d" % random.randrange(40)
            if choice < 0.6:
                self.send(random.randrange(3), random.randbytes(random.randint(1, 700)))
            elif choice < 0.8:
                self.ack(b"counter-%d" % random.randrange(5))
            elif choice < 0.9:
                self.send_half(name + random.randbytes(random.randint(0, 100)))
            elif self.halves:
                self.end(random.choice(sorted(self.halves))[4:])
            else:
                self.ack(b"nothing")
        lsn = self.commit()
        if random.random() < 0.1:
            self.checkpoint()
        return lsn

    # Looking

    def segment_path(self, number: int) -> Path:
        """Where a segment lies."""
        (header,) = (each for each in self.log.segments() if each.number == number)
        return path_of(DIRECTORY, header)

    def messages(self, topic_id: int, queue_id: int) -> list[tuple[int, bytes | None]]:
        """(offset, body) of all that is stored; None for a body that is lost."""
        found: list[tuple[int, bytes | None]] = []
        start = self.log.min_offset(topic_id, queue_id)
        for offset in range(start, self.log.max_offset(topic_id, queue_id)):
            try:
                found.append((offset, self.log.read(topic_id, queue_id, offset).body))
            except (CorruptFrame, MessageNotFound):
                found.append((offset, None))
        return found

    def oldest_half(self) -> int:
        """The position retention must leave."""
        return min(self.halves.values(), default=1 << 62)

    def state(self) -> State:
        """Equal for equal states."""
        queues = [(1, 0), (1, 1), (1, 2), (2, 0)]
        return (
            tuple(sorted(self.counters.items())),
            tuple(sorted(self.halves)),
            *(tuple(self.messages(*queue)) for queue in queues),
        )

    # Ends

    def power_cut(self, random: Random) -> "World":
        """The world of the next start after a power cut."""
        return self._again(self.disk.power_cut(random))

    def killed(self) -> "World":
        """The world of the next start after the process was killed."""
        return self._again(self.disk.killed())

    def _again(self, disk: FaultyFiles) -> "World":
        return World(disk, self.checkpoints.copy(), self.options, SteadyClock(self.clock.time_ms))


INTERVAL = LogOptions(Durability(is_synced=False, interval_ms=50), 8_192, 2_048, 1 << 20, 0, 0, 0)
