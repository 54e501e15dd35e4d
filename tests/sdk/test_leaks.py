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
    LitePushConsumer,
    LiteSimpleConsumer,
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
from cosmodrome._client import channels
from cosmodrome.testing import TestBroker

Names = Callable[[str], str]


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def listener(message: MessageView) -> ConsumeResult:
    return ConsumeResult.SUCCESS


def channels_open() -> int:
    """Of the running loop."""
    return len(channels._pools.get(asyncio.get_running_loop(), {}))


def resident_kib() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


class Footprint:
    """What the process holds now."""

    def __init__(self) -> None:
        self.tasks = asyncio.all_tasks()
        self.threads = threading.active_count()
        self.descriptors = descriptors()
        self.resident_kib = resident_kib()


def clients(broker: TestBroker, topic: str) -> list[Producer | SimpleConsumer | PushConsumer]:
    return [
        Producer(broker.endpoint, topics=[topic]),
        SimpleConsumer(broker.endpoint, group="leaks", subscriptions={topic: "*"}),
        PushConsumer(broker.endpoint, group="leaks", subscriptions={topic: "*"}, listener=listener),
    ]


async def cycles(broker: TestBroker, topic: str, times: int) -> None:
    """Open and close three clients so often."""
    for _ in range(times):
        for client in clients(broker, topic):
            async with client:
                pass
    await asyncio.sleep(0.1)  # the kernel closes sockets when it gets to it


def check_nothing_stayed(before: Footprint) -> None:
    after = Footprint()
    assert channels_open() == 0
    assert len(after.tasks) <= len(before.tasks)
    assert after.threads <= before.threads + 1
    assert after.descriptors <= before.descriptors + 5


async def test_two_hundred_clients_leave_no_task_thread_channel_or_descriptor(
    broker: TestBroker, name: Names
) -> None:
    broker.create_topic(name("t"), queues=1)
    await cycles(broker, name("t"), 5)  # whatever is made once
    before = Footprint()
    await cycles(broker, name("t"), 67)
    check_nothing_stayed(before)


@pytest.mark.slow
async def test_a_thousand_clients_need_no_more_memory(broker: TestBroker, name: Names) -> None:
    broker.create_topic(name("t"), queues=1)
    await cycles(broker, name("t"), 167)  # allocators have what they want, caches are full
    before = Footprint()
    grown_kib = []
    for _ in range(4):
        await cycles(broker, name("t"), 84)
        grown_kib.append(resident_kib() - before.resident_kib)
    check_nothing_stayed(before)
    # The broker is in this process, too.
    assert grown_kib[-1] < 4_096, grown_kib


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


async def changing(broker: TestBroker, topic: str) -> None:
    async with PushConsumer(
        broker.endpoint, group="cancelled", subscriptions={topic: "*"}, listener=listener
    ) as consumer:
        await consumer.subscribe(topic, "a || b")
        await consumer.unsubscribe(topic)


async def settling(broker: TestBroker, topic: str) -> None:
    async with SimpleConsumer(
        broker.endpoint, group="settling", subscriptions={topic: "*"}
    ) as consumer:
        for message in await consumer.receive(1):
            await consumer.change_invisible_duration(message, 0)
        async with consumer.processing((await consumer.receive(1))[0]):
            await asyncio.sleep(0)


async def reading_lite(broker: TestBroker, topic: str) -> None:
    async with LiteSimpleConsumer(
        broker.endpoint, bind_topic=lite_of(topic), group="lite-" + topic
    ) as consumer:
        await consumer.subscribe_lite("one")
        await consumer.unsubscribe_lite("one")
        await consumer.subscribe_lite("two")
        await consumer.receive()


async def listening_lite(broker: TestBroker, topic: str) -> None:
    async with LitePushConsumer(
        broker.endpoint, bind_topic=lite_of(topic), group="lite-" + topic, listener=listener
    ) as consumer:
        await consumer.subscribe_lite("one")
        await consumer.wait_closed()


def lite_of(topic: str) -> str:
    return "lite-" + topic


async def administering(broker: TestBroker, topic: str) -> None:
    async with AdminClient(broker.endpoint) as admin:
        await admin.topics()
        await admin.groups()


async def own_tasks_of_grpc_end(before: Footprint) -> None:
    """They do, a moment after their calls."""
    for _ in range(300):
        await asyncio.sleep(0.01)
        if asyncio.all_tasks() <= before.tasks and not channels_open():
            return


CALLS = [
    sending,
    receiving,
    settling,
    polling,
    listening,
    changing,
    replaying,
    reading_lite,
    listening_lite,
    transacting,
    administering,
]


@pytest.mark.parametrize("call", CALLS)
async def test_cancelling_at_any_await_leaves_no_task_channel_or_thread(
    broker: TestBroker, name: Names, call: Call
) -> None:
    topic = name("t")
    broker.create_topic(topic, "MIXED", queues=1)
    broker.create_group("replayed", fifo=True)
    broker.create_topic(lite_of(topic), "LITE", queues=1)
    broker.create_group("lite-" + topic, fifo=True, lite_bind_topic=lite_of(topic))
    async with Producer(broker.endpoint, topics=[topic]) as producer:
        await producer.send([Message(topic, b"x") for _ in range(64)])
    before = Footprint()
    for turns in range(0, 120, 3):
        task = asyncio.ensure_future(call(broker, topic))
        for _ in range(turns):
            await asyncio.sleep(0)
        if turns % 2:
            await asyncio.sleep(0.002)
        task.cancel()
        await asyncio.wait([task])
        await own_tasks_of_grpc_end(before)
        assert asyncio.all_tasks() <= before.tasks, f"after {turns} turns"
        assert channels_open() == 0, f"after {turns} turns"
    assert threading.active_count() <= before.threads + 1


async def test_what_came_for_a_receive_that_is_cancelled_is_given_back(
    broker: TestBroker, name: Names
) -> None:
    topic = name("t")
    broker.create_topic(topic, queues=1)
    async with (
        Producer(broker.endpoint, topics=[topic]) as producer,
        SimpleConsumer(broker.endpoint, group=name("g"), subscriptions={topic: "*"}) as consumer,
    ):
        await producer.send(Message(topic, b"x"))
        waiting = asyncio.ensure_future(consumer.receive(1, invisible=300))
        await asyncio.sleep(0)
        # Nobody is faster: this is called back before the one that waits.
        (inner,) = consumer._receiving
        inner.add_done_callback(lambda _: waiting.cancel())
        with pytest.raises(asyncio.CancelledError):
            await waiting
        async with asyncio.timeout(20):  # at once, not when it is visible after 300 s
            (again,) = await consumer.receive(1)
        assert again.body == b"x"


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
