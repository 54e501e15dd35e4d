"""The simulation with what is rarer: operators, priorities, batches of acks, full disks.

acks        several of one topic together
redrive     a dead letter goes back once: not twice, whatever crashes, and somebody gets it
topics      one of all kinds of messages is deleted and made again under its name: nothing of the
            first is seen, be it on its way to a consumer, delayed, or half
groups      one is deleted and made again, with its dead letters: it gets everything anew, and what
            its consumers had in hand is not taken for what they get
attempts    an ordered receive whose answer was lost, repeated under its name, gets the same
offsets     what was committed is what is read
leases      renewed for a client, until it is gone
the disk    is full for a while: sends are refused, and what was refused is never seen
lists       of what is scheduled name nothing that was recalled
durability  of some seeds is `interval` or `os`: a power cut takes what they say it may, and of a
            frame all or nothing
lite topics see `tests/simulation/lite_clients.py`
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from cosmodrome_server.errors import (
    ConsumerGroupNotFound,
    InvalidReceiptHandle,
    OffsetNotFound,
    StoreFull,
    TopicNotFound,
)
from cosmodrome_server.model.group import ConsumeFrom, CustomizedBackoff, Group
from cosmodrome_server.model.message import Delivery, MessageType
from cosmodrome_server.model.queries import ANY_QUEUE, PullQuery, ReceiveQuery, RedriveQuery
from cosmodrome_server.model.topic import Topic, TopicType, dead_letter_topic
from cosmodrome_server.model.wire import message_id
from cosmodrome_server.store.group_commit import Durability
from tests.simulation.lite_clients import LiteClients
from tests.simulation.world import ATTEMPTS_MAX, INVISIBLE_MS, SYNC, Held

RENEWER = "renewer"
# Deleted and made again.
BRIEF_TOPIC, BRIEF_GROUP = "brief", "audit"
KINDS = (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION)
INTERVAL = Durability(is_synced=False, interval_ms=400)
NEVER_SYNCED = Durability(is_synced=False)
DURABILITIES = (SYNC, SYNC, INTERVAL, NEVER_SYNCED)


@dataclass(slots=True)
class _Attempt:
    """An ordered receive whose answer never arrived.

    Attributes:
        query: What was asked.
        attempts: Name → delivery attempt of what was given.
        deadline_ms: Until when that is kept for the repeat.
    """

    query: ReceiveQuery
    attempts: dict[str, int]
    deadline_ms: int


class WiderSimulation(LiteClients):
    """One seed; see `Simulation`."""

    topics: ClassVar = {
        **LiteClients.topics,
        "urgent": (TopicType.PRIORITY, 3),
        BRIEF_TOPIC: (TopicType.MIXED, 2),
    }
    groups: ClassVar = {
        **LiteClients.groups,
        "billing": ["orders", "steps", "later", "deals", "urgent", BRIEF_TOPIC],
        BRIEF_GROUP: ["orders", BRIEF_TOPIC],
    }

    def __init__(self, seed: int, *, is_repeat: bool = False) -> None:
        super().__init__(seed, is_repeat=is_repeat)
        self._took_times: Counter[tuple[str, str]] = Counter()
        # (group, offset) of dead letters that went back.
        self._sent_back: set[tuple[str, int]] = set()
        self._offset: int | None = None
        self._attempt: _Attempt | None = None

    def _durability_of(self, seed: int) -> Durability:
        return DURABILITIES[seed // 2 % len(DURABILITIES)]

    def _create(self) -> None:
        super()._create()
        self._broker.create_group(Group("puller", consume_from=ConsumeFrom.FIRST))
        self._create_brief_group()

    def _create_brief_group(self) -> None:
        group = Group(
            BRIEF_GROUP,
            max_attempts=ATTEMPTS_MAX,
            backoff=CustomizedBackoff((1_000,)),
            consume_from=ConsumeFrom.FIRST,
        )
        self._broker.create_group(group)

    def _kind_of(self, topic: str) -> MessageType:
        return self._random.choice(KINDS) if topic == BRIEF_TOPIC else super()._kind_of(topic)

    async def _act(self) -> None:
        if self._disk.bytes_max is not None and self._random.random() < 0.03:
            self._fill_disk()
        try:
            self._keep_brief()
            if self._random.random() < 0.75:
                await super()._act()
            else:
                self._act_wider()
        except StoreFull:
            assert self._disk.bytes_max is not None

    def _act_wider(self) -> None:
        choice = self._random.random()
        if choice < 0.25:
            self._ack_some()
        elif choice < 0.38:
            self._redrive()
        elif choice < 0.45:
            self._commit_offset()
        elif choice < 0.49:
            self._make_topic_again()
        elif choice < 0.52:
            self._make_group_again()
        elif choice < 0.62:
            self._renewed()
        elif choice < 0.77:
            self._subscribe()
        elif choice < 0.92:
            self._attempt_again()
        elif choice < 0.96:
            self._list()
        else:
            self._fill_disk()

    def _keep_brief(self) -> None:
        """There may have been no space to make them again."""
        if not self._has_topic(BRIEF_TOPIC):
            self._broker.create_topic(Topic(BRIEF_TOPIC, *self.topics[BRIEF_TOPIC]))
        try:
            self._broker.group(BRIEF_GROUP)
        except ConsumerGroupNotFound:
            self._create_brief_group()

    # Consumers

    def _take(self, group: str, topic: str, count: int) -> int:
        self._keep_brief()
        return super()._take(group, topic, count)

    def _not_taken(self, error: Exception) -> None:
        if isinstance(error, StoreFull):
            assert self._disk.bytes_max is not None
        elif not isinstance(error, TopicNotFound | ConsumerGroupNotFound):  # made again since
            super()._not_taken(error)

    def _took(self, query: ReceiveQuery, deliveries: list[Delivery]) -> None:
        super()._took(query, deliveries)
        names = [message_id(delivery.message.system) for delivery in deliveries]
        self._took_times.update((query.group, name) for name in names)

    def _ack_some(self) -> None:
        if not self._held:
            return
        first = self._random.choice(self._held)
        some = [h for h in self._held if (h.group, h.topic) == (first.group, first.topic)][:8]
        self._held = [held for held in self._held if held not in some]
        try:
            results = self._broker.ack_many(
                first.group, first.topic, [held.handle for held in some]
            )
        except StoreFull:
            self._books.unsure.update((held.group, held.name) for held in some)
            raise
        lsn = self._answer()
        for held, error in zip(some, results, strict=True):
            if isinstance(error, InvalidReceiptHandle):
                self._refused(held)
            else:
                self._accepted(held)
                self._books.settle(lsn, held.group, held.name)
        self._note("ack many", [held.name for held in some])

    def _renewed(self) -> None:
        if self._random.random() < 0.3:
            self._broker.client_gone(RENEWER)
            return
        query = ReceiveQuery("billing", "orders", ANY_QUEUE, RENEWER, 4, INVISIBLE_MS, True)
        self._took(query, self._broker.receive(query))
        self._note("renewed")

    def _attempt_again(self) -> None:
        """An ordered receive, or the repeat of one whose answer was lost."""
        attempt = self._attempt
        if attempt is None:
            queue_id, count = self._random.randint(ANY_QUEUE, 1), self._random.choice((1, 4, 32))
            self._numbers += 1
            query = ReceiveQuery(
                "ledger", "steps", queue_id, "client", count, INVISIBLE_MS, False,
                attempt_id=f"attempt-{self._numbers}",
            )  # fmt: skip
        else:
            query = attempt.query
        deliveries = self._broker.receive(query)
        given = {message_id(each.message.system): each.attempt for each in deliveries}
        if attempt is not None and self._clocks.run_ms < attempt.deadline_ms:
            kept = {
                name: number
                for name, number in attempt.attempts.items()
                if name in given or not self._is_gone(self._books.sent[name])
            }
            is_full = self._disk.bytes_max is not None  # Then there may be space for some.
            is_same = given.items() <= kept.items() if is_full else given == kept
            assert is_same or not kept, f"not {attempt}, but {given}"
        # What a full disk left out of a repeat has another deadline than the rest.
        is_whole = attempt is None or given.keys() == attempt.attempts.keys()
        is_lost = is_whole and self._random.random() < 0.5
        deadline_ms = self._clocks.run_ms + INVISIBLE_MS
        self._attempt = None
        if given and is_lost:
            self._attempt = _Attempt(query, given, deadline_ms)
        self._took(query, deliveries)
        self._books.note(self._answer(), self._forget_attempt)
        self._note("repeat" if attempt else "attempt", sorted(given))

    def _forget_attempt(self) -> None:
        self._attempt = None

    def _hand(self, query: ReceiveQuery, held: Held) -> None:
        is_lost = self._attempt is not None and self._attempt.query is query
        if not is_lost:
            super()._hand(query, held)

    def _check_order(self, group: str, names: list[str]) -> None:
        super()._check_order(group, names)
        attempt = self._attempt
        if group == "ledger" and attempt and self._clocks.run_ms < attempt.deadline_ms:
            if set(names) <= set(attempt.attempts):
                return
            orders = {self._books.sent[name].order for name in attempt.attempts}
            both = orders.intersection(self._books.sent[name].order for name in names)
            assert not both, f"{names} come beside {attempt}"

    def _start(self) -> None:
        # A lease clock that begins later ends leases sooner.
        base_ms = self._broker._lease_base_ms if self._life else 0
        super()._start()
        if self._attempt is not None:
            self._attempt.deadline_ms -= max(0, self._broker._lease_base_ms - base_ms)

    def _commit_offset(self) -> None:
        try:
            found: int | None = self._broker.committed_offset("puller", "orders", 0)
        except OffsetNotFound:
            found = None
        before = self._offset
        assert found == before, f"{found}, not {before}"
        # Beyond the end counts as the end.
        end = self._broker._shard.catalogue.topic("orders").next_offsets[0]
        value = self._random.randrange(2 * end + 2)
        self._broker.commit_offset("puller", "orders", 0, value)
        self._offset = min(value, end)
        self._books.note(self._answer(), lambda: setattr(self, "_offset", before))
        self._note("commit", value)

    # Operators

    def _redrive(self) -> None:
        group = self._random.choice(list(self.groups))
        topic = dead_letter_topic(group)
        if not self._has_topic(topic):
            return
        bounds = self._broker.bounds(topic, 0)
        if bounds.min_offset == bounds.max_offset:
            return
        at = self._random.randrange(bounds.min_offset, bounds.max_offset)
        pulled = self._broker.pull(PullQuery("", topic, 0, at, 1)).messages
        if not pulled or pulled[0].queue_offset != at:
            return
        name = message_id(pulled[0].system)
        self._books.redriven.add(name)
        done = self._broker.redrive(RedriveQuery(group, queue_offsets=(at,)))
        letter = (group, at)
        self._note("redrive", letter, done.moved)
        if not done.moved:
            assert letter in self._sent_back, f"{letter} does not go back"
            return
        assert letter not in self._sent_back, f"{letter} went back twice"
        self._sent_back.add(letter)
        sent = self._books.sent[name]
        owed = {(reader, name) for reader, topics in self.groups.items() if sent.topic in topics}
        owed -= {("club", name), *self._books.owed}
        self._books.owed |= owed

        def strike() -> None:
            self._sent_back.discard(letter)
            self._books.owed -= owed

        self._books.note(self._answer(), strike)

    def _make_topic_again(self) -> None:
        """Delete a topic and make it anew, in one frame."""
        names = [n for n, s in self._books.sent.items() if s.topic == BRIEF_TOPIC and s.is_there]
        self._broker.delete_topic(BRIEF_TOPIC)
        self._books.drop(self._answer(), names)
        self._let_go(lambda held: held.topic == BRIEF_TOPIC)
        self._broker.create_topic(Topic(BRIEF_TOPIC, *self.topics[BRIEF_TOPIC]))
        self._answer()
        self._note("topic again", len(names))

    def _make_group_again(self) -> None:
        """Delete a group with its dead letters, and make it anew, in one frame."""
        letters = {letter for letter in self._sent_back if letter[0] == BRIEF_GROUP}
        topic = dead_letter_topic(BRIEF_GROUP)
        self._broker.delete_group(BRIEF_GROUP)
        self._books.forget_group(self._answer(), BRIEF_GROUP)
        self._let_go(lambda held: held.group == BRIEF_GROUP)
        if self._has_topic(topic):
            self._broker.delete_topic(topic)
            self._sent_back -= letters
            self._books.note(self._answer(), lambda: self._sent_back.update(letters))
        self._create_brief_group()
        self._answer()
        self._note("group again", len(letters))

    def _let_go(self, is_gone: Callable[[Held], bool]) -> None:
        """Nobody may do anything any more with what these have in hand."""
        for held in (*self._held, *self._unanswered):
            if is_gone(held):
                held.gone_in = self._life

    def _list(self) -> None:
        for one in self._broker.scheduled("", 8):
            sent = self._books.sent[one.message_id]
            assert not sent.is_recalled, f"{one.message_id} is listed: {sent}"
            assert one.message_id not in self._books.dropped, f"{one.message_id} is listed"

    def _fill_disk(self) -> None:
        is_full = self._disk.bytes_max is not None
        self._disk.bytes_max = None if is_full else self._disk.used_bytes
        if is_full:
            self._background.tick()
        self._note("full", not is_full)

    # The end

    async def _finish(self) -> None:
        self._disk.on_operation = lambda _: None
        self._disk.bytes_max = None
        self._background.tick()
        if not self._is_dead:
            self._broker.client_gone(RENEWER)
        await super()._finish()
        if not self._retention_ms:
            owed = {pair for pair in self._books.owed if pair[1] not in self._books.dropped}
            assert not owed, f"sent back, and lost: {owed}"
