"""No copies of delayed messages: the log keeps them, and all hours are known from it."""

from collections.abc import Iterable
from typing import NamedTuple

from cosmodrome_server.errors import CorruptFrame
from cosmodrome_server.model.log import Loaded, MessageRecord


class _Nothing(NamedTuple):
    due_ms: tuple[int, ...] = ()
    positions: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()


class NoBuckets:
    """Implements `model.log.DelayedStore` by keeping nothing."""

    is_kept = False

    def hours(self) -> list[int]:
        """None."""
        return []

    def append(self, delayed: Iterable[tuple[int, int, MessageRecord]]) -> None:
        """Never called while `is_kept` is False."""
        raise AssertionError(f"nothing is kept: {delayed}")

    def sync(self) -> None:
        """Nothing to do."""

    def load(self, hour: int) -> Loaded:
        """Nothing."""
        del hour
        return _Nothing()

    def read(self, hour: int, start: int) -> MessageRecord:
        """Nothing to read."""
        raise CorruptFrame(f"no bucket of hour {hour} has anything at {start}")

    def delete(self, hour: int) -> None:
        """Nothing to delete."""

    def close(self) -> None:
        """Nothing to close."""
