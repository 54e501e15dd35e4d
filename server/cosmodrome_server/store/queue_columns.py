"""Queues at rest: what the index keeps of those that were not touched for a while.

    block   keys     7·0  7·1  7·4  9·0 …    topic id · queue id, sorted; 512 at most, then halved
            ends      12    3   40    1      next offsets
            counts     1    0    2    1      how many of its last offsets are in the active segment
            starts     0    –    1    4      which entry in `words` is the first of them
            unsaved    1    0    0    1      how many of its last offsets no checkpoint knows
            words    ┌─┐     ┌──┬──┬──┬─┐
                     └─┘     └──┴──┴░░┴─┘    three words an entry; ░ was taken up again

22 bytes a queue and 24 an entry, where an awake queue is an object, an array and their place
in a dict, 300 bytes. Laying a queue down and taking it up costs some microseconds either way.
Long queues are never laid down: they weigh little for what they hold.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from cosmodrome_server.store.sealed_index import WORDS, Run

# The most entries a queue at rest may have.
ENTRIES_MAX = 64
# Not looked for yet, see `RestingQueue.first`.
UNKNOWN = -1

_BLOCK_QUEUES = 512
# Entries of `words` that nothing points to, beside half of those in use, before it is made anew.
_STALE_MIN = 64
_UNSAVED_MAX = 255


class NewEntries(NamedTuple):
    """What one queue got since the last checkpoint.

    Attributes:
        key: Of the queue.
        next_offset: Where it ends; 0 if it is gone with its topic.
        base: The offset of the first new entry.
        entries: The new entries, 24 bytes each.
    """

    key: int
    next_offset: int
    base: int
    entries: bytes


class RestingQueue(NamedTuple):
    """All there is to know of one queue.

    Attributes:
        end: Its next offset.
        unsaved: How many of its last offsets no checkpoint knows; above its entries if that
            is only where it ends.
        first: Its first stored offset; `UNKNOWN` until it was looked for.
        words: Its entries in the active segment.
    """

    end: int
    unsaved: int
    first: int
    words: "array[int]"


class _Block:
    """Neighbouring queues. Every column but `firsts` has a row for each."""

    __slots__ = ("counts", "ends", "firsts", "keys", "starts", "unsaved", "used", "words")

    def __init__(self, keys: "array[int]", ends: "array[int]") -> None:
        self.keys = keys
        self.ends = ends
        self.counts = bytearray(len(keys))
        self.starts = array("I", bytes(4 * len(keys)))
        self.unsaved = bytearray(len(keys))
        # First stored offsets, once one was looked for.
        self.firsts: array[int] | None = None
        self.words = array("Q")
        # Entries that a row points to.
        self.used = 0

    def run(self, at: int) -> Run:
        """The entries of a queue in the active segment."""
        end = self.ends[at]
        return Run(end - self.counts[at], end, self.words, WORDS * self.starts[at])

    def insert(self, at: int, key: int, queue: RestingQueue) -> None:
        """A row comes before row `at`."""
        count = len(queue.words) // WORDS
        self.keys.insert(at, key)
        self.ends.insert(at, queue.end)
        self.counts.insert(at, count)
        self.starts.insert(at, len(self.words) // WORDS)
        self.unsaved.insert(at, min(queue.unsaved, _UNSAVED_MAX))
        if self.firsts is not None:
            self.firsts.insert(at, queue.first)
        elif queue.first != UNKNOWN:
            self.note_first(at, queue.first)
        self.words.extend(queue.words)
        self.used += count

    def append(self, at: int, next_offset: int, entries: bytes) -> bool:
        """Add the last entries of a queue; False if there is no room behind those it has."""
        count, held, tail = len(entries) // (8 * WORDS), self.counts[at], len(self.words) // WORDS
        if held + count > ENTRIES_MAX or (held and self.starts[at] + held != tail):
            return False
        if not held:
            self.starts[at] = tail
        self.counts[at] = held + count
        self.ends[at] = next_offset
        self.words.frombytes(entries)
        self.used += count
        return True

    def note_first(self, at: int, first: int) -> None:
        """The first stored offset of a queue was found."""
        if self.firsts is None:
            self.firsts = array("q", [UNKNOWN]) * len(self.keys)
        self.firsts[at] = first

    def take(self, at: int) -> RestingQueue:
        """Row `at`, which is gone then."""
        start, count = WORDS * self.starts[at], self.counts[at]
        queue = RestingQueue(
            self.ends[at],
            self.unsaved[at],
            UNKNOWN if self.firsts is None else self.firsts[at],
            self.words[start : start + WORDS * count],
        )
        self.remove(at, at + 1)
        return queue

    def remove(self, low: int, high: int) -> None:
        """Rows [low, high) are gone."""
        self.used -= sum(self.counts[low:high])
        del self.keys[low:high], self.ends[low:high], self.unsaved[low:high]
        del self.counts[low:high], self.starts[low:high]
        if self.firsts is not None:
            del self.firsts[low:high]
        if len(self.words) // WORDS > self.used + self.used // 2 + _STALE_MIN:
            self.compact()

    def compact(self) -> None:
        """Let go of entries that no row points to."""
        words, self.words = self.words, array("Q")
        for at, (start, count) in enumerate(zip(self.starts, self.counts, strict=True)):
            self.starts[at] = len(self.words) // WORDS
            self.words.extend(words[WORDS * start : WORDS * (start + count)])

    def split(self) -> "_Block":
        """Take the upper half out."""
        at, upper = len(self.keys) // 2, self.copy()
        upper.remove(0, at)
        self.remove(at, len(self.keys))
        for half in (self, upper):
            half.compact()
        return upper

    def copy(self) -> "_Block":
        """The same, independent."""
        other = _Block(self.keys[:], self.ends[:])
        other.counts, other.starts = self.counts[:], self.starts[:]
        other.unsaved, other.words, other.used = self.unsaved[:], self.words[:], self.used
        other.firsts = None if self.firsts is None else self.firsts[:]
        return other

    def without_entries(self) -> "_Block":
        """The same queues in a segment that just began."""
        other = _Block(self.keys[:], self.ends[:])
        other.unsaved[:] = self.unsaved
        return other

    def __iter__(self) -> Iterator[NewEntries]:
        """What is unsaved."""
        for at, unsaved in enumerate(self.unsaved):
            if unsaved:
                end, count = self.ends[at], self.counts[at]
                fresh = min(unsaved, count)
                stop = WORDS * (self.starts[at] + count)
                words = self.words[stop - WORDS * fresh : stop]
                yield NewEntries(self.keys[at], end, end - fresh, words.tobytes())


class QueueColumns:
    """Key → what is known of a queue at rest."""

    def __init__(self, blocks: Iterable[_Block] = ()) -> None:
        self._blocks = list(blocks)
        # No key of a block lies below its bound, and none of the block before reaches it.
        self._bounds = array("Q", [block.keys[0] for block in self._blocks])

    @classmethod
    def of(cls, ends: Mapping[int, int], *, is_saved: bool) -> "QueueColumns":
        """Queues without entries.

        Args:
            ends: Key → next offset.
            is_saved: Whether the checkpoint knows them.
        """
        blocks = []
        keys = array("Q", sorted(ends))
        for start in range(0, len(keys), _BLOCK_QUEUES):
            part = keys[start : start + _BLOCK_QUEUES]
            block = _Block(part, array("Q", map(ends.__getitem__, part)))
            if not is_saved:
                block.unsaved[:] = b"\1" * len(part)
            blocks.append(block)
        return cls(blocks)

    def __len__(self) -> int:
        return sum(len(block.keys) for block in self._blocks)

    def _find(self, key: int) -> tuple[_Block, int] | None:
        number = bisect_right(self._bounds, key) - 1
        if number < 0:
            return None
        block = self._blocks[number]
        keys = block.keys
        at = bisect_left(keys, key)
        return (block, at) if at < len(keys) and keys[at] == key else None

    def end(self, key: int) -> int:
        """The next offset of a queue; 0 if it is not here."""
        found = self._find(key)
        return 0 if found is None else found[0].ends[found[1]]

    def get(self, key: int) -> Run | None:
        """The entries of a queue in the active segment; None if it has none or is not here."""
        found = self._find(key)
        if found is None:
            return None
        block, at = found
        return block.run(at) if block.counts[at] else None

    def first(self, key: int, find: Callable[[int], int | None]) -> int:
        """The first stored offset of a queue; 0 if it is not here.

        Args:
            key: Of the queue.
            find: Looks for it in the sealed segments.
        """
        found = self._find(key)
        if found is None:
            return 0
        block, at = found
        if block.firsts is not None and block.firsts[at] != UNKNOWN:
            return block.firsts[at]
        base = block.ends[at] - block.counts[at]
        if not base:
            return 0
        first = find(key)
        if first is None:
            first = base
        block.note_first(at, first)
        return first

    def append(self, key: int, next_offset: int, entries: bytes) -> bool:
        """At start: saved entries of a queue, the last; False if it must be woken for them."""
        found = self._find(key)
        return found is not None and found[0].append(found[1], next_offset, entries)

    def lay(self, key: int, queue: RestingQueue) -> None:
        """A queue that is not here comes to rest."""
        number = bisect_right(self._bounds, key) - 1
        if number < 0:
            number = 0
            if not self._blocks:
                self._blocks.append(_Block(array("Q"), array("Q")))
                self._bounds.append(key)
            self._bounds[0] = key
        block = self._blocks[number]
        block.insert(bisect_left(block.keys, key), key, queue)
        if len(block.keys) > _BLOCK_QUEUES:
            upper = block.split()
            self._blocks.insert(number + 1, upper)
            self._bounds.insert(number + 1, upper.keys[0])

    def take(self, key: int) -> RestingQueue | None:
        """Wake a queue; None if it is not here."""
        found = self._find(key)
        if found is None:
            return None
        block, at = found
        queue = block.take(at)
        if not block.keys:
            self._forget_empty(block)
        return queue

    def _forget_empty(self, block: _Block) -> None:
        number = self._blocks.index(block)
        del self._blocks[number], self._bounds[number]

    def drop(self, first: int, end: int) -> "array[int]":
        """Forget the queues with keys in [first, end); return their keys."""
        dropped = array("Q")
        low = max(0, bisect_right(self._bounds, first) - 1)
        for block in self._blocks[low : bisect_left(self._bounds, end)]:
            start, stop = bisect_left(block.keys, first), bisect_left(block.keys, end)
            dropped.extend(block.keys[start:stop])
            block.remove(start, stop)
            if not block.keys:
                self._forget_empty(block)
        return dropped

    def __iter__(self) -> Iterator[tuple[int, Run]]:
        """Each (key, entries in the active segment) by key, of queues that have some."""
        for block in self._blocks:
            for at, count in enumerate(block.counts):
                if count:
                    yield block.keys[at], block.run(at)

    def ends(self) -> Iterator[tuple["array[int]", "array[int]"]]:
        """(keys, next offsets) of all queues, some hundred at a time."""
        for block in self._blocks:
            yield block.keys, block.ends

    def entry_words(self) -> Iterator["array[int]"]:
        """All entries, and some that were taken up again."""
        for block in self._blocks:
            yield block.words

    def take_unsaved(self) -> list[_Block]:
        """What a checkpoint must save, to be unfolded later; taking it marks it saved."""
        taken = []
        for block in self._blocks:
            if any(block.unsaved):
                taken.append(block.copy())
                block.unsaved[:] = bytes(len(block.keys))
        return taken

    def seal(self) -> "QueueColumns":
        """Begin a segment; return the queues with their entries in the one before."""
        sealed = QueueColumns(self._blocks)
        self._blocks = [block.without_entries() for block in self._blocks]
        return sealed

    def forget_firsts(self) -> None:
        """What was first is perhaps no longer."""
        for block in self._blocks:
            block.firsts = None
