"""A progress as a row of the checkpoint: b"P" + place → bytes.

    key     'P' · group id u32 · topic id u32 · queue id u32   (big-endian: groups sort together)
    value   floor u64 · cursor u64 · flags u8 · counts: chunks u32, ready u32, leases u32,
            attempt leases u16, attempt id u16
            chunks:  number u64 · 64 bytes
            ready:   offset u64 · attempt u16                        in the order they became so
            leases:  id u64 · base u64 · deadline u64 · popped u64 · attempt u16 · renewals u16 ·
                     flags u8 · lengths of mask u8, client u16 · those bytes         by their ids
            the last receive that has a name: id u64 of each of its attempt leases · the attempt id
            if there are: those before it, count u8, oldest first: attempt leases u16, attempt id
            u16, then as above

Equal progress gives equal bytes: the state hash of a shard is taken over its rows.
"""

from collections.abc import Iterable, Iterator
from struct import Struct

from cosmodrome_server.core.done_set import CHUNK_BITS
from cosmodrome_server.core.lease import Lease
from cosmodrome_server.core.machine import Row
from cosmodrome_server.core.progress import Place, Progress

PREFIX = b"P"

_KEY = Struct(">cIII")
_QUEUE_ID = Struct(">I")
_HEAD = Struct("<QQBIIIHH")
# The head of a progress of which nothing but floor and cursor is known.
_RESTING = Struct("<QQ17x")
_NUMBER = Struct("<Q")
_READY = Struct("<QH")
_ATTEMPT = Struct("<HH")
_LEASE = Struct("<QQQQHHBBH")
_CHUNK_BYTES = CHUNK_BITS // 8
_RESET_PENDING = 1
_SUSPENDED = 1
# Longer rows are not kept: they would weigh as much as what they are made of.
_KEPT_BYTES_MAX = 1_024


def encode_key(place: Place) -> bytes:
    """The key of a progress."""
    return _KEY.pack(PREFIX, *place)


def decode_key(key: bytes) -> Place:
    """The inverse of `encode_key`."""
    _, group_id, topic_id, queue_id = _KEY.unpack(key)
    return group_id, topic_id, queue_id


def value_of(progress: Progress) -> bytes:
    """The value of a progress; encoded if it is long or changed since the last call."""
    row = progress.row
    if row is None:
        row = encode_value(progress)
        if len(row) <= _KEPT_BYTES_MAX:
            progress.row = row
    return row


def resting_rows(pair: tuple[int, int], at: Iterable[tuple[int, int]]) -> Iterator[Row]:
    """The rows of progress at rest, given as (queue id, offset) of a (group id, topic id)."""
    key, queue, value = encode_key((*pair, 0))[: -_QUEUE_ID.size], _QUEUE_ID.pack, _RESTING.pack
    for queue_id, queue_offset in at:
        yield key + queue(queue_id), value(queue_offset, queue_offset)


def resting_offset(value: bytes) -> int | None:
    """Where a progress is of which this value says nothing else; None if it says more."""
    is_short = len(value) == _HEAD.size and value[:8] == value[8:16] and not any(value[16:])
    return _NUMBER.unpack_from(value)[0] if is_short else None


def encode_value(progress: Progress) -> bytes:
    """The value of a progress."""
    chunks = progress.done.above_floor()
    *earlier, (leases, attempt_id) = _attempts(progress) or [([], b"")]
    parts = [
        _HEAD.pack(
            progress.done.floor,
            progress.cursor,
            _RESET_PENDING if progress.is_reset_pending else 0,
            len(chunks),
            len(progress.ready),
            len(progress.leases),
            len(leases),
            len(attempt_id),
        )
    ]
    for number, bits in chunks:
        parts += (_NUMBER.pack(number), bits.to_bytes(_CHUNK_BYTES, "little"))
    parts += [_READY.pack(offset, attempt) for offset, attempt in progress.ready.items()]
    for lease in progress.leases:
        parts += _lease_parts(lease)
    parts += _attempt_parts(leases, attempt_id)
    if earlier:
        parts.append(bytes([len(earlier)]))
    for leases, attempt_id in earlier:
        parts += (_ATTEMPT.pack(len(leases), len(attempt_id)), *_attempt_parts(leases, attempt_id))
    return b"".join(parts)


def _attempts(progress: Progress) -> list[tuple[list[int], bytes]]:
    return [(leases, name.encode()) for name, leases in progress.attempts.items()]


def _attempt_parts(leases: list[int], attempt_id: bytes) -> list[bytes]:
    return [*map(_NUMBER.pack, leases), attempt_id]


def _lease_parts(lease: Lease) -> tuple[bytes, bytes, bytes]:
    mask = lease.mask.to_bytes((lease.mask.bit_length() + 7) >> 3, "little")
    client = lease.client_id.encode()
    head = _LEASE.pack(
        lease.lease_id,
        lease.base,
        lease.deadline_ms,
        lease.popped_ms,
        lease.attempt,
        lease.renewals,
        _SUSPENDED if lease.is_suspended else 0,
        len(mask),
        len(client),
    )
    return head, mask, client


def decode(place: Place, value: bytes) -> Progress:
    """The inverse of `encode_value`."""
    floor, cursor, flags, chunks, ready, leases, *last = _HEAD.unpack_from(value)
    progress = Progress(place, floor)
    progress.cursor = cursor
    progress.is_reset_pending = bool(flags & _RESET_PENDING)
    at = _HEAD.size
    for _ in range(chunks):
        bits = int.from_bytes(value[at + 8 : at + 8 + _CHUNK_BYTES], "little")
        progress.done.chunks[_NUMBER.unpack_from(value, at)[0]] = bits
        at += 8 + _CHUNK_BYTES
    for _ in range(ready):
        queue_offset, attempt = _READY.unpack_from(value, at)
        progress.ready[queue_offset] = attempt
        at += _READY.size
    for _ in range(leases):
        at = _decode_lease(progress, value, at)
    _decode_attempts(progress, (last[0], last[1]), value, at)
    return progress


def _decode_attempts(progress: Progress, counts: tuple[int, int], value: bytes, at: int) -> None:
    """The last attempt, whose counts are in the head, and those before it from there on."""
    last, at = _decode_attempt(value, at, counts)
    earlier, at = (value[at], at + 1) if at < len(value) else (0, at)
    for _ in range(earlier):
        counts = _ATTEMPT.unpack_from(value, at)
        (name, leases), at = _decode_attempt(value, at + _ATTEMPT.size, counts)
        progress.attempts[name] = leases
    if last[0]:
        progress.attempts[last[0]] = last[1]


def _decode_attempt(
    value: bytes, at: int, counts: tuple[int, int]
) -> tuple[tuple[str, list[int]], int]:
    leases, id_bytes = counts
    end = at + leases * _NUMBER.size
    ids = [lease_id for (lease_id,) in _NUMBER.iter_unpack(value[at:end])]
    return (value[end : end + id_bytes].decode(), ids), end + id_bytes


def _decode_lease(progress: Progress, value: bytes, at: int) -> int:
    lease_id, base, deadline_ms, popped_ms, attempt, renewals, flags, masked, client = (
        _LEASE.unpack_from(value, at)
    )
    at += _LEASE.size
    mask = int.from_bytes(value[at : at + masked], "little")
    lease = Lease(lease_id, base, mask, deadline_ms, attempt)
    lease.popped_ms = popped_ms
    lease.renewals = renewals
    lease.is_suspended = bool(flags & _SUSPENDED)
    lease.client_id = value[at + masked : at + masked + client].decode()
    progress.leases.add(lease)
    return at + int(masked) + int(client)
