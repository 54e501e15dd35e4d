"""A `CheckpointStore` in memory; passes the suite of the real one."""

from collections.abc import Iterable

from cosmodrome_server.store.checkpoint import Mark, Saved
from cosmodrome_server.store.packed_rows import ChangedRow
from cosmodrome_server.store.queue_columns import NewEntries


class MemoryCheckpoints:
    """Keeps what was saved; `copy` is what the next start finds.

    Attributes:
        failing: Saves raise OSError.
        saves: How many were done.
    """

    def __init__(self) -> None:
        self.failing = False
        self.saves = 0
        self._mark: Mark | None = None
        self._rows: dict[bytes, bytes] = {}
        self._ends: dict[int, int] = {}
        self._entries: dict[tuple[int, int, int], bytes] = {}

    def load(self) -> Saved | None:
        """See `CheckpointStore`."""
        if self._mark is None:
            return None
        entries = [(key, base, held) for (_, key, base), held in sorted(self._entries.items())]
        return Saved(self._mark, sorted(self._rows.items()), dict(self._ends), entries)

    def save(self, mark: Mark, rows: Iterable[ChangedRow], new: Iterable[NewEntries]) -> None:
        """See `CheckpointStore`."""
        if self.failing:
            raise OSError("the test's checkpoints fail")
        self.saves += 1
        segment = mark.position >> 32
        for key, value in rows:
            if value is None:
                self._rows.pop(key, None)
            else:
                self._rows[key] = value
        for entry in new:
            self._ends[entry.key] = entry.next_offset
            if not entry.next_offset:
                del self._ends[entry.key]
            if entry.entries:
                self._entries[segment, entry.key, entry.base] = entry.entries
        self._entries = {key: held for key, held in self._entries.items() if key[0] >= segment}
        self._mark = mark

    def note_durable(self, durable_lsn: int) -> None:
        """See `CheckpointStore`."""
        if self._mark is not None:
            self._mark = self._mark._replace(durable_lsn=durable_lsn)

    def discard(self) -> None:
        """See `CheckpointStore`."""
        self._mark = None
        self._rows, self._ends, self._entries = {}, {}, {}

    def close(self) -> None:
        """See `CheckpointStore`."""

    def copy(self) -> "MemoryCheckpoints":
        """The same, independent."""
        other = MemoryCheckpoints()
        other._mark = self._mark
        other._rows = dict(self._rows)
        other._ends = dict(self._ends)
        other._entries = dict(self._entries)
        return other
