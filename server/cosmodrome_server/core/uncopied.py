"""Delayed messages of which only the log has a copy, in its order.

    words of 8 bytes    │ (copied) … │ due │ position │ due │ position │ …
                                     └ head

16 bytes each: the million that a slow disk may let wait is one copy of memory when it is a row
of a checkpoint, where a dictionary would hold the loop for a third of a second.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator


class Uncopied:
    """A queue of (due ms, position), ascending by position."""

    __slots__ = ("_head", "_words")

    def __init__(self, row: bytes = b"") -> None:
        self._words = array("Q", row)
        self._head = 0

    def __len__(self) -> int:
        return (len(self._words) - self._head) // 2

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self.first(len(self)))

    @property
    def oldest(self) -> int | None:
        """The lowest position; None for none."""
        return self._words[self._head + 1] if self._head < len(self._words) else None

    def add(self, due_ms: int, position: int) -> None:
        """A message came, after all the others."""
        self._words.extend((due_ms, position))

    def first(self, count: int, after: int = 0) -> list[tuple[int, int]]:
        """(due ms, position) of the oldest, so many of them."""
        start = self._head + 2 * after
        some = self._words[start : start + 2 * count]
        return list(zip(some[::2], some[1::2], strict=True))

    def drop_up_to(self, position: int) -> None:
        """Forget all up to a position."""
        words, head = self._words, self._head
        dropped = bisect_right(range(len(self)), position, key=lambda at: words[head + 2 * at + 1])
        self._head += 2 * dropped
        if self._head > len(words) // 2:
            del words[: self._head]
            self._head = 0

    def row(self) -> bytes:
        """All of them, as `Uncopied` takes them back."""
        return self._words[self._head :].tobytes()

    def copy(self) -> "Uncopied":
        """The same, independent."""
        return Uncopied(self.row())
