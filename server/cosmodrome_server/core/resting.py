"""Queues on which a group is at rest: all before an offset is done, nothing else is known.

    queue id   0    1    2    3   4         one number each, however many there are:
    offset     17   17   —    0   9_001     100,000 queues consumed to their ends are 800 KB

Most queues of most groups are like this most of the time. `core.consumptions` lays them
down here and takes them up when they are touched. A byte each says whether the checkpoint
has yet to learn of it.
"""

from array import array
from collections.abc import Iterator

_NOWHERE = (1 << 64) - 1
_YES = b"\1"


class RestingQueues:
    """Queue id → offset."""

    __slots__ = ("_count", "_offsets", "_unsaved")

    def __init__(self) -> None:
        self._offsets = array("Q")
        self._unsaved = bytearray()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Each (queue id, offset), by queue id."""
        for queue_id, queue_offset in enumerate(self._offsets):
            if queue_offset != _NOWHERE:
                yield queue_id, queue_offset

    def get(self, queue_id: int) -> int | None:
        """Where the group is on a queue; None if it is not at rest there."""
        if queue_id >= len(self._offsets):
            return None
        queue_offset = self._offsets[queue_id]
        return None if queue_offset == _NOWHERE else queue_offset

    def lay(self, queue_id: int, queue_offset: int, *, is_saved: bool) -> None:
        """A group came to rest on a queue where it was not."""
        missing = queue_id + 1 - len(self._offsets)
        if missing > 0:
            self._offsets.extend([_NOWHERE] * missing)
            self._unsaved.extend(bytes(missing))
        self._offsets[queue_id] = queue_offset
        self._unsaved[queue_id] = not is_saved
        self._count += 1

    def take(self, queue_id: int) -> int | None:
        """`get`, and the group is no longer at rest there."""
        queue_offset = self.get(queue_id)
        if queue_offset is not None:
            self._offsets[queue_id] = _NOWHERE
            self._unsaved[queue_id] = False
            self._count -= 1
        return queue_offset

    def save(self) -> Iterator[tuple[int, int]]:
        """Each (queue id, offset) that is to be saved; it is then."""
        queue_id = self._unsaved.find(_YES)
        while queue_id >= 0:
            self._unsaved[queue_id] = False
            yield queue_id, self._offsets[queue_id]
            queue_id = self._unsaved.find(_YES, queue_id + 1)
