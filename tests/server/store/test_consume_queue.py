from array import array
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cosmodrome_server.errors import CorruptFrame
from cosmodrome_server.store import sealed_index
from cosmodrome_server.store.consume_queue import ConsumeQueues, key_of
from cosmodrome_server.store.sealed_index import Run
from cosmodrome_server.store.segment import SegmentHeader
from tests.support.faulty_files import FaultyFiles

DIRECTORY = Path("/data")
QUEUES = [(1, 0), (1, 1), (2, 0), (9, 4)]


def no_rebuild(header: SegmentHeader, is_strict: bool) -> dict[int, Run]:  # a callback
    raise AssertionError(f"index {header.number} is not damaged")


class ConsumeQueuesMachine(RuleBasedStateMachine):
    """The index against one plain list for each queue."""

    def __init__(self) -> None:
        super().__init__()
        self.files = FaultyFiles()
        self.real = ConsumeQueues(self.files, DIRECTORY, no_rebuild)
        self.real.started()
        self.model: dict[tuple[int, int], dict[int, tuple[int, int, int]]] = {
            queue: {} for queue in QUEUES
        }
        self.next = dict.fromkeys(QUEUES, 0)
        self.segment = SegmentHeader(1, 5, 0, 0)
        self.segment_of: dict[tuple[int, int], dict[int, int]] = {queue: {} for queue in QUEUES}
        self.time_ms = 1_000
        self.unwritten: list[sealed_index.Run] = []

    @rule(queue=st.sampled_from(QUEUES), tag=st.integers(0, (1 << 32) - 1), later=st.booleans())
    def index(self, queue: tuple[int, int], tag: int, later: bool) -> None:
        self.time_ms += later
        entry = (self.segment.number << 32 | self.time_ms, tag, self.time_ms)
        self.real.index(*queue, self.next[queue], entry)
        self.model[queue][self.next[queue]] = entry
        self.segment_of[queue][self.next[queue]] = self.segment.number
        self.next[queue] += 1

    @rule(is_written=st.booleans())
    def seal(self, is_written: bool) -> None:
        sealed = self.real.seal(self.segment, 0)
        self.segment = SegmentHeader(self.segment.number + 1, 5, 0, 0)
        self.real.begin(self.segment.number << 32)
        if is_written:
            self.real.write_sealed(sealed)

    @precondition(lambda self: self.segment.number > 1)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(1, self.segment.number))
        self.real.forget_before(number)
        for queue in QUEUES:
            self.model[queue] = {
                offset: entry
                for offset, entry in self.model[queue].items()
                if self.segment_of[queue][offset] >= number
            }

    @rule(topic_id=st.sampled_from([1, 9]))
    def take_new_says_where_queues_end(self, topic_id: int) -> None:
        for new in self.real.take_new():
            queue = (new.key >> 32, new.key & 0xFFFFFFFF)
            assert new.next_offset == self.next[queue]
            assert len(new.entries) == 24 * (new.next_offset - new.base) or not new.entries

    @rule(queue=st.sampled_from(QUEUES), back_ms=st.integers(-3, 60))
    def offset_at(self, queue: tuple[int, int], back_ms: int) -> None:
        at_ms = self.time_ms - back_ms
        later = [offset for offset, entry in self.model[queue].items() if entry[2] >= at_ms]
        assert self.real.offset_at(*queue, at_ms) == min(later, default=self.next[queue])

    @rule(queue=st.sampled_from(QUEUES), data=st.data())
    def tag_hashes(self, queue: tuple[int, int], data: st.DataObject) -> None:
        stored = self.model[queue]
        first = min(stored, default=self.next[queue])
        start = data.draw(st.integers(first, self.next[queue]))
        end = data.draw(st.integers(start, self.next[queue]))
        expected = [stored[offset][1] for offset in range(start, end)]
        assert list(self.real.tag_hashes(*queue, start, end)) == expected

    @invariant()
    def every_entry_is_found(self) -> None:
        for queue, stored in self.model.items():
            assert self.real.max_offset(*queue) == self.next[queue]
            assert self.real.min_offset(*queue) == min(stored, default=self.next[queue])
            for offset, entry in stored.items():
                assert self.real.entry(*queue, offset) == entry


TestConsumeQueues = ConsumeQueuesMachine.TestCase
TestConsumeQueues.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_offsets_lost_to_corruption_are_holes() -> None:
    queues = ConsumeQueues(FaultyFiles(), DIRECTORY, no_rebuild)
    queues.index(1, 0, 0, (70, 1, 10))
    queues.index(1, 0, 3, (90, 2, 20))

    assert queues.max_offset(1, 0) == 4
    for offset in (1, 2):
        with pytest.raises(CorruptFrame, match="lost to corruption"):
            queues.entry(1, 0, offset)
    assert list(queues.tag_hashes(1, 0, 0, 4)) == [1, 0, 0, 2]
    assert queues.offset_at(1, 0, 15) == 1


def test_once_started_a_gap_is_a_bug() -> None:
    queues = ConsumeQueues(FaultyFiles(), DIRECTORY, no_rebuild)
    queues.started()

    with pytest.raises(AssertionError):
        queues.index(1, 0, 1, (70, 1, 10))


def test_a_deleted_topic_takes_its_queues_with_it() -> None:
    queues = ConsumeQueues(FaultyFiles(), DIRECTORY, no_rebuild)
    for topic_id in (1, 2):
        queues.index(topic_id, 0, 0, (70, 1, 10))
    queues.seal(SegmentHeader(1, 5, 0, 0), 0)
    queues.index(1, 1, 0, (80, 1, 10))

    queues.take_new()
    queues.drop(1)

    assert sorted(entries.key for entries in queues.take_new()) == [key_of(1, 0), key_of(1, 1)]
    assert queues.max_offset(1, 0) == queues.max_offset(1, 1) == 0
    assert queues.max_offset(2, 0) == 1
    assert queues.ends() == {key_of(2, 0): 1}


def test_an_entry_that_points_back_is_remembered_for_retention() -> None:
    queues = ConsumeQueues(FaultyFiles(), DIRECTORY, no_rebuild)
    queues.begin(5 << 32)
    queues.index(1, 0, 0, (5 << 32 | 70, 1, 10))
    assert queues.oldest_foreign_position > 5 << 32
    queues.index(1, 0, 1, (3 << 32 | 70, 1, 10))

    assert queues.oldest_foreign_position == 3 << 32 | 70
    queues.seal(SegmentHeader(5, 5, 0, 0), 0)
    assert queues.sealed_bounds() == [(5, 10, 3 << 32 | 70)]


def written_index(files: FaultyFiles) -> SegmentHeader:
    header = SegmentHeader(7, 5, 0, 0)
    runs = {
        3: Run(10, 12, array("Q", [100, 1, 5, 200, 2, 6]), 0),
        1: Run(0, 1, array("Q", [150, 3, 7]), 0),
    }
    sealed_index.write(files, DIRECTORY, header, runs, (7, 100))
    return header


def test_an_index_file_says_what_was_written() -> None:
    files = FaultyFiles()
    header = written_index(files)

    found = sealed_index.open_index(files, DIRECTORY, header)
    runs = found.runs()

    assert list(runs) == [1, 3]
    assert [(run.base, run.end) for run in runs.values()] == [(0, 1), (10, 12)]
    assert found.run(2) is None
    assert sealed_index.read_header(files, DIRECTORY, header).last_ms == 7


def test_every_flipped_bit_of_an_index_file_is_noticed() -> None:
    files = FaultyFiles()
    header = written_index(files)
    path = sealed_index.path_of(DIRECTORY, 7)
    good = bytes(files.content(path))
    for bit in range(8 * len(good)):
        files.content(path)[bit // 8] ^= 1 << bit % 8
        if bit // 8 in range(68, 72):  # padding
            sealed_index.open_index(files, DIRECTORY, header)
        else:
            with pytest.raises(CorruptFrame):
                sealed_index.open_index(files, DIRECTORY, header)
        files.content(path)[:] = good


def test_an_index_of_another_life_of_the_segment_is_refused() -> None:
    files = FaultyFiles()
    written_index(files)

    with pytest.raises(CorruptFrame, match="another segment"):
        sealed_index.read_header(files, DIRECTORY, SegmentHeader(7, 6, 0, 0))
    files.content(sealed_index.path_of(DIRECTORY, 7)).extend(b"more")
    with pytest.raises(CorruptFrame, match="length"):
        sealed_index.read_header(files, DIRECTORY, SegmentHeader(7, 5, 0, 0))
