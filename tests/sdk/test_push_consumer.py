"""The push consumer against a real broker."""

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import cast

import pytest

import cosmodrome
from cosmodrome import (
    ConsumeResult,
    IllegalArgument,
    Interceptor,
    Message,
    MessageView,
    Producer,
    PushConsumer,
)
from cosmodrome.testing import Leftovers, TestBroker

Names = Callable[[str], str]
SUCCESS, FAILURE = ConsumeResult.SUCCESS, ConsumeResult.FAILURE


class Seen:
    """Collects what a listener gets; `count` waits for so many."""

    def __init__(self, result: Callable[[MessageView], object] = lambda _: SUCCESS) -> None:
        self.messages: list[MessageView] = []
        self._result = result
        self._changed = asyncio.Condition()

    async def __call__(self, message: MessageView) -> ConsumeResult:
        async with self._changed:
            self.messages.append(message)
            self._changed.notify_all()
        # Some tests return what no listener should.
        return cast("ConsumeResult", self._result(message))

    async def count(self, number: int) -> None:
        async with asyncio.timeout(20), self._changed:
            await self._changed.wait_for(lambda: len(self.messages) >= number)


async def send(
    broker: TestBroker, topic: str, *bodies: bytes, group: str = "", tag: str = ""
) -> None:
    async with Producer(broker.endpoint, topics=[topic]) as producer:
        for body in bodies:
            await producer.send(Message(topic, body, message_group=group, tag=tag))


async def settled(
    broker: TestBroker, wanted: Callable[[Leftovers], bool] = lambda left: not left
) -> None:
    """Wait until the broker holds nothing for its groups, or what is wanted."""
    async with asyncio.timeout(20):
        # No event of the broker says so.
        while not wanted(await asyncio.to_thread(broker.leftovers)):  # noqa: ASYNC110 - so
            await asyncio.sleep(0.02)


async def test_every_message_is_consumed_and_acknowledged(own_broker: TestBroker) -> None:
    seen = Seen()
    await send(own_broker, "t", *(str(n).encode() for n in range(100)))
    async with PushConsumer(
        own_broker.endpoint, group="g", subscriptions={"t": "*"}, listener=seen
    ) as consumer:
        await seen.count(100)
        await settled(own_broker)
        assert consumer.statistics().consumed_ok == 100
    # The broker knows of an ack before its answer is here; a closed consumer has had them all.
    assert consumer.statistics().cached_messages == 0
    assert {m.body for m in seen.messages} == {str(n).encode() for n in range(100)}


@pytest.mark.parametrize("wrong", [FAILURE, None, "success"])
async def test_whatever_is_not_success_comes_again(own_broker: TestBroker, wrong: object) -> None:
    own_broker.create_group("g", backoff=(timedelta(milliseconds=50),))
    seen = Seen(lambda m: wrong if m.delivery_attempt == 1 else SUCCESS)
    await send(own_broker, "t", b"x")
    async with PushConsumer(
        own_broker.endpoint, group="g", subscriptions={"t": "*"}, listener=seen
    ):
        await seen.count(2)
        await settled(own_broker)
    assert [m.delivery_attempt for m in seen.messages] == [1, 2]


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("hooked", [False, True])
async def test_a_listener_that_hears_of_a_cancellation_of_its_own_has_failed(
    own_broker: TestBroker, *, ordered: bool, hooked: bool
) -> None:
    own_broker.create_topic("t", "FIFO" if ordered else "NORMAL", 1)
    own_broker.create_group("g", fifo=ordered, backoff=(timedelta(milliseconds=50),))
    seen = Seen()

    async def waits_for_what_is_cancelled(message: MessageView) -> ConsumeResult:
        if message.delivery_attempt == 1:
            gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            gone.cancel()
            await gone
        return await seen(message)

    bodies = [str(n).encode() for n in range(4)]
    await send(own_broker, "t", *bodies, group="one" if ordered else "")
    async with PushConsumer(
        own_broker.endpoint,
        group="g",
        subscriptions={"t": "*"},
        listener=waits_for_what_is_cancelled,
        concurrency=1,
        interceptors=[Interceptor()] if hooked else [],
    ):
        await seen.count(4)
        await settled(own_broker)
    assert sorted(m.body for m in seen.messages) == bodies
    assert {m.delivery_attempt for m in seen.messages} == {2}


class Outcome(BaseException):
    """No Exception, as what `pytest.fail` raises is none."""


@pytest.mark.parametrize("wrong", [Outcome, StopIteration, asyncio.CancelledError])
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("hooked", [False, True])
async def test_whatever_a_listener_raises_is_a_failure_and_ends_no_worker(
    own_broker: TestBroker, wrong: type[BaseException], *, plain: bool, hooked: bool
) -> None:
    own_broker.create_group("g", backoff=(timedelta(milliseconds=50),))
    attempts: list[int] = []
    consumed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def raises(message: MessageView) -> ConsumeResult:
        attempts.append(message.delivery_attempt)
        if message.delivery_attempt == 1:
            raise wrong
        loop.call_soon_threadsafe(consumed.set)
        return SUCCESS

    async def raises_async(message: MessageView) -> ConsumeResult:
        return raises(message)

    await send(own_broker, "t", b"x")
    async with PushConsumer(
        own_broker.endpoint,
        group="g",
        subscriptions={"t": "*"},
        listener=raises if plain else raises_async,
        concurrency=1,
        interceptors=[Interceptor()] if hooked else [],
    ):
        async with asyncio.timeout(20):
            await consumed.wait()
        await settled(own_broker)
    assert attempts == [1, 2]


async def test_a_message_that_always_fails_becomes_a_dead_letter(own_broker: TestBroker) -> None:
    own_broker.create_group("g", max_attempts=3, backoff=(timedelta(milliseconds=20),))

    def fail(message: MessageView) -> object:
        raise ValueError(message.message_id)

    seen = Seen(fail)
    await send(own_broker, "t", b"poison")
    async with PushConsumer(
        own_broker.endpoint, group="g", subscriptions={"t": "*"}, listener=seen
    ):
        await seen.count(3)
        await settled(own_broker, lambda left: bool(left.dead))
    assert (await asyncio.to_thread(own_broker.leftovers)).dead == {"g": 1}
    assert [m.delivery_attempt for m in seen.messages] == [1, 2, 3]


async def test_sixteen_retries_of_hours_take_no_time_on_a_virtual_clock(
    timeless: TestBroker,
) -> None:
    timeless.create_group("g", max_attempts=17)
    seen = Seen(lambda _: FAILURE)
    await send(timeless, "t", b"x")
    with timeless.recording() as calls:
        async with PushConsumer(
            timeless.endpoint, group="g", subscriptions={"t": "*"}, listener=seen
        ):
            for attempt in range(1, 18):
                await seen.count(attempt)
                async with asyncio.timeout(20):
                    # The nack must arrive before its rest can pass.
                    while calls.count("ChangeInvisibleDuration") < attempt:  # noqa: ASYNC110 - so
                        await asyncio.sleep(0.01)
                await asyncio.to_thread(timeless.advance, timedelta(hours=1, seconds=5))
            await settled(timeless, lambda left: left.dead == {"g": 1})


async def test_an_ordered_group_retries_in_place_and_nothing_overtakes(
    own_broker: TestBroker,
) -> None:
    own_broker.create_topic("t", "FIFO", 1)
    own_broker.create_group("g", fifo=True, backoff=(timedelta(milliseconds=20),))
    seen = Seen(lambda m: FAILURE if m.body == b"1" and m.delivery_attempt < 3 else SUCCESS)
    await send(own_broker, "t", b"0", b"1", b"2", group="one")
    async with PushConsumer(
        own_broker.endpoint, group="g", subscriptions={"t": "*"}, listener=seen
    ):
        await seen.count(5)
        await settled(own_broker)
    assert [m.body for m in seen.messages] == [b"0", b"1", b"1", b"1", b"2"]


async def test_an_ordered_message_that_is_given_up_unblocks_its_queue(
    own_broker: TestBroker,
) -> None:
    own_broker.create_topic("t", "FIFO", 1)
    own_broker.create_group("g", fifo=True, max_attempts=2, backoff=(timedelta(milliseconds=20),))
    seen = Seen(lambda m: FAILURE if m.body == b"poison" else SUCCESS)
    await send(own_broker, "t", b"poison", b"next", group="one")
    async with PushConsumer(
        own_broker.endpoint, group="g", subscriptions={"t": "*"}, listener=seen
    ):
        await seen.count(3)
    assert [m.body for m in seen.messages] == [b"poison", b"poison", b"next"]
    assert (await asyncio.to_thread(own_broker.leftovers)).dead == {"g": 1}


async def test_suspending_does_not_count_an_attempt(own_broker: TestBroker) -> None:
    suspended = ConsumeResult.suspend(timedelta(milliseconds=50))
    results = iter([suspended, suspended, SUCCESS])
    seen = Seen(lambda _: next(results))
    await send(own_broker, "t", b"x")
    async with PushConsumer(
        own_broker.endpoint, group="g", subscriptions={"t": "*"}, listener=seen
    ):
        await seen.count(3)
    assert [m.delivery_attempt for m in seen.messages] == [1, 1, 1]


async def test_a_batch_listener_answers_for_each_message(own_broker: TestBroker) -> None:
    own_broker.create_group("g", backoff=(timedelta(milliseconds=20),))
    batches: list[list[bytes]] = []
    again = asyncio.Event()

    async def listener(messages: object) -> list[ConsumeResult]:
        assert isinstance(messages, list)
        batches.append([m.body for m in messages])
        if any(m.delivery_attempt > 1 for m in messages):
            again.set()
            return [SUCCESS] * len(messages)
        return [FAILURE if m.body == b"1" else SUCCESS for m in messages]

    await send(own_broker, "t", b"0", b"1", b"2")
    async with PushConsumer(
        own_broker.endpoint, group="g", subscriptions={"t": "*"}, batch_listener=listener, batch=8
    ):
        async with asyncio.timeout(20):
            await again.wait()
        await settled(own_broker)
    assert sum(batch.count(b"1") for batch in batches) == 2
    assert sum(batch.count(b"0") for batch in batches) == 1


async def test_a_blocking_listener_runs_beside_the_loop(own_broker: TestBroker) -> None:
    threads: set[str] = set()
    done = threading.Event()

    def listener(message: MessageView) -> ConsumeResult:
        threads.add(threading.current_thread().name)
        done.set()
        return SUCCESS

    await send(own_broker, "t", b"x")
    async with PushConsumer(
        own_broker.endpoint, group="g", subscriptions={"t": "*"}, listener=listener
    ):
        assert await asyncio.to_thread(done.wait, 20)
        await settled(own_broker)
    assert all(thread.startswith("consume") for thread in threads)


async def test_a_call_that_takes_too_long_is_cancelled_and_comes_again(
    own_broker: TestBroker,
) -> None:
    own_broker.create_group("g", backoff=(timedelta(milliseconds=20),))
    cancelled = asyncio.Event()
    second = asyncio.Event()

    async def listener(message: MessageView) -> ConsumeResult:
        if message.delivery_attempt > 1:
            second.set()
            return SUCCESS
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return SUCCESS

    await send(own_broker, "t", b"x")
    async with PushConsumer(
        own_broker.endpoint,
        group="g",
        subscriptions={"t": "*"},
        listener=listener,
        consume_timeout=0.1,
    ):
        async with asyncio.timeout(20):
            await cancelled.wait()
            await second.wait()


async def test_a_plain_listener_that_hangs_keeps_no_other_message_from_being_seen(
    own_broker: TestBroker,
) -> None:
    own_broker.create_group("g", max_attempts=2, backoff=(timedelta(milliseconds=20),))
    seen: list[bytes] = []
    gate, hangs = threading.Event(), threading.Event()

    def listener(message: MessageView) -> ConsumeResult:
        seen.append(message.body)
        if message.body == b"hangs":
            hangs.set()
            gate.wait()
        return SUCCESS

    async with PushConsumer(
        own_broker.endpoint,
        group="g",
        subscriptions={"t": "*"},
        listener=listener,
        concurrency=1,
        consume_timeout=1,
        close_timeout=0.1,
    ):
        await send(own_broker, "t", b"hangs")
        assert await asyncio.to_thread(hangs.wait, 20)
        await send(own_broker, "t", b"1", b"2")
        # Its second attempt hangs as its first did: now no thread is left.
        await settled(own_broker, lambda left: left.dead == {"g": 1})
        await send(own_broker, "t", b"3")
        gate.set()
        await settled(own_broker, lambda left: not (left.ready or left.in_flight))
    assert sorted(set(seen)) == [b"1", b"2", b"3", b"hangs"]
    left = await asyncio.to_thread(own_broker.leftovers)
    assert left.dead == {"g": 1}


async def test_subscribing_and_unsubscribing_take_effect_at_once(own_broker: TestBroker) -> None:
    seen = Seen()
    for topic in ("a", "b"):
        own_broker.create_topic(topic)
    async with PushConsumer(
        own_broker.endpoint, group="g", subscriptions={"a": "*"}, listener=seen
    ) as consumer:
        await consumer.subscribe("b", "yes")
        await send(own_broker, "b", b"no", tag="no")
        await send(own_broker, "b", b"yes", tag="yes")
        await seen.count(1)
        await consumer.unsubscribe("b")
        await send(own_broker, "b", b"late", tag="yes")
        await send(own_broker, "a", b"last")
        await seen.count(2)
        assert consumer.subscriptions.keys() == {"a"}
    assert [m.body for m in seen.messages] == [b"yes", b"last"]


async def test_a_paused_consumer_fetches_nothing_until_it_is_resumed(
    own_broker: TestBroker,
) -> None:
    own_broker.create_topic("t")
    own_broker.create_group("g")
    seen = Seen()
    consumer = PushConsumer(own_broker.endpoint, group="g", subscriptions={"t": "*"}, listener=seen)
    consumer.pause()
    async with consumer:
        await send(own_broker, "t", b"x")
        assert consumer.statistics().received == 0
        consumer.resume()
        await seen.count(1)


async def test_damaged_messages_never_reach_the_listener(own_broker: TestBroker) -> None:
    own_broker.create_group("g", backoff=(timedelta(milliseconds=20),))
    seen = Seen()
    await send(own_broker, "t", b"x")
    with own_broker.fault("ReceiveMessage", corrupt=True, times=1):
        async with PushConsumer(
            own_broker.endpoint, group="g", subscriptions={"t": "*"}, listener=seen
        ) as consumer:
            await seen.count(1)
            assert consumer.statistics().corrupted == 1
    assert [(m.body, m.delivery_attempt) for m in seen.messages] == [(b"x", 2)]


async def test_closing_gives_back_what_was_not_started(own_broker: TestBroker) -> None:
    own_broker.create_group("g")
    gate = asyncio.Event()
    begun = asyncio.Event()

    async def listener(message: MessageView) -> ConsumeResult:
        begun.set()
        await gate.wait()
        return SUCCESS

    await send(own_broker, "t", *(str(n).encode() for n in range(10)))
    async with PushConsumer(
        own_broker.endpoint,
        group="g",
        subscriptions={"t": "*"},
        listener=listener,
        concurrency=1,
    ):
        async with asyncio.timeout(20):
            await begun.wait()
        asyncio.get_running_loop().call_later(0.1, gate.set)
    left = await asyncio.to_thread(own_broker.leftovers)
    assert left.ready == {("g", "t"): 9}
    assert not left.in_flight


async def test_what_fails_when_its_consumer_closes_rests_as_it_would_otherwise(
    own_broker: TestBroker,
) -> None:
    own_broker.create_group("g", backoff=(timedelta(hours=1),))
    gate, begun = asyncio.Event(), asyncio.Event()

    async def listener(message: MessageView) -> ConsumeResult:
        begun.set()
        await gate.wait()
        return FAILURE

    await send(own_broker, "t", b"x")
    with own_broker.recording() as calls:
        async with PushConsumer(
            own_broker.endpoint, group="g", subscriptions={"t": "*"}, listener=listener
        ) as consumer:
            async with asyncio.timeout(20):
                await begun.wait()
            closing = asyncio.create_task(consumer.close())
            await asyncio.sleep(0)
            gate.set()
            await closing
    assert calls.count("ChangeInvisibleDuration") == 1


async def test_closing_waits_for_whoever_closes_already(own_broker: TestBroker) -> None:
    with own_broker.recording() as calls:
        async with PushConsumer(
            own_broker.endpoint, group="g", subscriptions={"t": "*"}, listener=Seen()
        ) as consumer:
            closing = asyncio.create_task(consumer.close())
            await asyncio.sleep(0)
            await consumer.close()
            assert calls.count("NotifyClientTermination") == 1
            await consumer.wait_closed()
            await closing


async def test_a_consumer_outlives_a_restart_and_lost_settings(own_broker: TestBroker) -> None:
    seen = Seen()
    async with PushConsumer(
        own_broker.endpoint, group="g", subscriptions={"t": "*"}, listener=seen
    ):
        await send(own_broker, "t", b"1")
        await seen.count(1)
        await asyncio.to_thread(own_broker.restart)
        await send(own_broker, "t", b"2")
        await seen.count(2)
        await asyncio.to_thread(own_broker.lose_settings)
        await send(own_broker, "t", b"3")
        await seen.count(3)
    assert [m.body for m in seen.messages] == [b"1", b"2", b"3"]


async def test_a_consumer_takes_one_listener_for_all_topics_and_starts_with_none_never(
    own_broker: TestBroker,
) -> None:
    with pytest.raises(IllegalArgument, match="one listener"):
        PushConsumer("127.0.0.1:1", group="g", listener=Seen(), batch_listener=Seen())  # type: ignore[arg-type]  # wrong
    with pytest.raises(IllegalArgument, match="needs a listener"):
        await PushConsumer(own_broker.endpoint, group="g").start()


async def test_a_stack_is_told_on_request(own_broker: TestBroker) -> None:
    seen = Seen()
    await send(own_broker, "t", b"x")
    async with (
        PushConsumer(
            own_broker.endpoint, group="g", subscriptions={"t": "*"}, listener=seen
        ) as consumer,
        cosmodrome.AdminClient(own_broker.endpoint) as admin,
    ):
        await seen.count(1)
        stacks = await admin.stacks(consumer.client_id, "g")
        assert await admin.consumers("g") == [consumer.client_id]
    assert "receive t" in stacks
