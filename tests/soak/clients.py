"""Real clients of the SDK that send and receive while the broker dies now and then.

    plain      two producers, eight sends at a time; two push consumers
    ordered    one producer, one message group; a simple consumer that acknowledges one by one
    later      delayed by up to three seconds; never early
    deals      transactions: half of them rolled back, some left to the check

Everything that was promised and everything that came goes into the ledger of the crash tests,
by body: `<producer>:<message group>:<number>`.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from cosmodrome import (
    ConsumeResult,
    Message,
    MessageView,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionResolution,
)
from cosmodrome.errors import CosmodromeError
from tests.crash.accounting import Ledger, Place

PLAIN, ORDERED, LATER, DEALS = "plain", "ordered", "later", "deals"
TOPICS = {PLAIN: "normal", ORDERED: "fifo", LATER: "delay", DEALS: "transaction"}
GROUP, FIFO_GROUP = "readers", "ordered-readers"
_PAUSE_S = 0.01
_INVISIBLE_S = 10
_SILENCE_S = 60


def place_of(message: MessageView) -> Place:
    return message.queue_id, message.queue_offset


@dataclass
class Soak:
    """What the clients of one run share."""

    endpoint: str
    random: random.Random
    ledger: Ledger = field(default_factory=Ledger)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    due_s: dict[str, float] = field(default_factory=dict)
    committed: set[str] = field(default_factory=set)

    async def send(self, producer: Producer, message: Message) -> None:
        """Send until it is known to be stored."""
        body = message.body.decode()
        self.ledger.attempted.add(body)
        while True:
            try:
                await producer.send(message)
            except CosmodromeError:
                await asyncio.sleep(_PAUSE_S)
            else:
                self.ledger.acknowledged.add(body)
                return

    async def plain(self, name: str) -> None:
        """Send eight at a time."""
        number = 0
        async with Producer(self.endpoint, topics=[PLAIN]) as producer:
            while not self.stop.is_set():
                bodies = [f"{name}::{number + each}" for each in range(8)]
                sends = (self.send(producer, Message(PLAIN, body.encode())) for body in bodies)
                await asyncio.gather(*sends)
                number += 8

    async def ordered(self) -> None:
        """Send one after the other, as order wants it."""
        number = 0
        async with Producer(self.endpoint, topics=[ORDERED]) as producer:
            while not self.stop.is_set():
                body = f"o:g:{number}"
                await self.send(producer, Message(ORDERED, body.encode(), message_group="g"))
                number += 1

    async def later(self) -> None:
        """Send what is due in up to three seconds."""
        number = 0
        async with Producer(self.endpoint, topics=[LATER]) as producer:
            while not self.stop.is_set():
                body = f"l::{number}"
                due = datetime.now(UTC) + timedelta(seconds=self.random.uniform(0.2, 3))
                self.due_s[body] = due.timestamp()
                await self.send(producer, Message(LATER, body.encode(), deliver_at=due))
                number += 1
                await asyncio.sleep(_PAUSE_S)

    async def deals(self) -> None:
        """Commit every other one; what cannot be committed now the check will."""
        number = 0
        producer = Producer(self.endpoint, topics=[DEALS], transaction_checker=self._checked)
        async with producer:
            while not self.stop.is_set():
                with contextlib.suppress(CosmodromeError):
                    await self._deal(producer, f"t::{number}", is_commit=number % 2 == 0)
                number += 1
                await asyncio.sleep(_PAUSE_S)

    async def _deal(self, producer: Producer, body: str, *, is_commit: bool) -> None:
        if is_commit:
            self.committed.add(body)
            self.ledger.attempted.add(body)
        async with producer.begin_transaction() as transaction:
            await producer.send(Message(DEALS, body.encode()), transaction=transaction)
            if is_commit:
                await transaction.commit()
                # Not before: who would answer the check of one left open when the run ends?
                self.ledger.acknowledged.add(body)
            else:
                await transaction.rollback()

    async def _checked(self, message: MessageView) -> TransactionResolution:
        is_commit = message.body.decode() in self.committed
        return TransactionResolution.COMMIT if is_commit else TransactionResolution.ROLLBACK

    async def consume_ordered(self) -> None:
        """Receive and acknowledge one by one; what could not be acknowledged comes again."""
        consumer = SimpleConsumer(
            self.endpoint, group=FIFO_GROUP, subscriptions={ORDERED: "*"}, await_duration=2
        )
        async with consumer:
            while not self.over.is_set():
                with contextlib.suppress(CosmodromeError):
                    for message in await consumer.receive(invisible=_INVISIBLE_S):
                        self.take(message)
                        await consumer.ack(message)
                        self.ledger.settle(message.body.decode(), place_of(message))

    async def listener(self, message: MessageView) -> ConsumeResult:
        """Of the push consumers."""
        self.take(message)
        return ConsumeResult.SUCCESS

    def take(self, message: MessageView) -> None:
        """A message came."""
        body = message.body.decode()
        early_s = self.due_s.get(body, 0) - time.time()
        assert early_s < 0.002, f"{body} came {early_s} s early"
        self.ledger.deliver(body, place_of(message))
        self.ledger.progress.set()

    @property
    def left(self) -> set[str]:
        """What was acknowledged and not delivered yet."""
        return self.ledger.acknowledged - self.ledger.delivered

    async def balance(self) -> None:
        """Wait until all is delivered, or a minute brought nothing.

        On a busy machine what is read one by one has a backlog of minutes.
        """
        left = self.left
        while left:
            self.ledger.progress.clear()
            async with asyncio.timeout(_SILENCE_S):
                await self.ledger.progress.wait()
            left = {body for body in left if body not in self.ledger.delivered} or self.left

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The clients at work; the end waits until all is delivered."""
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
            for _ in range(2):
                wanted = {topic: "*" for topic in TOPICS if topic != ORDERED}
                consumer = PushConsumer(
                    self.endpoint, group=GROUP, subscriptions=wanted, listener=self.listener
                )
                await stack.enter_async_context(consumer)
            works = [self.plain("p0"), self.plain("p1"), self.ordered(), self.later(), self.deals()]
            for work in [*works, self.consume_ordered()]:
                tasks.create_task(work)
            try:
                yield
            finally:
                self.stop.set()
            with contextlib.suppress(TimeoutError):
                await self.balance()
            self.over.set()
