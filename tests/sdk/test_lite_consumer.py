"""The lite consumers against a real broker."""

import asyncio
from collections.abc import Callable

import pytest

from cosmodrome import (
    ConsumeResult,
    IllegalArgument,
    LitePushConsumer,
    LiteSimpleConsumer,
    Message,
    MessageView,
    NotRunning,
    OffsetOption,
    Producer,
)
from cosmodrome.testing import TestBroker

Names = Callable[[str], str]


@pytest.fixture
def bound(broker: TestBroker, name: Names) -> tuple[str, str]:
    """A LITE topic, and a group bound to it."""
    topic, group = name("sessions"), name("chat")
    broker.create_topic(topic, "LITE", queues=1)
    broker.create_group(group, fifo=True, lite_bind_topic=topic)
    return topic, group


async def send(broker: TestBroker, topic: str, lite: str, *bodies: bytes) -> None:
    async with Producer(broker.endpoint, topics=[topic]) as producer:
        for body in bodies:
            await producer.send(Message(topic, body, lite_topic=lite))


class Seen:
    def __init__(self) -> None:
        self.messages: list[MessageView] = []
        self._changed = asyncio.Condition()

    async def __call__(self, message: MessageView) -> ConsumeResult:
        async with self._changed:
            self.messages.append(message)
            self._changed.notify_all()
        return ConsumeResult.SUCCESS

    async def count(self, number: int) -> None:
        async with asyncio.timeout(20), self._changed:
            await self._changed.wait_for(lambda: len(self.messages) >= number)


async def test_only_lite_topics_that_are_subscribed_to_reach_the_listener_in_order(
    broker: TestBroker, bound: tuple[str, str]
) -> None:
    topic, group = bound
    seen = Seen()
    async with LitePushConsumer(
        broker.endpoint, bind_topic=topic, group=group, listener=seen
    ) as consumer:
        await consumer.subscribe_lite("one")
        assert consumer.lite_topics == {"one"}
        await send(broker, topic, "other", b"no")
        await send(broker, topic, "one", b"1", b"2", b"3")
        await seen.count(3)
    assert [(m.lite_topic, m.body) for m in seen.messages] == [
        ("one", b"1"),
        ("one", b"2"),
        ("one", b"3"),
    ]


async def test_reading_a_lite_topic_begins_where_it_is_asked_to(
    broker: TestBroker, bound: tuple[str, str]
) -> None:
    topic, group = bound
    await send(broker, topic, "one", b"old")
    async with LiteSimpleConsumer(
        broker.endpoint, bind_topic=topic, group=group, await_duration=2
    ) as consumer:
        await consumer.subscribe_lite("one", OffsetOption.first())
        (message,) = await consumer.receive()
        assert (message.body, message.lite_topic) == (b"old", "one")
        await consumer.ack(message)


async def test_what_is_unsubscribed_from_comes_no_more(
    broker: TestBroker, bound: tuple[str, str]
) -> None:
    topic, group = bound
    async with LiteSimpleConsumer(
        broker.endpoint, bind_topic=topic, group=group, await_duration=0.3
    ) as consumer:
        await consumer.subscribe_lite("one", OffsetOption.first())
        await consumer.unsubscribe_lite("one")
        assert consumer.lite_topics == frozenset()
        await send(broker, topic, "one", b"x")
        assert await consumer.receive() == []


@pytest.mark.parametrize("wrong", ["", "a b", "ü", "x" * 1000])
async def test_names_no_broker_takes_are_refused(
    broker: TestBroker, bound: tuple[str, str], wrong: str
) -> None:
    topic, group = bound
    async with LiteSimpleConsumer(broker.endpoint, bind_topic=topic, group=group) as consumer:
        with pytest.raises(IllegalArgument, match="lite topic"):
            await consumer.subscribe_lite(wrong)


async def test_a_bind_topic_and_a_start_are_needed() -> None:
    with pytest.raises(IllegalArgument, match="bind_topic"):
        LiteSimpleConsumer("127.0.0.1:1", bind_topic="", group="g")
    with pytest.raises(IllegalArgument, match="bind_topic"):
        LitePushConsumer("127.0.0.1:1", bind_topic="", group="g", listener=Seen())
    with pytest.raises(NotRunning):
        await LiteSimpleConsumer("127.0.0.1:1", bind_topic="t", group="g").subscribe_lite("one")


@pytest.mark.parametrize("trouble", ["restart", "lose_settings"])
async def test_a_broker_that_forgot_is_told_the_lite_topics_again_at_once(trouble: str) -> None:
    """Well before the 30 s after which everything is said again anyway."""
    with TestBroker() as broker:
        broker.create_topic("sessions", "LITE", queues=1)
        broker.create_group("chat", lite_bind_topic="sessions")
        seen = Seen()
        async with LitePushConsumer(
            broker.endpoint, bind_topic="sessions", group="chat", listener=seen
        ) as consumer:
            await consumer.subscribe_lite("a", OffsetOption.first())
            await asyncio.to_thread(getattr(broker, trouble))
            await send(broker, "sessions", "a", b"x")
            await seen.count(1)
