"""The simple consumer against a real broker."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest

from cosmodrome import (
    Filter,
    HookContext,
    HookPoint,
    IllegalArgument,
    Interceptor,
    Message,
    MessageView,
    NotRunning,
    Producer,
    SimpleConsumer,
    errors,
)
from cosmodrome._client import patience
from cosmodrome.testing import TestBroker

Names = Callable[[str], str]


async def send(broker: TestBroker, topic: str, *bodies: bytes, tag: str = "") -> None:
    async with Producer(broker.endpoint, topics=[topic]) as producer:
        for body in bodies:
            await producer.send(Message(topic, body, tag=tag))


def consumer(broker: TestBroker, topic: str, await_duration: float = 20) -> SimpleConsumer:
    return SimpleConsumer(
        broker.endpoint,
        group=f"g-{topic}",
        subscriptions={topic: "*"},
        await_duration=await_duration,
    )


async def test_a_message_that_is_not_acknowledged_comes_again_after_its_invisible_duration(
    timeless: TestBroker,
) -> None:
    await send(timeless, "t", b"x")
    async with consumer(timeless, "t") as c:
        (first,) = await c.receive(1, 30)
        await asyncio.to_thread(timeless.advance, timedelta(seconds=31))
        (second,) = await c.receive(1, 30)
        assert (first.delivery_attempt, second.delivery_attempt) == (1, 2)
        with pytest.raises(errors.InvalidReceiptHandle):
            await c.ack(first)
        await c.ack(second)
    assert not await asyncio.to_thread(timeless.leftovers)


async def test_changing_the_invisible_duration_to_zero_gives_a_message_back(
    broker: TestBroker, name: Names
) -> None:
    topic = name("t")
    await send(broker, topic, b"x")
    async with consumer(broker, topic) as c:
        (first,) = await c.receive()
        await c.change_invisible_duration(first, 0)
        (second,) = await c.receive()
        assert second.message_id == first.message_id
        await c.ack(second)


async def test_a_longer_invisible_duration_keeps_the_newest_handle(
    timeless: TestBroker,
) -> None:
    await send(timeless, "t", b"x")
    async with consumer(timeless, "t") as c:
        (message,) = await c.receive(1, 10)
        await c.change_invisible_duration(message, timedelta(hours=1))
        await asyncio.to_thread(timeless.advance, timedelta(minutes=30))
        await c.ack(message)
    assert not await asyncio.to_thread(timeless.leftovers)


async def test_processing_acknowledges_what_ends_well_and_gives_back_what_raises(
    broker: TestBroker, name: Names
) -> None:
    topic = name("t")
    await send(broker, topic, b"x")
    async with consumer(broker, topic) as c:
        (message,) = await c.receive()
        with pytest.raises(ZeroDivisionError):
            async with c.processing(message):
                raise ZeroDivisionError
        (message,) = await c.receive()
        async with c.processing(message) as given:
            assert given.delivery_attempt == 2
    left = await asyncio.to_thread(broker.leftovers)
    assert not {key for key in [*left.ready, *left.in_flight] if topic in key}


async def test_only_what_the_filter_wants_comes(broker: TestBroker, name: Names) -> None:
    topic = name("t")
    await send(broker, topic, b"no", tag="b")
    await send(broker, topic, b"yes", tag="a")
    async with SimpleConsumer(
        broker.endpoint, group=name("g"), subscriptions={topic: Filter("a || c")}
    ) as c:
        (message,) = await c.receive()
        assert message.body == b"yes"
        await c.ack(message)


async def test_topics_take_turns_and_come_and_go(broker: TestBroker, name: Names) -> None:
    one, two = name("one"), name("two")
    for topic in (one, two):
        await send(broker, topic, topic.encode())
    async with SimpleConsumer(broker.endpoint, group=name("g"), await_duration=1) as c:
        with pytest.raises(IllegalArgument, match="nothing is subscribed"):
            await c.receive()
        await c.subscribe(one)
        await c.subscribe(two)
        found = [*await c.receive(), *await c.receive()]
        assert {m.topic for m in found} == {one, two}
        await c.ack(found)
        await c.unsubscribe(two)
        assert c.subscriptions.keys() == {one}


async def test_iterating_receives_until_the_consumer_is_closed(
    broker: TestBroker, name: Names
) -> None:
    topic = name("t")
    await send(broker, topic, b"1", b"2")
    seen = []
    async with consumer(broker, topic) as c:
        async with asyncio.timeout(20):
            async for message in c:
                seen.append(message.body)
                await c.ack(message)
                if len(seen) == 2:
                    asyncio.get_running_loop().call_soon(asyncio.create_task, c.close())
    assert sorted(seen) == [b"1", b"2"]


async def test_closing_ends_a_receive_even_where_another_client_shares_the_channel(
    broker: TestBroker, name: Names
) -> None:
    topic = name("t")
    broker.create_topic(topic)
    async with consumer(broker, topic), consumer(broker, topic) as closing:
        waiting = asyncio.create_task(closing.receive())
        await asyncio.sleep(0.05)  # it waits at the broker, mostly
        await closing.close()
        with pytest.raises(NotRunning):
            await waiting


@pytest.mark.parametrize(
    ("most", "invisible"),
    [(0, 30), (1, 9.9), (1, timedelta(hours=12, seconds=1))],
    ids=["no message", "hidden too short", "hidden too long"],
)
async def test_numbers_out_of_bounds_are_refused(
    broker: TestBroker, name: Names, most: int, invisible: float
) -> None:
    topic = name("t")
    broker.create_topic(topic)
    async with consumer(broker, topic) as c:
        with pytest.raises(IllegalArgument):
            await c.receive(most, invisible)


async def test_outside_start_and_close_nothing_works(broker: TestBroker, name: Names) -> None:
    c = consumer(broker, name("t"))
    with pytest.raises(NotRunning, match="not started yet"):
        await c.receive()
    async with c:
        pass
    with pytest.raises(NotRunning, match="closed"):
        await c.receive()
    with pytest.raises(NotRunning, match="started before"):
        await c.start()


def test_a_group_is_needed() -> None:
    with pytest.raises(IllegalArgument, match="group"):
        SimpleConsumer("127.0.0.1:1", group=" ")


async def test_a_receive_without_messages_ends_with_none(broker: TestBroker, name: Names) -> None:
    topic = name("t")
    broker.create_topic(topic)
    async with consumer(broker, topic, await_duration=0.1) as c:
        assert await c.receive() == []


async def test_interceptors_see_receives_and_acks(broker: TestBroker, name: Names) -> None:
    topic = name("t")
    seen: list[tuple[HookPoint, int]] = []

    class Watch(Interceptor):
        def after(self, context: HookContext) -> None:
            seen.append((context.point, len(context.messages)))

    await send(broker, topic, b"x")
    async with SimpleConsumer(
        broker.endpoint, group=name("g"), subscriptions={topic: "*"}, interceptors=[Watch()]
    ) as c:
        await c.ack(await c.receive())
    assert seen == [(HookPoint.RECEIVE, 1), (HookPoint.ACK, 1)]


async def test_a_receive_survives_a_restart_of_the_broker(own_broker: TestBroker) -> None:
    async with consumer(own_broker, "t") as c:
        await asyncio.to_thread(own_broker.restart)
        await send(own_broker, "t", b"x")
        async with asyncio.timeout(20):
            while True:
                try:
                    (message,) = await c.receive()
                    break
                except errors.TransportError:
                    continue
        await c.ack(message)


async def test_a_loop_over_a_consumer_goes_on_when_a_receive_fails(
    broker: TestBroker, name: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "FAILED_S", 0)
    topic = name("t")
    await send(broker, topic, b"x")
    async with consumer(broker, topic) as c:
        with broker.fault("ReceiveMessage", unavailable=True, times=2):
            async for message in c:
                assert message.body == b"x"
                break
        with broker.fault("ReceiveMessage", code="BAD_REQUEST"):
            with pytest.raises(errors.BadRequest):
                await anext(aiter(c))


async def test_a_block_that_raises_is_heard_of_though_its_message_cannot_be_given_back(
    broker: TestBroker, name: Names
) -> None:
    topic = name("t")
    await send(broker, topic, b"x")
    async with consumer(broker, topic) as c:
        (message,) = await c.receive()
        await c.ack(message)
        with pytest.raises(ValueError, match="the work"):
            async with c.processing(message):
                raise ValueError("the work failed")


async def test_acks_share_requests(broker: TestBroker, name: Names) -> None:
    topic = name("t")
    await send(broker, topic, *(str(n).encode() for n in range(20)))
    found: list[MessageView] = []
    async with consumer(broker, topic) as c:
        while len(found) < 20:
            found += await c.receive()
        with broker.fault("AckMessage", delay_ms=1) as fault:
            fault.times = 1000
            await asyncio.gather(*(c.ack(message) for message in found))
            assert 1000 - fault.times < 20
