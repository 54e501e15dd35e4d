from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cosmodrome_server.core.machine import NEVER_MS
from cosmodrome_server.core.timer import (
    HOUR_MS,
    LOAD_AHEAD_MS,
    SLOT_MS,
    SLOTS_PER_HOUR,
    UNCOPIED_KEY,
    Fire,
    Recall,
    Timers,
)
from cosmodrome_server.core.timer_slot import TimerEntry
from cosmodrome_server.errors import MessageNotFound

START_MS = 1_700_000_000_000 // HOUR_MS * HOUR_MS
NOT_YET_LIMITED = 1 << 62
DAY_MS = 24 * HOUR_MS


class Shell:
    """What the broker does around the machine, with buckets in a dictionary."""

    def __init__(self) -> None:
        self.timers = Timers()
        self.now = START_MS
        self.position = 0
        self.log: dict[int, int] = {}
        self.buckets: dict[int, list[tuple[int, int]]] = {}
        self.fired: list[tuple[int, int]] = []

    def send(self, delay_ms: int) -> tuple[int, int]:
        self.position += 7
        due = self.now + delay_ms
        self.log[self.position] = due
        self.timers.apply_delayed(due, self.position)
        return due, self.position

    def recall(self, due: int, position: int) -> None:
        record = self.timers.plan_recall(due, position, 0)
        self.timers.apply_recall(Recall.decode(record.encode()))

    def copy(self, count: int = 1 << 30) -> None:
        batch = self.timers.uncopied.first(count)
        for due, position in batch:
            self.buckets.setdefault(due // HOUR_MS, []).append((due, position))
        if batch:
            self.timers.copied(batch[-1][1])

    def load(self) -> None:
        while (hour := self.timers.hour_to_load(self.now)) is not None:
            mark = self.timers.begin_load(hour)
            held = sorted(self.buckets.get(hour, []))
            entries = [TimerEntry(due, position, 1) for due, position in held]
            half = len(entries) // 2
            while not self.timers.add_uncopied(hour, 2):
                continue
            self.timers.add_loaded(entries[:half], mark)
            self.timers.add_loaded(entries[half:], mark)
            self.timers.end_load(hour)

    def fire(self, count: int = 3, before: int = NOT_YET_LIMITED) -> list[int]:
        fired = []
        while (plan := self.timers.plan_fire(self.now, count, before)) is not None:
            fired += [entry.position for entry in plan.entries]
            self.fired += [(self.now, entry.position) for entry in plan.entries]
            record = Fire(0, plan.slot, plan.position, plan.count)
            self.timers.apply_fire(Fire.decode(record.encode()))
        return fired

    def let_pass(self, duration_ms: int) -> list[int]:
        self.now += duration_ms
        self.load()
        return self.fire()

    def restart(self) -> None:
        rows = list(self.timers.rows())
        self.timers = Timers()
        for key, value in rows:
            self.timers.restore(key, value)


def test_a_message_fires_at_the_end_of_its_slot_never_before() -> None:
    for offset in (0, 1, 50, 99):
        shell = Shell()
        due, position = shell.send(1_000 + offset)
        assert shell.let_pass(1_000 + offset) == []
        assert shell.timers.next_deadline_ms() <= due + SLOT_MS
        assert shell.let_pass(SLOT_MS) == [position]
        assert due <= shell.fired[0][0] <= due + SLOT_MS


def test_messages_fire_in_the_order_of_their_slots_and_of_the_log_within() -> None:
    shell = Shell()
    sent = [shell.send(delay)[1] for delay in (500, 10, 590, 540, 15)]
    order = shell.let_pass(700)
    assert order == [sent[1], sent[4], sent[0], sent[2], sent[3]]


def test_a_plan_covers_one_slot_and_no_more_messages_than_asked_for() -> None:
    shell = Shell()
    for _ in range(5):
        shell.send(10)
    shell.now += 1_000
    shell.load()
    plan = shell.timers.plan_fire(shell.now, 2, NOT_YET_LIMITED)
    assert plan is not None
    assert [entry.position for entry in plan.entries] == [7, 14]
    assert len(shell.fire(2)) == 5
    assert shell.timers.in_memory == 0


def test_what_is_not_durable_yet_waits() -> None:
    shell = Shell()
    first, second = shell.send(10)[1], shell.send(10)[1]
    shell.now += 1_000
    shell.load()
    assert shell.fire(before=first) == []
    assert shell.fire(before=second) == [first]
    assert shell.fire() == [second]


def test_nothing_fires_before_its_hour_is_loaded() -> None:
    shell = Shell()
    shell.send(10)
    shell.now += 1_000
    assert shell.fire() == []
    assert shell.timers.next_deadline_ms() <= shell.now
    shell.load()
    assert len(shell.fire()) == 1


def test_an_hour_is_loaded_an_hour_ahead_and_not_earlier() -> None:
    shell = Shell()
    shell.send(3 * HOUR_MS)
    assert shell.timers.hour_to_load(shell.now) is None
    assert shell.timers.next_deadline_ms() == START_MS + 3 * HOUR_MS - LOAD_AHEAD_MS
    assert shell.timers.hour_to_load(shell.now + 2 * HOUR_MS) == START_MS // HOUR_MS + 3
    shell.let_pass(2 * HOUR_MS)
    assert shell.timers.in_memory == 1
    assert shell.timers.is_loaded(START_MS // HOUR_MS + 3)


def test_messages_that_arrive_while_their_hour_is_loaded_are_not_missed() -> None:
    shell = Shell()
    copied = shell.send(500)[1]
    shell.copy()
    uncopied = shell.send(510)[1]
    hour = shell.timers.hour_to_load(shell.now)
    assert hour is not None
    mark = shell.timers.begin_load(hour)
    late = shell.send(520)[1]
    shell.copy()
    held = [TimerEntry(due, position, 1) for due, position in shell.buckets[hour]]
    shell.timers.add_loaded(held, mark)
    shell.timers.end_load(hour)
    after = shell.send(530)[1]
    assert shell.let_pass(1_000) == [copied, uncopied, late, after]


def test_a_recalled_message_never_fires_and_cannot_be_recalled_again() -> None:
    shell = Shell()
    kept = shell.send(500)
    recalled = shell.send(500)
    shell.recall(*recalled)
    with pytest.raises(MessageNotFound):
        shell.recall(*recalled)
    assert shell.let_pass(1_000) == [kept[1]]
    with pytest.raises(MessageNotFound):
        shell.recall(*kept)
    with pytest.raises(MessageNotFound):
        shell.recall(START_MS + DAY_MS, 99)


def test_slots_of_recalled_messages_go_too() -> None:
    shell = Shell()
    one = shell.send(100)
    shell.load()
    shell.recall(*one)
    assert shell.timers.in_memory == 1
    assert shell.timers.next_deadline_ms() == one[0] + SLOT_MS
    assert shell.let_pass(1_000) == []
    assert shell.timers.in_memory == 0
    assert shell.timers.next_deadline_ms() == START_MS + HOUR_MS
    assert shell.let_pass(HOUR_MS) == []
    assert shell.timers.next_deadline_ms() == NEVER_MS


def test_a_message_recalled_before_its_hour_was_loaded_stays_recalled() -> None:
    shell = Shell()
    kept, recalled = shell.send(2 * DAY_MS), shell.send(2 * DAY_MS)
    shell.copy()
    shell.recall(*recalled)
    shell.restart()
    assert shell.let_pass(3 * DAY_MS) == [kept[1]]


def test_forty_days_of_delay_survive_restarts_and_fire_in_order() -> None:
    shell = Shell()
    sent = [shell.send(day * DAY_MS + 1)[1] for day in (40, 3, 17, 1, 29)]
    shell.copy()
    shell.restart()
    assert shell.let_pass(40 * DAY_MS + SLOT_MS) == [sent[i] for i in (3, 1, 2, 4, 0)]
    assert len(shell.timers) == 0


def test_a_broker_that_was_down_for_longer_than_all_delays_loses_nothing() -> None:
    shell = Shell()
    sent = [shell.send(hour * HOUR_MS // 2)[1] for hour in range(1, 200)]
    shell.restart()
    assert shell.let_pass(400 * DAY_MS) == sent


def test_a_restart_in_the_middle_of_a_slot_goes_on_after_what_fired() -> None:
    shell = Shell()
    sent = [shell.send(50)[1] for _ in range(5)]
    shell.now += 1_000
    shell.load()
    plan = shell.timers.plan_fire(shell.now, 2, NOT_YET_LIMITED)
    assert plan is not None
    shell.timers.apply_fire(Fire(0, plan.slot, plan.position, plan.count))
    shell.restart()
    shell.load()
    assert shell.fire() == sent[2:]


def test_messages_a_damaged_bucket_lost_do_not_hold_up_later_ones() -> None:
    shell = Shell()
    shell.send(HOUR_MS // 2)
    later = shell.send(5 * HOUR_MS)[1]
    shell.copy()
    shell.buckets[START_MS // HOUR_MS] = []
    shell.restart()
    assert shell.let_pass(HOUR_MS - 1) == []
    assert shell.timers.next_deadline_ms() == START_MS + HOUR_MS
    assert shell.let_pass(6 * HOUR_MS) == [later]
    assert len(shell.timers) == 0


def test_only_the_log_has_what_was_not_copied_and_retention_must_leave_it() -> None:
    shell = Shell()
    assert shell.timers.oldest_position() is None
    shell.send(DAY_MS)
    second = shell.send(DAY_MS)[1]
    shell.copy(1)
    assert shell.timers.oldest_position() == second
    assert list(shell.timers.uncopied) == [(START_MS + DAY_MS, second)]
    shell.copy()
    assert shell.timers.oldest_position() is None


def test_what_is_in_memory_of_an_hour_is_listed_soonest_first() -> None:
    shell = Shell()
    entries = [shell.send(delay) for delay in (900, 120, 150, 110)]
    shell.send(2 * HOUR_MS)
    shell.load()
    shell.recall(*entries[2])
    listed = list(shell.timers.in_order(START_MS // HOUR_MS))
    assert [entry[:2] for entry in listed] == [entries[3], entries[1], entries[0]]


def test_memory_is_24_bytes_a_message_and_only_of_hours_that_are_near() -> None:
    shell = Shell()
    for number in range(2_000):
        shell.send(10 + number % 2)
        shell.send(DAY_MS)
    shell.copy()
    shell.load()
    assert shell.timers.in_memory == 2_000
    assert len(shell.timers) == 4_000


def test_recalling_everything_of_an_hour_leaves_nothing_once_it_is_over() -> None:
    shell = Shell()
    entries = [shell.send(DAY_MS) for _ in range(3)]
    for entry in reversed(entries):
        shell.recall(*entry)
    assert len(shell.timers) == 0
    assert shell.let_pass(2 * DAY_MS) == []
    assert shell.timers.hours == []
    assert shell.timers.next_deadline_ms() == NEVER_MS


def test_counts_that_a_damaged_frame_made_wrong_hide_no_message() -> None:
    shell = Shell()
    shell.timers.apply_delayed(START_MS + 10, 3)
    lost_but_fired = Fire(0, (START_MS + 10) // SLOT_MS, 2, 1)
    shell.timers.apply_fire(lost_but_fired)
    assert len(shell.timers) == 0
    shell.restart()
    assert shell.let_pass(1_000) == [3]
    assert len(shell.timers) == 0


def test_recalls_are_of_messages_that_were_stored_before() -> None:
    with pytest.raises(KeyError):
        Timers().apply_recall(Recall(0, START_MS, 1))


def test_a_fire_of_an_hour_that_is_not_known_moves_the_frontier() -> None:
    timers = Timers()
    timers.apply_fire(Fire(0, START_MS // SLOT_MS, 50, 3))
    assert not timers.is_pending(START_MS, 50)


def test_a_later_slot_in_the_log_ends_earlier_ones_in_memory() -> None:
    shell = Shell()
    first, second = shell.send(50), shell.send(350)
    shell.load()
    shell.timers.apply_fire(Fire(0, second[0] // SLOT_MS, second[1], 2))
    assert shell.timers.in_memory == 0
    assert not shell.timers.is_pending(*first)


class TimerMachine(RuleBasedStateMachine):
    """Against a dictionary: position → due."""

    def __init__(self) -> None:
        super().__init__()
        self.shell = Shell()
        self.saved: dict[bytes, bytes] = {}
        self.waiting: dict[int, int] = {}
        self.ended: dict[int, int] = {}

    @rule(delay=st.one_of(st.integers(1, 400), st.integers(1, 3 * HOUR_MS), st.just(DAY_MS)))
    def send(self, delay: int) -> None:
        due, position = self.shell.send(delay)
        self.waiting[position] = due

    @rule(duration=st.one_of(st.integers(0, 300), st.integers(0, 2 * HOUR_MS)))
    def pass_time(self, duration: int) -> None:
        fired = self.shell.let_pass(duration)
        now = self.shell.now
        due = {at: due for at, due in self.waiting.items() if due // SLOT_MS < now // SLOT_MS}
        assert fired == sorted(due, key=lambda at: (due[at] // SLOT_MS, at))
        for position in fired:
            self.ended[position] = self.waiting.pop(position)

    @rule(data=st.data())
    def recall(self, data: st.DataObject) -> None:
        if self.waiting:
            position = data.draw(st.sampled_from(sorted(self.waiting)))
            due = self.waiting.pop(position)
            self.shell.recall(due, position)
            self.ended[position] = due

    @rule(data=st.data())
    def recall_in_vain(self, data: st.DataObject) -> None:
        if self.ended:
            position = data.draw(st.sampled_from(sorted(self.ended)))
            with pytest.raises(MessageNotFound):
                self.shell.recall(self.ended[position], position)

    @rule(count=st.integers(1, 5))
    def copy(self, count: int) -> None:
        self.shell.copy(count)

    @rule()
    def restart(self) -> None:
        self.saved = dict(self.shell.timers.rows())
        self.shell.restart()

    @rule()
    def checkpoint(self) -> None:
        for key, value in self.shell.timers.dirty_rows():
            if value is None:
                self.saved.pop(key, None)
            else:
                self.saved[key] = value
        assert {k: v for k, v in self.saved.items() if k != UNCOPIED_KEY} == {
            k: v for k, v in self.shell.timers.rows() if k != UNCOPIED_KEY
        }

    @invariant()
    def as_many_wait_as_should(self) -> None:
        assert len(self.shell.timers) == len(self.waiting)


TimerMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40)
test_timers_behave_as_a_dictionary: Any = TimerMachine.TestCase


def test_what_came_after_its_hour_was_loaded_is_left_in_the_log_though_it_was_copied() -> None:
    timers = Timers()
    hour = 500_000
    timers.apply_delayed(hour * HOUR_MS + 50, 10)
    timers.begin_load(hour)
    timers.end_load(hour)
    timers.apply_delayed(hour * HOUR_MS + 150, 20)

    timers.copied(20)

    assert list(timers.uncopied) == []
    assert timers.oldest_position() == 10
    last = (hour + 1) * SLOTS_PER_HOUR - 1
    timers.apply_fire(Fire(0, last, (1 << 63) - 1, 2))
    assert timers.oldest_position() is None


def test_a_load_that_is_begun_again_adds_nothing_twice() -> None:
    timers = Timers()
    hour = 500_000
    timers.apply_delayed(hour * HOUR_MS + 50, 10)
    first = timers.begin_load(hour)
    timers.apply_delayed(hour * HOUR_MS + 150, 20)
    timers.copied(20)

    # The bucket could not be read; by now it has both.
    again = timers.begin_load(hour)
    bucket = [TimerEntry(hour * HOUR_MS + 50, 10, 100), TimerEntry(hour * HOUR_MS + 150, 20, 200)]
    timers.add_loaded(bucket, again)
    timers.end_load(hour)

    assert again == first
    assert [entry.position for entry in timers.in_order(hour)] == [10, 20]


def test_a_load_given_up_for_an_earlier_hour_adds_nothing_twice_either() -> None:
    timers = Timers()
    hour = 500_000
    first = timers.begin_load(hour + 1)
    timers.apply_delayed((hour + 1) * HOUR_MS + 50, 10)
    # The bucket of the later hour cannot be read, and a message comes for the earlier one.
    timers.apply_delayed(hour * HOUR_MS + 50, 20)
    timers.begin_load(hour)
    timers.end_load(hour)

    assert timers.begin_load(hour + 1) == first
    timers.end_load(hour + 1)

    assert [entry.position for entry in timers.in_order(hour + 1)] == [10]


def test_what_a_load_has_yet_to_take_from_the_log_is_left_there_though_it_was_copied() -> None:
    timers = Timers()
    hour = 500_000
    for position in (10, 20):
        timers.apply_delayed(hour * HOUR_MS + 50, position)
    timers.begin_load(hour)

    timers.copied(20)

    assert timers.oldest_position() == 10
    assert not timers.add_uncopied(hour, 1)
    assert timers.oldest_position() == 10
    timers.end_load(hour)
    assert [entry.position for entry in timers.in_order(hour)] == [10, 20]


def test_what_is_overdue_is_counted_by_slot_in_this_hour_and_as_a_whole_before() -> None:
    shell = Shell()
    shell.load()
    for delay_ms in (50, 150, 150, 2 * HOUR_MS + 50, 2 * HOUR_MS + 250):
        shell.send(delay_ms)
    shell.load()
    counts = [shell.timers.overdue(START_MS + passed) for passed in (0, 99, 100, 199, 200)]
    assert counts == [0, 0, 1, 1, 3]
    shell.now = START_MS + 200
    shell.fire(count=2)
    assert shell.timers.overdue(shell.now) == 0
    shell.copy()
    # Nobody has loaded the later hour: it counts when it is over.
    assert shell.timers.overdue(START_MS + 3 * HOUR_MS - 1) == 0
    assert shell.timers.overdue(START_MS + 3 * HOUR_MS) == 2
