"""The simulation with what is rarer: operators, priorities, batches of acks, full disks.

acks        several of one topic together
redrive     a dead letter goes back once: not twice, whatever crashes, and somebody gets it
topics      one is deleted and made again under its name: nothing of the first is seen
offsets     what was committed is what is read, or what was tried since
leases      renewed for a client, until it is gone
the disk    is full for a while: sends are refused
lists       of what is scheduled name nothing that was recalled
"""

from collections import Counter
from typing import ClassVar

from cosmodrome_server.errors import InvalidReceiptHandle, OffsetNotFound, StoreFull
from cosmodrome_server.model.group import ConsumeFrom, Group
from cosmodrome_server.model.queries import ANY_QUEUE, PullQuery, ReceiveQuery, RedriveQuery
from cosmodrome_server.model.topic import Topic, TopicType, dead_letter_topic
from cosmodrome_server.model.wire import message_id
from tests.simulation.world import GROUPS, INVISIBLE_MS, TOPICS, Held, Simulation

RENEWER = "renewer"


class WiderSimulation(Simulation):
    """One seed; see `Simulation`."""

    topics: ClassVar = {**TOPICS, "urgent": (TopicType.PRIORITY, 3), "brief": (TopicType.NORMAL, 2)}
    groups: ClassVar = {**GROUPS, "billing": [*TOPICS, "urgent", "brief"]}

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._took_times: Counter[tuple[str, str]] = Counter()
        self._for_the_renewer: set[str] = set()
        self._of_the_topic: set[str] = set()
        self._of_a_topic_gone: set[str] = set()
        self._sent_back: set[tuple[str, int]] = set()
        self._sent_back_maybe: set[tuple[str, int]] = set()
        # (number, offset) that may be what is committed; None before the first.
        self._offsets: list[tuple[int, int | None]] = [(0, None)]

    def _create(self) -> None:
        super()._create()
        self._broker.create_group(Group("puller", consume_from=ConsumeFrom.FIRST))

    async def _act(self) -> None:
        if self._disk.bytes_max is not None and self._random.random() < 0.03:
            self._fill_disk()
        try:
            self._keep_topic()
            if self._random.random() < 0.8:
                await super()._act()
            else:
                self._act_wider()
        except StoreFull:
            assert self._disk.bytes_max is not None

    def _act_wider(self) -> None:
        choice = self._random.random()
        if choice < 0.35:
            self._ack_some()
        elif choice < 0.55:
            self._redrive()
        elif choice < 0.70:
            self._commit_offset()
        elif choice < 0.75:
            self._make_again()
        elif choice < 0.90:
            self._renewed()
        elif choice < 0.95:
            self._list()
        else:
            self._fill_disk()

    def _keep_topic(self) -> None:
        """There may have been no space to make it again."""
        if "brief" not in {topic.name for topic in self._broker.topics()}:
            self._broker.create_topic(Topic("brief", *self.topics["brief"]))

    # Consumers

    def _take(self, group: str, topic: str, count: int) -> int:
        self._keep_topic()
        return super()._take(group, topic, count)

    def _took(self, group: str, topic: str, deliveries: list) -> None:  # type: ignore[type-arg]
        super()._took(group, topic, deliveries)
        if topic == "brief":
            self._of_the_topic.update(delivery.receipt_handle for delivery in deliveries)
        names = [message_id(delivery.message.system) for delivery in deliveries]
        self._took_times.update((group, name) for name in names)

    def _ack_some(self) -> None:
        if not self._held:
            return
        first = self._random.choice(self._held)
        some = [h for h in self._held if (h.group, h.topic) == (first.group, first.topic)][:8]
        self._held = [held for held in self._held if held not in some]
        handles = [held.handle for held in some]
        # Some may be taken although the disk is too full for all.
        self._books.tried.update((held.group, held.name) for held in some)
        results = self._broker.ack_many(first.group, first.topic, handles)
        for held, error in zip(some, results, strict=True):
            if isinstance(error, InvalidReceiptHandle):
                is_late = held.deadline_ms <= self._clocks.run_ms
                assert is_late or held.life != self._life, f"{held} is refused before its time"
                continue
            key = (held.group, held.name)
            self._when_answered(lambda key=key: self._books.settled.add(key))
        self._note("ack many", [held.name for held in some])

    def _renewed(self) -> None:
        if self._random.random() < 0.3:
            self._broker.client_gone(RENEWER)
            return
        query = ReceiveQuery("billing", "orders", ANY_QUEUE, RENEWER, 4, INVISIBLE_MS, True)
        deliveries = self._broker.receive(query)
        self._for_the_renewer.update(delivery.receipt_handle for delivery in deliveries)
        self._took("billing", "orders", deliveries)

    def _hold(self, held: Held) -> None:
        super()._hold(held)
        if held.handle in self._for_the_renewer or held.handle in self._of_a_topic_gone:
            held.deadline_ms = 0  # Nobody here knows when it ends.

    def _commit_offset(self) -> None:
        try:
            found: int | None = self._broker.committed_offset("puller", "orders", 0)
        except OffsetNotFound:
            found = None
        assert found in {value for _, value in self._offsets}, f"{found}, not {self._offsets}"
        number, value = self._offsets[-1][0] + 1, self._random.randrange(1_000)
        self._broker.commit_offset("puller", "orders", 0, value)
        self._offsets.append((number, value))

        def answered() -> None:
            self._offsets = [entry for entry in self._offsets if entry[0] >= number]

        self._when_answered(answered)
        self._note("commit", value)

    # Operators

    def _redrive(self) -> None:
        group = self._random.choice(list(self.groups))
        topic = dead_letter_topic(group)
        if topic not in {known.name for known in self._broker.topics()}:
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
            assert letter in self._sent_back_maybe, f"{letter} does not go back"
            return
        assert letter not in self._sent_back, f"{letter} went back twice"
        self._sent_back_maybe.add(letter)
        readers = [(g, name) for g, topics in self.groups.items() if self._topic_of(name) in topics]
        before = {reader: self._took_times[reader] for reader in readers}

        def answered() -> None:
            self._sent_back.add(letter)
            for reader, times in before.items():
                if self._took_times[reader] == times:
                    self._books.owed.add(reader)

        self._when_answered(answered)

    def _topic_of(self, name: str) -> str:
        return self._books.sent[name].topic

    def _make_again(self) -> None:
        """Delete a topic and make it anew, in one frame."""
        names = [name for name, sent in self._books.sent.items() if sent.topic == "brief"]
        self._books.dropped_maybe.update(names)
        self._broker.delete_topic("brief")
        # Also of receives that are not answered yet.
        self._of_a_topic_gone, self._of_the_topic = self._of_the_topic, set()
        self._broker.create_topic(Topic("brief", *self.topics["brief"]))
        for held in self._held:
            if held.topic == "brief":
                held.deadline_ms = 0
        self._when_answered(lambda: self._books.dropped.update(names))
        self._note("again", len(names))

    def _list(self) -> None:
        for one in self._broker.scheduled("later", 8):
            sent = self._books.sent[one.message_id]
            assert not sent.is_recalled, f"{one.message_id} is listed: {sent}"

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
            owed = {pair for pair in self._books.owed if pair[1] not in self._books.dropped_maybe}
            assert not owed, f"sent back, and lost: {owed}"
