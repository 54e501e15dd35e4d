from array import array

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cosmodrome_server.store.queue_columns import (
    ENTRIES_MAX,
    UNKNOWN,
    NewEntries,
    QueueColumns,
    RestingQueue,
)

# Enough for some blocks, few enough that rules meet.
KEYS = st.integers(0, 2_999)
COUNTS = st.sampled_from([0, 1, 1, 1, 2, ENTRIES_MAX])


def words(key: int, count: int) -> list[int]:
    return [key * 1_000 + number for number in range(3 * count)]


class QueueColumnsMachine(RuleBasedStateMachine):
    """Queues at rest against a dict of what was laid down."""

    def __init__(self) -> None:
        super().__init__()
        self.real = QueueColumns()
        self.model: dict[int, RestingQueue] = {}

    @rule(first=KEYS, count=st.sampled_from([1, 40, 700]), step=st.sampled_from([1, 2, 3]),
          entries=COUNTS, unsaved=st.sampled_from([0, 1, 300]), known=st.booleans())  # fmt: skip
    def lay(
        self, first: int, count: int, step: int, entries: int, unsaved: int, known: bool
    ) -> None:
        for key in range(first, first + count * step, step):
            if key not in self.model:
                found = 7 if known else UNKNOWN
                queue = RestingQueue(key + entries, unsaved, found, array("Q", words(key, entries)))
                self.model[key] = queue._replace(unsaved=min(unsaved, 255))
                self.real.lay(key, queue)

    @rule(first=KEYS, count=st.sampled_from([1, 40, 700]))
    def take(self, first: int, count: int) -> None:
        for key in range(first, first + count):
            assert self.real.take(key) == self.model.pop(key, None)

    @rule(first=KEYS, count=st.sampled_from([1, 40, 2_000]))
    def drop(self, first: int, count: int) -> None:
        gone = [key for key in sorted(self.model) if first <= key < first + count]
        assert list(self.real.drop(first, first + count)) == gone
        for key in gone:
            del self.model[key]

    @rule(key=KEYS)
    def append(self, key: int) -> None:
        queue = self.model.get(key)
        added = self.real.append(key, key + 1, array("Q", words(key, 1)).tobytes())
        if queue is None:
            assert not added
        elif added:
            held = array("Q", [*queue.words, *words(key, 1)])
            self.model[key] = queue._replace(end=key + 1, words=held)

    @rule(key=KEYS)
    def first(self, key: int) -> None:
        queue = self.model.get(key)
        found = self.real.first(key, lambda _: key // 2 or None)
        if queue is None:
            assert found == 0
            return
        base = queue.end - len(queue.words) // 3
        if queue.first != UNKNOWN:
            assert found == queue.first
        else:
            assert found == (0 if not base else key // 2 or base)
            if base:
                self.model[key] = queue._replace(first=found)

    @rule()
    def forget_firsts(self) -> None:
        self.real.forget_firsts()
        self.model = {key: queue._replace(first=UNKNOWN) for key, queue in self.model.items()}

    @rule()
    def take_unsaved(self) -> None:
        found = [new for part in self.real.take_unsaved() for new in part]
        expected = []
        for key, queue in sorted(self.model.items()):
            if queue.unsaved:
                fresh = min(queue.unsaved, len(queue.words) // 3)
                held = queue.words[len(queue.words) - 3 * fresh :]
                expected.append(NewEntries(key, queue.end, queue.end - fresh, held.tobytes()))
            self.model[key] = queue._replace(unsaved=0)
        assert found == expected

    @rule()
    def seal(self) -> None:
        expected = [(key, list(queue.words)) for key, queue in sorted(self.model.items())]
        sealed = self.real.seal()
        self.model = {
            key: queue._replace(first=UNKNOWN, words=array("Q"))
            for key, queue in self.model.items()
        }
        found = [
            (key, list(run.words[run.start : run.start + 3 * (run.end - run.base)]))
            for key, run in sealed
        ]
        assert found == [each for each in expected if each[1]]

    @invariant()
    def every_queue_is_found(self) -> None:
        ends = [pair for part in self.real.ends() for pair in zip(*part, strict=True)]
        assert ends == [(key, queue.end) for key, queue in sorted(self.model.items())]
        for key, queue in list(self.model.items())[:: max(1, len(self.model) // 20)]:
            assert self.real.end(key) == queue.end
            run = self.real.get(key)
            if run is None:
                assert not queue.words
            else:
                assert (run.base, run.end) == (queue.end - len(queue.words) // 3, queue.end)
                assert run.words[run.start : run.start + len(queue.words)] == queue.words

    @invariant()
    def little_lies_about_that_nobody_needs(self) -> None:
        used = sum(len(queue.words) for queue in self.model.values())
        held = sum(len(block) for block in self.real.entry_words())
        blocks = len(list(self.real.ends()))
        assert held <= 1.5 * used + 3 * 64 * blocks


TestQueueColumns = QueueColumnsMachine.TestCase
TestQueueColumns.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_queues_of_no_checkpoint_are_saved_by_the_next_with_their_ends_alone() -> None:
    ends = {key: key + 1 for key in range(2_000)}

    assert not QueueColumns.of(ends, is_saved=True).take_unsaved()
    parts = QueueColumns.of(ends, is_saved=False).take_unsaved()
    assert [new for part in parts for new in part] == [
        NewEntries(key, key + 1, key + 1, b"") for key in range(2_000)
    ]


def test_a_block_that_is_copied_for_a_checkpoint_does_not_change_with_its_queues() -> None:
    columns = QueueColumns()
    columns.lay(5, RestingQueue(1, 1, UNKNOWN, array("Q", [1, 2, 3])))
    (part,) = columns.take_unsaved()
    columns.take(5)

    assert [new.key for new in part] == [5]
