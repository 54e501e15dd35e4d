"""Listeners of single topics, their limits, orderly ones, and what a consumer tells of itself."""

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import pytest

from cosmodrome import (
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    ConsumeResult,
    ConsumeReturnType,
    HookContext,
    HookPoint,
    IllegalArgument,
    Interceptor,
    MessageView,
    PushConsumer,
    TopicLimits,
)
from cosmodrome._client.pacer import Pacer
from cosmodrome.orderly import SUSPEND_LONGEST, SUSPEND_SHORTEST
from cosmodrome.testing import TestBroker
from tests.sdk.test_push_consumer import Seen, send, settled

SUCCESS, FAILURE = ConsumeResult.SUCCESS, ConsumeResult.FAILURE
Status = ConsumeOrderlyStatus
Answer = Callable[[list[bytes], ConsumeOrderlyContext], ConsumeOrderlyStatus | None]


class Replay:
    """An orderly listener that writes down its calls; `count` waits for so many."""

    def __init__(self, answer: Answer) -> None:
        self.calls: list[list[bytes]] = []
        self.contexts: list[ConsumeOrderlyContext] = []
        self.attempts: list[int] = []
        self._answer = answer
        self._changed = asyncio.Condition()

    async def __call__(
        self, messages: Sequence[MessageView], context: ConsumeOrderlyContext
    ) -> ConsumeOrderlyStatus | None:
        context.suspend = timedelta(milliseconds=10)
        async with self._changed:
            self.calls.append([m.body for m in messages])
            self.contexts.append(context)
            self.attempts.append(messages[0].delivery_attempt)
            self._changed.notify_all()
        return self._answer(self.calls[-1], context)

    async def count(self, number: int) -> None:
        async with asyncio.timeout(20), self._changed:
            await self._changed.wait_for(lambda: len(self.calls) >= number)


def ordered(broker: TestBroker, *, max_attempts: int = 17) -> None:
    broker.create_topic("t", "FIFO", 1)
    broker.create_group("g", fifo=True, max_attempts=max_attempts)


def replaying(broker: TestBroker, listener: Replay, batch: int = 1) -> PushConsumer:
    return PushConsumer(
        broker.endpoint,
        group="g",
        subscriptions={"t": "*"},
        orderly_listener=listener,
        batch=batch,
    )


async def test_4_04_with_auto_commit_suspending_brings_the_same_again_and_the_rest_waits(
    own_broker: TestBroker,
) -> None:
    ordered(own_broker)
    answers = iter(
        [Status.SUCCESS, Status.SUSPEND_CURRENT_QUEUE_A_MOMENT, Status.COMMIT, Status.ROLLBACK]
    )
    replay = Replay(lambda _bodies, _context: next(answers))
    await send(own_broker, "t", b"0", b"1", b"2", group="one")
    async with replaying(own_broker, replay):
        await replay.count(4)
        await settled(own_broker)
    assert replay.calls == [[b"0"], [b"1"], [b"1"], [b"2"]]
    assert replay.attempts == [1, 1, 1, 1]  # suspending counts no attempt


@pytest.mark.parametrize("raises", [True, False])
async def test_4_04_none_and_exceptions_suspend_and_count_until_the_dead_letters(
    own_broker: TestBroker, *, raises: bool
) -> None:
    ordered(own_broker, max_attempts=3)

    def answer(bodies: list[bytes], _context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus | None:
        if bodies != [b"poison"]:
            return Status.SUCCESS
        if raises:
            raise ValueError("poison")
        return None

    replay = Replay(answer)
    await send(own_broker, "t", b"poison", b"next", group="one")
    async with replaying(own_broker, replay):
        await replay.count(4)
        await settled(own_broker, lambda left: not left.ready and not left.in_flight)
    assert replay.calls == [[b"poison"]] * 3 + [[b"next"]]
    assert replay.attempts == [1, 2, 3, 1]
    assert (await asyncio.to_thread(own_broker.leftovers)).dead == {"g": 1}


async def test_4_05_without_auto_commit_a_commit_acknowledges_everything_consumed_so_far(
    own_broker: TestBroker,
) -> None:
    ordered(own_broker)
    held: list[tuple[int, int]] = []

    def answer(_bodies: list[bytes], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        context.auto_commit = False
        held.append((context.uncommitted, own_broker.leftovers().in_flight.get(("g", "t"), 0)))
        return Status.SUCCESS if context.remaining else Status.COMMIT

    replay = Replay(answer)
    await send(own_broker, "t", b"0", b"1", b"2", group="one")
    async with replaying(own_broker, replay):
        await replay.count(3)
        await settled(own_broker)
    assert replay.calls == [[b"0"], [b"1"], [b"2"]]
    assert held == [(0, 3), (1, 3), (2, 3)]


async def test_4_05_a_rollback_brings_all_uncommitted_again_and_a_suspend_only_its_own(
    own_broker: TestBroker,
) -> None:
    ordered(own_broker)
    answers = iter(
        [
            Status.SUCCESS,
            Status.SUSPEND_CURRENT_QUEUE_A_MOMENT,
            Status.SUCCESS,
            Status.ROLLBACK,
            Status.SUCCESS,
            Status.SUCCESS,
            Status.COMMIT,
        ]
    )

    def answer(_bodies: list[bytes], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        context.auto_commit = False
        return next(answers)

    replay = Replay(answer)
    await send(own_broker, "t", b"0", b"1", b"2", group="one")
    async with replaying(own_broker, replay):
        await replay.count(7)
        await settled(own_broker)
    assert [call[0] for call in replay.calls] == [b"0", b"1", b"1", b"2", b"0", b"1", b"2"]
    assert set(replay.attempts) == {1}


async def test_4_05_what_a_fetch_leaves_uncommitted_waits_for_a_commit_from_any_task(
    own_broker: TestBroker,
) -> None:
    ordered(own_broker)

    def answer(_bodies: list[bytes], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        context.auto_commit = False
        return Status.SUCCESS

    replay = Replay(answer)
    await send(own_broker, "t", b"0", b"1", group="one")
    async with replaying(own_broker, replay, batch=2):
        await replay.count(1)
        await replay.contexts[0].rollback()
        await replay.count(2)
        await replay.contexts[1].commit()
        await settled(own_broker)
    assert replay.calls == [[b"0", b"1"], [b"0", b"1"]]


async def test_4_05_closing_gives_uncommitted_messages_back_in_order(
    own_broker: TestBroker,
) -> None:
    ordered(own_broker)

    def answer(_bodies: list[bytes], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        context.auto_commit = False
        return Status.SUCCESS

    replay = Replay(answer)
    await send(own_broker, "t", b"0", b"1", b"2", group="one")
    async with replaying(own_broker, replay):
        await replay.count(3)
    left = await asyncio.to_thread(own_broker.leftovers)
    assert (left.ready, left.in_flight) == ({("g", "t"): 3}, {})
    again = Replay(lambda _bodies, _context: Status.SUCCESS)
    async with replaying(own_broker, again):
        await again.count(3)
    assert again.calls == [[b"0"], [b"1"], [b"2"]]


def test_4_06_the_suspend_time_is_a_second_and_kept_between_its_bounds() -> None:
    from cosmodrome._client.orderly_service import NothingKept

    context = ConsumeOrderlyContext("t", 0, 0, NothingKept())
    assert context.suspend == timedelta(seconds=1)
    context.suspend = timedelta(0)
    assert context.suspend == SUSPEND_SHORTEST == timedelta(milliseconds=10)
    context.suspend = timedelta(hours=1)
    assert context.suspend == SUSPEND_LONGEST == timedelta(seconds=30)


async def test_4_13_an_orderly_listener_needs_an_ordered_group(own_broker: TestBroker) -> None:
    own_broker.create_group("g")
    own_broker.create_topic("t")
    consumer = replaying(own_broker, Replay(lambda _bodies, _context: Status.SUCCESS))
    with pytest.raises(IllegalArgument, match="not ordered"):
        await consumer.start()


async def test_i_6_each_topic_has_the_listener_that_decorates_it(own_broker: TestBroker) -> None:
    consumer = PushConsumer(own_broker.endpoint, group="g")
    seen: dict[str, list[bytes]] = {"a": [], "b": []}
    done = asyncio.Event()

    @consumer.listener("a", "yes")
    async def one(message: MessageView) -> ConsumeResult:
        seen["a"].append(message.body)
        return SUCCESS

    @consumer.listener("b", kind="batch", batch=4)
    async def several(messages: Sequence[MessageView]) -> ConsumeResult:
        assert len(messages) <= 4
        seen["b"] += [m.body for m in messages]
        if len(seen["b"]) == 10:
            done.set()
        return SUCCESS

    await send(own_broker, "a", b"no", tag="no")
    await send(own_broker, "a", b"yes", tag="yes")
    await send(own_broker, "b", *(str(n).encode() for n in range(10)))
    async with consumer:
        async with asyncio.timeout(20):
            await done.wait()
        await settled(own_broker, lambda left: not left.in_flight)
        with pytest.raises(IllegalArgument, match="no listener takes"):
            await consumer.subscribe("c")
        with pytest.raises(IllegalArgument, match="before"):
            consumer.listener("d")
    assert seen["a"] == [b"yes"]
    assert sorted(seen["b"]) == sorted(str(n).encode() for n in range(10))


def test_i_6_a_topic_has_one_listener_of_a_kind_that_exists() -> None:
    consumer = PushConsumer("127.0.0.1:1", group="g")
    consumer.listener("t")(Seen())
    with pytest.raises(IllegalArgument, match="already"):
        consumer.listener("t")
    with pytest.raises(IllegalArgument, match="kind"):
        consumer.listener("u", kind="many")
    with pytest.raises(IllegalArgument, match="concurrency"):
        TopicLimits(concurrency=0)
    with pytest.raises(IllegalArgument, match="rate"):
        TopicLimits(rate=0)


async def test_i_15_a_topic_has_a_concurrency_of_its_own_that_changes_at_once(
    own_broker: TestBroker,
) -> None:
    gate = asyncio.Event()
    under_way = {"slow": 0, "free": 0}
    most = {"slow": 0, "free": 0}

    async def listener(message: MessageView) -> ConsumeResult:
        topic = message.topic
        under_way[topic] += 1
        most[topic] = max(most[topic], under_way[topic])
        await gate.wait()
        under_way[topic] -= 1
        return SUCCESS

    for topic in ("slow", "free"):
        await send(own_broker, topic, *(str(n).encode() for n in range(12)))
    async with PushConsumer(
        own_broker.endpoint,
        group="g",
        subscriptions={"slow": "*", "free": "*"},
        listener=listener,
        concurrency=8,
        limits={"slow": TopicLimits(concurrency=2)},
    ) as consumer:
        await reaches(lambda: under_way == {"slow": 2, "free": 8})
        consumer.set_limits("slow", TopicLimits(concurrency=5))
        # The two that have begun belong to the limit of before.
        await reaches(lambda: under_way["slow"] == 7)
        gate.set()
        await settled(own_broker)
    assert most == {"slow": 7, "free": 8}


async def test_i_15_a_topic_with_a_rate_keeps_it_and_gives_back_what_waits_on_closing(
    own_broker: TestBroker,
) -> None:
    seen = Seen()
    await send(own_broker, "t", *(str(n).encode() for n in range(9)))
    began = time.monotonic()
    async with PushConsumer(
        own_broker.endpoint,
        group="g",
        subscriptions={"t": "*"},
        listener=seen,
        limits={"t": TopicLimits(rate=20)},
    ):
        await seen.count(5)
        assert time.monotonic() - began >= 4 / 20 - 0.06
        closing = time.monotonic()
    assert time.monotonic() - closing < 2
    rest = {("g", "t"): 9 - len(seen.messages)}
    await settled(own_broker, lambda left: left.ready == rest and not left.in_flight)


async def test_a_pacer_spaces_what_begins_and_ends_waits_when_it_is_closed() -> None:
    pacer = Pacer(1000.0)
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert all([await pacer.turn(2) for _ in range(11)])
    assert loop.time() - began >= 0.019
    slow = Pacer(0.001)
    assert await slow.turn(1)
    waiting = asyncio.ensure_future(slow.turn(1))
    await asyncio.sleep(0)
    slow.close()
    assert await waiting is False


class Noted(Interceptor):
    """Writes down how calls ended; takes messages out of them."""

    def __init__(self, *unwanted: bytes) -> None:
        self.returned: list[ConsumeReturnType | None] = []
        self._unwanted = unwanted

    def before(self, context: HookContext) -> None:
        if context.point is HookPoint.CONSUME:
            context.messages = [m for m in context.messages if m.body not in self._unwanted]

    def after(self, context: HookContext) -> None:
        if context.point is HookPoint.CONSUME:
            self.returned.append(context.returned)


async def test_4_53_hooks_see_how_a_call_ended(own_broker: TestBroker) -> None:
    own_broker.create_group("g", backoff=(timedelta(milliseconds=10),))
    noted = Noted()

    async def listener(message: MessageView) -> ConsumeResult | None:
        match message.delivery_attempt:
            case 1:
                return FAILURE
            case 2:
                return None
            case 3:
                raise ValueError("no")
            case 4:
                await asyncio.Event().wait()
            case _:
                pass
        return SUCCESS

    await send(own_broker, "t", b"x")
    async with PushConsumer(
        own_broker.endpoint,
        group="g",
        subscriptions={"t": "*"},
        listener=listener,
        consume_timeout=0.1,
        interceptors=[noted],
    ):
        await reaches(lambda: len(noted.returned) == 5)
    kinds = ConsumeReturnType
    assert noted.returned == [
        kinds.FAILED,
        kinds.RETURNED_NULL,
        kinds.EXCEPTION,
        kinds.TIME_OUT,
        kinds.SUCCESS,
    ]


async def test_4_72_what_an_interceptor_takes_out_is_acknowledged_unseen(
    own_broker: TestBroker,
) -> None:
    seen = Seen()
    await send(own_broker, "t", b"no", b"yes", b"no")
    async with PushConsumer(
        own_broker.endpoint,
        group="g",
        subscriptions={"t": "*"},
        listener=seen,
        interceptor_filtering=True,
        interceptors=[Noted(b"no")],
    ):
        await seen.count(1)
        await settled(own_broker)
    assert [m.body for m in seen.messages] == [b"yes"]


async def test_4_73_statistics_tell_rates_and_times_topic_by_topic(own_broker: TestBroker) -> None:
    own_broker.create_group("g", backoff=(timedelta(minutes=10),))
    seen = Seen(lambda m: FAILURE if m.body == b"0" else SUCCESS)
    await send(own_broker, "t", *(str(n).encode() for n in range(10)))
    async with PushConsumer(
        own_broker.endpoint, group="g", subscriptions={"t": "*"}, listener=seen
    ) as consumer:
        await seen.count(10)
        await reaches(lambda: consumer.statistics().consumed_ok == 9)
        told = consumer.statistics(window=10).topics["t"]
        info = consumer.running_info()
    assert (told.received, told.consumed_ok, told.consumed_failed) == (10, 9, 1)
    assert told.consume_ok_tps == pytest.approx(0.9)
    assert told.consume_failed_tps == pytest.approx(0.1)
    assert told.pull_tps == pytest.approx(1.0)
    assert told.consume_rt_ms > 0
    assert told.pull_rt_ms > 0
    assert told.queues > 0
    assert (info.client_id, info.group, info.is_ordered) == (consumer.client_id, "g", False)
    assert {(queue.topic, queue.queue_id) for queue in info.queues} == {("t", -1)}
    assert info.started_at <= datetime.now(UTC)
    assert info.subscriptions.keys() == {"t"}


async def reaches(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - counters of a listener say nothing by themselves
            await asyncio.sleep(0.01)


class Vetoes(Interceptor):
    """Raises once, at one point."""

    def __init__(self, point: HookPoint) -> None:
        self._point: HookPoint | None = point

    def before(self, context: HookContext) -> None:
        if context.point is self._point:
            self._point = None
            raise ValueError("not this time")


@pytest.mark.parametrize(
    "point", [HookPoint.RECEIVE, HookPoint.ACK, HookPoint.CHANGE_INVISIBLE_DURATION]
)
async def test_what_an_interceptor_refuses_is_tried_again(
    own_broker: TestBroker, point: HookPoint
) -> None:
    own_broker.create_group("g", backoff=(timedelta(milliseconds=50),))
    seen = Seen(lambda m: FAILURE if m.delivery_attempt == 1 else SUCCESS)
    await send(own_broker, "t", b"x")
    async with PushConsumer(
        own_broker.endpoint,
        group="g",
        subscriptions={"t": "*"},
        listener=seen,
        interceptors=[Vetoes(point)],
    ):
        await seen.count(2)
        await settled(own_broker)


async def test_a_dead_letter_that_an_interceptor_refuses_is_tried_again(
    own_broker: TestBroker,
) -> None:
    ordered(own_broker, max_attempts=1)
    seen = Seen(lambda m: FAILURE if m.body == b"bad" else SUCCESS)
    await send(own_broker, "t", b"bad", b"good", group="one")
    async with PushConsumer(
        own_broker.endpoint,
        group="g",
        subscriptions={"t": "*"},
        listener=seen,
        interceptors=[Vetoes(HookPoint.FORWARD_TO_DEAD_LETTER_QUEUE)],
    ):
        await seen.count(2)
        await settled(own_broker, lambda left: left.dead == {"g": 1} and not left.in_flight)
