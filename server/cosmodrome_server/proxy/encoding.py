"""Hand-packed protobuf for the replies that decide throughput: sends and receives.

A received message is spliced from what was stored (`model.message`): the producer's
system properties and user properties are bytes that go out as they came in.

    ReceiveMessageResponse { message = 2 }
    └─ Message   topic = 1 │ user_properties = 2 (stored) │ system_properties = 3 │ body = 4
                                                            └─ stored bytes + what is ours

`SystemProperties` is written once, with our fields appended to the stored ones: JavaScript
clients do not merge two submessages of one field.
"""

from binascii import b2a_hex
from collections.abc import Iterable
from functools import lru_cache

from cosmodrome_server.model.digests import md5
from cosmodrome_server.model.message import Delivery, StoredMessage

# Lengths and small numbers are nearly always below this; two bytes each.
_SMALL = [bytes((n,)) if n < 128 else bytes((n & 127 | 128, n >> 7)) for n in range(4096)]
# Seven bits that more follow.
_MORE = [bytes((n | 128,)) for n in range(128)]

_DIGEST_HEAD = b"\x22\x24\x08\x02\x12\x20"  # body_digest = 4 {type = MD5, checksum: 32 bytes}
_DIGEST_BYTES = 32


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
    seconds, rest = divmod(milliseconds, 1000)
    return _seconds(seconds) + _nanos(rest)


@lru_cache(maxsize=1024)
def duration(milliseconds: int) -> bytes:
    """The fields of a `Duration`."""
    seconds, rest = divmod(milliseconds, 1000)
    return _seconds(seconds) + _nanos(rest)


@lru_cache(maxsize=256)
def _seconds(seconds: int) -> bytes:
    return varint_field(1, seconds)


@lru_cache(maxsize=1000)
def _nanos(milliseconds: int) -> bytes:
    """Of a part of a second; of each there is one."""
    return varint_field(2, milliseconds * 1_000_000)


@lru_cache(maxsize=1024)
def _stored_field(store_timestamp_ms: int) -> bytes:
    """9 store_timestamp; messages of one commit share theirs."""
    return bytes_field(9, timestamp(store_timestamp_ms))


@lru_cache(maxsize=4096)
def _queue_field(queue_id: int) -> bytes:
    """13 queue_id."""
    return varint_field(13, queue_id)


@lru_cache(maxsize=4096)
def _lease_fields(store_host: bytes, queue_id: int, invisible_ms: int, attempt: int) -> bytes:
    """10 store_host, 13 queue_id, 15 invisible_duration, 16 attempt, the head of 4 body_digest."""
    invisible = bytes_field(15, duration(invisible_ms))
    lease = _queue_field(queue_id) + invisible + varint_field(16, attempt)
    return store_host + lease + _DIGEST_HEAD


@lru_cache(maxsize=64)
def delivery_timestamp(milliseconds: int) -> bytes:
    """`ReceiveMessageResponse { delivery_timestamp }`."""
    return bytes_field(3, timestamp(milliseconds))


def _digest(body: bytes) -> bytes:
    """The checksum of a `Digest`: MD5 in upper case."""
    return b2a_hex(md5(body, usedforsecurity=False).digest()).upper()


def system_fields(message: StoredMessage, store_host: bytes) -> bytes:
    """The system properties of a stored message that the server knows.

    Fields 4 body_digest, 9 store_timestamp, 10 store_host, 13 queue_id, 14 queue_offset.
    """
    return b"".join(
        (
            _stored_field(message.store_timestamp_ms),
            store_host,
            _queue_field(message.queue_id),
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


def delivered(deliveries: Iterable[Delivery], store_host: bytes) -> list[bytes]:
    """`ReceiveMessageResponse { message }` of each delivery.

    Beside `system_fields`: 12 receipt_handle, 15 invisible_duration, 16 delivery_attempt. All of
    a receive in one loop, lengths first, so that each body is copied once.
    """
    responses = []
    shared, known = b"", None
    for delivery in deliveries:
        message, handle = delivery.message, delivery.receipt_handle.encode()
        stored, user, body = message.system, message.user, message.body
        # Neighbours are of one send and one lease, mostly.
        this = (
            message.store_timestamp_ms,
            message.queue_id,
            delivery.invisible_ms,
            delivery.attempt,
        )
        if this != known:
            stored_ms, queue_id, invisible_ms, attempt = known = this
            lease = _lease_fields(store_host, queue_id, invisible_ms, attempt)
            shared = _stored_field(stored_ms) + lease
        queue_offset, topic = varint(message.queue_offset), topic_field(delivery.topic)
        handle_length = _SMALL[len(handle)]
        body_length = _SMALL[len(body)] if len(body) < 4096 else varint(len(body))
        ours = len(shared) + len(queue_offset) + len(handle_length) + len(handle)
        system = len(stored) + ours + _DIGEST_BYTES + 2
        system_length = _SMALL[system] if system < 4096 else varint(system)
        rest = len(topic) + len(user) + len(system_length) + len(body_length) + len(body) + 2
        length = system + rest
        responses.append(
            b"".join(
                (
                    b"\x12",
                    _SMALL[length] if length < 4096 else varint(length),
                    topic,
                    user,
                    b"\x1a",
                    system_length,
                    stored,
                    shared,
                    _digest(body),
                    b"\x70",
                    queue_offset,
                    b"\x62",
                    handle_length,
                    handle,
                    b"\x22",
                    body_length,
                    body,
                )
            )
        )
    return responses


def pulled(message: StoredMessage, store_host: bytes) -> bytes:
    """`PullMessageResponse { message }` of one stored message."""
    return bytes_field(2, message_fields(message, system_fields(message, store_host)))
