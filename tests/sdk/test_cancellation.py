"""Cancelled at any await, no public method leaves a task, channel, thread or lease behind."""

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta

import pytest

from cosmodrome import (
    AdminClient,
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
    Transaction,
    TransactionResolution,
    errors,
)
from cosmodrome.testing import TestBroker
from tests.support.footprint import Footprint, channels_open

Names = Callable[[str], str]


async def listener(message: MessageView) -> ConsumeResult:
    return ConsumeResult.SUCCESS


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


async def looping(broker: TestBroker, topic: str) -> None:
    async with SimpleConsumer(broker.endpoint, group="looping") as consumer:
        await consumer.subscribe(topic)
        for message in await consumer.receive(1):
            await consumer.ack(message)
        await consumer.unsubscribe(topic)


async def polling(broker: TestBroker, topic: str) -> None:
    async with PullConsumer(broker.endpoint, group="cancelled", topics=[topic]) as consumer:
        await consumer.poll()
        await consumer.seek_to_beginning()
        await consumer.commit()
        await consumer.poll()
        await consumer.seek_to_end()
        await consumer.seek_to_time(datetime.fromtimestamp(0, UTC))


async def placing(broker: TestBroker, topic: str) -> None:
    async with PullConsumer(broker.endpoint, group="placing") as consumer:
        await consumer.assign([(topic, 0)])
        await consumer.seek(topic, 0, 1)
        await consumer.poll()
        await consumer.subscribe(topic)


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
        receipt = await producer.send(
            Message(topic, b"x", transaction_recovery=timedelta(hours=1)),
            transaction=(half := producer.begin_transaction()),
        )
        await half.rollback()
        with suppress(errors.CosmodromeError):
            await producer.end_transaction(receipt, TransactionResolution.ROLLBACK)


async def recalling(broker: TestBroker, topic: str) -> None:
    async with Producer(broker.endpoint) as producer:
        sent = await producer.send(Message(topic, b"x", delay=timedelta(hours=1)))
        await producer.recall(topic, sent.recall_handle)
        producer.send_nowait(Message(topic, b"x"))
        await producer.flush()


async def opening_and_closing(broker: TestBroker, topic: str) -> None:
    clients = (
        Producer(broker.endpoint, topics=[topic]),
        SimpleConsumer(broker.endpoint, group="cancelled", subscriptions={topic: "*"}),
        PushConsumer(
            broker.endpoint, group="cancelled", subscriptions={topic: "*"}, listener=listener
        ),
        PullConsumer(broker.endpoint, group="cancelled", topics=[topic]),
        AdminClient(broker.endpoint),
    )
    for client in clients:
        try:
            await client.start()
            await asyncio.sleep(0.002)  # its first calls are on their way, or not
        finally:
            await client.close()


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
        await admin.create_topic("made-" + topic)
        await admin.create_group("made-" + topic)
        await admin.lag("made-" + topic)
        await admin.reset_offset("made-" + topic, topic, "first")
        await admin.redrive("made-" + topic)
        await admin.consumers("made-" + topic)
        await admin.find(topic, key="none")
        for ask in (admin.stacks("nobody"), admin.verify("nobody", "g", topic, "none")):
            with suppress(errors.CosmodromeError):
                await ask
        await admin.delete_group("made-" + topic)
        await admin.delete_topic("made-" + topic)


async def own_tasks_of_grpc_end(before: Footprint) -> None:
    """They do, a moment after their calls."""
    for _ in range(3_000):
        await asyncio.sleep(0.01)
        if asyncio.all_tasks() <= before.tasks and not channels_open():
            return


CALLS = [
    sending,
    recalling,
    opening_and_closing,
    receiving,
    looping,
    settling,
    polling,
    placing,
    listening,
    changing,
    replaying,
    reading_lite,
    listening_lite,
    transacting,
    administering,
]


CLIENTS = (
    Producer,
    SimpleConsumer,
    PushConsumer,
    PullConsumer,
    LitePushConsumer,
    LiteSimpleConsumer,
    AdminClient,
    Transaction,
)


@pytest.mark.parametrize("client", CLIENTS)
def test_every_public_method_that_waits_is_among_the_calls(client: type) -> None:
    called = "".join(map(inspect.getsource, CALLS))
    waiting = [
        name
        for name, method in inspect.getmembers(client, inspect.iscoroutinefunction)
        if not name.startswith("_")
    ]
    assert waiting
    assert [name for name in waiting if f".{name}(" not in called] == []


async def hidden(broker: TestBroker, topic: str) -> dict[tuple[str, str], int]:
    """What is hidden of a topic, once nothing more comes back; a push consumer's takes a second."""
    left: dict[tuple[str, str], int] = {}
    for _ in range(3_000):
        in_flight = broker.leftovers().in_flight
        left = {key: count for key, count in in_flight.items() if topic in key[1]}
        if not left:
            break
        await asyncio.sleep(0.01)
    return left


@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize("call", CALLS)
async def test_cancelling_at_any_await_leaves_no_task_channel_thread_or_lease(
    broker: TestBroker, name: Names, call: Call, twice: bool
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
        await cancel_after(task, turns)
        if twice:
            await cancel_after(task, turns // 3 % 7)
        await asyncio.wait([task])
        await own_tasks_of_grpc_end(before)
        assert asyncio.all_tasks() <= before.tasks, f"after {turns} turns"
        assert channels_open() == 0, f"after {turns} turns"
    assert threading.active_count() <= before.threads + 1
    assert await hidden(broker, topic) == {}


@asynccontextmanager
async def consumer_of_one_message(broker: TestBroker, name: Names) -> AsyncIterator[SimpleConsumer]:
    """A consumer of a topic whose one message nobody has received."""
    topic = name("t")
    broker.create_topic(topic, queues=1)
    async with (
        Producer(broker.endpoint, topics=[topic]) as producer,
        SimpleConsumer(broker.endpoint, group=name("g"), subscriptions={topic: "*"}) as consumer,
    ):
        await producer.send(Message(topic, b"x"))
        yield consumer


async def cancel_after(task: "asyncio.Future[object]", turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)
    if turns % 2:
        await asyncio.sleep(0.002)  # the call is on its way, or not
    task.cancel()


async def test_what_is_on_its_way_to_a_receive_that_is_cancelled_is_handed_back(
    broker: TestBroker, name: Names
) -> None:
    async with consumer_of_one_message(broker, name) as consumer:
        with broker.recording() as calls:
            waiting = asyncio.ensure_future(consumer.receive(1, invisible=300))
            while "ReceiveMessage" not in calls:  # noqa: ASYNC110 - it is said in another thread
                await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        async with asyncio.timeout(20):  # at once, not when it is visible after 300 s
            (again,) = await consumer.receive(1)
        assert again.delivery_attempt == 1
        await consumer.ack(again)


async def test_a_receive_that_waits_is_ended_soon_after_it_is_cancelled(
    own_broker: TestBroker,
) -> None:
    own_broker.create_topic("t", queues=1)
    async with (
        SimpleConsumer(own_broker.endpoint, group="g", subscriptions={"t": "*"}) as consumer,
        SimpleConsumer(own_broker.endpoint, group="g", subscriptions={"t": "*"}) as other,
        Producer(own_broker.endpoint, topics=["t"]) as producer,
    ):
        waiting = asyncio.ensure_future(consumer.receive(1, invisible=300))
        await asyncio.sleep(0.05)  # it waits at the broker, mostly
        waiting.cancel()
        await asyncio.wait([waiting])
        # The first may still go to the cancelled receive, which hands it back.
        await producer.send([Message("t", b"1"), Message("t", b"2")])
        bodies: set[bytes] = set()
        async with asyncio.timeout(20):
            while bodies != {b"1", b"2"}:
                for message in await other.receive(2):
                    bodies.add(message.body)
                    await other.ack(message)


async def test_what_was_begun_to_settle_a_message_is_carried_out(
    broker: TestBroker, name: Names
) -> None:
    topic = name("t")
    async with Producer(broker.endpoint, topics=[topic]) as producer:
        await producer.send(Message(topic, b"x"))
    async with SimpleConsumer(
        broker.endpoint, group=name("g"), subscriptions={topic: "*"}
    ) as consumer:
        (message,) = await consumer.receive(1, invisible=300)
        hiding = asyncio.ensure_future(consumer.change_invisible_duration(message, 0))
        await asyncio.sleep(0)
        hiding.cancel()
        await asyncio.wait([hiding])
        async with asyncio.timeout(20):
            (again,) = await consumer.receive(1)
        acking = asyncio.ensure_future(consumer.ack(again))
        await asyncio.sleep(0)
        acking.cancel()
        await asyncio.wait([acking])
    assert await hidden(broker, topic) == {}


async def test_what_came_for_a_receive_that_is_cancelled_is_given_back(
    broker: TestBroker, name: Names
) -> None:
    async with consumer_of_one_message(broker, name) as consumer:
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
