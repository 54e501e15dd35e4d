"""A backlog is read by threads where messages come one by one, as from brokers that are not ours:
all of it, as errors say, and none of the threads stays."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import cast

import grpc
import pytest

from cosmodrome import ConsumeResult, Message, MessageView, Producer, PushConsumer, SimpleConsumer
from cosmodrome._client.rpc import METHODS
from cosmodrome._client.stream_readers import READERS_MAX, StreamReaders
from cosmodrome.testing import TestBroker
from cosmodrome_proto import service_pb2 as rpc

Names = Callable[[str], str]


@pytest.fixture(scope="module")
def broker() -> Iterator[TestBroker]:
    """A broker that does not know packs."""
    with TestBroker(settings={"server.strict": "true"}) as running:
        yield running


def readers() -> int:
    return sum(one.name.startswith("cosmodrome-read") for one in threading.enumerate())


def wait_for_readers(is_there: bool) -> None:
    """Until there is a reader, or none is left; off the loop."""
    deadline = threading.Event()
    for _ in range(1_000):
        if (readers() > 0) == is_there:
            return
        deadline.wait(0.01)
    raise AssertionError(f"{readers()} readers after 10 s")


async def no_reader_is_left() -> None:
    await asyncio.to_thread(wait_for_readers, False)


async def fill(broker: TestBroker, topic: str, messages: int) -> None:
    async with Producer(broker.endpoint, topics=[topic]) as producer:
        bodies = [b"%d" % number for number in range(messages)]
        for start in range(0, messages, 64):
            await producer.send([Message(topic, body) for body in bodies[start : start + 64]])


async def test_a_push_consumer_reads_a_backlog_by_threads_that_end_with_it(
    broker: TestBroker, name: Names
) -> None:
    topic, seen, most = name("t"), set[bytes](), 0
    await fill(broker, topic, 1_000)
    done = asyncio.Event()

    async def listener(message: MessageView) -> ConsumeResult:
        nonlocal most
        most = max(most, readers())
        seen.add(message.body)
        if len(seen) == 1_000:
            done.set()
        return ConsumeResult.SUCCESS

    async with (
        asyncio.timeout(60),
        PushConsumer(
            broker.endpoint, group=name("g"), subscriptions={topic: "*"}, listener=listener
        ),
    ):
        await done.wait()
    assert 1 <= most <= READERS_MAX
    await no_reader_is_left()


async def test_more_receives_than_readers_bring_every_message_once(
    broker: TestBroker, name: Names
) -> None:
    topic = name("t")
    await fill(broker, topic, 1_280)
    async with SimpleConsumer(
        broker.endpoint, group=name("g"), subscriptions={topic: "*"}
    ) as consumer:
        seen: list[bytes] = []
        while len(seen) < 1_280:
            for received in await asyncio.gather(*(consumer.receive(32) for _ in range(8))):
                seen += [message.body for message in received]
                await consumer.ack(received)
            assert readers() <= READERS_MAX
    assert len(set(seen)) == len(seen) == 1_280
    await no_reader_is_left()


async def test_cancelled_receives_free_their_readers(broker: TestBroker, name: Names) -> None:
    topic = name("t")
    broker.create_topic(topic, queues=1)
    await fill(broker, topic, 32)
    async with SimpleConsumer(
        broker.endpoint, group=name("g"), subscriptions={topic: "*"}
    ) as consumer:
        first = await consumer.receive(32)
        assert len(first) == 32
        for _ in range(2 * READERS_MAX):  # nothing is there: each waits until it is cancelled
            waiting = asyncio.create_task(consumer.receive(32))
            await asyncio.sleep(0.01)  # it is on its way by then, or not: both must do
            waiting.cancel()
            await asyncio.wait([waiting])
        await consumer.change_invisible_duration(first[0], 0)
        again: list[MessageView] = []
        async with asyncio.timeout(20):
            while not again:
                again = await consumer.receive(32)
        assert again[0].message_id == first[0].message_id
    await no_reader_is_left()


async def test_how_a_stream_broke_is_told() -> None:
    nowhere = StreamReaders(lambda: grpc.insecure_channel("127.0.0.1:1"))
    read = await nowhere.read(
        METHODS["ReceiveMessage"],
        rpc.ReceiveMessageRequest(),
        lambda _: None,
        metadata=(),
        timeout_s=20,
    )
    assert read.messages == []
    assert cast("grpc.Call", read.error).code() is grpc.StatusCode.UNAVAILABLE
    nowhere.close()
    assert not nowhere.is_free
    await no_reader_is_left()


async def test_a_broker_that_packs_messages_needs_no_reader(
    own_broker: TestBroker, name: Names
) -> None:
    topic = name("t")
    await fill(own_broker, topic, 640)
    async with SimpleConsumer(
        own_broker.endpoint, group=name("g"), subscriptions={topic: "*"}
    ) as consumer:
        seen: set[bytes] = set()
        while len(seen) < 640:
            seen.update(message.body for message in await consumer.receive(32))
            assert readers() == 0
