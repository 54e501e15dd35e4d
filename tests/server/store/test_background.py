"""What a checkpoint that could not be saved leaves to the next one."""

import tracemalloc
from array import array
from collections.abc import Iterable

from cosmodrome_server.store.background import Changes
from cosmodrome_server.store.checkpoint import Mark
from cosmodrome_server.store.queue_columns import UNKNOWN, NewEntries, QueueColumns, RestingQueue

QUEUES = 2_000


def changes(segment: int, entries: Iterable[Iterable[NewEntries]]) -> Changes:
    return Changes(mark=Mark(1, segment << 32, 1, 7), entries=list(entries))


def unfolded(kept: Changes) -> list[NewEntries]:
    return [new for part in kept.entries for new in part]


def test_what_was_not_saved_is_there_once_more_in_its_order() -> None:
    first = [NewEntries(1, 2, 0, bytes(48)), NewEntries(3, 9, 9, b"")]
    second = [NewEntries(2, 0, 0, b""), NewEntries(1, 3, 2, b"x" * 24)]
    third = [NewEntries(1, 4, 3, b"y" * 24)]
    kept = Changes()
    for later in (first, second, third):
        kept.add(changes(5, [later[:1], later[1:]]))

    assert unfolded(kept) == first + second + third


def test_of_sealed_segments_the_ends_are_kept_once() -> None:
    kept = Changes()
    kept.add(changes(5, [[NewEntries(1, 2, 0, bytes(48)), NewEntries(2, 1, 0, bytes(24))]]))
    kept.add(changes(5, [[NewEntries(1, 3, 2, bytes(24)), NewEntries(2, 0, 0, b"")]]))
    kept.add(changes(6, [[NewEntries(1, 4, 3, b"z" * 24)]]))

    assert unfolded(kept) == [
        NewEntries(1, 3, 3, b""),
        NewEntries(2, 0, 0, b""),
        NewEntries(1, 4, 3, b"z" * 24),
    ]


def test_however_long_none_is_saved_little_more_is_kept_than_what_is_new() -> None:
    columns = QueueColumns.of(dict.fromkeys(range(QUEUES), 8), is_saved=True)
    kept = Changes()
    tracemalloc.start()
    try:
        for checkpoint in range(100):
            for key in range(checkpoint % 50, QUEUES, 50):
                queue = columns.take(key)
                assert queue is not None
                words = queue.words + array("Q", [1, 2, 3])
                columns.lay(key, RestingQueue(queue.end + 1, 1, UNKNOWN, words))
            kept.add(changes(5, columns.take_unsaved()))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    entries = 100 * QUEUES // 50
    assert len(unfolded(kept)) == entries
    assert held < 200 * entries, f"{held / entries:.0f} bytes an entry"
