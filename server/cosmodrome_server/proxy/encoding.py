"""Hand-packed protobuf for the replies that decide throughput: sends and receives.

A received message is spliced from what was stored (`model.message`): the producer's
system properties and user properties are bytes that go out as they came in.

    ReceiveMessageResponse { message = 2 }
    └─ Message   topic = 1 │ user_properties = 2 (stored) │ system_properties = 3 │ body = 4
                                                            └─ stored bytes + what is ours

`SystemProperties` is written once, with our fields appended to the stored ones: JavaScript
clients do not merge two submessages of one field.
"""

from functools import lru_cache

from cosmodrome_server.model.digests import md5
from cosmodrome_server.model.message import Delivery, StoredMessage

# Lengths and small numbers are nearly always below this; two bytes each.
_SMALL = [bytes((n,)) if n < 128 else bytes((n & 127 | 128, n >> 7)) for n in range(4096)]
# Seven bits that more follow.
_MORE = [bytes((n | 128,)) for n in range(128)]

_DIGEST_HEAD = b"\x22\x24\x08\x02\x12\x20"  # body_digest = 4 {type = MD5, checksum: 32 bytes}


def varint(value: int) -> bytes:
    """Encode a varint; negative ones as protobuf's int64 does."""
    if 0 <= value < 4096:
        return _SMALL[value]
    if 0 < value < 4096 << 7:
        return _MORE[value & 0x7F] + _SMALL[value >> 7]
    if 0 < value < 4096 << 14:  # most queue offsets
        return _MORE[value & 0x7F] + _MORE[value >> 7 & 0x7F] + _SMALL[value >> 14]
    value &= 0xFFFF_FFFF_FFFF_FFFF
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def varint_field(number: int, value: int) -> bytes:
    """Encode an integer field; a zero is left out, as proto3 does."""
    return varint(number << 3) + varint(value) if value else b""


def bytes_field(number: int, value: bytes) -> bytes:
    """Encode a string, bytes or message field."""
    return varint(number << 3 | 2) + varint(len(value)) + value


@lru_cache(maxsize=4096)
def topic_field(name: str, number: int = 1) -> bytes:
    """A `Resource` of this name as field `number`."""
    return bytes_field(number, bytes_field(2, name.encode()))


@lru_cache(maxsize=1024)
def timestamp(milliseconds: int) -> bytes:
    """The fields of a `Timestamp`. Messages of one commit share theirs, hence the cache."""
    return _seconds_and_nanos(milliseconds)


@lru_cache(maxsize=1024)
def duration(milliseconds: int) -> bytes:
    """The fields of a `Duration`."""
    return _seconds_and_nanos(milliseconds)


def _seconds_and_nanos(milliseconds: int) -> bytes:
    seconds, rest = divmod(milliseconds, 1000)
    return varint_field(1, seconds) + varint_field(2, rest * 1_000_000)


@lru_cache(maxsize=4096)
def _place_fields(store_host: bytes, store_timestamp_ms: int, queue_id: int) -> bytes:
    """What messages of one commit share: 9 store_timestamp, 10 store_host, 13 queue_id."""
    stamp = timestamp(store_timestamp_ms)
    return bytes_field(9, stamp) + store_host + varint_field(13, queue_id)


@lru_cache(maxsize=4096)
def _delivery_fields(
    store_host: bytes, store_timestamp_ms: int, queue_id: int, invisible_ms: int, attempt: int
) -> bytes:
    """What deliveries of one receive share: the place, 15 invisible_duration, 16 attempt."""
    invisible = bytes_field(15, duration(invisible_ms))
    place = _place_fields(store_host, store_timestamp_ms, queue_id)
    return place + invisible + varint_field(16, attempt)


def _digest(body: bytes) -> bytes:
    """The checksum of a `Digest`: MD5 in upper case."""
    digest: str = md5(body, usedforsecurity=False).hexdigest()
    return digest.upper().encode()


def system_fields(message: StoredMessage, store_host: bytes) -> bytes:
    """The system properties of a stored message that the server knows.

    Fields 4 body_digest, 9 store_timestamp, 10 store_host, 13 queue_id, 14 queue_offset.
    """
    return b"".join(
        (
            _place_fields(store_host, message.store_timestamp_ms, message.queue_id),
            _DIGEST_HEAD,
            _digest(message.body),
            b"\x70",
            varint(message.queue_offset),
        )
    )


def message_fields(message: StoredMessage, system: bytes) -> bytes:
    """A whole `Message`; `system` are the system properties beside the stored ones."""
    stored, body = message.system, message.body
    return b"".join(
        (
            topic_field(message.topic),
            message.user,
            b"\x1a",
            varint(len(stored) + len(system)),
            stored,
            system,
            b"\x22",
            varint(len(body)),
            body,
        )
    )


def delivered(delivery: Delivery, store_host: bytes) -> bytes:
    """`ReceiveMessageResponse { message }` of one delivery.

    Beside `system_fields`: 12 receipt_handle, 15 invisible_duration, 16 delivery_attempt.
    """
    message, handle = delivery.message, delivery.receipt_handle.encode()
    system = b"".join(
        (
            _delivery_fields(
                store_host,
                message.store_timestamp_ms,
                message.queue_id,
                delivery.invisible_ms,
                delivery.attempt,
            ),
            _DIGEST_HEAD,
            _digest(message.body),
            b"\x70",
            varint(message.queue_offset),
            b"\x62",
            varint(len(handle)),
            handle,
        )
    )
    encoded = message_fields(message, system)
    return b"\x12" + varint(len(encoded)) + encoded


def pulled(message: StoredMessage, store_host: bytes) -> bytes:
    """`PullMessageResponse { message }` of one stored message."""
    return bytes_field(2, message_fields(message, system_fields(message, store_host)))
