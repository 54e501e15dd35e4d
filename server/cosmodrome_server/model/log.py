"""The seam between the broker and its storage: a durable log, its index, and small rows.

The log knows frames, positions and the message record; every other record is opaque
bytes to it (kind + payload) whose meaning `core` owns. One frame is one group commit.

    broker ── stage_message / stage ──▶ open frame ── commit ──▶ writer thread ──▶ disk
    core.apply ── index ──▶ consume queue: (topic, queue, offset) → position, tag hash, time
    start: rows of the last checkpoint, then every record after it, in order

Positions. A position is a u64 that names a record for as long as its segment lives:
segment number << 32 | byte offset. It is known when the record is staged, so that the
core can apply the record at once; nothing leaves before its frame is durable.

Rows. The core's state is a set of (key, value) rows, both bytes. A checkpoint writes the
rows that changed; every segment begins with all of them (SNAPSHOT records), so that the
log alone rebuilds everything and the checkpoint may be deleted.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from struct import Struct
from typing import NamedTuple, Protocol

import msgspec

# How END_TRANSACTION begins: at · position · store time · topic · queue · queue offset · tag hash ·
# is commit. The core's record, but a commit gives a message its place in the log's index.
END_TRANSACTION_HEAD = Struct("<QQQIIQI?")

# How POP and ACK begin, with the head of a state record before it: length · kind · at · group ·
# topic · queue · lease · queue offset. It is all of an ACK. The core's records, but a start reads
# hundreds of thousands of them: where one ends and what it says is read at one look.
DELIVERY_HEAD = Struct("<IBQIIIQQ")
DeliveryHead = tuple[int, int, int, int, int, int, int, int]

# Position, tag hash and store timestamp of a message: what the index keeps of it.
IndexEntry = tuple[int, int, int]


class RecordKind(IntEnum):
    """What a record says. Numbers are stable: they are on disk."""

    MESSAGE = 1  # a message with its place; the one record the log itself reads
    POP = 2
    ACK = 3
    CHANGE_INVISIBLE = 4
    DEAD_LETTER = 5
    COMMIT_OFFSET = 6
    RESET_OFFSET = 7
    END_TRANSACTION = 8
    TRANSACTION_CHECK = 9
    TIMER_FIRE = 10
    RECALL = 11
    TOPIC = 12
    TOPIC_DELETED = 13
    GROUP = 14
    GROUP_DELETED = 15
    KEEP = 16
    SNAPSHOT_ROW = 17
    SNAPSHOT_END = 18
    EXPIRE = 19
    RENEW = 21
    QUEUE_ENDS = 22  # the log's own, at the start of a segment: the next offset of each queue
    ACK_MANY = 23


class MessageState(IntEnum):
    """Why a message record is there. Numbers are stable: they are on disk."""

    VISIBLE = 0  # indexed at once
    HALF = 1  # waits for END_TRANSACTION
    DELAYED = 2  # waits for its delivery time


class MessageRecord(msgspec.Struct, gc=False):
    """A message with its place, as it is written.

    Attributes:
        state: Visible, half or delayed.
        topic_id: The number the topic got when it was created.
        queue_id: Its message queue.
        queue_offset: Its place there; 0 for half and delayed messages.
        tag_hash: Java's string hash of the tag, as unsigned 32 bits; 0 for no tag.
        store_timestamp_ms: The broker's clock, never behind an earlier record's.
        due_ms: Delivery time (delayed) or first check (half); else 0.
        system, user, body: See `model.message`.
    """

    state: MessageState
    topic_id: int
    queue_id: int
    queue_offset: int
    tag_hash: int
    store_timestamp_ms: int
    due_ms: int
    system: bytes
    user: bytes
    body: bytes


class Replayed(NamedTuple):
    """One record found at start; a tuple, because a start makes millions of them.

    Attributes:
        kind: What it says.
        position: Where it lies.
        timestamp_ms: The time of its frame.
        payload: The bytes given to `stage`; empty for MESSAGE.
        message: For MESSAGE; `body` may be left empty by the log.
    """

    kind: RecordKind
    position: int
    timestamp_ms: int
    payload: bytes
    message: MessageRecord | None


class ReplayedRun(NamedTuple):
    """Visible messages of one queue, one after the other, found at start.

    Attributes:
        topic_id: The number of their topic.
        queue_id: Their message queue.
        queue_offset: Of the first; the others follow without a gap.
        entries: Position, tag hash and store timestamp of each; at least one.
        timestamp_ms: The time of their frame.
    """

    topic_id: int
    queue_id: int
    queue_offset: int
    entries: list[IndexEntry]
    timestamp_ms: int


class ReplayedDeliveries(NamedTuple):
    """Pops and acknowledgements, one after the other, found at start.

    Attributes:
        heads: A `DELIVERY_HEAD` of each; at least one.
        tails: What follows the head, of each pop.
        timestamp_ms: The time of their frame.
    """

    heads: list[DeliveryHead]
    tails: list[bytes]
    timestamp_ms: int


class ReplayedRow(NamedTuple):
    """One row of a snapshot that stands in the log behind what `Log.rows` gave.

    Records and the rows before say the same but for the time that passed without a record.

    Attributes:
        key, value: As given to `Log.set_snapshot`.
        timestamp_ms: The time of their frame.
    """

    key: bytes
    value: bytes
    timestamp_ms: int


ReplayedItem = Replayed | ReplayedRun | ReplayedDeliveries | ReplayedRow


class Loaded(Protocol):
    """The delayed messages of one hour: columns in the order of due time and position."""

    @property
    def due_ms(self) -> Sequence[int]:
        """When each is due."""

    @property
    def positions(self) -> Sequence[int]:
        """Where the log has, or had, each."""

    @property
    def starts(self) -> Sequence[int]:
        """Where the bucket has each; for `DelayedStore.read`."""


class DelayedStore(Protocol):
    """Copies of delayed messages by the hour; all calls block, one at a time, in any thread."""

    @property
    def is_kept(self) -> bool:
        """Whether copies are kept at all; else retention has to leave the originals."""

    def hours(self) -> list[int]:
        """The hours that have copies, in order."""

    def append(self, delayed: Iterable[tuple[int, int, MessageRecord]]) -> None:
        """Add (due ms, log position, message); durable after `sync`.

        Raises:
            StoreFull: There is no space; nothing else is wrong.
            OSError: The disk fails.
        """

    def sync(self) -> None:
        """Return when everything appended is durable; raises OSError."""

    def load(self, hour: int) -> Loaded:
        """What is due in an hour; raises OSError."""

    def read(self, hour: int, start: int) -> MessageRecord:
        """One message; raises CorruptFrame."""

    def delete(self, hour: int) -> None:
        """Remove the copies of an hour, if there are any; raises OSError."""

    def close(self) -> None:
        """Make everything durable and release it; raises OSError."""


class QueueReader(Protocol):
    """Reading queues; what `core` needs of the log to filter and to deliver."""

    def min_offset(self, topic_id: int, queue_id: int) -> int:
        """The first offset still stored; the next offset of a queue whose messages are all gone."""

    def max_offset(self, topic_id: int, queue_id: int) -> int:
        """One past the last indexed offset."""

    def tag_hashes(self, topic_id: int, queue_id: int, start: int, end: int) -> Sequence[int]:
        """The tag hashes of [start, end), which must lie inside the queue."""

    def timestamp(self, topic_id: int, queue_id: int, queue_offset: int) -> int:
        """The store timestamp of one message, in milliseconds.

        Of an offset that was lost to corruption, that of the next message.

        Raises:
            MessageNotFound: Retention took it, or it is not stored yet.
            ReadFailed: The disk refuses the index now.
        """

    def offset_at(self, topic_id: int, queue_id: int, timestamp_ms: int) -> int:
        """The first offset stored at or after a time; the next offset if all are older."""

    def read(self, topic_id: int, queue_id: int, queue_offset: int) -> MessageRecord:
        """Read one message, its checksum verified.

        Raises:
            CorruptFrame: Its bytes are damaged; the messages around it are not.
            MessageNotFound: Retention took it, or the offset was quarantined.
        """

    def read_many(
        self, topic_id: int, queue_id: int, start: int, end: int
    ) -> list[MessageRecord | None]:
        """Read the messages of [start, end), each verified as by `read`.

        None stands for one for which `read` raises CorruptFrame or MessageNotFound: the others
        are read all the same.

        Raises:
            ReadFailed: The disk refuses one of them now; none is returned.
        """

    def read_position(self, position: int) -> MessageRecord:
        """Read the message record at a position; raises as `read`."""

    def position(self, topic_id: int, queue_id: int, queue_offset: int) -> int:
        """Where a message lies in the log; raises MessageNotFound."""


class KeptLonger(NamedTuple):
    """A topic that asks for its messages to be kept for longer than the log does.

    Attributes:
        topic_id: The number of the topic.
        queues: How many it has.
        retention_ms: How long.
    """

    topic_id: int
    queues: int
    retention_ms: int


class LogTail(NamedTuple):
    """What a start after a crash would replay, because no checkpoint has it.

    Attributes:
        records: How many.
        bytes: Of the frames they are in.
    """

    records: int
    bytes: int

    def longer(self, records: int, length: int) -> "LogTail":
        """With one more frame."""
        return LogTail(self.records + records, self.bytes + length)


class Log(QueueReader, Protocol):
    """The durable log of one shard. All calls on the loop's thread unless said otherwise."""

    def replay(self) -> Iterator[ReplayedItem]:
        """At start, once, after `rows`: every record after the checkpoint, in order.

        So do the rows of snapshots, each where it was taken.

        Visible messages, pops and acknowledgements come one by one or as runs: in the order of
        each queue, and of all others. The caller applies each before it takes the next (and so
        calls `index`, `index_run` and `drop_queues`).
        """

    def rows(self) -> Iterable[tuple[bytes, bytes]]:
        """At start, once, first: the rows of the last checkpoint."""

    @property
    def damages(self) -> Sequence[object]:
        """What `replay` found damaged, and passed over."""

    def stage_message(self, record: MessageRecord) -> int:
        """Put a message into the open frame; return its position.

        Raises:
            StoreFull: No space for messages (state records are still taken).
            StoreFailed: A write failed earlier; nothing is taken any more.
            OverloadedError: More bytes wait to be written than the setting allows.
        """

    def stage_messages(self, records: Sequence[MessageRecord]) -> list[int]:
        """Put messages into the open frame, all of them or none; raises as `stage_message`."""

    def stage(self, kind: RecordKind, payload: bytes) -> int:
        """Put a state record into the open frame; return its position.

        Raises:
            StoreFull: Even the space kept for state records is used up.
            StoreFailed: A write failed earlier; nothing is taken any more.
        """

    def index(
        self, topic_id: int, queue_id: int, queue_offset: int, entry: tuple[int, int, int]
    ) -> None:
        """Append one offset to a queue: entry = (position, tag hash, store timestamp).

        `queue_offset` must be `max_offset`. Called by `apply`, live and in replay.
        """

    def index_run(
        self,
        topic_id: int,
        queue_id: int,
        queue_offset: int,
        entries: Sequence[tuple[int, int, int]],
    ) -> None:
        """`index` for neighbours of the segment that takes frames, or is replayed; at least one."""

    def pass_over(self, topic_id: int, queue_id: int, queue_offset: int, timestamp_ms: int) -> None:
        """At start, after `replay`: a queue goes on at an offset, if it does not lie behind it.

        Messages before it were lost to corruption; they are as old as `timestamp_ms`.
        """

    def drop_queues(self, topic_id: int) -> None:
        """Forget the queues of a deleted topic."""

    @property
    def open_lsn(self) -> int:
        """The number of the frame that takes records now."""

    @property
    def end_position(self) -> int:
        """Where the next record goes, or a little before; nothing lies from there on."""

    @property
    def durable_lsn(self) -> int:
        """The number of the last frame known to be on disk (as the durability mode means it)."""

    @property
    def synced_lsn(self) -> int:
        """The number of the last frame that no power cut takes back, whatever the mode."""

    @property
    def has_staged(self) -> bool:
        """Whether the open frame holds anything."""

    def commit(self, on_durable: Callable[[], None]) -> bool:
        """Give the open frame to the writer, if the writer is free.

        `on_durable` is called by the writer thread right after the frame is on disk: it
        first schedules the loop's part, then hands over replies. When the writer is busy
        nothing happens and False is returned; `on_idle` says when to try again.
        """

    def set_on_idle(self, callback: Callable[[], None]) -> None:
        """Say what the writer thread calls when it is free again (before it sleeps)."""

    def set_on_failed(self, callback: Callable[[Exception], None]) -> None:
        """Say what the writer thread calls once, when a write or fsync failed (fail-stop)."""

    @property
    def tail(self) -> LogTail:
        """What was committed since the last call of `checkpoint`."""

    def checkpoint(self, rows: Iterable[tuple[bytes, bytes | None]], lsn: int) -> None:
        """Write changed rows (None deletes) with the LSN they reflect; in a thread of the log.

        Called when nothing is staged: the rows reflect every frame up to `open_lsn` - 1. They
        are written once that frame is durable.
        """

    def set_snapshot(self, snapshot: Callable[[], Iterable[tuple[bytes, bytes]]]) -> None:
        """Say how to get all rows when a new segment begins."""

    def retain(self, now_ms: int, floor_position: int, longer: Iterable[KeptLonger] = ()) -> int:
        """Let go of segments that are too old or too many; return how many.

        Args:
            now_ms: The log's time.
            floor_position: The oldest position the core still needs; heeded once nothing that
                this rests on can be lost in a power cut.
            longer: Topics whose messages may be older, where there is space for them; read only
                if something is old.
        """

    def close(self) -> None:
        """Write what is staged, wait for it, write a clean-stop mark, release the lock."""
