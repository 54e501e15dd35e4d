from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cosmodrome_server.core.lite_subscription import (
    SILENCE_MS,
    LiteOutcome,
    LiteRules,
    LiteSubscriptions,
    lite_topic_name,
    parent_of,
    rules_of,
)
from cosmodrome_server.errors import BadRequest, LiteSubscriptionQuotaExceeded
from cosmodrome_server.model.group import Group
from cosmodrome_server.model.lite import LiteAction, LiteChange

SHARED = LiteRules(is_exclusive=False, is_wildcard=False, client_quota=4)
EXCLUSIVE = LiteRules(is_exclusive=True, is_wildcard=False, client_quota=4)
WILDCARD = LiteRules(is_exclusive=False, is_wildcard=True, client_quota=4)


def change(client: str, action: LiteAction, *names: str, version: int = 0) -> LiteChange:
    return LiteChange(client, "group", "chat", action, names, version)


def add(subscriptions: LiteSubscriptions, client: str, *names: str) -> LiteOutcome:
    return subscriptions.change(change(client, LiteAction.PARTIAL_ADD, *names), EXCLUSIVE, 0)


def names_of(subscriptions: LiteSubscriptions, client: str) -> list[str]:
    held = subscriptions.of("group", client)
    return [] if held is None else list(held.names)


def test_a_complete_set_replaces_the_one_before() -> None:
    subscriptions = LiteSubscriptions(100)
    subscriptions.change(change("a", LiteAction.PARTIAL_ADD, "x", "y"), SHARED, 0)
    outcome = subscriptions.change(change("a", LiteAction.COMPLETE_ADD, "y", "z"), SHARED, 0)
    assert outcome.added == ["z"]
    assert names_of(subscriptions, "a") == ["y", "z"]
    subscriptions.change(change("a", LiteAction.COMPLETE_REMOVE), SHARED, 0)
    assert subscriptions.of("group", "a") is None
    assert len(subscriptions) == 0


def test_of_what_was_taken_from_a_client_only_the_last_is_remembered() -> None:
    subscriptions = LiteSubscriptions(100)
    for number in range(20):
        add(subscriptions, "a", f"t{number}")
        add(subscriptions, "b", f"t{number}")
        subscriptions.change(change("b", LiteAction.PARTIAL_REMOVE, f"t{number}"), EXCLUSIVE, 0)

    held = subscriptions.of("group", "a")

    assert held is not None
    assert list(held.evicted) == ["t16", "t17", "t18", "t19"]


def test_an_exclusive_lite_topic_goes_to_the_newest_and_the_one_before_is_told() -> None:
    subscriptions = LiteSubscriptions(100)
    add(subscriptions, "a", "x")
    assert add(subscriptions, "b", "x").evictions == [("a", "x")]
    again = subscriptions.change(change("a", LiteAction.COMPLETE_ADD, "x"), EXCLUSIVE, 0)
    assert again.evictions == [("a", "x")]
    assert again.added == []
    assert names_of(subscriptions, "b") == ["x"]
    assert add(subscriptions, "a", "x").evictions == [("b", "x")]
    assert names_of(subscriptions, "a") == ["x"]


def test_an_older_change_is_ignored_and_one_without_version_is_not() -> None:
    subscriptions = LiteSubscriptions(100)
    newer = change("a", LiteAction.COMPLETE_ADD, "x", version=7)
    older = change("a", LiteAction.COMPLETE_ADD, "y", version=6)
    subscriptions.change(newer, SHARED, 0)
    subscriptions.change(older, SHARED, 0)
    assert names_of(subscriptions, "a") == ["x"]
    subscriptions.change(change("a", LiteAction.COMPLETE_ADD, "z"), SHARED, 0)
    assert names_of(subscriptions, "a") == ["z"]
    subscriptions.change(older, SHARED, 0)
    assert names_of(subscriptions, "a") == ["z"]


def test_quotas_of_the_client_and_of_the_broker_are_kept_and_shrinking_always_works() -> None:
    subscriptions = LiteSubscriptions(5)
    five = [f"n{number}" for number in range(5)]
    with pytest.raises(LiteSubscriptionQuotaExceeded, match="quota"):
        subscriptions.change(change("a", LiteAction.PARTIAL_ADD, *five), SHARED, 0)
    subscriptions.change(change("a", LiteAction.PARTIAL_ADD, *five[:4]), SHARED, 0)
    with pytest.raises(LiteSubscriptionQuotaExceeded, match="subscriptions_max"):
        subscriptions.change(change("b", LiteAction.PARTIAL_ADD, "x", "y"), SHARED, 0)
    small = LiteRules(is_exclusive=False, is_wildcard=False, client_quota=1)
    subscriptions.change(change("a", LiteAction.PARTIAL_REMOVE, "n0"), small, 0)
    assert len(subscriptions) == 3


def test_a_group_that_reads_everything_takes_no_partial_change() -> None:
    subscriptions = LiteSubscriptions(100)
    for action in (LiteAction.PARTIAL_ADD, LiteAction.PARTIAL_REMOVE):
        with pytest.raises(BadRequest, match="every lite topic"):
            subscriptions.change(change("a", action, "x"), WILDCARD, 0)
    subscriptions.change(change("a", LiteAction.COMPLETE_ADD), WILDCARD, 0)
    assert subscriptions.of("group", "a") is not None


def test_a_group_reads_a_lite_topic_until_its_last_client_does_no_more() -> None:
    subscriptions = LiteSubscriptions(100)
    for client in "ab":
        subscriptions.change(change(client, LiteAction.PARTIAL_ADD, "x", "y"), SHARED, 0)
    subscriptions.change(change("a", LiteAction.PARTIAL_REMOVE, "x"), SHARED, 0)
    assert subscriptions.groups_of("x") == {"group": True}
    subscriptions.change(change("b", LiteAction.COMPLETE_ADD, "y"), SHARED, 0)
    assert subscriptions.groups_of("x") == {"group": False}
    subscriptions.drop_client("a")
    assert subscriptions.groups_of("y") == {"group": True}
    subscriptions.change(change("b", LiteAction.COMPLETE_REMOVE), SHARED, 0)
    assert subscriptions.groups_of("y") == {}


def test_names_inside_lead_back_to_the_parent() -> None:
    assert parent_of(lite_topic_name("chat", "room-1")) == "chat"
    assert parent_of("orders") == "orders"


def test_attributes_of_the_group_are_its_rules() -> None:
    attributes = {"lite.sub.model": "Exclusive", "lite.sub.client.quota": "9"}
    assert rules_of(Group("g", attributes=attributes), 4) == LiteRules(True, False, 9)
    wildcard = Group("g", attributes={"lite.sub.wildcard": "true", "lite.sub.client.quota": "x"})
    assert rules_of(wildcard, 4) == LiteRules(False, True, 4)


CLIENTS = st.sampled_from(["a", "b", "c"])
NAMES = st.lists(st.sampled_from(["v", "w", "x", "y", "z"]), max_size=4, unique=True)


class ExclusiveMachine(RuleBasedStateMachine):
    """Against a dictionary name → client, and one of what was taken from whom."""

    def __init__(self) -> None:
        super().__init__()
        self.real = LiteSubscriptions(1_000)
        self.group_rules = LiteRules(is_exclusive=True, is_wildcard=False, client_quota=1_000)
        self.owners: dict[str, str] = {}
        self.taken: set[tuple[str, str]] = set()
        self.heard: dict[str, int] = {}
        self.now = 0

    def say(self, client: str, action: LiteAction, names: list[str]) -> LiteOutcome:
        self.heard[client] = self.now
        return self.real.change(change(client, action, *names), self.group_rules, self.now)

    def lose(self, client: str) -> None:
        self.owners = {name: owner for name, owner in self.owners.items() if owner != client}
        self.taken = {pair for pair in self.taken if pair[0] != client}
        self.heard.pop(client, None)

    def own(self, client: str, name: str) -> list[tuple[str, str]]:
        before = self.owners.get(name)
        self.owners[name] = client
        self.taken.discard((client, name))
        if before in (None, client):
            return []
        assert before is not None
        self.taken.add((before, name))
        return [(before, name)]

    @rule(client=CLIENTS, names=NAMES)
    def add(self, client: str, names: list[str]) -> None:
        outcome = self.say(client, LiteAction.PARTIAL_ADD, names)
        told = [pair for name in names for pair in self.own(client, name)]
        assert sorted(outcome.evictions) == sorted(told)

    @rule(client=CLIENTS, names=NAMES)
    def remove(self, client: str, names: list[str]) -> None:
        self.say(client, LiteAction.PARTIAL_REMOVE, names)
        for name in names:
            if self.owners.get(name) == client:
                del self.owners[name]

    @rule(client=CLIENTS, names=NAMES)
    def complete(self, client: str, names: list[str]) -> None:
        outcome = self.say(client, LiteAction.COMPLETE_ADD, names)
        for name in [name for name, owner in self.owners.items() if owner == client]:
            if name not in names:
                del self.owners[name]
        self.taken = {pair for pair in self.taken if pair[0] != client or pair[1] in names}
        told = []
        for name in names:
            if (client, name) in self.taken:
                told.append((client, name))
            else:
                told += self.own(client, name)
        assert sorted(outcome.evictions) == sorted(told)

    @rule(client=CLIENTS)
    def leave(self, client: str) -> None:
        self.real.drop_client(client)
        self.lose(client)

    @rule(elapsed=st.integers(0, SILENCE_MS))
    def pass_time(self, elapsed: int) -> None:
        self.now += elapsed
        self.real.expire(self.now)
        for client in [c for c, heard in self.heard.items() if heard + SILENCE_MS <= self.now]:
            self.lose(client)

    @invariant()
    def everybody_reads_what_is_theirs(self) -> None:
        assert len(self.real) == len(self.owners)
        for client in "abc":
            mine = {name for name, owner in self.owners.items() if owner == client}
            assert set(names_of(self.real, client)) == mine
        for name in "vwxyz":
            readers = {"group": name in self.owners} if self.heard else {}
            assert self.real.groups_of(name) == readers


ExclusiveMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
test_exclusive_subscriptions_behave_as_a_dictionary: Any = ExclusiveMachine.TestCase
