"""The durable log of one shard: `model.log.Log` on a local directory.

    data/LOCK                     one process at a time
    data/shard-0000/
      0000000042-….seg            frames of records (store.segment, store.frame, store.record)
      0000000042.idx              its consume queues, once it takes no more frames
      state.db                    checkpoint: derived, may be deleted
      spare-7, reserve            disk space taken in advance (store.space)
      timer/                      delayed messages by the hour (store.timer_bucket)

    stage ─▶ open frame ─commit─▶ FrameWriter (its thread) ─▶ durable
                 │ full segment: the next one begins with a snapshot of the state
                 └▶ seal, checkpoint, space, retention: Background (its thread)

Life: `rows`, `replay` to its end, `set_snapshot`, then everything else. All calls on the
loop's thread. A staged record must not be changed by its caller: it is read from memory for
as long as it is recent.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path

import msgspec

from cosmodrome_server.errors import OverloadedError, StoreFailed, StoreFull
from cosmodrome_server.model.log import (
    KeptLonger,
    LogTail,
    MessageRecord,
    RecordKind,
    Replayed,
    ReplayedItem,
)
from cosmodrome_server.store import segment
from cosmodrome_server.store.background import Background, Changes
from cosmodrome_server.store.checkpoint import Mark
from cosmodrome_server.store.consume_queue import ConsumeQueues
from cosmodrome_server.store.frame import HEADER_BYTES as FRAME_HEADER_BYTES
from cosmodrome_server.store.group_commit import Frame, FrameWriter
from cosmodrome_server.store.made_index import entries_of
from cosmodrome_server.store.message_reader import MessageReader, place_run, placed
from cosmodrome_server.store.platform import LogOptions, Platform
from cosmodrome_server.store.ranges import Ranges
from cosmodrome_server.store.recent import RecentMessages
from cosmodrome_server.store.record import (
    STATE_HEAD_BYTES,
    decode_runs,
    encode_message,
    encode_messages,
    encode_queue_ends,
    encode_snapshot,
    pack_state_head,
)
from cosmodrome_server.store.recovery import Damage, Replay, find_beginning, mend_tail
from cosmodrome_server.store.retention import Limits, Retention, paths_of
from cosmodrome_server.store.scrubber import Scrubber
from cosmodrome_server.store.sealed_index import Run
from cosmodrome_server.store.segment import OFFSET_BITS, OFFSET_MASK, Segment, SegmentHeader
from cosmodrome_server.store.space import Space, Spare

_log = logging.getLogger(__name__)

Row = tuple[bytes, bytes]

# A frame rarely needs more: a segment ends when less than this is left of it.
_LAST_BYTES = 256 * 1024
# What a message leaves: the state record that goes with it must never be what finds no space. The
# longest is the mark of a batch of the pipeline (proxy.bulk.staging), whose job has a long name.
_BEHIND_BYTES = 2_048
_SNAPSHOT_AT = segment.HEADER_BYTES + FRAME_HEADER_BYTES
_TICK_S = 1.0
_OF_THE_LOG = frozenset((RecordKind.SNAPSHOT_END, RecordKind.QUEUE_ENDS))


class CommitLog:
    """See the module, and `model.log.Log`.

    Args:
        directory: Of the shard; it exists.
        options: See there.
        platform: See there.
        unlock: Called at the end of `close`.

    Attributes:
        damages: What recovery found wrong.
        scrubber: What the background found wrong.
        tail: See `Log`.
    """

    def __init__(
        self,
        directory: Path,
        options: LogOptions,
        platform: Platform,
        unlock: Callable[[], None] = lambda: None,
    ) -> None:
        self._directory = directory
        self._options = options
        self._platform = platform
        self._unlock = unlock
        files = platform.files
        self._queues = ConsumeQueues(files, directory, self._entries_of)
        self._space = Space(files, directory, options.segment_bytes, options.reserve_bytes)
        self._writer = FrameWriter(
            platform.writer, files, directory, options.durability, platform.clock
        )
        self._beginning = find_beginning(
            files, directory, platform.checkpoints, is_strict=not options.reads_around_bad_sectors
        )
        self._reader = MessageReader(files, directory, self._beginning.segments)
        self.ranges = Ranges(self._queues, self._reader, files, directory)
        self._retention = Retention(platform.clock, self._reader, self._queues)
        self.scrubber = Scrubber(files, directory, platform.clock, self.segments)
        self._background = Background(
            self._queues,
            platform.checkpoints,
            self._writer,
            self._space,
            self.scrubber,
            options.scrub_bytes_s,
        )
        self._recent = RecentMessages()
        self._snapshot: Callable[[], Iterable[Row]] | None = None
        self._unsaved = Changes()
        self._timestamp_ms = 0
        self._is_closed = False
        self.damages: list[Damage] = []
        self.tail = LogTail(0, 0)
        # The open frame.
        self._segment: Segment
        self._pending_spare: Path | None = None
        self._roll_at = self._spare_at = 0
        self._start = 0
        self._position = 0
        self._parts: list[bytes] = []
        self._records = 0
        self._snapshot_records = 0
        self._open_lsn = 0
        self._message_limit = self._state_limit = -1
        # The index is asked for every message: no call in between.
        self.index, self.index_run = self._queues.index, self._queues.index_run
        self.drop_queues, self.pass_over = self._queues.drop, self._queues.pass_over
        self.min_offset, self.max_offset = self._queues.min_offset, self._queues.max_offset
        self.tag_hashes, self.timestamp = self._queues.tag_hashes, self._queues.timestamp
        self.offset_at = self._queues.offset_at
        self.set_on_idle = self._writer.set_on_idle

    # Start

    def rows(self) -> Iterable[Row]:
        """See `Log.rows`."""
        beginning = self._beginning
        # What is taken back here is not needed twice.
        self._beginning = msgspec.structs.replace(beginning, rows=[], ends={}, entries=[])
        ends, is_saved = beginning.ends, beginning.is_checkpoint
        self._queues.load(beginning.indexes, ends, beginning.entries, is_saved=is_saved)
        if not is_saved:
            # The first checkpoint of a log without one must hold everything.
            self._unsaved.rows.extend(beginning.rows)
        return beginning.rows

    def replay(self) -> Iterator[ReplayedItem]:
        """See `Log.replay`."""
        is_strict = not self._options.reads_around_bad_sectors
        replay = Replay(self._platform.files, self._directory, self._beginning, is_strict=is_strict)
        self.damages = replay.damages
        current: SegmentHeader | None = None
        ended_ms = 0
        for header, found in replay.frames():
            if found is None:
                if current is not None:
                    self._background.seal(self._queues.seal(current, ended_ms))
                current = header
                self._queues.begin(header.number << segment.OFFSET_BITS)
                continue
            self.tail = self.tail.longer(found.header.records, found.end - found.start)
            ended_ms = found.header.timestamp_ms
            first = header.number << segment.OFFSET_BITS | found.start + FRAME_HEADER_BYTES
            for record in decode_runs(found.payload, first, found.header.timestamp_ms):
                if not isinstance(record, Replayed) or record.kind not in _OF_THE_LOG:
                    yield record
                elif self.damages:
                    self._queues.pass_snapshot(record)
        ending = replay.ending
        assert ending is not None, "replay ends with an ending"
        self._queues.started()
        self._writer.begin(ending.lsn)
        self._open_lsn = ending.lsn + 1
        # After a clean stop no frame says how late it was.
        self._timestamp_ms = max(ending.timestamp_ms, self._queues.last_ms())
        if current is None:
            self._begin_segment(self._space.first(), encode_snapshot(b"", ()))
        else:
            mend_tail(self._platform.files, self._directory, current, ending)
            file = self._reader.file(current.number)
            self._set_segment(Segment(current, file, current.seed, *[file.size()] * 2))
            self._begin_frame(ending.offset)
        self._platform.background.every(_TICK_S, self._background.tick)

    # Writing

    def stage_message(self, record: MessageRecord) -> int:
        """See `Log.stage_message`. The hot path of every send."""
        head, front, body = encode_message(record)
        length = len(head) + len(front) + len(body)
        if self._position + length > self._message_limit:
            self._make_room(length, is_message=True)
        position = self._position
        self._position = position + length
        self._parts += (head, front, body)
        self._records += 1
        self._recent.messages[position] = record
        return position

    def stage_messages(self, records: Sequence[MessageRecord]) -> list[int]:
        """See `Log.stage_messages`."""
        if len(records) == 1:
            return [self.stage_message(records[0])]
        parts, lengths = encode_messages(records)
        length = sum(lengths)
        # Refused here, or every one of them fits.
        if self._position + length > self._message_limit:
            self._make_room(length, is_message=True)
        positions = list(accumulate(lengths, initial=self._position))
        self._position = positions.pop()
        self._parts += parts
        self._records += len(records)
        self._recent.messages.update(zip(positions, records, strict=True))
        return positions

    def stage(self, kind: RecordKind, payload: bytes) -> int:
        """See `Log.stage`."""
        length = STATE_HEAD_BYTES + len(payload)
        if self._position + length > self._state_limit:
            self._make_room(length, is_message=False)
        position = self._position
        self._position = position + length
        self._parts += (pack_state_head(length, kind), payload)
        self._records += 1
        return position

    @property
    def open_lsn(self) -> int:
        """See `Log`."""
        return self._open_lsn

    @property
    def end_position(self) -> int:
        """See `Log`."""
        return self._position

    @property
    def durable_lsn(self) -> int:
        """See `Log`."""
        return self._writer.durable_lsn

    @property
    def synced_lsn(self) -> int:
        """See `Log`."""
        return self._writer.synced_lsn

    @property
    def has_staged(self) -> bool:
        """See `Log`."""
        return self._records > self._snapshot_records

    @property
    def staged_bytes(self) -> int:
        """Bytes that wait for the disk."""
        return (self._position & OFFSET_MASK) - self._start + self._writer.bytes_writing

    @property
    def is_full(self) -> bool:
        """Whether messages are refused for want of space."""
        return self._space.is_full

    def commit(self, on_durable: Callable[[], None]) -> bool:
        """See `Log.commit`."""
        if not self._writer.is_free:
            return False
        self._timestamp_ms = max(self._timestamp_ms, self._platform.clock.now_ms())
        end = self._position & OFFSET_MASK
        frame = Frame(
            self._segment,
            self._start,
            self._parts,
            end - self._start - FRAME_HEADER_BYTES,
            self._records,
            self._open_lsn,
            self._timestamp_ms,
            self._pending_spare,
            on_durable,
        )
        self._recent.end_frame(frame.length)
        self._pending_spare = None
        self.tail = self.tail.longer(self._records, frame.length)
        self._open_lsn += 1
        self._begin_frame(end, bytes_writing=frame.length)
        self._writer.write(frame)
        if self._start >= self._spare_at:
            self._spare_at = 1 << OFFSET_BITS
            self._platform.background.submit(self._space.prepare)
        if self._start >= self._roll_at and not self.has_staged:
            self._roll()
        return True

    def set_on_failed(self, callback: Callable[[Exception], None]) -> None:
        """See `Log`."""

        def failed(error: Exception) -> None:
            self._message_limit = self._state_limit = -1
            callback(error)

        self._writer.set_on_failed(failed)

    def set_snapshot(self, snapshot: Callable[[], Iterable[Row]]) -> None:
        """See `Log`."""
        self._snapshot = snapshot

    def checkpoint(self, rows: Iterable[tuple[bytes, bytes | None]], lsn: int) -> None:
        """See `Log.checkpoint`."""
        assert not self.has_staged, "a checkpoint reflects whole frames"
        assert lsn == self._open_lsn - 1, f"the state reflects frame {self._open_lsn - 1}"
        self._unsaved.rows.extend(rows)
        if self._pending_spare is not None:
            return  # A new segment is not on the disk yet: with the next one.
        self.tail = LogTail(0, 0)
        mark = Mark(lsn, self._segment.base + self._start, 0, self._segment.header.salt)
        self._unsaved.entries += self._queues.take_new()
        changes, self._unsaved = self._unsaved, Changes()
        changes.mark = mark
        save = partial(self._background.checkpoint, changes)
        self._writer.when_durable(lsn, partial(self._platform.background.submit, save))

    def segments(self) -> list[SegmentHeader]:
        """Who the segments are, oldest first; the last one takes frames."""
        return self._reader.segments()

    def retain(
        self, now_ms: int, floor_position: int = 1 << 63, longer: Iterable[KeptLonger] = ()
    ) -> int:
        """See `Log.retain`."""
        lsn, floor = self._open_lsn - (not self.has_staged), min(floor_position, self._segment.base)
        floor = self._retention.floor_on_disk(lsn, floor, self._writer.synced_lsn)
        first = segment.segment_of(min(floor, self.ranges.pinned_position(now_ms)))
        before_ms = self._retention.before_ms(now_ms, self._options.retention_ms)
        limits = Limits(before_ms, self._options.retention_bytes, first)
        # The snapshot that rebuilds the state without what goes is on the disk before it goes.
        if self._writer.synced_lsn < self._segment.header.first_lsn:
            return 0
        gone = self._retention.take(self._segment, limits, self._retention.kept(now_ms, longer))
        for paths in (paths_of(self._directory, header) for header in gone):
            self._platform.background.submit(partial(self._background.remove, *paths))
        return len(gone)

    def close(self) -> None:
        """See `Log.close`."""
        if self._is_closed:
            return
        self._is_closed = True
        self._writer.drain()
        if self.has_staged and self._writer.is_free:
            self.commit(lambda: None)
            self._writer.drain()
        self._platform.writer.close()
        self._platform.background.submit(self._background.close)
        self._platform.background.close()
        self._reader.close()
        self._unlock()

    # Reading

    def read(self, topic_id: int, queue_id: int, queue_offset: int) -> MessageRecord:
        """See `Log.read`. Messages of the last few MiB come from memory."""
        entry = self._queues.entry(topic_id, queue_id, queue_offset)
        position = entry[0]
        # Mostly it came a moment ago: no call for that.
        record = self._recent.messages.get(position) or self.read_position(position)
        return placed(record, (topic_id, queue_id, queue_offset), entry)

    def read_many(
        self, topic_id: int, queue_id: int, start: int, end: int
    ) -> list[MessageRecord | None]:
        """See `Log.read_many`."""
        positions = self._queues.positions(topic_id, queue_id, start, end)
        found = self._recent.find(positions)
        if not all(found):
            pairs = list(zip(positions, found, strict=True))
            read = self._reader.read_many([at for at, record in pairs if record is None and at])
            found = [record or read.get(at) for at, record in pairs]
        place_run(found, (topic_id, queue_id, start), self._queues.entry)
        return found

    def read_position(self, position: int) -> MessageRecord:
        """See `Log.read_position`."""
        record = self._recent.get(position)
        return self._reader.read(position) if record is None else record

    def position(self, topic_id: int, queue_id: int, queue_offset: int) -> int:
        """See `Log.position`."""
        return self._queues.entry(topic_id, queue_id, queue_offset)[0]

    def _entries_of(self, header: SegmentHeader, is_strict: bool) -> dict[int, Run]:  # noqa: FBT001  # a callback
        return entries_of(self._platform.files, self._directory, header, is_strict=is_strict)

    # Segments

    def _begin_frame(self, start: int, bytes_writing: int = 0) -> None:
        """The open frame begins at byte `start` of the segment, empty."""
        self._start = start
        self._position = self._segment.base + start + FRAME_HEADER_BYTES
        self._parts = []
        self._records = self._snapshot_records = 0
        self._set_limits(bytes_writing)

    def _set_limits(self, bytes_writing: int) -> None:
        """Positions up to which records are taken without a second look."""
        base = self._segment.base
        staged_max = self._start + max(0, self._options.staged_bytes_max - bytes_writing)
        self._state_limit = base + self._segment.capacity
        self._message_limit = base + min(self._segment.message_capacity - _BEHIND_BYTES, staged_max)
        if self._writer.failure is not None:
            self._message_limit = self._state_limit = -1

    def _make_room(self, length: int, *, is_message: bool) -> None:
        """A record does not fit below the limit: find out why, make room or refuse."""
        if self._writer.failure is not None:
            raise StoreFailed(f"an earlier write failed, the broker stops: {self._writer.failure}")
        assert not self._is_closed, "the log is closed"
        waiting = self.staged_bytes + length
        if is_message and self.has_staged and waiting > self._options.staged_bytes_max:
            raise OverloadedError(
                f"{waiting} bytes wait for the disk, store.staged_mib allows "
                f"{self._options.staged_bytes_max}",
                "store.staged_mib",
            )
        if not self._fits(length, is_message=is_message) and not self.has_staged:
            self._roll()
        if not self._fits(length, is_message=is_message):
            end = (self._position & OFFSET_MASK) + length + _BEHIND_BYTES * is_message
            if (is_message and self._space.is_full) or not self._space.extend(
                self._segment, end, may_use_reserve=not is_message
            ):
                raise StoreFull("the disk is full: messages are refused until there is space")
        self._set_limits(self._writer.bytes_writing)
        # The bound of staged bytes was checked above, and one large message always fits it.
        self._message_limit = max(self._message_limit, self._position + length)

    def _fits(self, length: int, *, is_message: bool) -> bool:
        """Whether a record fits into the disk space the segment has."""
        end, active = (self._position & OFFSET_MASK) + length, self._segment
        return end <= (active.message_capacity - _BEHIND_BYTES if is_message else active.capacity)

    def _set_segment(self, active: Segment) -> None:
        self._segment = active
        self._reader.add(active.header, active.file)
        self._spare_at = active.capacity // 2
        self._roll_at = max(
            min(self._options.segment_bytes, active.capacity) - _LAST_BYTES, active.capacity // 2
        )

    def _roll(self) -> bool:
        """Begin the next segment, if everything it needs is there; the open frame is empty."""
        if self._snapshot is None or self._pending_spare is not None:
            return False
        spare = self._space.take_spare()
        if spare is None:
            return False
        snapshot = encode_snapshot(encode_queue_ends(self._queues.ends()), self._snapshot())
        if not self._space.enlarge(spare, _SNAPSHOT_AT + len(snapshot[0])):
            return False
        sealed = self._queues.seal(self._segment.header, self._timestamp_ms)
        self._begin_segment(spare, snapshot)
        self._platform.background.submit(partial(self._background.seal, sealed))
        return True

    def _begin_segment(self, spare: Spare, snapshot: tuple[bytes, int]) -> None:
        """The open frame, still empty, becomes the first of a new segment."""
        header = SegmentHeader(
            number=self._reader.last_number + 1,
            salt=int.from_bytes(self._platform.random_bytes(8), "little"),
            first_lsn=self._open_lsn,
            created_ms=max(self._timestamp_ms, self._platform.clock.now_ms()),
        )
        self._queues.begin(header.number << segment.OFFSET_BITS)
        self._set_segment(Segment(header, spare.file, header.seed, *[spare.capacity] * 2))
        self._pending_spare = spare.path
        self._begin_frame(segment.HEADER_BYTES, self._writer.bytes_writing)
        rows, self._records = snapshot
        self._snapshot_records = self._records
        self._parts.append(rows)
        self._position += len(rows)
        # A state larger than the file must not make every segment end where it begins.
        snapshot_bytes = self._position & OFFSET_MASK
        self._roll_at += snapshot_bytes
        self._spare_at += snapshot_bytes
        self._set_limits(self._writer.bytes_writing)
