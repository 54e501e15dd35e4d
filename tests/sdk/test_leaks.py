"""Nothing is left behind: by many clients, by cancelled calls, by failed starts."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from cosmodrome import (
    AdminClient,
    ClientConfiguration,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    ConsumeResult,
    Interceptor,
    Message,
    MessageView,
    Producer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
    TopicLimits,
    TransactionResolution,
    errors,
)
from cosmodrome.testing import TestBroker

Names = Callable[[str], str]


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def listener(message: MessageView) -> ConsumeResult:
    return ConsumeResult.SUCCESS


def clients(broker: TestBroker, topic: str) -> list[Producer | SimpleConsumer | PushConsumer]:
    return [
        Producer(broker.endpoint, topics=[topic]),
        SimpleConsumer(broker.endpoint, group="leaks", subscriptions={topic: "*"}),
        PushConsumer(broker.endpoint, group="leaks", subscriptions={topic: "*"}, listener=listener),
    ]


async def open_and_close(broker: TestBroker, topic: str, times: int) -> None:
    for _ in range(times):
        for client in clients(broker, topic):
            async with client:
                pass


async def test_two_hundred_clients_leave_no_task_thread_or_descriptor(
    broker: TestBroker, name: Names
) -> None:
    topic = name("t")
    broker.create_topic(topic, queues=1)
    await open_and_close(broker, topic, 5)  # whatever is made once
    tasks, threads, fds = len(asyncio.all_tasks()), threading.active_count(), descriptors()
    await open_and_close(broker, topic, 67)
    await asyncio.sleep(0.1)  # the kernel closes sockets when it gets to it
    assert len(asyncio.all_tasks()) <= tasks
    assert threading.active_count() <= threads + 1
    assert descriptors() <= fds + 5


Call = Callable[[TestBroker, str], Awaitable[object]]


async def sending(broker: TestBroker, topic: str) -> None:
    async with Producer(broker.endpoint, topics=[topic]) as producer:
        for _ in range(3):
            await producer.send(Message(topic, b"x"))


async def receiving(broker: TestBroker, topic: str) -> None:
    async with SimpleConsumer(
        broker.endpoint, group="cancelled", subscriptions={topic: "*"}
    ) as consumer:
        await consumer.ack(await consumer.receive())
        await consumer.receive()


async def polling(broker: TestBroker, topic: str) -> None:
    async with PullConsumer(broker.endpoint, group="cancelled", topics=[topic]) as consumer:
        await consumer.poll()
        await consumer.seek_to_beginning()
        await consumer.commit()
        await consumer.poll()


async def listening(broker: TestBroker, topic: str) -> None:
    async with PushConsumer(
        broker.endpoint, group="cancelled", subscriptions={topic: "*"}, listener=listener
    ) as consumer:
        await consumer.wait_closed()


async def replaying(broker: TestBroker, topic: str) -> None:
    async def kept(
        _messages: Sequence[MessageView], context: ConsumeOrderlyContext
    ) -> ConsumeOrderlyStatus:
        context.auto_commit = False
        return ConsumeOrderlyStatus.SUCCESS

    async with PushConsumer(
        broker.endpoint,
        group="replayed",
        subscriptions={topic: "*"},
        orderly_listener=kept,
        limits={topic: TopicLimits(rate=1)},
        interceptors=[Interceptor()],
    ) as consumer:
        await consumer.wait_closed()


async def transacting(broker: TestBroker, topic: str) -> None:
    async with Producer(
        broker.endpoint,
        transaction_checker=lambda _: TransactionResolution.UNKNOWN,
        interceptors=[Interceptor()],
    ) as producer:
        producer.measure()
        async with producer.begin_transaction() as transaction:
            await producer.send(Message(topic, b"x"), transaction=transaction)
            await transaction.commit()
        await producer.send([Message(topic, b"x")])


async def administering(broker: TestBroker, topic: str) -> None:
    async with AdminClient(broker.endpoint) as admin:
        await admin.topics()
        await admin.groups()


@pytest.mark.parametrize(
    "call", [sending, receiving, polling, listening, replaying, transacting, administering]
)
async def test_cancelling_at_any_await_leaves_no_task(
    broker: TestBroker, name: Names, call: Call
) -> None:
    topic = name("t")
    broker.create_topic(topic, "MIXED", queues=1)
    broker.create_group("replayed", fifo=True)
    async with Producer(broker.endpoint, topics=[topic]) as producer:
        await producer.send(Message(topic, b"x"))
    before = asyncio.all_tasks()
    for turns in range(0, 120, 3):
        task = asyncio.ensure_future(call(broker, topic))
        for _ in range(turns):
            await asyncio.sleep(0)
        if turns % 2:
            await asyncio.sleep(0.002)
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(0.01)  # gRPC's own tasks end a moment after their calls
        assert asyncio.all_tasks() <= before, f"after {turns} turns"


async def test_a_start_that_fails_leaves_nothing() -> None:
    before, fds = asyncio.all_tasks(), descriptors()
    nowhere = ClientConfiguration(
        "127.0.0.1:1", request_timeout=timedelta(milliseconds=200), max_startup_attempts=1
    )
    for _ in range(3):
        with pytest.raises(errors.CosmodromeError):
            await Producer(nowhere, topics=["t"]).start()
    assert asyncio.all_tasks() <= before
    assert descriptors() <= fds + 3
