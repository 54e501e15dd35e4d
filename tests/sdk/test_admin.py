"""The admin client against a real broker."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta

import pytest

from cosmodrome import (
    AdminClient,
    ConsumeResult,
    IllegalArgument,
    Message,
    NotRunning,
    Producer,
    PushConsumer,
    SimpleConsumer,
    errors,
)
from cosmodrome.testing import TestBroker

Names = Callable[[str], str]


@pytest.fixture
async def admin(broker: TestBroker) -> AsyncIterator[AdminClient]:
    async with AdminClient(broker.endpoint) as client:
        yield client


async def send(broker: TestBroker, topic: str, *bodies: bytes, keys: str = "k") -> list[str]:
    async with Producer(broker.endpoint, topics=[topic]) as producer:
        return [(await producer.send(Message(topic, b, keys=keys))).message_id for b in bodies]


async def test_topics_are_created_listed_and_deleted(
    broker: TestBroker, admin: AdminClient, name: Names
) -> None:
    topic = name("orders")
    await admin.create_topic(topic, topic_type="fifo", queues=3, retention=timedelta(days=1))
    (info,) = await admin.topics(topic)
    assert (info.name, info.topic_type, len(info.queues)) == (topic, "FIFO", 3)
    assert info.messages == 0
    await admin.delete_topic(topic)
    assert await admin.topics(topic) == []


async def test_a_topic_does_not_change_its_type(admin: AdminClient, name: Names) -> None:
    await admin.create_topic(name("t"))
    with pytest.raises(errors.BadRequest):
        await admin.create_topic(name("t"), topic_type="DELAY")


async def test_messages_of_a_topic_are_counted(
    broker: TestBroker, admin: AdminClient, name: Names
) -> None:
    await send(broker, name("t"), b"1", b"2")
    (info,) = await admin.topics(name("t"))
    assert info.messages == 2


async def test_groups_are_created_listed_and_deleted(admin: AdminClient, name: Names) -> None:
    group = name("billing")
    await admin.create_group(group, fifo=True, max_attempts=4)
    await admin.create_group(group, paused=True)
    assert await admin.groups(group) == [group]
    await admin.delete_group(group)
    assert await admin.groups(group) == []


async def test_lag_says_what_is_ready_and_what_is_in_flight(
    broker: TestBroker, admin: AdminClient, name: Names
) -> None:
    topic, group = name("t"), name("g")
    broker.create_topic(topic, queues=1)
    await send(broker, topic, b"1", b"2", b"3")
    async with SimpleConsumer(broker.endpoint, group=group, subscriptions={topic: "*"}) as c:
        await c.receive(1)
        (lag,) = await admin.lag(group)
        assert (lag.topic, lag.ready, lag.in_flight) == (topic, 2, 1)
    # A name that is mistyped must not look like a group that has caught up.
    with pytest.raises(errors.ConsumerGroupNotFound, match=f"{group}-tyop"):
        await admin.lag(f"{group}-tyop")


async def test_a_group_that_is_reset_reads_again(
    broker: TestBroker, admin: AdminClient, name: Names
) -> None:
    topic, group = name("t"), name("g")
    broker.create_topic(topic, queues=1)
    await send(broker, topic, b"x")
    async with SimpleConsumer(broker.endpoint, group=group, subscriptions={topic: "*"}) as c:
        await c.ack(await c.receive())
        assert await admin.reset_offset(group, topic, "first") == {0: 0}
        (again,) = await c.receive()
        assert again.body == b"x"
        await c.ack(again)
        assert await admin.reset_offset(group, topic, "last", queue_id=0) == {0: 1}
        assert await admin.reset_offset(group, topic, datetime(2001, 1, 1, tzinfo=UTC)) == {0: 0}
        with pytest.raises(IllegalArgument, match="first or last"):
            await admin.reset_offset(group, topic, "middle")


async def test_dead_letters_go_back_to_where_they_came_from(
    own_broker: TestBroker,
) -> None:
    own_broker.create_topic("t", queues=1)
    own_broker.create_group("g", max_attempts=1)
    seen: list[int] = []
    twice = asyncio.Event()

    async def listener(message: object) -> ConsumeResult:
        seen.append(1)
        if len(seen) == 2:
            twice.set()
            return ConsumeResult.SUCCESS
        return ConsumeResult.FAILURE

    await send(own_broker, "t", b"poison")
    async with (
        PushConsumer(own_broker.endpoint, group="g", subscriptions={"t": "*"}, listener=listener),
        AdminClient(own_broker.endpoint) as admin,
        asyncio.timeout(20),
    ):
        # No event of the broker says that a letter is dead.
        while not await admin.redrive("g"):  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.02)
        await twice.wait()


async def test_dead_letters_go_back_so_many_a_second(timeless: TestBroker) -> None:
    timeless.create_topic("t", queues=1)
    timeless.create_group("g", max_attempts=1)
    await send(timeless, "t", *[b"%d" % number for number in range(5)])
    async with (
        SimpleConsumer(timeless.endpoint, group="g", subscriptions={"t": "*"}) as consumer,
        AdminClient(timeless.endpoint) as admin,
    ):
        taken = 0
        while taken < 5:
            taken += len(await consumer.receive(invisible=timedelta(seconds=10)))
        timeless.advance(timedelta(seconds=11))
        assert await admin.redrive("g", max_messages=2, rate=100) == 2
        assert await admin.redrive("g", rate=1_000) == 3
        with pytest.raises(IllegalArgument, match="0 or more"):
            await admin.redrive("g", rate=-1)
        with pytest.raises(errors.ConsumerGroupNotFound):
            await admin.redrive("nobody", rate=1)


async def test_messages_are_found_by_id_and_by_key(
    broker: TestBroker, admin: AdminClient, name: Names
) -> None:
    topic = name("t")
    ids = await send(broker, topic, b"1", b"2", keys="order-7")
    assert [m.body for m in await admin.find(topic, message_id=ids[1])] == [b"2"]
    assert {m.body for m in await admin.find(topic, key="order-7")} == {b"1", b"2"}
    assert await admin.find(topic, key="nobody") == []
    with pytest.raises(IllegalArgument, match="by message_id or by key"):
        await admin.find(topic)


async def test_what_does_not_exist_is_told(admin: AdminClient, name: Names) -> None:
    with pytest.raises(errors.StatusError):
        await admin.delete_topic(name("nowhere"))


async def test_outside_start_and_close_nothing_works(broker: TestBroker) -> None:
    client = AdminClient(broker.endpoint)
    with pytest.raises(NotRunning):
        await client.topics()
    async with client:
        await client.topics("none")
    with pytest.raises(NotRunning):
        await client.topics()
    await client.close()


async def test_nobody_there_is_a_transport_error() -> None:
    async with AdminClient("127.0.0.1:1") as client:
        with pytest.raises(errors.TransportError):
            await client.topics()
