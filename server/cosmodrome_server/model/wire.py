"""Reading and writing the few protobuf fields the core looks at, without a protobuf library.

    field   = key varint (number << 3 | wire type), then
              wire type 0: varint · 1: 8 bytes · 2: length varint + bytes · 5: 4 bytes
              3: a group: fields, and a key of the same number and wire type 4

`model.message` says which fields `system` and `user` hold. Of a field that occurs more
than once the last one counts, as everywhere in protobuf: so a field is replaced by
appending a newer one. Fields that nobody knows were stored as they came: what protobuf
passes over is passed over here, or one such message would end every read of its queue.
"""

from collections.abc import Iterator

from cosmodrome_server.errors import MessageCorrupted

# Field numbers of apache.rocketmq.v2.SystemProperties.
TAG = 1
KEYS = 2
MESSAGE_ID = 3
BORN_TIMESTAMP = 7
BORN_HOST = 8
DELIVERY_TIMESTAMP = 11
MESSAGE_GROUP = 17
TRACE_CONTEXT = 18
DEAD_LETTER_QUEUE = 20
LITE_TOPIC = 21
PRIORITY = 22

# Of apache.rocketmq.v2.Message.
_USER_PROPERTIES = 2

_VARINT, _FIXED64, _BYTES, _GROUP, _GROUP_END, _FIXED32 = 0, 1, 2, 3, 4, 5


def read_varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Read a varint; return its value and the position after it.

    Raises:
        MessageCorrupted: The data ends inside it, or it is longer than ten bytes.
    """
    value = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise MessageCorrupted(f"varint at byte {position} of an encoded field does not end")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def varint(value: int) -> bytes:
    """Encode a non-negative varint."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def fields(data: bytes | memoryview) -> Iterator[tuple[int, int | bytes]]:
    """Each varint and each field of bytes in order: its number and its value.

    Fields of other wire types are passed over: none of ours has one.

    Raises:
        MessageCorrupted: The data is not a sequence of whole fields.
    """
    position, end = 0, len(data)
    while position < end:
        key = data[position]  # mostly one byte, as are lengths: twice as fast without a call
        position += 1
        if key > 0x7F:
            key, position = read_varint(data, position - 1)
        wire_type = key & 7
        if wire_type == _VARINT:
            value, position = read_varint(data, position)
            yield key >> 3, value
            continue
        if wire_type == _BYTES:
            if position < end and data[position] < 0x80:
                length, position = data[position], position + 1
            else:
                length, position = read_varint(data, position)
        else:
            position = skip_value(data, key, position)
            continue
        if position + length > end:
            raise MessageCorrupted(f"field at byte {position} crosses the end at {end}")
        yield key >> 3, bytes(data[position : position + length])
        position += length


def spans(data: bytes, position: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Each field in a part of the data: its number, where its bytes begin and where they end.

    One that has no bytes of its own counts as empty. What begins no whole field ends it.
    """
    try:
        while position < end:
            key, position = read_varint(data, position)
            if key & 7 == _BYTES:
                length, start = read_varint(data, position)
                stop = start + length
            else:
                start = stop = skip_value(data, key, position)
            if stop > end:
                return
            yield key >> 3, start, stop
            position = stop
    except MessageCorrupted:
        return


def text_field(data: bytes | memoryview, number: int) -> str:
    """The last string field `number`, "" for none."""
    found = b""
    for field, value in fields(data):
        if field == number and isinstance(value, bytes):
            found = value
    return found.decode("utf-8", "replace")


def number_field(data: bytes | memoryview, number: int) -> int | None:
    """The last varint field `number`, None for none."""
    found: int | None = None
    for field, value in fields(data):
        if field == number and isinstance(value, int):
            found = value
    return found


def timestamp_field(data: bytes | memoryview, number: int) -> int | None:
    """The last field `number` as a google.protobuf.Timestamp, in milliseconds; None for none."""
    found: bytes | None = None
    for field, value in fields(data):
        if field == number and isinstance(value, bytes):
            found = value
    return None if found is None else milliseconds(found)


def milliseconds(timestamp: bytes) -> int:
    """What a google.protobuf.Timestamp says."""
    seconds = nanos = 0
    for number, value in fields(timestamp):
        if isinstance(value, int) and number == 1:
            seconds = value
        elif isinstance(value, int) and number == 2:
            nanos = value
    if seconds >> 63:  # before the epoch: a negative number of 64 bits
        seconds -= 1 << 64
    return seconds * 1_000 + nanos // 1_000_000


def tag(system: bytes | memoryview) -> str:
    """The tag, "" for none."""
    return text_field(system, TAG)


def message_id(system: bytes | memoryview) -> str:
    """The producer's message id."""
    return text_field(system, MESSAGE_ID)


def message_group(system: bytes | memoryview) -> str:
    """The message group, "" for none."""
    return text_field(system, MESSAGE_GROUP)


def keys(system: bytes | memoryview) -> list[str]:
    """The message keys, in order."""
    return [
        value.decode("utf-8", "replace")
        for number, value in fields(system)
        if number == KEYS and isinstance(value, bytes)
    ]


def user_properties(user: bytes | memoryview) -> dict[str, str]:
    """The user properties; of a repeated key the last value."""
    return {
        text_field(entry, 1): text_field(entry, 2)
        for number, entry in fields(user)
        if number == _USER_PROPERTIES and isinstance(entry, bytes)
    }


def encode_bytes(number: int, value: bytes) -> bytes:
    """Encode one field of wire type 2."""
    return varint(number << 3 | _BYTES) + varint(len(value)) + value


def dead_letter_queue(topic: str, message_id: str) -> bytes:
    """Encode the field of `SystemProperties` that says where a dead letter came from."""
    origin = encode_bytes(1, topic.encode()) + encode_bytes(2, message_id.encode())
    return encode_bytes(DEAD_LETTER_QUEUE, origin)


def dead_letter_origin(system: bytes | memoryview) -> tuple[str, str] | None:
    """Where a dead letter came from: (topic, message id); None if it is none."""
    origin: bytes | None = None
    for number, value in fields(system):
        if number == DEAD_LETTER_QUEUE and isinstance(value, bytes):
            origin = value
    return None if origin is None else (text_field(origin, 1), text_field(origin, 2))


def without_field(data: bytes | memoryview, number: int) -> bytes:
    """The encoded fields except those of one number."""
    kept = []
    position, end = 0, len(data)
    while position < end:
        start = position
        key, position = read_varint(data, position)
        position = skip_value(data, key, position)
        if key >> 3 != number:
            kept.append(bytes(data[start:position]))
    return b"".join(kept)


def skip_value(data: bytes | memoryview, key: int, position: int) -> int:
    """The position after the value of the field whose key was read.

    Raises:
        MessageCorrupted: The data ends inside it, or it has no wire type.
    """
    wire_type = key & 7
    if wire_type == _VARINT:
        return read_varint(data, position)[1]
    if wire_type == _GROUP:
        return _skip_group(data, key >> 3, position)
    if wire_type == _BYTES:
        length, position = read_varint(data, position)
    elif wire_type == _FIXED64:
        length = 8
    elif wire_type == _FIXED32:
        length = 4
    else:
        raise MessageCorrupted(f"wire type {wire_type} at byte {position} is not one")
    if position + length > len(data):
        raise MessageCorrupted(f"field at byte {position} crosses the end at {len(data)}")
    return position + length


def _skip_group(data: bytes | memoryview, number: int, position: int) -> int:
    """The position after the end of a group; those inside it are counted, not called for."""
    inside = [number]
    while inside:
        key, position = read_varint(data, position)
        if key & 7 == _GROUP:
            inside.append(key >> 3)
        elif key & 7 != _GROUP_END:
            position = skip_value(data, key, position)
        elif inside.pop() != key >> 3:
            raise MessageCorrupted(f"the group before byte {position} ends as another one")
    return position
