from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cosmodrome_server.core.machine import NEVER_MS
from cosmodrome_server.core.transaction import (
    EndTransaction,
    HalfMessage,
    TransactionRules,
    Transactions,
    TransactionTouch,
)
from cosmodrome_server.errors import BadRequest, InvalidTransactionId
from cosmodrome_server.model.log import MessageRecord, MessageState, RecordKind

RULES = TransactionRules(
    check_interval_ms=30, checks_max=3, expire_ms=1_000, remember_ms=200, remembered_max=4
)
TOPIC = 7


def half_record(now_ms: int, topic_id: int = TOPIC, first_check_ms: int = 6) -> MessageRecord:
    state = MessageState.HALF
    return MessageRecord(
        state, topic_id, 1, 0, 99, now_ms, now_ms + first_check_ms, b"", b"", b"body"
    )


class Shell:
    """Plans, then applies what was planned, encoded and decoded on the way."""

    def __init__(self) -> None:
        self.transactions = Transactions(RULES)
        self.position = 0

    def send(self, name: str, now_ms: int, topic_id: int = TOPIC) -> None:
        self.position += 10
        self.transactions.apply_half(name, half_record(now_ms, topic_id), self.position)

    def end(self, name: str, now_ms: int, *, is_commit: bool, topic_id: int = TOPIC) -> bool:
        half = self.transactions.plan_end((topic_id, name), is_commit=is_commit)
        if half is None:
            return False
        record = EndTransaction(
            0, half.position, now_ms, topic_id, half.queue_id, 5, half.tag_hash, is_commit, name
        )
        self.transactions.apply_end(EndTransaction.decode(record.encode()))
        return True

    def touch(self, kind: RecordKind, half: HalfMessage, now_ms: int) -> None:
        record = TransactionTouch(kind, 0, now_ms, *half.key)
        self.transactions.apply_touch(TransactionTouch.decode(kind, record.encode()))

    def check(self, now_ms: int) -> tuple[list[str], list[str]]:
        to_ask, to_drop = self.transactions.take_due(now_ms, 100)
        for half in to_ask:
            self.touch(RecordKind.TRANSACTION_CHECK, half, now_ms)
        for half in to_drop:
            self.touch(RecordKind.EXPIRE, half, now_ms)
        return [half.key[1] for half in to_ask], [half.key[1] for half in to_drop]

    def restart(self) -> None:
        rows = list(self.transactions.rows())
        self.transactions = Transactions(RULES)
        for key, value in reversed(rows):
            self.transactions.restore(key, value)
        self.transactions.restored()


def test_a_resolution_may_be_repeated_and_not_reversed() -> None:
    shell = Shell()
    shell.send("a", 0)
    shell.send("b", 0)
    assert shell.end("a", 1, is_commit=True)
    assert shell.end("b", 1, is_commit=False)
    assert not shell.end("a", 2, is_commit=True)
    assert not shell.end("b", 2, is_commit=False)
    with pytest.raises(BadRequest, match="committed already"):
        shell.end("a", 3, is_commit=False)
    with pytest.raises(BadRequest, match="rolled back already"):
        shell.end("b", 3, is_commit=True)


def test_an_unknown_transaction_is_refused_also_one_of_another_topic() -> None:
    shell = Shell()
    shell.send("a", 0)
    with pytest.raises(InvalidTransactionId):
        shell.end("b", 0, is_commit=True)
    with pytest.raises(InvalidTransactionId):
        shell.end("a", 0, is_commit=True, topic_id=TOPIC + 1)


def test_a_half_message_is_asked_about_on_schedule_then_parked_then_dropped() -> None:
    shell = Shell()
    shell.send("a", 100)
    seen = [(now, *shell.check(now)) for now in range(100, 1_200)]
    asked = [now for now, to_ask, _ in seen if to_ask]
    dropped = [now for now, _, to_drop in seen if to_drop]
    assert asked == [106, 136, 166]
    assert dropped == [1_100]
    with pytest.raises(InvalidTransactionId):
        shell.end("a", 1_200, is_commit=True)


def test_a_parked_half_message_is_listed_and_can_still_be_committed() -> None:
    shell = Shell()
    shell.send("a", 0)
    for now in range(200):
        shell.check(now)
    (half,) = shell.transactions
    assert shell.transactions.is_parked(half)
    assert half.checks == RULES.checks_max
    assert shell.end("a", 500, is_commit=True)
    assert len(shell.transactions) == 0


def test_a_check_that_reached_nobody_is_not_counted_and_comes_again() -> None:
    shell = Shell()
    shell.send("a", 0)
    for now in range(600):
        for half in shell.transactions.take_due(now, 100)[0]:
            shell.transactions.postpone(half, now)
    (half,) = shell.transactions
    assert half.checks == 0
    assert shell.check(700)[0] == ["a"]


def test_no_more_than_asked_for_is_taken_from_the_schedule() -> None:
    shell = Shell()
    for number in range(5):
        shell.send(f"m{number}", 0)
    taken = [len(shell.transactions.take_due(50, 2)[0]) for _ in range(4)]
    assert taken == [2, 2, 1, 0]


def test_a_resolved_half_message_is_not_asked_about() -> None:
    shell = Shell()
    shell.send("a", 0)
    shell.end("a", 1, is_commit=False)
    assert shell.check(100) == ([], [])


def test_a_check_recorded_for_a_message_resolved_meanwhile_changes_nothing() -> None:
    shell = Shell()
    shell.send("a", 0)
    (half,) = shell.transactions
    shell.end("a", 1, is_commit=True)
    shell.touch(RecordKind.TRANSACTION_CHECK, half, 2)
    assert len(shell.transactions) == 0


def test_a_half_message_sent_again_takes_the_place_of_the_first() -> None:
    shell = Shell()
    shell.send("a", 0)
    shell.send("a", 1)
    assert len(shell.transactions) == 1
    assert shell.transactions.oldest_position() == 20
    assert shell.check(50)[0] == ["a"]
    shell.end("a", 60, is_commit=False)
    shell.send("a", 70)
    assert shell.end("a", 80, is_commit=True)


def test_resolutions_are_forgotten_by_age_and_by_number() -> None:
    shell = Shell()
    for number in range(6):
        shell.send(f"m{number}", 0)
        shell.end(f"m{number}", number, is_commit=True)
    for forgotten in ("m0", "m1"):
        with pytest.raises(InvalidTransactionId):
            shell.end(forgotten, 10, is_commit=True)
    assert not shell.end("m2", 10, is_commit=True)
    shell.send("late", 300)
    shell.end("late", 300, is_commit=True)
    with pytest.raises(InvalidTransactionId):
        shell.end("m5", 300, is_commit=True)


def test_retention_must_leave_the_oldest_open_half_message() -> None:
    shell = Shell()
    assert shell.transactions.oldest_position() is None
    shell.send("a", 0)
    shell.send("b", 0)
    shell.end("a", 1, is_commit=True)
    assert shell.transactions.oldest_position() == 20


def test_a_deleted_topic_takes_its_transactions_along() -> None:
    shell = Shell()
    shell.send("a", 0)
    shell.send("b", 0)
    shell.end("b", 0, is_commit=True)
    shell.send("a", 0, topic_id=TOPIC + 1)
    shell.transactions.drop_topic(TOPIC)
    assert [half.key for half in shell.transactions] == [(TOPIC + 1, "a")]
    with pytest.raises(InvalidTransactionId):
        shell.end("b", 1, is_commit=True)
    assert dict(shell.transactions.rows()).keys() == {b"X\0\0\0\x08a"}


def test_there_is_nothing_to_wait_for_without_half_messages() -> None:
    shell = Shell()
    assert shell.transactions.next_deadline_ms() == NEVER_MS
    shell.send("a", 0)
    assert shell.transactions.next_deadline_ms() == 6


NAMES = st.sampled_from("abcde")


class TransactionMachine(RuleBasedStateMachine):
    """Against a dictionary of what is open and one of what was resolved."""

    def __init__(self) -> None:
        super().__init__()
        self.shell = Shell()
        self.saved: dict[bytes, bytes] = {}
        self.now = 0
        # name → [stored, next look, checks]
        self.open: dict[str, list[int]] = {}
        self.resolved: list[tuple[str, int, bool]] = []

    @rule(name=NAMES)
    def send(self, name: str) -> None:
        self.shell.send(name, self.now)
        self.resolved = [entry for entry in self.resolved if entry[0] != name]
        self.open[name] = [self.now, self.now + 6, 0]

    @rule(name=NAMES, is_commit=st.booleans())
    def end(self, name: str, is_commit: bool) -> None:
        known = {entry[0]: entry[2] for entry in self.resolved}
        if name in self.open:
            assert self.shell.end(name, self.now, is_commit=is_commit)
            del self.open[name]
            self.resolved.append((name, self.now, is_commit))
            young = [e for e in self.resolved if e[1] + RULES.remember_ms > self.now]
            # Of one time the smallest names go first.
            young.sort(key=lambda entry: (entry[1], entry[0]))
            self.resolved = young[-RULES.remembered_max :]
        elif name not in known:
            with pytest.raises(InvalidTransactionId):
                self.shell.end(name, self.now, is_commit=is_commit)
        elif known[name] is is_commit:
            assert not self.shell.end(name, self.now, is_commit=is_commit)
        else:
            with pytest.raises(BadRequest):
                self.shell.end(name, self.now, is_commit=is_commit)

    @rule(elapsed=st.integers(0, 400))
    def pass_time(self, elapsed: int) -> None:
        self.now += elapsed
        asked, dropped = self.shell.check(self.now)
        due = {name for name, entry in self.open.items() if entry[1] <= self.now}
        gone = {name for name in due if self.open[name][0] + RULES.expire_ms <= self.now}
        assert set(dropped) == gone
        assert set(asked) == due - gone
        for name in gone:
            del self.open[name]
        for name in due - gone:
            entry = self.open[name]
            entry[2] += 1
            expiry = entry[0] + RULES.expire_ms
            is_parked = entry[2] >= RULES.checks_max
            entry[1] = expiry if is_parked else min(expiry, self.now + RULES.check_interval_ms)

    @rule()
    def checkpoint_and_restart(self) -> None:
        for key, value in self.shell.transactions.dirty_rows():
            if value is None:
                self.saved.pop(key, None)
            else:
                self.saved[key] = value
        assert self.saved == dict(self.shell.transactions.rows())
        self.shell.restart()
        assert self.saved == dict(self.shell.transactions.rows())

    @invariant()
    def what_is_open_is_listed(self) -> None:
        listed = {half.key[1]: half.checks for half in self.shell.transactions}
        assert listed == {name: entry[2] for name, entry in self.open.items()}

    @invariant()
    def they_are_counted_and_in_their_order(self) -> None:
        halves = list(self.shell.transactions)
        assert [half.position for half in halves] == sorted(half.position for half in halves)
        parked = sum(map(self.shell.transactions.is_parked, halves))
        counts = {TOPIC: (len(halves) - parked, parked)} if halves else {}
        assert self.shell.transactions.counts() == counts


TransactionMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
test_transactions_behave_as_two_dictionaries: Any = TransactionMachine.TestCase


def test_a_broker_may_remember_no_resolution_at_all() -> None:
    shell = Shell()
    shell.transactions = Transactions(TransactionRules(remembered_max=0))
    shell.send("a", 0)
    assert shell.end("a", 0, is_commit=True)
    with pytest.raises(InvalidTransactionId):
        shell.end("a", 0, is_commit=True)


def test_thousands_resolved_at_one_time_are_forgotten_some_at_a_time() -> None:
    rules = TransactionRules(remember_ms=200, remembered_max=100_000)
    transactions = Transactions(rules)

    def end(name: str, now_ms: int) -> None:
        transactions.apply_end(EndTransaction(0, 1, now_ms, TOPIC, 1, 5, 9, True, name))

    def remembered() -> int:
        return sum(1 for _ in transactions.rows())

    # The log's time stood still: its wall clock was set back.
    for number in range(3_000):
        end(f"{number:04}", 1_000)
    before = remembered()
    end("later", 1_200)

    assert before == 3_000
    assert 2_900 < remembered() < before
    for number in range(60):
        end(f"last-{number}", 1_200)
    assert remembered() == 61


def test_what_is_forgotten_is_the_same_after_a_start() -> None:
    rules = TransactionRules(remember_ms=200, remembered_max=100_000)
    live = Transactions(rules)

    def end(where: Transactions, name: str, now_ms: int) -> None:
        where.apply_end(EndTransaction(0, 1, now_ms, TOPIC, 1, 5, 9, True, name))

    # Each name is resolved again and again, so that the live one holds what stands for nothing.
    for number in range(2_000):
        end(live, f"{number % 300:04}", 1_000 + number // 900)
    started = Transactions(rules)
    for key, value in live.rows():
        started.restore(key, value)
    started.restored()

    for number in range(8):
        for each in (live, started):
            end(each, f"next-{number}", 1_202)
        assert sorted(live.rows()) == sorted(started.rows())
