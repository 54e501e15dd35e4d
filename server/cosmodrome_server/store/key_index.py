"""Message id or message key → messages in their queues, for operators who look for one.

    data/shard-0000/0000000042.key       hashes, sorted, beside the positions they stand for

    0       8         12    16        24     32
    ┌───────┬─────────┬─────┬─────────┬──────┬─────────┬──────────────┬─────────────┐
    │ magic │ version │ crc │ segment │ salt │ entries │ hashes       │ positions   │
    └───────┴─────────┴─────┴─────────┴──────┴─────────┴──────────────┴─────────────┘
      8 bytes u32       u32   u64       u64    u64       u64 × entries  u64 × entries

Queries are rare and sends are not: nothing is done for this when a message is stored. The
index of a sealed segment is made when a query first comes to it (a scan of the segment, under
a second) and kept. The segment that is being written is searched as it is. A hash only says
where to look: each message is read and compared. Derived: a damaged file is made again.

A position is that of a visible message, or of the END_TRANSACTION that committed one: that says
which place it got, and where it lies. Half and delayed messages are not in a queue, or not yet.

All of this blocks; call it off the loop's thread, one call at a time.
"""

import logging
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import Struct

import xxhash
from google_crc32c import value as crc32c

from cosmodrome_server.errors import CorruptFrame, MessageCorrupted, MessageNotFound, ReadFailed
from cosmodrome_server.model import wire
from cosmodrome_server.model.log import (
    END_TRANSACTION_HEAD,
    MessageRecord,
    MessageState,
    RecordKind,
    Replayed,
)
from cosmodrome_server.store import segment
from cosmodrome_server.store.files import Files, write_whole
from cosmodrome_server.store.frame import HEADER_BYTES as FRAME_HEADER_BYTES
from cosmodrome_server.store.message_reader import MessageReader, placed
from cosmodrome_server.store.record import STATE_HEAD_BYTES, decode_records
from cosmodrome_server.store.scanner import Found, scan
from cosmodrome_server.store.segment import OFFSET_MASK, SegmentHeader, named, segment_of

_log = logging.getLogger(__name__)

SUFFIX = ".key"

_MAGIC = b"COSMOKEY"
_VERSION = 2
_HEADER = Struct("<8sIIQQQ")
# How a state record begins: its length and its kind.
_KIND_AT = 4


def path_of(directory: Path, number: int) -> Path:
    """Where the key index of a segment lies."""
    return directory / f"{number:010d}{SUFFIX}"


class KeyIndex:
    """Finds messages by what their producers called them.

    Args:
        files: The disk.
        directory: Of the shard.
        segments: Gives the segments there are, oldest first.
    """

    def __init__(
        self, files: Files, directory: Path, segments: Callable[[], list[SegmentHeader]]
    ) -> None:
        self._files = files
        self._directory = directory
        self._segments = segments

    def find(
        self, topic_id: int, key: str, time_range_ms: tuple[int, int], messages_max: int
    ) -> list[MessageRecord]:
        """The messages of a topic with this message id or key, each at its place, newest first.

        Args:
            topic_id: Of the topic.
            key: Compared exactly with the message id and with each message key.
            time_range_ms: Store timestamps [begin, end).
            messages_max: At most so many.
        """
        segments = self._segments()
        # Frames may still come to it: the next one gets its name when it is whole.
        newest = max((each.number for each in named(self._files.names(self._directory))), default=0)
        reader = MessageReader(self._files, self._directory, segments)
        found: list[MessageRecord] = []
        try:
            for header, next_created_ms in _newest_first(segments):
                if not time_range_ms[0] <= next_created_ms:
                    break  # All that follow are older.
                if header.created_ms > time_range_ms[1]:
                    continue
                is_active = header.number >= newest
                try:
                    candidates = self._candidates(
                        reader, header, (topic_id, key), is_active=is_active
                    )
                except FileNotFoundError:
                    # Its first frame is not written yet, or retention took it just now.
                    continue
                for position in candidates:
                    record = _read(reader, position)
                    if record and _matches(record, (topic_id, key), time_range_ms):
                        found.append(record)
                        if len(found) >= messages_max:
                            return found
        finally:
            reader.close()
        return found

    def _candidates(
        self,
        reader: MessageReader,
        header: SegmentHeader,
        wanted_key: tuple[int, str],
        *,
        is_active: bool,
    ) -> list[int]:
        """Positions in a segment whose hash fits, newest first."""
        topic_id, key = wanted_key
        wanted = _hash(topic_id, key.encode())
        if is_active:
            entries = self._scan(reader, header)
            return sorted((at for hashed, at in entries if hashed == wanted), reverse=True)
        hashes, positions = self._load(reader, header)
        at = bisect_left(hashes, wanted)
        fitting_here = []
        while at < len(hashes) and hashes[at] == wanted:
            fitting_here.append(positions[at])
            at += 1
        return sorted(fitting_here, reverse=True)

    def _load(
        self, reader: MessageReader, header: SegmentHeader
    ) -> tuple["array[int]", "array[int]"]:
        path = path_of(self._directory, header.number)
        if path.name in self._files.names(self._directory):
            file = self._files.open(path)
            try:
                data = file.read(0, file.size())
            finally:
                file.close()
            try:
                return _decode(data, header)
            except CorruptFrame:
                pass  # Made again below.
        entries = sorted(self._scan(reader, header))
        hashes = array("Q", [hashed for hashed, _ in entries])
        positions = array("Q", [position for _, position in entries])
        body = hashes.tobytes() + positions.tobytes()
        head = _HEADER.pack(
            _MAGIC, _VERSION, crc32c(body), header.number, header.salt, len(entries)
        )
        try:
            write_whole(self._files, path, [head, body])
        except OSError as error:
            # Made anew for each search until there is space.
            _log.warning("key_index_not_written segment=%d error=%s", header.number, error)
        return hashes, positions

    def _scan(self, reader: MessageReader, header: SegmentHeader) -> Iterator[tuple[int, int]]:
        """(hash, position) of each id and key of each message that a segment puts in a queue."""
        file = self._files.open(segment.path_of(self._directory, header))
        try:
            for item in scan(file, header):
                if not isinstance(item, Found):
                    continue
                base = header.number << segment.OFFSET_BITS | item.start + FRAME_HEADER_BYTES
                for record in decode_records(item.payload, base, 0):
                    message = _placed_by(reader, record)
                    if message is not None:
                        for name in _names(message):
                            yield _hash(message.topic_id, name.encode()), record.position
        finally:
            file.close()


def _placed_by(reader: MessageReader, record: Replayed) -> MessageRecord | None:
    """The message that a record puts in a queue; None if it puts none there."""
    message = record.message
    if message is not None:
        return message if message.state is MessageState.VISIBLE else None
    if record.kind is RecordKind.END_TRANSACTION:
        return _committed(reader, record.payload)
    return None


def _committed(reader: MessageReader, payload: bytes) -> MessageRecord | None:
    """The message of a commit, at its place; None of a rollback, or if it cannot be read."""
    _, position, stored_ms, topic_id, queue_id, queue_offset, tag_hash, is_commit = (
        END_TRANSACTION_HEAD.unpack_from(payload)
    )
    if not is_commit:
        return None
    try:
        half = reader.read(position)
    except (CorruptFrame, MessageNotFound, ReadFailed):
        return None
    return placed(half, (topic_id, queue_id, queue_offset), (position, tag_hash, stored_ms))


def _read(reader: MessageReader, position: int) -> MessageRecord | None:
    """The message that the record at a position puts in a queue; None if it cannot be read."""
    try:
        file, start = reader.file(segment_of(position)), position & OFFSET_MASK
        head = file.read(start, STATE_HEAD_BYTES + END_TRANSACTION_HEAD.size)
        if len(head) > _KIND_AT and head[_KIND_AT] == RecordKind.END_TRANSACTION:
            return _committed(reader, head[STATE_HEAD_BYTES:])
        return reader.read(position)
    except (CorruptFrame, MessageNotFound, ReadFailed, OSError):
        return None


def _newest_first(segments: list[SegmentHeader]) -> Iterator[tuple[SegmentHeader, int]]:
    """Each segment with the time the next one was begun, or one after it if that is not known."""
    next_created_ms = 1 << 63
    for header in reversed(segments):
        yield header, next_created_ms
        next_created_ms = header.created_ms or next_created_ms


def _matches(
    record: MessageRecord, wanted: tuple[int, str], time_range_ms: tuple[int, int]
) -> bool:
    begin_ms, end_ms = time_range_ms
    topic_id, key = wanted
    is_then = begin_ms <= record.store_timestamp_ms < end_ms
    return is_then and record.topic_id == topic_id and key in _names(record)


def _names(record: MessageRecord) -> set[str]:
    """What a producer called a message; none if that cannot be read."""
    try:
        return {wire.message_id(record.system), *wire.keys(record.system)}
    except MessageCorrupted:
        return set()


def _hash(topic_id: int, name: bytes) -> int:
    hashed: int = xxhash.xxh3_64_intdigest(name, seed=topic_id)
    return hashed


def _decode(data: bytes, header: SegmentHeader) -> tuple["array[int]", "array[int]"]:
    """Hashes and positions of a file.

    Raises:
        CorruptFrame: It is damaged or of another segment.
    """
    if len(data) < _HEADER.size:
        raise CorruptFrame("a key index ends early")
    magic, version, crc, number, salt, entries = _HEADER.unpack_from(data)
    body = data[_HEADER.size :]
    is_ours = (magic, version, number, salt) == (_MAGIC, _VERSION, header.number, header.salt)
    if not is_ours or len(body) != 16 * entries or crc32c(body) != crc:
        raise CorruptFrame(f"key index {header.number} is damaged")
    return array("Q", body[: 8 * entries]), array("Q", body[8 * entries :])
