"""What bulk readers see of a log, and what their pins keep."""

from pathlib import Path

import pytest

from cosmodrome_server.errors import MessageNotFound, OverloadedError
from cosmodrome_server.store.consume_queue import ConsumeQueues
from cosmodrome_server.store.files import OsFiles
from cosmodrome_server.store.message_reader import MessageReader
from cosmodrome_server.store.ranges import PINS_MAX, Ranges

UNPINNED = 1 << 63


@pytest.fixture
def queues(tmp_path: Path) -> ConsumeQueues:
    return ConsumeQueues(OsFiles(), tmp_path, lambda _, is_strict: {})


@pytest.fixture
def ranges(tmp_path: Path, queues: ConsumeQueues) -> Ranges:
    files = OsFiles()
    return Ranges(queues, MessageReader(files, tmp_path, []), files, tmp_path)


def test_a_pin_holds_until_it_is_released_or_its_time_is_over(ranges: Ranges) -> None:
    early = ranges.pin(7 << 32, until_ms=1_000)
    ranges.pin(9 << 32, until_ms=2_000)

    assert ranges.pinned_position(999) == 7 << 32
    ranges.release(early)
    assert ranges.pinned_position(999) == 9 << 32
    assert ranges.pinned_position(2_000) == UNPINNED


def test_pins_are_bounded_and_a_second_release_is_harmless(ranges: Ranges) -> None:
    pins = [ranges.pin(1, until_ms=10) for _ in range(PINS_MAX)]

    with pytest.raises(OverloadedError):
        ranges.pin(1, until_ms=10)
    ranges.release(pins[0])
    ranges.release(pins[0])
    ranges.pin(1, until_ms=10)


def test_entries_are_copies_of_what_is_stored_of_a_range(
    ranges: Ranges, queues: ConsumeQueues
) -> None:
    for offset in range(5):
        queues.index(1, 0, offset, (100 + offset, 7, 1_000 + offset))

    (found,) = ranges.entries(1, 0, 2, 99)
    queues.index(1, 0, 5, (105, 7, 1_005))

    words = memoryview(found.words).cast("Q").tolist()
    assert found.start == 2
    assert words == [102, 7, 1_002, 103, 7, 1_003, 104, 7, 1_004]
    assert ranges.entries(1, 1, 0, 5) == []
    assert ranges.sealed(1, 0, 0, 5) == []


def test_a_segment_that_is_gone_is_said_so(ranges: Ranges) -> None:
    with pytest.raises(MessageNotFound, match="segment 4"):
        ranges.map(4)
