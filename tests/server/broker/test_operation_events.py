"""What a broker that keeps operation events does when it cannot."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NoReturn

import msgspec
import pytest

from cosmodrome_server.broker.local_broker import Attachments
from cosmodrome_server.broker.operation_events import DELIVERY_TOPIC, Observed, ObservedBroker
from cosmodrome_server.broker.settings import BrokerSettings
from cosmodrome_server.errors import ReadFailed
from cosmodrome_server.model.group import ConsumeFrom, Group
from cosmodrome_server.model.queries import PullQuery
from cosmodrome_server.model.topic import Topic
from tests.support.broker_world import Replies, World, new_message
from tests.support.memory_log import MemoryLog


class ObservedWorld(World):
    """Its broker keeps all there is to keep."""

    def start(self, log: MemoryLog) -> None:
        self.log = log
        self.broker = ObservedBroker(
            log,
            self.clocks,
            self.settings,
            self.fatal.append,
            Attachments(),
            Observed(lag_ms=1_000),
        )

    async def deliver(self, body: bytes) -> None:
        """One event more."""
        await self.send("orders", new_message(body))
        (delivery,) = self.receive("orders", "billing")
        self.broker.ack("billing", "orders", delivery.receipt_handle)

    def outcomes(self) -> list[str]:
        """Of the deliveries that were kept."""
        kept = self.broker.pull(PullQuery("", DELIVERY_TOPIC, 0, 0, 32)).messages
        return [event["outcome"] for message in kept for event in msgspec.json.decode(message.body)]


def run(scenario: Callable[[ObservedWorld], Awaitable[None]], topics_max: int = 9) -> None:
    async def main() -> None:
        world = ObservedWorld(BrokerSettings(topics_max=topics_max))
        world.broker.create_topic(Topic("orders", queues=1))
        world.broker.create_group(Group("billing", consume_from=ConsumeFrom.FIRST))
        await world.settle()
        await scenario(world)
        world.broker.abandon()

    asyncio.run(main())


def test_without_room_for_their_topic_events_are_left_out_and_replies_are_not() -> None:
    async def scenario(world: ObservedWorld) -> None:
        replies = Replies()
        world.clocks.pass_ms(1_000)
        await world.deliver(b"a")
        world.broker.reply_when_durable(replies, "acked", b"")
        await world.settle()
        assert replies.given == ["acked"]
        await world.later(1_000)

    run(scenario, topics_max=1)


def test_what_a_full_disk_left_out_is_all_that_is_missing() -> None:
    async def scenario(world: ObservedWorld) -> None:
        await world.deliver(b"a")
        world.log.is_full = True
        await world.later(1_000)
        world.log.is_full = False
        await world.deliver(b"b")
        await world.later(1_000)
        assert world.outcomes() == ["acked"]

    run(scenario)


def test_lag_that_cannot_be_read_now_is_sampled_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> NoReturn:
        raise ReadFailed("the disk refuses it now")

    async def scenario(world: ObservedWorld) -> None:
        await world.deliver(b"a")
        with monkeypatch.context() as patch:
            patch.setattr(world.broker, "accumulation", refused)
            await world.later(1_000)
        await world.later(1_000)
        assert world.broker.bounds("cosmodrome_lag_samples", 0).max_offset == 1

    run(scenario)
