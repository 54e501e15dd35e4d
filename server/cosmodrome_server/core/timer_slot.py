"""What is due in one tenth of a second: 24 bytes a message, in the order of log positions.

Messages come in any order, some from a bucket and some live; they are sorted once, when the
slot is due.
"""

from operator import itemgetter
from struct import Struct
from typing import NamedTuple

_ENTRY = Struct("<QQQ")
_TAKEN_STEP = 256
# A million due at once, at midnight say, would hold the loop for a second without it.
_NUMPY_FROM = 5_000


class TimerEntry(NamedTuple):
    """A delayed message that waits.

    Attributes:
        due_ms: Its delivery time.
        position: Where the log has, or had, it; its name here.
        start: Where its bucket has it; 0 if it was not loaded from one.
    """

    due_ms: int
    position: int
    start: int


class Slot:
    """The messages of one slot; see the module."""

    __slots__ = ("entries", "is_sorted", "last", "taken")

    def __init__(self) -> None:
        self.entries = bytearray()
        self.last = -1
        self.is_sorted = True
        self.taken = 0

    def __len__(self) -> int:
        return len(self.entries) // _ENTRY.size - self.taken

    def add(self, entry: TimerEntry) -> None:
        """Add one; anywhere in the order until the first is taken."""
        self.entries += _ENTRY.pack(*entry)
        self.is_sorted = self.is_sorted and entry.position > self.last
        self.last = entry.position

    def ahead(self, count: int) -> list[TimerEntry]:
        """The next that were not taken, in the order of positions."""
        if not self.is_sorted:
            self._sort()
            self.is_sorted = True
        start = self.taken * _ENTRY.size
        some = bytes(memoryview(self.entries)[start : start + count * _ENTRY.size])
        return [TimerEntry._make(entry) for entry in _ENTRY.iter_unpack(some)]

    def _sort(self) -> None:
        if len(self) > _NUMPY_FROM:
            # Imported late: it costs 20 MB, and most brokers never see such a slot.
            import numpy as np  # noqa: PLC0415 - see above

            entries = np.frombuffer(self.entries, "<u8").reshape(-1, 3)
            self.entries = bytearray(entries[entries[:, 1].argsort(kind="stable")].tobytes())
            return
        order = sorted(_ENTRY.iter_unpack(self.entries), key=itemgetter(1))
        self.entries = bytearray().join(_ENTRY.pack(*entry) for entry in order)

    def take_up_to(self, position: int) -> None:
        """Take what has fired."""
        while some := self.ahead(_TAKEN_STEP):
            fired = sum(entry.position <= position for entry in some)
            self.taken += fired
            if fired < len(some):
                return
