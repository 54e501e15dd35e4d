"""The producer against a real broker."""

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta

import pytest

import cosmodrome
from cosmodrome import (
    Batching,
    HookContext,
    HookPoint,
    IllegalArgument,
    Interceptor,
    Message,
    NotRunning,
    Producer,
    SimpleConsumer,
    TransactionResolution,
    errors,
)
from cosmodrome.testing import TestBroker

Names = Callable[[str], str]


async def received(broker: TestBroker, topic: str, count: int) -> list[cosmodrome.MessageView]:
    found: list[cosmodrome.MessageView] = []
    async with SimpleConsumer(broker.endpoint, group=f"g-{topic}", subscriptions={topic: "*"}) as c:
        async with asyncio.timeout(20):
            while len(found) < count:
                messages = await c.receive(32, 30)
                found += messages
                await c.ack(messages)
    return found


async def test_what_is_sent_arrives_with_everything_on_it(broker: TestBroker, name: Names) -> None:
    topic = name("orders")
    sent = Message(topic, b"body", tag="new", keys=["1", "2"], properties={"a": "b"})
    async with Producer(broker.endpoint, topics=[topic]) as producer:
        receipt = await producer.send(sent)
    (view,) = await received(broker, topic, 1)
    assert view.message_id == receipt.message_id
    assert (view.body, view.tag, view.keys) == (b"body", "new", ("1", "2"))
    assert dict(view.properties) == {"a": "b"}
    assert view.delivery_attempt == 1
    assert not view.is_corrupted


async def test_concurrent_sends_share_requests_and_each_gets_its_receipt(
    broker: TestBroker, name: Names
) -> None:
    topic = name("orders")
    async with Producer(broker.endpoint, topics=[topic]) as producer:
        receipts = await asyncio.gather(
            *(producer.send(Message(topic, str(n).encode())) for n in range(500))
        )
        await producer.flush()
    assert len({receipt.message_id for receipt in receipts}) == 500
    views = await received(broker, topic, 500)
    by_id = {receipt.message_id: str(n).encode() for n, receipt in enumerate(receipts)}
    assert {view.message_id: view.body for view in views} == by_id


async def test_a_list_is_one_request_stored_together(broker: TestBroker, name: Names) -> None:
    topic = name("orders")
    async with Producer(broker.endpoint) as producer:
        receipts = await producer.send([Message(topic, str(n).encode()) for n in range(10)])
        assert await producer.send([]) == []
    assert [r.queue_offset for r in receipts] == list(
        range(receipts[0].queue_offset, receipts[0].queue_offset + 10)
    )


async def test_messages_of_one_group_keep_their_order_under_concurrency(
    broker: TestBroker, name: Names
) -> None:
    topic = name("ordered")
    broker.create_topic(topic, "FIFO", 4)
    broker.create_group(f"g-{topic}", fifo=True)
    async with Producer(broker.endpoint, topics=[topic]) as producer:
        await asyncio.gather(
            *(
                producer.send(Message(topic, f"{n}".encode(), message_group=f"g{n % 3}"))
                for n in range(60)
            )
        )
    seen: dict[str, list[int]] = {}
    for view in await received(broker, topic, 60):
        seen.setdefault(view.message_group, []).append(int(view.body))
    assert seen == {f"g{k}": list(range(k, 60, 3)) for k in range(3)}


async def test_throttled_sends_are_tried_again(own_broker: TestBroker) -> None:
    async with Producer(own_broker.endpoint, topics=["t"]) as producer:
        with own_broker.fault("SendMessage", code="TOO_MANY_REQUESTS", times=2):
            await producer.send(Message("t", b"x"))
        with own_broker.fault("SendMessage", code="TOO_MANY_REQUESTS"):
            with pytest.raises(errors.TooManyRequests):
                await producer.send(Message("t", b"x"))


async def test_what_the_broker_refuses_for_good_is_not_tried_again(own_broker: TestBroker) -> None:
    async with Producer(own_broker.endpoint, topics=["t"]) as producer:
        with own_broker.fault("SendMessage", code="ILLEGAL_MESSAGE_TAG", times=1):
            with pytest.raises(errors.BadRequest) as caught:
                await producer.send(Message("t", b"x"))
        assert not caught.value.maybe_stored
        assert caught.value.request_id
        await producer.send(Message("t", b"x"))


async def test_an_answer_that_is_lost_says_the_message_may_be_stored(
    own_broker: TestBroker,
) -> None:
    async with Producer(own_broker.endpoint, topics=["t"], send_timeout=0.5) as producer:
        with own_broker.fault("SendMessage", drop=True, after_handling=True):
            with pytest.raises(errors.DeadlineExceeded) as caught:
                await producer.send(Message("t", b"x"))
    assert caught.value.maybe_stored
    assert len(await received(own_broker, "t", 1)) == 1


async def test_a_producer_outlives_a_restart(own_broker: TestBroker) -> None:
    patient = cosmodrome.ClientConfiguration(
        own_broker.endpoint, request_timeout=timedelta(seconds=20)
    )
    async with Producer(patient, topics=["t"]) as producer:
        await producer.send(Message("t", b"before"))
        restart = asyncio.create_task(asyncio.to_thread(own_broker.restart))
        bodies, sent = {b"before"}, 0
        while not restart.done() or not sent:
            bodies.add(b"%d" % (sent := sent + 1))
            await producer.send(Message("t", b"%d" % sent))
        await restart
    # One whose answer was lost is stored twice.
    found: set[bytes] = set()
    while found != bodies:
        found |= {view.body for view in await received(own_broker, "t", 1)}


async def test_the_first_send_to_a_topic_outlives_a_broker_that_is_away(
    own_broker: TestBroker,
) -> None:
    async with Producer(own_broker.endpoint, topics=["t"]) as producer:
        with own_broker.fault("QueryRoute", unavailable=True, times=2):
            assert (await producer.send(Message("new", b"x"))).message_id
        with (
            own_broker.fault("QueryRoute", unavailable=True),
            pytest.raises(errors.ConnectionFailed) as failed,
        ):
            await producer.send(Message("newer", b"x"))
    assert not failed.value.maybe_stored


def test_a_client_of_another_loop_says_so(broker: TestBroker, name: Names) -> None:
    producer = Producer(broker.endpoint)
    message = Message(name("t"), b"x")

    async def use() -> None:
        with pytest.raises(NotRunning, match="another event loop"):
            await producer.send(message)
        with pytest.raises(NotRunning, match="another event loop"):
            producer.send_nowait(message)

    async def begin() -> None:
        await producer.start()
        await producer.send(message)
        await asyncio.to_thread(asyncio.run, use())

    asyncio.run(begin())
    asyncio.run(use())
    asyncio.run(producer.close())
    assert not producer.is_running


async def test_a_committed_transaction_is_delivered_and_a_rolled_back_one_is_not(
    broker: TestBroker, name: Names
) -> None:
    topic = name("paid")
    broker.create_topic(topic, "TRANSACTION")

    def check(_: cosmodrome.MessageView) -> TransactionResolution:
        return TransactionResolution.UNKNOWN

    async with Producer(broker.endpoint, topics=[topic], transaction_checker=check) as producer:
        async with producer.begin_transaction() as kept:
            await producer.send(Message(topic, b"kept"), transaction=kept)
            await kept.commit()
        with pytest.raises(ValueError, match="the local part"):
            async with producer.begin_transaction() as dropped:
                await producer.send(Message(topic, b"dropped"), transaction=dropped)
                raise ValueError("the local part failed")
        with pytest.raises(IllegalArgument, match="takes one message"):
            await producer.send(Message(topic, b"second"), transaction=kept)
    assert [v.body for v in await received(broker, topic, 1)] == [b"kept"]


async def test_a_commit_that_fails_is_not_followed_by_a_rollback(
    broker: TestBroker, name: Names
) -> None:
    topic = name("t")
    broker.create_topic(topic, "TRANSACTION")
    async with Producer(
        broker.endpoint, topics=[topic], transaction_checker=lambda _: TransactionResolution.UNKNOWN
    ) as producer:
        with broker.fault("EndTransaction", unavailable=True, times=1):
            with pytest.raises(errors.ConnectionFailed):
                async with producer.begin_transaction() as transaction:
                    await producer.send(Message(topic, b"paid"), transaction=transaction)
                    await transaction.commit()
        await transaction.commit()
    assert [v.body for v in await received(broker, topic, 1)] == [b"paid"]


async def test_a_block_that_raises_says_so_though_its_rollback_fails(
    broker: TestBroker, name: Names
) -> None:
    topic = name("t")
    broker.create_topic(topic, "TRANSACTION")
    async with Producer(
        broker.endpoint, topics=[topic], transaction_checker=lambda _: TransactionResolution.UNKNOWN
    ) as producer:
        with broker.fault("EndTransaction", unavailable=True, times=1):
            with pytest.raises(ValueError, match="the local part"):
                async with producer.begin_transaction() as transaction:
                    await producer.send(Message(topic, b"paid"), transaction=transaction)
                    raise ValueError("the local part failed")
        await transaction.rollback()


async def test_the_checker_is_asked_about_an_orphan(timeless: TestBroker) -> None:
    timeless.create_topic("paid", "TRANSACTION")
    asked = asyncio.Event()

    async def check(message: cosmodrome.MessageView) -> TransactionResolution:
        assert message.body == b"orphan"
        asked.set()
        return TransactionResolution.COMMIT

    async with Producer(timeless.endpoint, topics=["paid"], transaction_checker=check) as producer:
        await producer.send(Message("paid", b"orphan"), transaction=producer.begin_transaction())
        await asyncio.to_thread(timeless.advance, timedelta(seconds=40))
        async with asyncio.timeout(10):
            await asked.wait()
        assert [v.body for v in await received(timeless, "paid", 1)] == [b"orphan"]


async def test_a_plain_checker_may_take_its_time_and_is_asked_again_when_it_fails(
    timeless: TestBroker,
) -> None:
    timeless.create_topic("paid", "TRANSACTION")
    asked = threading.Semaphore(0)
    gate, waited = threading.Event(), list[bool]()

    def check(message: cosmodrome.MessageView) -> TransactionResolution:
        asked.release()
        if not gate.is_set():
            waited.append(gate.wait(20))
            raise StopIteration
        return TransactionResolution.COMMIT

    async with Producer(timeless.endpoint, topics=["paid"], transaction_checker=check) as producer:
        await producer.send(Message("paid", b"orphan"), transaction=producer.begin_transaction())
        await asyncio.to_thread(timeless.advance, timedelta(seconds=40))
        assert await asyncio.to_thread(asked.acquire, timeout=20)
        gate.set()
        await asyncio.to_thread(timeless.advance, timedelta(seconds=70))
        assert await asyncio.to_thread(asked.acquire, timeout=20)
        assert all(waited)
        assert [v.body for v in await received(timeless, "paid", 1)] == [b"orphan"]


async def test_a_delayed_message_comes_a_day_later_and_a_recalled_one_never(
    timeless: TestBroker,
) -> None:
    timeless.create_topic("later", "DELAY")
    async with Producer(timeless.endpoint, topics=["later"]) as producer:
        day = timedelta(days=1)
        await producer.send(Message("later", b"kept", delay=day))
        receipt = await producer.send(Message("later", b"recalled", delay=day))
        assert await producer.recall("later", receipt.recall_handle) == receipt.message_id
        with pytest.raises(errors.StatusError):
            await producer.recall("later", receipt.recall_handle)
    await asyncio.to_thread(timeless.advance, day + timedelta(seconds=2))
    assert [v.body for v in await received(timeless, "later", 1)] == [b"kept"]


async def test_a_topic_takes_only_its_kind_and_the_error_comes_from_here(
    broker: TestBroker, name: Names
) -> None:
    topic = name("plain")
    broker.create_topic(topic, "NORMAL")
    async with Producer(broker.endpoint, topics=[topic]) as producer:
        with pytest.raises(IllegalArgument, match="takes NORMAL messages, not FIFO ones"):
            await producer.send(Message(topic, b"x", message_group="g"))


async def test_bounds_hold_back_or_refuse(own_broker: TestBroker) -> None:
    async with Producer(own_broker.endpoint, topics=["t"], max_in_flight=1) as producer:
        first = producer.send_nowait(Message("t", b"1"))
        with pytest.raises(errors.BufferFull):
            producer.send_nowait(Message("t", b"2"))
        waiting = asyncio.create_task(producer.send(Message("t", b"3")))
        await first
        await waiting


async def test_bodies_are_compressed_and_checked_on_request(
    broker: TestBroker, name: Names
) -> None:
    topic = name("large")
    async with Producer(
        broker.endpoint, topics=[topic], compress_above=100, with_digest=True
    ) as producer:
        await producer.send(Message(topic, b"x" * 10_000))
    (view,) = await received(broker, topic, 1)
    assert view.body == b"x" * 10_000


async def test_interceptors_see_and_may_replace_what_is_sent(
    broker: TestBroker, name: Names
) -> None:
    topic = name("hooked")
    seen: list[tuple[str, object]] = []

    class Stamp(Interceptor):
        def before(self, context: HookContext) -> None:
            assert context.point is HookPoint.SEND
            context.messages = [Message(topic, b"stamped")]

        def after(self, context: HookContext) -> None:
            seen.append((context.point.value, context.error))

    async with Producer(broker.endpoint, topics=[topic], interceptors=[Stamp()]) as producer:
        await producer.send(Message(topic, b"plain"))
    assert seen == [("send", None)]
    assert [v.body for v in await received(broker, topic, 1)] == [b"stamped"]


async def test_a_client_says_whether_it_runs(broker: TestBroker) -> None:
    producer = Producer(broker.endpoint, batching=Batching(messages=1))
    with pytest.raises(NotRunning, match="not started yet"):
        await producer.send(Message("t", b"x"))
    await producer.start()
    await producer.close()
    await producer.close()
    with pytest.raises(NotRunning, match="closed"):
        await producer.send(Message("t", b"x"))
    with pytest.raises(NotRunning):
        await producer.start()


async def test_a_start_that_fails_leaves_nothing_behind() -> None:
    before = asyncio.all_tasks()
    configuration = cosmodrome.ClientConfiguration(
        "127.0.0.1:1", request_timeout=timedelta(milliseconds=200), max_startup_attempts=1
    )
    with pytest.raises(errors.TransportError):
        await Producer(configuration, topics=["t"]).start()
    assert asyncio.all_tasks() == before


async def test_the_builder_makes_the_same_producer(broker: TestBroker, name: Names) -> None:
    built = Producer.builder().client_configuration(broker.endpoint).topics(name("t")).build()
    async with built as producer:
        await producer.send(Message(name("t"), b"x"))
    with pytest.raises(IllegalArgument, match="client_configuration"):
        Producer.builder().build()
