"""The first offset of each queue that retention left, from the start of the oldest segment.

    segment   (gone) │ 41: QUEUE_ENDS (7·0 → 5,000) …        42 …        43 …
    queue 7·0   … 4,999 │ 5,000 …                                             5,000 is its first
    queue 9·0   (not there)                            0 1 2 …                0 is its first

A segment begins with where every queue ended. So one frame answers for all queues, also those
that lie in the newest segments only: else each older index would be read to find nothing.
"""

from array import array
from bisect import bisect_left
from pathlib import Path

from cosmodrome_server.model.log import RecordKind
from cosmodrome_server.store import segment
from cosmodrome_server.store.files import Files
from cosmodrome_server.store.record import decode_records
from cosmodrome_server.store.scanner import Found, scan
from cosmodrome_server.store.segment import SegmentHeader


class FirstOffsets:
    """Where queues ended when a segment began: 16 bytes a queue.

    Args:
        pairs: Key and next offset of each queue, in any order.
    """

    def __init__(self, pairs: "array[int]") -> None:
        keys, ends = pairs[::2], pairs[1::2]
        order = sorted(range(len(keys)), key=keys.__getitem__)
        self._keys = array("Q", map(keys.__getitem__, order))
        self._ends = array("Q", map(ends.__getitem__, order))

    def __len__(self) -> int:
        return len(self._keys)

    def of(self, key: int) -> int:
        """The end of a queue then; 0 if it was not there."""
        at = bisect_left(self._keys, key)
        return self._ends[at] if at < len(self._keys) and self._keys[at] == key else 0


def read_first_offsets(files: Files, directory: Path, header: SegmentHeader) -> FirstOffsets | None:
    """What the first frame of a segment says; None if it is damaged.

    Raises:
        OSError: It cannot be read.
    """
    file = files.open(segment.path_of(directory, header))
    try:
        found = next(scan(file, header, is_strict=True))
    finally:
        file.close()
    if not isinstance(found, Found):
        return None
    first = next(decode_records(found.payload, 0, 0), None)
    if first is None or first.kind is not RecordKind.QUEUE_ENDS:
        return None
    return FirstOffsets(array("Q", first.payload))
