"""The simulation with lite topics: two clients that read some of them, and say so again and again.

say         a client adds lite topics, also from their beginning, or takes some back; or says its
            whole set, as it does every half minute and after the broker died
go          a client goes without a word
read        only what the client subscribed to; of a lite topic in order, a batch at a time
chat        keeps its lite topics: what was sent since the group began on one arrives
gossip      deletes idle ones after an hour: what arrives of it is in order, and not gone
"""

from typing import ClassVar

from cosmodrome_server.model.group import ConsumeFrom, CustomizedBackoff, Group
from cosmodrome_server.model.lite import LiteAction, LiteChange, LiteStart
from cosmodrome_server.model.message import Delivery
from cosmodrome_server.model.queries import ANY_QUEUE, ReceiveQuery
from cosmodrome_server.model.topic import Topic, TopicType
from cosmodrome_server.model.wire import message_id
from tests.simulation.books import Sent
from tests.simulation.world import ATTEMPTS_MAX, HOUR_MS, INVISIBLE_MS, Held, Simulation

CLIENTS = ("ann", "bob")
NAMES = "abcd"
# Messages between two generations of lite topics: beginning on one is where most can go wrong.
_GENERATION = 80
# Parent → the group that reads its lite topics.
READERS = {"chat": "room", "gossip": "club"}
# A client that was silent for longer may have been forgotten.
_SILENCE_MS = 180_000


class LiteClients(Simulation):
    """One seed; see `Simulation`."""

    topics: ClassVar = {
        **Simulation.topics,
        "chat": (TopicType.LITE, 1),
        "gossip": (TopicType.LITE, 1),
    }
    groups: ClassVar = {**Simulation.groups, "room": ["chat"], "club": ["gossip"]}
    ordered: ClassVar = {**Simulation.ordered, "room": "chat", "club": "gossip"}

    def __init__(self, seed: int, *, is_repeat: bool = False) -> None:
        super().__init__(seed, is_repeat=is_repeat)
        # (client, parent) → what it wants to read, and what the living broker was told of it.
        self._wanted: dict[tuple[str, str], set[str]] = {}
        self._told: dict[tuple[str, str], set[str]] = {}
        self._told_ms: dict[tuple[str, str], int] = {}
        # … and what of that found space for its place.
        self._sure: dict[tuple[str, str], set[str]] = {}
        # (parent, name): the group has a place there.
        self._begun: set[tuple[str, str]] = set()
        # Parent → where the last message went.
        self._written: dict[str, str] = {}
        self._is_ending = False

    def _start(self) -> None:
        self._told.clear()
        self._sure.clear()
        super()._start()

    def _create(self) -> None:
        super()._create()
        gossip = Topic("gossip", TopicType.LITE, queues=1, lite_expiration_ms=HOUR_MS)
        self._broker.create_topic(gossip)
        for parent, group in READERS.items():
            backoff = CustomizedBackoff((1_000,))
            self._broker.create_group(
                Group(
                    group,
                    lite_bind_topic=parent,
                    max_attempts=ATTEMPTS_MAX,
                    backoff=backoff,
                    consume_from=ConsumeFrom.FIRST,
                )
            )

    def _lite_topic(self) -> str:
        return f"{self._random.choice(NAMES)}{self._numbers // _GENERATION}"

    # Subscribing

    def _subscribe(self) -> None:
        """A client changes what it reads."""
        client, parent = self._random.choice(CLIENTS), self._random.choice(list(READERS))
        name = self._lite_topic()
        if self._random.random() < 0.6:
            # Somebody wrote there a moment ago.
            name = self._written.get(parent, name)
        wanted = self._wanted.setdefault((client, parent), set())
        choice = self._random.random()
        if choice < 0.5:
            self._say_all(client, parent)
        elif choice < 0.6:
            self._say(client, parent, LiteAction.PARTIAL_REMOVE, (name,))
            wanted.discard(name)
            for names in (self._told, self._sure):
                names.setdefault((client, parent), set()).discard(name)
        elif choice < 0.65:
            self._broker.client_gone(client)
            for parent in READERS:
                self._told.pop((client, parent), None)
                self._sure.pop((client, parent), None)
        else:
            start = LiteStart.MIN if self._random.random() < 0.2 else LiteStart.LAST
            self._add(client, parent, name, start)

    def _say_all(self, client: str, parent: str) -> None:
        wanted = self._wanted.setdefault((client, parent), set())
        # Before: what finds no space for the group's place is subscribed to all the same.
        self._told[client, parent] = set(wanted)
        self._say(client, parent, LiteAction.COMPLETE_ADD, tuple(sorted(wanted)))
        self._sure[client, parent] = set(wanted)

    def _add(self, client: str, parent: str, name: str, start: LiteStart) -> None:
        there = [
            sent
            for sent in self._books.sent.values()
            if (sent.topic, sent.order) == (parent, name) and sent.is_there
        ]
        told = self._told.setdefault((client, parent), set())
        if name in told:
            if self._is_heard(client, parent):
                return
            # Whether it is new to the broker nobody knows.
            start = LiteStart.LAST
        self._wanted.setdefault((client, parent), set()).add(name)
        told.add(name)
        self._say(client, parent, LiteAction.PARTIAL_ADD, (name,), start)
        self._sure.setdefault((client, parent), set()).add(name)
        if start is LiteStart.MIN:
            # What is not there is read from its beginning anyway.
            if there:
                self._begin(parent, name)
                self._go_back(parent, name)
        elif there and (parent == "gossip" or (parent, name) not in self._begun):
            # Of gossip the group's place goes with the lite topic.
            for sent in there:
                sent.is_expired = True
            self._begin(parent, name)

    def _say(
        self,
        client: str,
        parent: str,
        action: LiteAction,
        names: tuple[str, ...],
        start: LiteStart = LiteStart.LAST,
    ) -> None:
        change = LiteChange(client, READERS[parent], parent, action, names, start=start)
        self._broker.sync_lite_subscription(change)
        self._told_ms[client, parent] = self._clocks.run_ms
        self._note("lite", client, parent, action, names, start)

    def _is_heard(self, client: str, parent: str) -> bool:
        said_ms = self._told_ms.get((client, parent), -_SILENCE_MS)
        return self._clocks.run_ms - said_ms < _SILENCE_MS

    def _begin(self, parent: str, name: str) -> None:
        """The group has its place on a lite topic, from here on."""
        place = parent, name
        lsn = self._answer()
        if place not in self._begun:
            self._begun.add(place)
            self._books.note(lsn, lambda: self._begun.discard(place))

    def _go_back(self, parent: str, name: str) -> None:
        """The group reads a lite topic from its beginning, whatever it had in hand."""
        group = READERS[parent]
        self._books.reopen(self._answer(), group, name)
        for held in (*self._held, *self._unanswered):
            if held.group == group and self._books.sent[held.name].order == name:
                held.deadline_ms = 0

    def _send(self) -> None:
        """Who reads a lite topic has its place there from the first message on."""
        super()._send()
        for sent in self._last_sent:
            if sent.topic in READERS:
                self._written[sent.topic] = sent.order
        for (client, parent), names in self._sure.items():
            if self._is_heard(client, parent):
                for name in sorted(names & self._orders_sent(parent)):
                    self._begin(parent, name)

    def _orders_sent(self, parent: str) -> set[str]:
        """The lite topics of the last send, if it was to this parent."""
        return {sent.order for sent in self._last_sent if sent.topic == parent}

    # Reading

    def _query(self, group: str, topic: str, count: int) -> ReceiveQuery:
        if topic not in READERS:
            return super()._query(group, topic, count)
        client = CLIENTS[0] if self._is_ending else self._random.choice(CLIENTS)
        return ReceiveQuery(group, topic, ANY_QUEUE, client, count, INVISIBLE_MS)

    def _take(self, group: str, topic: str, count: int) -> int:
        if self._is_ending and topic in READERS:
            sents = self._books.sent.values()
            self._wanted[CLIENTS[0], topic] = {sent.order for sent in sents if sent.topic == topic}
            self._say_all(CLIENTS[0], topic)
        return super()._take(group, topic, count)

    def _took(self, query: ReceiveQuery, deliveries: list[Delivery]) -> None:
        if query.topic in READERS:
            told = self._told.get((query.client_id, query.topic), set())
            for delivery in deliveries:
                name = message_id(delivery.message.system)
                order = self._books.sent[name].order
                assert order in told, f"{name} of {order} came to {query.client_id}: {told}"
                self._begin(query.topic, order)
        super()._took(query, deliveries)

    def _refused(self, held: Held) -> None:
        # An idle lite topic goes with what is in somebody's hands.
        if held.topic != "gossip" or not self._is_gone(self._books.sent[held.name]):
            super()._refused(held)

    def _is_gone(self, sent: Sent) -> bool:
        is_idle = sent.topic == "gossip" and self._latest_ms - sent.stored_ms >= HOUR_MS
        return is_idle or super()._is_gone(sent)

    def _excuse(self) -> None:
        super()._excuse()
        self._is_ending = True
        for sent in self._books.sent.values():
            sent.is_expired |= sent.topic == "gossip"
