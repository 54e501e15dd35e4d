from array import array
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cosmodrome_server.errors import CorruptFrame, MessageNotFound
from cosmodrome_server.store import sealed_index
from cosmodrome_server.store.consume_queue import ConsumeQueues, key_of
from cosmodrome_server.store.queue_columns import ENTRIES_MAX
from cosmodrome_server.store.sealed_entries import SealedEntries
from cosmodrome_server.store.sealed_index import Run
from cosmodrome_server.store.segment import SegmentHeader
from tests.support.faulty_files import FaultyFiles

DIRECTORY = Path("/data")
Queue = tuple[int, int]
U32 = st.integers(0, (1 << 32) - 1)


def no_rebuild(header: SegmentHeader, is_strict: bool) -> dict[int, Run]:  # a callback
    raise AssertionError(f"index {header.number} is not damaged")


def ends_of(queues: ConsumeQueues) -> dict[int, int]:
    return {key: end for part in queues.ends() for key, end in zip(*part, strict=True)}


class ConsumeQueuesMachine(RuleBasedStateMachine):
    """The index against one plain list for each queue; two queues are awake, the others rest."""

    def __init__(self) -> None:
        super().__init__()
        self.files = FaultyFiles()
        self.queues = [(1, 0), (1, 1), (1, 7), (2, 0), (9, 4), (9, 5)]
        self.model: dict[Queue, dict[int, tuple[int, int, int]]] = {q: {} for q in self.queues}
        self.segment_of: dict[Queue, dict[int, int]] = {q: {} for q in self.queues}
        self.next = dict.fromkeys(self.queues, 0)
        self.next_topic_id = 10
        self.segment = SegmentHeader(1, 5, 0, 0)
        self.segments: list[SegmentHeader] = []
        self.unwritten: list[SealedEntries] = []
        self.time_ms = 1_000
        # Positions of earlier segments that this one points to, with their queues.
        self.foreign: list[tuple[Queue, int]] = []
        self.saved_ends: dict[int, int] = {}
        self.saved_entries: dict[tuple[int, int], bytes] = {}
        self.real = self.opened()
        self.real.begin(self.base)

    def opened(self) -> ConsumeQueues:
        return ConsumeQueues(self.files, DIRECTORY, no_rebuild, awake_max=2)

    def oldest_bounds(self) -> tuple[int, int]:
        """The lowest position pointed to, with and without deleted topics: they may count."""
        live = [position for queue, position in self.foreign if queue in self.model]
        ever = [position for _, position in self.foreign]
        return min(ever, default=1 << 63), min(live, default=1 << 63)

    @property
    def base(self) -> int:
        return self.segment.number << 32

    def note(self, queue: Queue, entry: tuple[int, int, int]) -> None:
        self.model[queue][self.next[queue]] = entry
        self.segment_of[queue][self.next[queue]] = self.segment.number
        self.next[queue] += 1
        if 0 < entry[0] < self.base:
            self.foreign.append((queue, entry[0]))

    @rule(which=st.integers(0, 5), tag=U32, later=st.booleans(), back=st.sampled_from([0, 0, 0, 1]))
    def index(self, which: int, tag: int, later: bool, back: int) -> None:
        queue = self.queues[which]
        self.time_ms += later
        entry = (self.base + self.time_ms - (back << 32), tag, self.time_ms)
        self.real.index(*queue, self.next[queue], entry)
        self.note(queue, entry)

    @rule(which=st.integers(0, 5), count=st.sampled_from([2, 5, ENTRIES_MAX, 70]))
    def index_run(self, which: int, count: int) -> None:
        queue = self.queues[which]
        entries = [(self.base + self.time_ms + i, i, self.time_ms) for i in range(count)]
        self.real.index_run(*queue, self.next[queue], entries)
        for entry in entries:
            self.note(queue, entry)

    @rule(which=st.integers(0, 5), lost=st.integers(1, 3))
    def index_behind_a_hole(self, which: int, lost: int) -> None:
        queue = self.queues[which]
        for _ in range(lost):
            self.note(queue, (0, 0, self.time_ms))
        self.real.index(*queue, self.next[queue], (self.base + 1, 3, self.time_ms))
        self.note(queue, (self.base + 1, 3, self.time_ms))

    @rule(is_written=st.booleans())
    def seal(self, is_written: bool) -> None:
        low, high = self.oldest_bounds()
        sealed = self.real.seal(self.segment, 0)
        assert min(low, self.base) <= sealed.oldest_position <= min(high, self.base)
        self.segments.append(self.segment)
        self.unwritten.append(sealed)
        self.segment = SegmentHeader(self.segment.number + 1, 5, 0, 0)
        self.real.begin(self.base)
        self.foreign, self.saved_entries = [], {}
        if is_written:
            self.write()

    def write(self) -> None:
        while self.unwritten:
            self.real.write_sealed(self.unwritten.pop(0))

    @rule(which=st.integers(0, 5))
    def drop(self, which: int) -> None:
        gone = self.queues[which][0]
        self.real.drop(gone)
        for at, queue in enumerate(self.queues):
            if queue[0] == gone:
                for held in (self.model, self.segment_of, self.next):
                    del held[queue]
                renamed = self.queues[at] = (self.next_topic_id, queue[1])
                self.model[renamed], self.segment_of[renamed] = {}, {}
                self.next[renamed] = 0
        self.next_topic_id += 1

    @precondition(lambda self: self.segment.number > 1)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(1, self.segment.number))
        self.real.forget_before(number)
        self.segments = [each for each in self.segments if each.number >= number]
        for queue in self.queues:
            self.model[queue] = {
                offset: entry
                for offset, entry in self.model[queue].items()
                if self.segment_of[queue][offset] >= number
            }

    @rule()
    def checkpoint(self) -> None:
        for new in chain.from_iterable(self.real.take_new()):
            self.saved_ends[new.key] = new.next_offset
            assert len(new.entries) == 24 * (new.next_offset - new.base)
            if not new.next_offset:
                del self.saved_ends[new.key]
            if new.entries:
                assert (new.key, new.base) not in self.saved_entries, "saved twice"
                self.saved_entries[new.key, new.base] = new.entries
        ends = {key_of(*queue): end for queue, end in self.next.items() if end}
        assert self.saved_ends == ends_of(self.real) == ends
        assert not list(chain.from_iterable(self.real.take_new()))

    @rule()
    def restart(self) -> None:
        self.checkpoint()
        self.write()
        indexes = [
            (each, sealed_index.read_header(self.files, DIRECTORY, each)) for each in self.segments
        ]
        runs = [(key, base, held) for (key, base), held in sorted(self.saved_entries.items())]
        self.real = self.opened()
        self.real.load(indexes, self.saved_ends, runs)
        self.real.begin(self.base)

    @rule(which=st.integers(0, 5), back_ms=st.integers(-3, 60))
    def offset_at(self, which: int, back_ms: int) -> None:
        queue = self.queues[which]
        at_ms = self.time_ms - back_ms
        later = [offset for offset, entry in self.model[queue].items() if entry[2] >= at_ms]
        assert self.real.offset_at(*queue, at_ms) == min(later, default=self.next[queue])

    @rule(which=st.integers(0, 5), data=st.data())
    def ranges(self, which: int, data: st.DataObject) -> None:
        queue = self.queues[which]
        stored = self.model[queue]
        first = min(stored, default=self.next[queue])
        start = data.draw(st.integers(first, self.next[queue]))
        end = data.draw(st.integers(start, self.next[queue]))
        expected = [stored[offset] for offset in range(start, end)]
        assert list(self.real.tag_hashes(*queue, start, end)) == [entry[1] for entry in expected]
        assert self.real.positions(*queue, start, end) == [entry[0] for entry in expected]
        copied = array("Q")
        for run in self.real.runs(*queue, start, end):
            copied.extend(run.words[run.start : run.start + 3 * (run.end - run.base)])
        assert copied.tolist() == list(chain.from_iterable(expected))

    @invariant()
    def every_entry_is_found(self) -> None:
        for queue, stored in self.model.items():
            assert self.real.max_offset(*queue) == self.next[queue]
            assert self.real.min_offset(*queue) == min(stored, default=self.next[queue])
            for offset in [*stored][:3] + [*stored][-3:]:
                if stored[offset][0]:
                    assert self.real.entry(*queue, offset) == stored[offset]
                else:
                    with pytest.raises(CorruptFrame):
                        self.real.entry(*queue, offset)

    @invariant()
    def what_points_back_is_known(self) -> None:
        low, high = self.oldest_bounds()
        assert low <= self.real.oldest_foreign_position <= high


TestConsumeQueues = ConsumeQueuesMachine.TestCase
TestConsumeQueues.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)


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
    assert [queues.timestamp(1, 0, offset) for offset in range(4)] == [10, 20, 20, 20]
    for offset in (-1, 4):
        with pytest.raises(MessageNotFound):
            queues.timestamp(1, 0, offset)


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

    assert sorted(new.key for new in chain.from_iterable(queues.take_new())) == [
        key_of(1, 0),
        key_of(1, 1),
    ]
    assert queues.max_offset(1, 0) == queues.max_offset(1, 1) == 0
    assert queues.max_offset(2, 0) == 1
    assert ends_of(queues) == {key_of(2, 0): 1}


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
    sealed_index.write(files, DIRECTORY, header, sorted(runs.items()), (7, 100))
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
