"""From encoded messages to the columns of the row that the pipeline reads.

    where the messages lie ──▶ walk SystemProperties ──▶ walk timestamps, digest, DLQ
                           └─▶ walk user properties  ──▶ walk key and value
                           └─▶ body slices

Only what a wanted column needs is walked: for `queue_offset` and `body` alone, nothing is.
The field numbers are those of `SystemProperties` in definition.proto.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cosmodrome_server.columnar.protobuf import DELIMITED, VARINT, Buffer, Field, Ints, walk
from cosmodrome_server.columnar.slices import RepeatedColumn, SliceColumn, slices

TAG, KEYS, MESSAGE_ID, DIGEST, ENCODING, TYPE, BORN, BORN_HOST = 1, 2, 3, 4, 5, 6, 7, 8
DELIVERY, MESSAGE_GROUP, TRACE_CONTEXT, DEAD_LETTER, LITE_TOPIC, PRIORITY = 11, 17, 18, 20, 21, 22
MESSAGE_TYPES = (
    "MESSAGE_TYPE_UNSPECIFIED",
    *("NORMAL", "FIFO", "DELAY", "TRANSACTION", "LITE", "PRIORITY"),
)
_TIMESTAMP = pa.timestamp("us", tz="UTC")
# Years 1 and 9999: protobuf's timestamps are no others, nor are Python's and Spark's.
_FIRST_S, _LAST_S = -62_135_596_800, 253_402_300_799
_TEXTS = {
    "message_id": MESSAGE_ID,
    "tag": TAG,
    "message_group": MESSAGE_GROUP,
    "born_host": BORN_HOST,
    "lite_topic": LITE_TOPIC,
    "trace_context": TRACE_CONTEXT,
}
_TIMES = {"born_timestamp": BORN, "delivery_timestamp": DELIVERY}
_SINGLE = {
    "keys": KEYS,
    "message_type": TYPE,
    "priority": PRIORITY,
    "dlq": DEAD_LETTER,
    "body_encoding": ENCODING,
}


@dataclass(frozen=True, slots=True)
class Messages:
    """Where the parts of many messages lie in one buffer, and what the broker knows of them.

    Attributes:
        buffer: The bytes.
        system: Start and end of the fields of `SystemProperties`, by row.
        user: Start and end of a region that holds the `user_properties` entries, by row;
            other fields of the region are passed over.
        body: Start and end of the body, by row.
        queue_offsets: By row.
        store_timestamps_ms: By row.
        constants: Columns with one value for all rows: topic, broker, queue_id, store_host.
    """

    buffer: Buffer
    system: tuple[Ints, Ints]
    user: tuple[Ints, Ints]
    body: tuple[Ints, Ints]
    queue_offsets: Ints
    store_timestamps_ms: Ints
    constants: dict[str, str | int]

    def __len__(self) -> int:
        """How many messages."""
        return len(self.queue_offsets)

    def rows(self, chosen: Ints) -> "Messages":
        """Some of the messages, in the order given."""
        return replace(
            self,
            system=(self.system[0][chosen], self.system[1][chosen]),
            user=(self.user[0][chosen], self.user[1][chosen]),
            body=(self.body[0][chosen], self.body[1][chosen]),
            queue_offsets=self.queue_offsets[chosen],
            store_timestamps_ms=self.store_timestamps_ms[chosen],
        )


class DigestMismatch(ValueError):
    """A body that does not fit the checksum its producer sent."""


class System:
    """The walked `SystemProperties` of many messages; only the wanted fields are kept."""

    def __init__(self, messages: Messages, wanted: frozenset[int]) -> None:
        rows = len(messages)
        self._buffer = messages.buffer
        self._slices = {number: SliceColumn(rows) for number in wanted if number not in _VARINTS}
        self._slices.pop(KEYS, None)
        self._keys = RepeatedColumn(rows)
        self._values = {number: np.zeros(rows, np.int64) for number in wanted if number in _VARINTS}
        self._has = {number: np.zeros(rows, np.bool_) for number in self._values}
        if wanted:
            for found in walk(messages.buffer, *messages.system):
                self._take(found, wanted)

    def _take(self, found: Field, wanted: frozenset[int]) -> None:
        if found.number not in wanted:
            return
        if found.number == KEYS and found.wire_type == DELIMITED:
            self._keys.put(found)
        elif found.number in _VARINTS and found.wire_type == VARINT:
            self._values[found.number][found.rows] = found.values
            self._has[found.number][found.rows] = True
        elif found.wire_type == DELIMITED and found.number in self._slices:
            self._slices[found.number].put(found)

    def text(self, number: int) -> pa.Array:
        """A text field; null where it is absent or empty."""
        return self._slices[number].array(self._buffer, pa.string(), empty_is_null=True)

    def keys(self) -> pa.Array:
        """The keys as lists."""
        offsets, starts, ends = self._keys.flat()
        texts = slices(self._buffer, starts, ends, np.zeros(len(starts), np.bool_), pa.string())
        return pa.ListArray.from_arrays(
            pa.array(offsets), texts, type=pa.list_(pa.field("element", pa.string()))
        )

    def values(self, number: int) -> tuple[Ints, NDArray[np.bool_]]:
        """A varint field, and where it is present."""
        return self._values[number], self._has[number]

    def submessage(self, number: int) -> SliceColumn:
        """A submessage's slices."""
        return self._slices[number]

    def timestamps(self, number: int) -> pa.Array:
        """A `google.protobuf.Timestamp` field, in microseconds; null if it is no time."""
        column = self._slices[number]
        parts = np.zeros((3, column.rows), np.int64)  # by number: seconds, nanoseconds
        for found in walk(self._buffer, column.starts, column.ends):
            if found.number in {1, 2} and found.wire_type == VARINT:
                parts[found.number][found.rows] = found.values
        seconds, nanos = parts[1:]
        is_none = (column.starts < 0) | (seconds < _FIRST_S) | (seconds > _LAST_S)
        return pa.array(seconds * 1_000_000 + nanos // 1000, _TIMESTAMP, mask=is_none)

    def dead_letters(self) -> pa.Array:
        """The origin of dead letters: a struct of topic and message id."""
        column = self._slices[DEAD_LETTER]
        parts = (SliceColumn(column.rows), SliceColumn(column.rows))
        for found in walk(self._buffer, column.starts, column.ends):
            if found.number in {1, 2}:
                parts[found.number - 1].put(found)
        return pa.StructArray.from_arrays(
            [part.array(self._buffer, pa.string()) for part in parts],
            names=["topic", "message_id"],
            mask=pa.array(column.starts < 0),
        )


_VARINTS = frozenset({ENCODING, TYPE, PRIORITY})


def to_batch(
    messages: Messages, columns: Sequence[str], *, verify_digest: bool = False
) -> pa.RecordBatch:
    """The wanted columns of some messages as one Arrow batch, rows in the given order.

    Bodies are as they are stored; `body_encoding` says of each how it is packed. They are
    unpacked by who reads them: what one becomes, up to a thousand times of what it was, is
    nothing for the memory of a broker.

    Raises:
        MalformedMessage: A message is not what the protocol says.
        DigestMismatch: A body does not fit its checksum, where that is asked for.
    """
    verifies = verify_digest and "body" in columns
    system = System(messages, _wanted_fields(columns, verifies=verifies))
    if verifies:
        _verify_digests(messages, system)
    arrays = [_column(name, messages, system) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _wanted_fields(columns: Sequence[str], *, verifies: bool) -> frozenset[int]:
    wanted = {_TEXTS[name] for name in columns if name in _TEXTS}
    wanted |= {_TIMES[name] for name in columns if name in _TIMES}
    wanted |= {_SINGLE[name] for name in columns if name in _SINGLE}
    if verifies:
        wanted.add(DIGEST)
    return frozenset(wanted)


def _column(name: str, messages: Messages, system: System) -> pa.Array:
    if name in _TEXTS:
        return system.text(_TEXTS[name])
    if name in _TIMES:
        return system.timestamps(_TIMES[name])
    if name in messages.constants:
        value = messages.constants[name]
        kind = pa.int32() if isinstance(value, int) else pa.string()
        return pa.repeat(pa.scalar(value, kind), len(messages))
    return _OTHERS[name](messages, system)


def _types(_messages: Messages, system: System) -> pa.Array:
    values, _ = system.values(TYPE)
    known = np.where((values >= 0) & (values < len(MESSAGE_TYPES)), values, 0)
    return pa.array(MESSAGE_TYPES).take(pa.array(known))


def _priorities(_messages: Messages, system: System) -> pa.Array:
    values, present = system.values(PRIORITY)
    return pa.array(values.astype(np.int32), pa.int32(), mask=~present)


def _properties(messages: Messages, _system: System) -> pa.Array:
    buffer = messages.buffer
    entries = RepeatedColumn(len(messages))
    for found in walk(buffer, *messages.user):
        if found.number == 2 and found.wire_type == DELIMITED:
            entries.put(found)
    offsets, starts, ends = entries.flat()
    parts = (SliceColumn(len(starts)), SliceColumn(len(starts)))
    for found in walk(buffer, starts, ends):
        if found.number in {1, 2}:
            parts[found.number - 1].put(found)
    texts = []
    for part in parts:
        part.starts[part.starts < 0] = part.ends[part.ends < 0] = 0  # absent is empty in a map
        texts.append(part.array(buffer, pa.string()))
    return pa.MapArray.from_arrays(pa.array(offsets), *texts)


_OTHERS: dict[str, Callable[[Messages, System], pa.Array]] = {
    "queue_offset": lambda messages, _system: pa.array(messages.queue_offsets),
    "store_timestamp": lambda messages, _system: pa.array(
        messages.store_timestamps_ms * 1000, _TIMESTAMP, mask=messages.store_timestamps_ms <= 0
    ),
    "message_type": _types,
    "priority": _priorities,
    "keys": lambda _messages, system: system.keys(),
    "properties": _properties,
    "body": lambda messages, _system: _bodies(messages),
    "body_encoding": lambda _messages, system: _encodings(system),
    "dlq": lambda _messages, system: system.dead_letters(),
    "delivery_attempt": lambda messages, _system: pa.nulls(len(messages), pa.int32()),
}


def _bodies(messages: Messages) -> pa.Array:
    absent = np.zeros(len(messages), np.bool_)
    return slices(messages.buffer, *messages.body, absent, pa.binary())


def _encodings(system: System) -> pa.Array:
    return pa.array(system.values(ENCODING)[0].astype(np.int32), pa.int32())


def _verify_digests(messages: Messages, system: System) -> None:
    """Check CRC32 digests; MD5 and SHA1 are the producer's choice and as easily checked.

    Source: definition.proto, `Digest`; the checksum is upper-case hexadecimal, CRC32
    without leading zeros.
    """
    import zlib  # noqa: PLC0415  # only where someone asks for it
    from hashlib import md5, sha1  # noqa: PLC0415  # as above

    column = system.submessage(DIGEST)
    kinds = np.zeros(column.rows, np.int64)
    checksums = SliceColumn(column.rows)
    for found in walk(messages.buffer, column.starts, column.ends):
        if found.number == 1:
            kinds[found.rows] = found.values
        elif found.number == 2:
            checksums.put(found)
    expected = checksums.array(messages.buffer, pa.string()).to_pylist()
    raw = messages.buffer.bytes
    for row, (kind, text) in enumerate(zip(kinds.tolist(), expected, strict=True)):
        body = raw[messages.body[0][row] : messages.body[1][row]].tobytes()
        if kind == 1:
            found_text = f"{zlib.crc32(body):X}"
        elif kind == 2:
            found_text = md5(body, usedforsecurity=False).hexdigest()
        elif kind == 3:
            found_text = sha1(body, usedforsecurity=False).hexdigest()
        else:
            continue
        if found_text.lstrip("0").upper() != (text or "").lstrip("0").upper():
            offset = int(messages.queue_offsets[row])
            raise DigestMismatch(
                f"body at queue offset {offset}: checksum {found_text}, sent {text}"
            )
