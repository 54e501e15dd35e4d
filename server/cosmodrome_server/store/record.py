"""The content of frames: records, one after the other.

    state record   0        4      5
                   ┌────────┬──────┬─────────┐
                   │ length │ kind │ payload │      u32, u8, bytes that `core` owns
                   └────────┴──────┴─────────┘

    message        0        4      5     9       10      14      18        22
                   ┌────────┬──────┬─────┬───────┬───────┬───────┬─────────┬──────────────
                   │ length │ kind │ crc │ state │ topic │ queue │ taghash │
                   └────────┴──────┴─────┴───────┴───────┴───────┴─────────┴──────────────
                     u32      u8=1   u32   u8      u32     u32     u32
                   22       30         38    46       50     54
                   ┌────────┬──────────┬─────┬────────┬──────┬────────┬──────┬──────┐
                   │ offset │ store ms │ due │ system │ user │ system │ user │ body │
                   └────────┴──────────┴─────┴────────┴──────┴────────┴──────┴──────┘
                     u64      u64        u64   u32 len  u32 len  bytes, bytes, the rest

    snapshot row   the payload of SNAPSHOT_ROW: key length u32, key, value
    queue ends     the payload of QUEUE_ENDS: (topic id << 32 | queue id, next offset) u64 × 2, …

Little-endian. `length` counts the whole record. `crc` is CRC-32C over byte 9 to the end, so
that one message can be read and verified without its frame. Kinds and states are stable
numbers (model.log).
"""

from array import array
from collections.abc import Iterable, Iterator
from struct import Struct

from google_crc32c import extend
from google_crc32c import value as crc32c

from cosmodrome_server.errors import CorruptFrame
from cosmodrome_server.model.log import (
    DELIVERY_HEAD,
    DeliveryHead,
    IndexEntry,
    MessageRecord,
    MessageState,
    RecordKind,
    Replayed,
    ReplayedDeliveries,
    ReplayedItem,
    ReplayedRow,
    ReplayedRun,
)

STATE_HEAD_BYTES = 5
MESSAGE_HEAD_BYTES = 54
# What a message record costs beside its system, user and body bytes.
_CRC_START = 9

_STATE_HEAD = Struct("<IB")
# And, of a SNAPSHOT_ROW, the length of its key.
_ROW_HEAD = Struct("<IBI")
_MESSAGE_HEAD = Struct("<IBI")
_MESSAGE_REST = Struct("<BIIIQQQII")
_MESSAGE = Struct("<IBIBIIIQQQII")
# What the index needs of a message: length, kind, state, topic, queue, tag, offset, time.
_INDEXED = Struct("<IB4xBIIIQQ")
_U32 = Struct("<I")
_END = Struct("<QQ")

_MESSAGE_KIND = int(RecordKind.MESSAGE)
_POP_KIND, _ACK_KIND = int(RecordKind.POP), int(RecordKind.ACK)
_DELIVERY_BYTES = DELIVERY_HEAD.size
_KINDS: dict[int, RecordKind] = {int(kind): kind for kind in RecordKind}
_STATES = tuple(MessageState)
_VISIBLE = int(MessageState.VISIBLE)
_SNAPSHOT_ROW = RecordKind.SNAPSHOT_ROW


# The head of a state record, by the length of the whole record and its kind; no call in between.
pack_state_head = _STATE_HEAD.pack


def encode_state(kind: RecordKind, payload: bytes) -> bytes:
    """The head of a state record; the payload follows it."""
    return pack_state_head(STATE_HEAD_BYTES + len(payload), kind)


def encode_message(record: MessageRecord) -> tuple[bytes, bytes, bytes]:
    """A message record, in three parts: the last is the body itself, which is not copied here."""
    system, user, body = record.system, record.user, record.body
    rest = _MESSAGE_REST.pack(
        record.state,
        record.topic_id,
        record.queue_id,
        record.tag_hash,
        record.queue_offset,
        record.store_timestamp_ms,
        record.due_ms,
        len(system),
        len(user),
    )
    front = rest + system + user
    crc = extend(crc32c(front), body)
    return _MESSAGE_HEAD.pack(_CRC_START + len(front) + len(body), _MESSAGE_KIND, crc), front, body


def encode_messages(records: Iterable[MessageRecord]) -> tuple[list[bytes], list[int]]:
    """The parts of many records, one after the other, and the length of each record.

    `encode_message` once more, as a loop: calls and tuples for each are 3 % of a batch.
    """
    parts: list[bytes] = []
    lengths: list[int] = []
    pack_head, pack_rest = _MESSAGE_HEAD.pack, _MESSAGE_REST.pack
    for record in records:
        system, user, body = record.system, record.user, record.body
        front = (
            pack_rest(
                record.state,
                record.topic_id,
                record.queue_id,
                record.tag_hash,
                record.queue_offset,
                record.store_timestamp_ms,
                record.due_ms,
                len(system),
                len(user),
            )
            + system
            + user
        )
        length = _CRC_START + len(front) + len(body)
        parts += (pack_head(length, _MESSAGE_KIND, extend(crc32c(front), body)), front, body)
        lengths.append(length)
    return parts, lengths


def length_of(data: bytes) -> int:
    """The length of the record that begins with `data`, at least 4 bytes."""
    length: int = _U32.unpack_from(data)[0]
    return length


def decode_message(data: bytes, length: int | None = None) -> MessageRecord:
    """Read one whole message record and verify its checksum.

    Args:
        data: The record and what may follow it.
        length: Of the record; None if nothing follows.

    Raises:
        CorruptFrame: It is no message record, or damaged.
    """
    end = len(data) if length is None else length
    if not MESSAGE_HEAD_BYTES <= end <= len(data) or data[4] != _MESSAGE_KIND:
        raise CorruptFrame("no message record here")
    record = _message(data, 0, end)
    if crc32c(data[_CRC_START:end]) != _U32.unpack_from(data, 5)[0]:
        raise CorruptFrame("checksum mismatch in a message record")
    return record


def _message(data: bytes, start: int, end: int) -> MessageRecord:
    (_, _, _, state, topic_id, queue_id, tag_hash, queue_offset, store_ms, due_ms, n_system,
     n_user) = _MESSAGE.unpack_from(data, start)  # fmt: skip
    user_start = start + MESSAGE_HEAD_BYTES + n_system
    body_start = user_start + n_user
    if body_start > end or state >= len(_STATES):
        raise CorruptFrame("a message record is out of its bounds")
    return MessageRecord(
        _STATES[state],
        topic_id,
        queue_id,
        queue_offset,
        tag_hash,
        store_ms,
        due_ms,
        data[start + MESSAGE_HEAD_BYTES : user_start],
        data[user_start:body_start],
        data[body_start:end],
    )


def decode_records(payload: bytes, position: int, timestamp_ms: int) -> Iterator[Replayed]:
    """The records of a verified frame, in order.

    Args:
        payload: Of the frame.
        position: Of its first record in the log.
        timestamp_ms: Of the frame.

    Raises:
        CorruptFrame: A record is out of bounds, or of a kind this version does not know.
    """
    start = 0
    while start < len(payload):
        record, start = _record(payload, start, position, timestamp_ms)
        yield record


def _record(payload: bytes, start: int, position: int, timestamp_ms: int) -> tuple[Replayed, int]:
    """The record at `start` of a frame, and where the next one begins."""
    end = len(payload)
    if start + STATE_HEAD_BYTES > end:
        raise CorruptFrame(f"record head at {start} crosses the end of its frame")
    length, number = _STATE_HEAD.unpack_from(payload, start)
    stop = start + length
    if length < STATE_HEAD_BYTES or stop > end:
        raise CorruptFrame(f"record length {length} at {start} is out of bounds")
    if number == _MESSAGE_KIND:
        if length < MESSAGE_HEAD_BYTES:
            raise CorruptFrame(f"message record of {length} bytes at {start}")
        message = _message(payload, start, stop)
        return Replayed(RecordKind.MESSAGE, position + start, timestamp_ms, b"", message), stop
    kind = _KINDS.get(number)
    if kind is None:
        raise CorruptFrame(f"record kind {number} at {start} is unknown: a newer version wrote it")
    content = payload[start + STATE_HEAD_BYTES : stop]
    return Replayed(kind, position + start, timestamp_ms, content, None), stop


def decode_runs(payload: bytes, position: int, timestamp_ms: int) -> Iterator[ReplayedItem]:
    """As `decode_records`, but what a start reads by the hundred thousand comes as runs.

    Visible messages come by their queues, then the pops and acknowledgements that lay between
    them: neither asks what the others did. Any other record ends the runs. Rows of a snapshot
    come as such.
    """
    start, end = 0, len(payload)
    while start < end:
        runs = _Runs(payload, position, timestamp_ms)
        start = runs.read(start)
        yield from runs.taken()
        if start < end:
            record, start = _record(payload, start, position, timestamp_ms)
            if record.kind is _SNAPSHOT_ROW:
                yield ReplayedRow(*decode_row(record.payload), timestamp_ms)
            else:
                yield record


class _Runs:
    """The runs of neighbouring records of one frame."""

    def __init__(self, payload: bytes, position: int, timestamp_ms: int) -> None:
        self._payload = payload
        self._position = position
        self._timestamp_ms = timestamp_ms
        # Queue → the first offset, and the entries from there on.
        self._messages: dict[tuple[int, int], tuple[int, list[IndexEntry]]] = {}
        self._heads: list[DeliveryHead] = []
        self._tails: list[bytes] = []

    def read(self, start: int) -> int:
        """Read from a record on; return where the one begins that is of no run."""
        stop = start
        while stop < len(self._payload):
            stop = self._read_deliveries(self._read_messages(start))
            if stop == start:
                break
            start = stop
        return stop

    def _read_deliveries(self, start: int) -> int:
        payload, heads, tails = self._payload, self._heads, self._tails
        read, last = DELIVERY_HEAD.unpack_from, len(self._payload) - _DELIVERY_BYTES
        while start <= last:
            head = read(payload, start)
            stop = start + head[0]
            if head[1] == _ACK_KIND:
                if head[0] != _DELIVERY_BYTES:
                    break
            elif head[1] != _POP_KIND or head[0] < _DELIVERY_BYTES or stop > len(payload):
                break
            else:
                tails.append(payload[start + _DELIVERY_BYTES : stop])
            heads.append(head)
            start = stop
        return start

    def _read_messages(self, start: int) -> int:
        payload, position, end = self._payload, self._position, len(self._payload)
        read, last = _INDEXED.unpack_from, end - MESSAGE_HEAD_BYTES
        runs = self._messages
        while start <= last and payload[start + 4] == _MESSAGE_KIND:
            length, _, state, topic_id, queue_id, tag_hash, queue_offset, store_ms = read(
                payload, start
            )
            stop = start + length
            if state != _VISIBLE or length < MESSAGE_HEAD_BYTES or stop > end:
                break
            entry = (position + start, tag_hash, store_ms)
            known = runs.get((topic_id, queue_id))
            if known is None:
                runs[topic_id, queue_id] = queue_offset, [entry]
            else:
                first, entries = known
                if first + len(entries) != queue_offset:
                    break
                entries.append(entry)
            start = stop
        return start

    def taken(self) -> Iterator[ReplayedRun | ReplayedDeliveries]:
        """What was read."""
        runs = [
            ReplayedRun(*queue, first, entries, self._timestamp_ms)
            for queue, (first, entries) in self._messages.items()
        ]
        if len(runs) > 1:
            # By their last messages: each topic remembers the queue of its last one.
            runs.sort(key=lambda run: run.entries[-1][0])
        yield from runs
        if self._heads:
            yield ReplayedDeliveries(self._heads, self._tails, self._timestamp_ms)


def encode_snapshot(queue_ends: bytes, rows: Iterable[tuple[bytes, bytes]]) -> tuple[bytes, int]:
    """The records a segment begins with, and how many; `queue_ends` is a payload."""
    # In one piece: of a large state each row would else be two objects until it is written.
    data, count = bytearray(encode_state(RecordKind.QUEUE_ENDS, queue_ends)), 2
    data += queue_ends
    head, head_bytes, kind = _ROW_HEAD.pack, _ROW_HEAD.size, int(_SNAPSHOT_ROW)
    for key, value in rows:
        data += head(head_bytes + len(key) + len(value), kind, len(key))
        data += key
        data += value
        count += 1
    data += encode_state(RecordKind.SNAPSHOT_END, b"")
    return bytes(data), count


def decode_row(payload: bytes) -> tuple[bytes, bytes]:
    """Key and value of a SNAPSHOT_ROW.

    Raises:
        CorruptFrame: The key is longer than the row.
    """
    if len(payload) < 4 or (end := 4 + length_of(payload)) > len(payload):
        raise CorruptFrame(f"snapshot row of {len(payload)} bytes is out of bounds")
    return payload[4:end], payload[end:]


def encode_queue_ends(ends: Iterable[tuple["array[int]", "array[int]"]]) -> bytes:
    """The payload of QUEUE_ENDS: the next offset of each queue, given as (keys, offsets)."""
    parts = []
    for keys, offsets in ends:
        pairs = array("Q", bytes(_END.size * len(keys)))
        pairs[::2], pairs[1::2] = keys, offsets
        parts.append(pairs.tobytes())
    return b"".join(parts)


def decode_queue_ends(payload: bytes) -> dict[int, int]:
    """The next offset of each queue.

    Raises:
        CorruptFrame: The payload is not a row of pairs.
    """
    if len(payload) % _END.size:
        raise CorruptFrame(f"queue ends of {len(payload)} bytes are no pairs")
    return dict(_END.iter_unpack(payload))
