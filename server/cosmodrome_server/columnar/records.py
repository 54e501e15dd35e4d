"""From positions in a segment file to `Messages`: the heads of records, gathered with numpy.

Layouts: store.record (message head), store.sealed_index (entries), store.segment (header).
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cosmodrome_server.columnar.envelope import Messages
from cosmodrome_server.columnar.protobuf import Buffer, Ints
from cosmodrome_server.errors import CorruptFrame

_HEAD_BYTES = 54
_SYSTEM_LENGTH_AT = 46
_KIND_AT, _MESSAGE_KIND = 4, 1
_INDEX_HEADER_BYTES = 72
_INDEX_QUEUES_AT = 32
_ENTRY_WORDS = 3
_SEGMENT_SALT_AT = 32
_LOW_HALF = np.uint64(0xFFFFFFFF)
_KIND_SHIFT = np.uint64(32)


def gathered(
    buffer: Buffer,
    places: Ints,
    offsets: Ints,
    constants: dict[str, str | int],
    *,
    times_ms: Ints,
) -> Messages:
    """The messages whose records begin at some bytes of a segment.

    Args:
        buffer: The segment file.
        places: Where each record begins, in the order of the rows.
        offsets: The queue offset of each.
        constants: See `Messages`.
        times_ms: Store times by the index: of a delayed message the record's own is older.

    Raises:
        CorruptFrame: What lies there is no message record.
    """
    heads = buffer.words_at(places)
    lengths = (heads & _LOW_HALF).astype(np.int64)
    kinds = (heads >> _KIND_SHIFT) & np.uint64(0xFF)
    sizes = buffer.words_at(places + _SYSTEM_LENGTH_AT)
    system_bytes = (sizes & _LOW_HALF).astype(np.int64)
    user_bytes = (sizes >> _KIND_SHIFT).astype(np.int64)
    system = places + _HEAD_BYTES
    user = system + system_bytes
    body = user + user_bytes
    end = places + lengths
    bad = (kinds != _MESSAGE_KIND) | (body > end) | (end > buffer.size)
    if bad.any():
        raise CorruptFrame(f"no message record at byte {int(places[int(np.argmax(bad))])}")
    return Messages(
        buffer=buffer,
        system=(system, user),
        user=(user, body),
        body=(body, end),
        queue_offsets=offsets,
        store_timestamps_ms=times_ms,
        constants=constants,
    )


def record_lengths(buffer: Buffer, places: Ints) -> Ints:
    """How many bytes the records take that begin at some bytes of a segment."""
    return (buffer.words_at(places) & _LOW_HALF).astype(np.int64)


def index_entries(
    index: NDArray[np.uint8], key: int, start: int, end: int
) -> tuple[int, NDArray[np.uint64]]:
    """The entries of the offsets [start, end) of a queue, as far as an index file has them.

    Returns:
        The first offset, and a row for each from there on: position (0 is a hole), tag
        hash, store time.
    """
    queues = int(index[_INDEX_QUEUES_AT : _INDEX_QUEUES_AT + 8].view("<u8")[0])
    words = index[_INDEX_HEADER_BYTES:].view("<u8")
    keys = words[:queues]
    at = int(np.searchsorted(keys, np.uint64(key)))
    if at == queues or int(keys[at]) != key:
        return start, np.empty((0, _ENTRY_WORDS), np.uint64)
    base = int(words[queues + at])
    first, last = int(words[2 * queues + at]), int(words[2 * queues + at + 1])
    low = max(start, base)
    high = min(end, base + last - first)
    entries = words[3 * queues + 1 :]
    begin = _ENTRY_WORDS * (first + low - base)
    count = max(0, high - low)
    return low, entries[begin : begin + _ENTRY_WORDS * count].reshape(count, _ENTRY_WORDS)


def salt_of(segment: Path) -> int:
    """The salt in the header of a segment file.

    Raises:
        OSError: It cannot be read.
    """
    with segment.open("rb") as file:
        header = file.read(_SEGMENT_SALT_AT + 8)
    return int.from_bytes(header[_SEGMENT_SALT_AT:], "little")
