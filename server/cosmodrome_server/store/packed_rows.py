"""Rows on their way into a checkpoint, in one piece of memory.

    ┌────────────┬──────────────┬─────┬───────┬────────────┬──
    │ key length │ value length │ key │ value │ key length │ …       u32 each: all ones for a
    └────────────┴──────────────┴─────┴───────┴────────────┴──       row that is removed

Between two checkpoints 200,000 rows may change. Each is some 50 bytes here, and was 250 as
two objects in a dict. What changed again is there twice, and the last one counts; where
checkpoints fail for long the others are thrown away now and then.
"""

from collections.abc import Iterable, Iterator
from struct import Struct

_HEAD = Struct("<II")
_REMOVED = (1 << 32) - 1
# Bytes that are not looked through for rows that changed again.
SMALL_BYTES = 1 << 20

ChangedRow = tuple[bytes, bytes | None]


class PackedRows:
    """Changed rows in the order they changed; None removes."""

    __slots__ = ("_data", "_thin_at")

    def __init__(self) -> None:
        self._data = bytearray()
        self._thin_at = SMALL_BYTES

    def __iter__(self) -> Iterator[ChangedRow]:
        data, at = self._data, 0
        while at < len(data):
            key_bytes, value_bytes = _HEAD.unpack_from(data, at)
            start = at + _HEAD.size + key_bytes
            key = bytes(data[at + _HEAD.size : start])
            if value_bytes == _REMOVED:
                at = start
                yield key, None
            else:
                at = start + value_bytes
                yield key, bytes(data[start:at])

    def extend(self, rows: Iterable[ChangedRow]) -> None:
        """Add what changed after these."""
        data = self._data
        for key, value in rows:
            if value is None:
                data += _HEAD.pack(len(key), _REMOVED)
                data += key
            else:
                data += _HEAD.pack(len(key), len(value))
                data += key
                data += value

    def thin(self) -> None:
        """Keep the last change of each row, if there may be much else."""
        if len(self._data) > self._thin_at:
            last = dict(self)
            self._data = bytearray()
            self.extend(last.items())
            self._thin_at = 2 * len(self._data) + SMALL_BYTES
