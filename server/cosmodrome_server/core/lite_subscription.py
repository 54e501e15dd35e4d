"""Which lite topics each client of a lite group reads.

A lite topic is a topic of one queue under a LITE topic; its name inside is
`%LMQ%$parent$lite`. Subscriptions are about the present: kept in memory, said anew by the
clients every 30 s, and over when a client has been silent for three minutes.

    add ──▶ reads it ──remove, silence, the client goes──▶ reads it no more
              └── exclusive group, another client adds it ──▶ evicted, and told so: it gets it
                  back by adding it anew, not by repeating its whole set

Where reading goes on afterwards is the group's offset, which stays; or the beginning, where
the group asks for it with `lite.sub.reset.offset.unsubscribe` or `.exclusive`.

Source: protocol.md 1.17 and 7.13.
"""

from collections import Counter
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from cosmodrome_server.core.consumption import Consumption
from cosmodrome_server.core.progress import Progress
from cosmodrome_server.errors import BadRequest, LiteSubscriptionQuotaExceeded
from cosmodrome_server.model.group import Group
from cosmodrome_server.model.lite import LiteAction, LiteChange, LiteStart
from cosmodrome_server.model.topic import LITE_PREFIX

SILENCE_MS = 180_000
_SEPARATOR = "$"
_Key = TypeVar("_Key")


def lite_topic_name(parent: str, lite_topic: str) -> str:
    """The name inside of a lite topic."""
    return f"{LITE_PREFIX}{_SEPARATOR}{parent}{_SEPARATOR}{lite_topic}"


def parent_of(name: str) -> str:
    """The topic clients know: the parent of a lite topic, else the topic itself."""
    if not name.startswith(LITE_PREFIX):
        return name
    return name[len(LITE_PREFIX) + 1 :].rpartition(_SEPARATOR)[0]


def has_something(consumption: Consumption | None, end: int) -> bool:
    """Whether who reads a lite topic that ends there would get something of it now."""
    if consumption is None:
        return end > 0
    # A client may read all that there are: only what is awake is an object.
    progress = consumption.awake.get(0)
    if progress is None:
        return end > consumption.cursor(0)
    return not progress.leases and (end > progress.cursor or bool(progress.ready))


def start_of(change: LiteChange, progress: Progress | None, first: int, end: int) -> int | None:
    """Where reading begins, `first` for who has no place yet; None to leave it where it is."""
    match change.start:
        case LiteStart.MIN:
            return 0
        case LiteStart.MAX:
            return end
        case LiteStart.OFFSET:
            return change.start_value
        case LiteStart.TAIL if progress is not None:
            return progress.cursor - change.start_value
        case _:
            return first if progress is None else None


class LiteRules(msgspec.Struct, frozen=True):
    """How a group shares lite topics.

    Attributes:
        is_exclusive: One client a lite topic.
        is_wildcard: Every client reads all.
        client_quota: Lite topics of one client.
        is_reset_on_eviction: Who takes a lite topic over reads it from the beginning.
        is_reset_on_removal: So does who adds it after a client removed it.
    """

    is_exclusive: bool
    is_wildcard: bool
    client_quota: int
    is_reset_on_eviction: bool = False
    is_reset_on_removal: bool = False


def rules_of(group: Group, client_quota: int) -> LiteRules:
    """Read the rules from the attributes of a group; `client_quota` if it has none."""
    values = group.attributes
    quota = values.get("lite.sub.client.quota", "")
    return LiteRules(
        values.get("lite.sub.model", "").lower() == "exclusive",
        values.get("lite.sub.wildcard", "").lower() == "true",
        int(quota) if quota.isdecimal() else client_quota,
        values.get("lite.sub.reset.offset.exclusive", "").lower() == "true",
        values.get("lite.sub.reset.offset.unsubscribe", "").lower() == "true",
    )


class LiteSubscription(msgspec.Struct):
    """What one client of a group reads.

    Attributes:
        names: The lite topics, in the order they were added.
        evicted: Those another client took over, as many of the last as the client may read.
        version: Of the last change.
        heard_ms: When it was last said.
    """

    names: dict[str, None] = msgspec.field(default_factory=dict)
    evicted: dict[str, None] = msgspec.field(default_factory=dict)
    version: int = 0
    heard_ms: int = 0


class LiteOutcome(msgspec.Struct):
    """What a change did.

    Attributes:
        added: Lite topics the client reads now and did not before.
        evictions: (client, lite topic) of those who must be told.
        restarted: Lite topics the group reads from the beginning now.
    """

    added: list[str] = msgspec.field(default_factory=list)
    evictions: list[tuple[str, str]] = msgspec.field(default_factory=list)
    restarted: list[str] = msgspec.field(default_factory=list)


class LiteSubscriptions:
    """The subscriptions of all clients; `subscriptions_max` bounds their sum."""

    def __init__(self, subscriptions_max: int) -> None:
        self._max = subscriptions_max
        self._count = 0
        self._of: dict[tuple[str, str], LiteSubscription] = {}
        self._groups_of_client: dict[str, dict[str, None]] = {}
        self._owners: dict[tuple[str, str], str] = {}
        # How many clients a group has, and how many of them read a lite topic: who sends the
        # first message to one must not look through all clients.
        self._clients: Counter[str] = Counter()
        self._readers: Counter[tuple[str, str]] = Counter()

    def __len__(self) -> int:
        return self._count

    @property
    def has_clients(self) -> bool:
        """Whether anybody is remembered, however little it reads."""
        return bool(self._of)

    def of(self, group: str, client_id: str) -> LiteSubscription | None:
        """What a client reads; None if it never said."""
        return self._of.get((group, client_id))

    def groups_of(self, lite_topic: str) -> dict[str, bool]:
        """Every group with a client; whether one of them reads a lite topic by its name."""
        return {group: (group, lite_topic) in self._readers for group in self._clients}

    def change(self, change: LiteChange, rules: LiteRules, now_ms: int) -> LiteOutcome:
        """Carry out what a client says; what is older than what it said before is ignored.

        Raises:
            BadRequest: A partial change in a group that reads everything.
            LiteSubscriptionQuotaExceeded: More than a client or the broker may have.
        """
        key = (change.group, change.client_id)
        if rules.is_wildcard and change.action in (
            LiteAction.PARTIAL_ADD,
            LiteAction.PARTIAL_REMOVE,
        ):
            raise BadRequest(f"group {change.group} reads every lite topic: say COMPLETE_ADD")
        known = self._of.get(key)
        if known is not None and 0 < change.version < known.version:
            return LiteOutcome()
        if change.action is LiteAction.COMPLETE_REMOVE:
            self._drop(key)
            return LiteOutcome()
        held = known or LiteSubscription()
        outcome, removed = self._plan(held, change)
        self._check_quota(change, rules, len(held.names) + len(outcome.added) - len(removed))
        if known is None:
            self._of[key] = held
            self._groups_of_client.setdefault(change.client_id, {})[change.group] = None
            self._clients[change.group] += 1
        held.version, held.heard_ms = max(held.version, change.version), now_ms
        if change.action is LiteAction.PARTIAL_ADD:
            for name in change.lite_topics:
                held.evicted.pop(name, None)
        for name in removed:
            self._remove(key, name)
        # A client that says its whole set has not changed its mind about what is not in it.
        if rules.is_reset_on_removal and change.action is LiteAction.PARTIAL_REMOVE:
            outcome.restarted += removed
        for name in outcome.added:
            self._add(key, name, rules, outcome)
        return outcome

    def _plan(self, held: LiteSubscription, change: LiteChange) -> tuple[LiteOutcome, list[str]]:
        names = dict.fromkeys(change.lite_topics)
        if change.action is LiteAction.PARTIAL_REMOVE:
            return LiteOutcome(), [name for name in names if name in held.names]
        added = [name for name in names if name not in held.names]
        if change.action is LiteAction.PARTIAL_ADD:
            return LiteOutcome(added), []
        again = [(change.client_id, name) for name in added if name in held.evicted]
        outcome = LiteOutcome([name for name in added if name not in held.evicted], again)
        held.evicted = {name: None for name in held.evicted if name in names}
        return outcome, [name for name in held.names if name not in names]

    def _check_quota(self, change: LiteChange, rules: LiteRules, after: int) -> None:
        known = self._of.get((change.group, change.client_id))
        before = 0 if known is None else len(known.names)
        if known is None and len(self._of) >= self._max:
            raise LiteSubscriptionQuotaExceeded(
                f"{len(self._of)} clients read lite topics already (lite.subscriptions_max)",
                "lite.subscriptions_max",
            )
        if after > max(before, rules.client_quota):
            raise LiteSubscriptionQuotaExceeded(
                f"client {change.client_id} would read {after} lite topics, its group allows "
                f"{rules.client_quota} (lite.sub.client.quota)",
                "lite.subscriptions_per_client",
            )
        if after > before and self._count + after - before > self._max:
            raise LiteSubscriptionQuotaExceeded(
                f"there are {self._count} lite subscriptions already (lite.subscriptions_max)",
                "lite.subscriptions_max",
            )

    def _add(self, key: tuple[str, str], name: str, rules: LiteRules, outcome: LiteOutcome) -> None:
        group, client_id = key
        if rules.is_exclusive:
            owner = self._owners.get((group, name))
            if owner is not None and owner != client_id:
                self._remove((group, owner), name)
                self._evict(self._of[group, owner], name, rules.client_quota)
                outcome.evictions.append((owner, name))
                if rules.is_reset_on_eviction:
                    outcome.restarted.append(name)
            self._owners[group, name] = client_id
        self._of[key].names[name] = None
        self._readers[group, name] += 1
        self._count += 1

    @staticmethod
    def _evict(held: LiteSubscription, name: str, quota: int) -> None:
        held.evicted.pop(name, None)
        if len(held.evicted) >= max(1, quota):
            del held.evicted[next(iter(held.evicted))]
        held.evicted[name] = None

    def _remove(self, key: tuple[str, str], name: str) -> None:
        group, client_id = key
        del self._of[key].names[name]
        _take_one(self._readers, (group, name))
        self._count -= 1
        if self._owners.get((group, name)) == client_id:
            del self._owners[group, name]

    def _drop(self, key: tuple[str, str]) -> None:
        held = self._of.get(key)
        if held is not None:
            for name in list(held.names):
                self._remove(key, name)
            del self._of[key]
            group, client_id = key
            groups = self._groups_of_client[client_id]
            del groups[group]
            if not groups:
                del self._groups_of_client[client_id]
            _take_one(self._clients, group)

    def take_back(self, change: LiteChange, outcome: LiteOutcome) -> None:
        """What a change added is not read: where reading begins could not be written."""
        key = (change.group, change.client_id)
        for name in outcome.added:
            self._remove(key, name)

    def drop_client(self, client_id: str) -> None:
        """A client is gone."""
        # Thousands may go at once.
        for group in list(self._groups_of_client.get(client_id, ())):
            self._drop((group, client_id))

    def expire(self, now_ms: int) -> None:
        """Forget clients that were silent for too long."""
        for key in list(self._silent(now_ms)):
            self._drop(key)

    def _silent(self, now_ms: int) -> Iterator[tuple[str, str]]:
        for key, held in self._of.items():
            if held.heard_ms + SILENCE_MS <= now_ms:
                yield key


def _take_one(counts: "Counter[_Key]", key: _Key) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
