"""Deliveries of one group against the stupidest right model: one little record a message.

The broker under test runs whole: core, group commit, a log in memory. After every step it
may be stopped cleanly, killed, or started from its checkpoint or from the log alone; what
was durable must be there, and what an acknowledged ack settled must never come again.
"""

import asyncio
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cosmodrome_server.errors import InvalidReceiptHandle
from cosmodrome_server.model.group import Group
from cosmodrome_server.model.message import Delivery
from cosmodrome_server.model.topic import Topic, TopicType
from tests.support.broker_world import World, new_message

ATTEMPTS_MAX = 3
QUEUES = 2


@dataclass
class Expected:
    """What the model knows of one message."""

    name: bytes
    message_group: str
    queue: tuple[int, int] | None = None
    state: str = "ready"  # ready, leased, done or dead
    attempt: int = 1
    deadline_ms: int = 0
    is_suspended: bool = False
    handle: str = ""


class Deliveries(RuleBasedStateMachine):
    """An unordered group."""

    is_fifo = False

    @initialize()
    def start(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.run(self.make())
        self.messages: dict[bytes, Expected] = {}
        self.old_handles: list[tuple[Expected, str, int]] = []
        self.earlier_handles: set[str] = set()

    async def make(self) -> None:
        self.world = World()
        topic_type = TopicType.FIFO if self.is_fifo else TopicType.NORMAL
        self.world.broker.create_topic(Topic("orders", topic_type, queues=QUEUES))
        self.world.broker.create_group(
            Group("billing", is_fifo=self.is_fifo, max_attempts=ATTEMPTS_MAX)
        )
        self.world.receive("orders", "billing", 1)
        await self.world.settle()

    def run(self, awaitable: object) -> object:
        return self.loop.run_until_complete(awaitable)  # type: ignore[arg-type]  # any coroutine

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.run(self.world.settle())
            self.world.broker.abandon()
            self.loop.close()

    @property
    def now_ms(self) -> int:
        return self.world.clocks.run_ms

    @rule(groups=st.lists(st.sampled_from("ABC"), min_size=1, max_size=4))
    def send(self, groups: list[str]) -> None:
        sent = []
        for group in groups:
            name = b"%d" % len(self.messages)
            self.messages[name] = Expected(name, group)
            sent.append(new_message(name, group=group if self.is_fifo else ""))
        receipts = self.world.broker.send("orders", sent)
        assert len({receipt.message_id for receipt in receipts}) == len(groups)
        self.run(self.world.settle())

    @rule(count=st.integers(1, 5), invisible_ms=st.sampled_from([1_000, 5_000]))
    def receive(self, count: int, invisible_ms: int) -> None:
        deliveries = self.world.receive("orders", "billing", count, invisible_ms=invisible_ms)
        self.check(deliveries, count)
        for delivery in deliveries:
            expected = self.messages[bytes(delivery.message.body)]
            assert expected.state == "ready"
            assert expected.attempt == delivery.attempt
            expected.state = "leased"
            expected.handle = delivery.receipt_handle
            expected.deadline_ms = self.now_ms + invisible_ms
            expected.is_suspended = False
            expected.queue = (delivery.message.queue_id, delivery.message.queue_offset)
            self.old_handles.append((expected, delivery.receipt_handle, delivery.attempt))
        self.run(self.world.settle())

    def check(self, deliveries: list[Delivery], count: int) -> None:
        ready = sum(message.state == "ready" for message in self.messages.values())
        assert len(deliveries) == min(count, ready), "a receive is complete"

    @rule(data=st.data(), step_ms=st.sampled_from([0, 500, 1_000, 6_000]))
    def ack(self, data: st.DataObject, step_ms: int) -> None:
        """Any handle ever given, good or stale, some time later."""
        self.pass_ms(step_ms)
        if not self.old_handles:
            return
        given = data.draw(st.sampled_from(self.old_handles))
        if self.is_good(given):
            self.world.broker.ack("billing", "orders", given[1])
        else:
            with pytest.raises(InvalidReceiptHandle):
                self.world.broker.ack("billing", "orders", given[1])
        self.run(self.world.settle())

    @rule(data=st.data(), step_ms=st.sampled_from([0, 1_000]))
    def ack_many(self, data: st.DataObject, step_ms: int) -> None:
        """Neighbours, strangers, repeats: each as if it were acknowledged by itself."""
        self.pass_ms(step_ms)
        if not self.old_handles:
            return
        last = data.draw(st.lists(st.sampled_from(self.old_handles), max_size=3))
        given = self.old_handles[-data.draw(st.integers(1, 5)) :] + last
        results = self.world.broker.ack_many("billing", "orders", [one[1] for one in given])
        assert [result is None for result in results] == [self.is_good(one) for one in given]
        self.run(self.world.settle())

    def is_good(self, given: tuple[Expected, str, int]) -> bool:
        """Whether acknowledging succeeds; then it has."""
        expected, handle, attempt = given
        if expected.state == "leased" and expected.handle == handle:
            expected.state = "done"
        elif (
            expected.state == "ready"
            and expected.attempt == attempt
            and handle not in self.earlier_handles
        ):
            # The next delivery is this attempt again: taking the ack spares a duplicate.
            expected.state = "done"
        return expected.state in {"done", "dead"}

    @rule(
        data=st.data(),
        invisible_ms=st.sampled_from([0, 1_000, 20_000]),
        suspend=st.booleans(),
    )
    def change(self, data: st.DataObject, invisible_ms: int, suspend: bool) -> None:
        if not self.old_handles:
            return
        expected, handle, _ = data.draw(st.sampled_from(self.old_handles))
        if expected.state == "leased" and expected.handle == handle:
            expected.handle = self.world.broker.change_invisible_duration(
                "billing", "orders", handle, invisible_ms, suspend=suspend
            )
            expected.deadline_ms = self.now_ms + invisible_ms
            expected.is_suspended = suspend
            self.old_handles.append((expected, expected.handle, expected.attempt))
            self.pass_ms(0)
        else:
            with pytest.raises(InvalidReceiptHandle):
                self.world.broker.change_invisible_duration(
                    "billing", "orders", handle, invisible_ms, suspend=suspend
                )
        self.run(self.world.settle())

    @rule(step_ms=st.sampled_from([1, 1_000, 10_000]))
    def later(self, step_ms: int) -> None:
        self.pass_ms(step_ms)

    def pass_ms(self, duration_ms: int) -> None:
        self.run(self.world.later(duration_ms))
        for message in self.messages.values():
            if message.state == "leased" and message.deadline_ms <= self.now_ms:
                message.state = "ready"
                message.attempt += not message.is_suspended
                if message.attempt > ATTEMPTS_MAX:
                    message.state = "dead"

    @rule(kind=st.sampled_from(["clean", "kill", "log alone"]))
    def restart(self, kind: str) -> None:
        self.run(self.world.settle())
        before = self.world.broker.state_hash()
        self.earlier_handles.update(handle for _, handle, _ in self.old_handles)
        if kind == "clean":
            self.run(self.world.restart())
        else:
            log = self.world.log.crashed()
            if kind == "log alone":
                log.forget_checkpoint()
            self.world.broker.abandon()
            self.run(self.start_on(log))
        assert self.world.broker.state_hash() == before

    async def start_on(self, log: object) -> None:
        self.world.start(log)  # type: ignore[arg-type]  # the log of the world
        await self.world.later(0)

    @invariant()
    def dead_letters_are_those_of_the_model(self) -> None:
        if not hasattr(self, "messages"):
            return
        dead = sum(message.state == "dead" for message in self.messages.values())
        counted = 0
        if any(topic.name == "%DLQ%billing" for topic in self.world.broker.topics()):
            counted = self.world.broker.bounds("%DLQ%billing", 0).max_offset
        assert counted == dead

    @invariant()
    def accumulation_is_that_of_the_model(self) -> None:
        if not hasattr(self, "messages"):
            return
        behind = self.world.broker.accumulation("billing", "orders")
        states = [message.state for message in self.messages.values()]
        assert (behind.ready, behind.inflight) == (states.count("ready"), states.count("leased"))


class OrderedDeliveries(Deliveries):
    """An ordered group: messages of a message group one batch after the other, in order."""

    is_fifo = True

    def check(self, deliveries: list[Delivery], count: int) -> None:
        leased = {m.message_group for m in self.messages.values() if m.state == "leased"}
        free = [
            message
            for message in self.messages.values()
            if message.state == "ready" and message.message_group not in leased
        ]
        assert len(deliveries) == min(count, len(free)), "a receive is complete"
        names = [bytes(delivery.message.body) for delivery in deliveries]
        for group in "ABC":
            wanted = [message.name for message in free if message.message_group == group]
            given = [name for name in names if self.messages[name].message_group == group]
            assert given == wanted[: len(given)], "a group is delivered in order"


TestDeliveries = pytest.mark.filterwarnings("default")(Deliveries.TestCase)
TestDeliveries.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestOrderedDeliveries = OrderedDeliveries.TestCase
TestOrderedDeliveries.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
