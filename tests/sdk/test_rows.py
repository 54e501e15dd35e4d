"""Rows of the catalogue of behaviour that no other test shows; names begin with the row."""

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cosmodrome import (
    AdminClient,
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FlowControl,
    HookContext,
    HookPoint,
    Interceptor,
    Message,
    MessageView,
    OffsetReset,
    Producer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
    TransactionResolution,
    errors,
    push_consumer,
)
from cosmodrome._client import client, receive_loop, settling
from cosmodrome._client.receive_loop import ReceiveLoop
from cosmodrome._client.receiving import Received
from cosmodrome._core import endpoints, retry
from cosmodrome._core.process_queue import ProcessQueue, Thresholds
from cosmodrome._core.route import MessageQueue
from cosmodrome.errors import ConnectionFailed
from cosmodrome.filters import Filter
from cosmodrome.testing import TestBroker
from cosmodrome_proto import definition_pb2 as pb
from tests.sdk.test_listeners import reaches
from tests.sdk.test_push_consumer import Seen, send, settled

SUCCESS, FAILURE = ConsumeResult.SUCCESS, ConsumeResult.FAILURE


def default(function: Callable[..., Any], name: str) -> Any:
    return inspect.signature(function).parameters[name].default


def test_4_30_4_60_5_21_the_numbers_of_the_reference_are_the_defaults() -> None:
    assert (FlowControl().messages, FlowControl().body_bytes) == (1000, 100 << 20)
    assert (FlowControl().span, FlowControl().total_messages) == (2000, 10_000)
    assert ClientConfiguration("h:1").request_timeout == timedelta(seconds=3)
    assert ClientConfiguration("h:1").max_startup_attempts == 3
    assert default(Producer, "max_attempts") == 3
    assert default(PushConsumer, "concurrency") == 20
    assert default(PushConsumer, "max_cached_messages") == 4096
    assert default(PushConsumer, "max_cached_bytes") == 64 << 20
    assert (receive_loop.THROTTLED_S, receive_loop.FAILED_S, settling.RETRY_S) == (0.02, 1.0, 1.0)
    assert push_consumer.SCAN_S == 5.0
    assert (client.HEARTBEAT_S, client.ROUTE_S, client.RESYNC_S) == (10.0, 30.0, 300.0)
    assert retry.CONSUMER_DEFAULT.max_attempts == 17


async def test_5_04_a_start_asks_for_routes_then_settings_then_assignments_then_messages(
    own_broker: TestBroker,
) -> None:
    own_broker.create_topic("t")
    seen = Seen()
    with own_broker.recording() as calls:
        async with PushConsumer(
            own_broker.endpoint, group="g", subscriptions={"t": "*"}, listener=seen
        ):
            await reaches(lambda: "ReceiveMessage" in calls)
    order = [calls.index(name) for name in ("QueryRoute", "Telemetry", "QueryAssignment")]
    assert order == sorted(order)
    assert calls.index("ReceiveMessage") > order[-1]
    assert calls[-1] == "NotifyClientTermination"


async def test_5_05_r_5_a_group_that_becomes_ordered_is_consumed_in_order_from_then_on(
    own_broker: TestBroker,
) -> None:
    own_broker.create_topic("t", "MIXED", 1)
    own_broker.create_group("g", backoff=(timedelta(milliseconds=10),))
    failures = iter([FAILURE, FAILURE])
    seen = Seen(lambda m: next(failures, SUCCESS) if m.body == b"0" else SUCCESS)
    async with PushConsumer(
        own_broker.endpoint, group="g", subscriptions={"t": "*"}, listener=seen
    ) as consumer:
        await reaches(lambda: not consumer.running_info().is_ordered)
        own_broker.create_group("g", fifo=True, backoff=(timedelta(milliseconds=10),))
        await reaches(lambda: consumer.running_info().is_ordered)
        await send(own_broker, "t", b"0", b"1", b"2", group="one")
        await seen.count(5)
        await settled(own_broker)
    assert [m.body for m in seen.messages] == [b"0", b"0", b"0", b"1", b"2"]


async def test_5_06_a_scan_that_fails_is_made_again(
    own_broker: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_consumer, "SCAN_S", 0.05)
    seen = Seen()
    await send(own_broker, "t", b"x")
    with own_broker.fault("QueryAssignment", code="INTERNAL_SERVER_ERROR", times=2):
        async with PushConsumer(
            own_broker.endpoint, group="g", subscriptions={"t": "*"}, listener=seen
        ):
            await seen.count(1)


async def test_5_10_i_24_clients_of_one_loop_share_a_connection(own_broker: TestBroker) -> None:
    before = connections(own_broker)
    producers = [Producer(own_broker.endpoint, topics=["t"]) for _ in range(5)]
    for producer in producers:
        await producer.start()
    assert connections(own_broker) == before + 1
    for producer in producers:
        await producer.close()


def connections(broker: TestBroker) -> int:
    """Established connections of this process to the broker's port."""
    import psutil

    port = int(broker.endpoint.rpartition(":")[2])
    return sum(
        each.raddr != () and each.raddr.port == port and each.status == "ESTABLISHED"
        for each in psutil.Process().net_connections("tcp")
    )


async def test_5_14_i_13_a_full_cache_fetches_on_when_it_drains_not_a_second_later(
    own_broker: TestBroker,
) -> None:
    seen = Seen()
    await send(own_broker, "t", *(str(n).encode() for n in range(50)))
    async with (
        asyncio.timeout(20),  # at one a second it would be 50
        PushConsumer(
            own_broker.endpoint,
            group="g",
            subscriptions={"t": "*"},
            listener=seen,
            max_cached_messages=1,
        ),
    ):
        await seen.count(50)


async def test_5_16_an_attempt_id_is_kept_until_something_was_received() -> None:
    attempts: list[str] = []
    answers: Iterator[Received | Exception] = iter(
        [
            ConnectionFailed("gone"),
            Received(),
            Received([MessageView("1", "t", b"x")]),
            Received([MessageView("2", "t", b"x")]),
        ]
    )
    place = MessageQueue("t", 0, "b", endpoints.parse("127.0.0.1:1"))
    queue = ProcessQueue(place, Filter())

    async def fetch(queue: ProcessQueue, _messages: int, attempt_id: str) -> Received:
        attempts.append(attempt_id)
        answer = next(answers, None)
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            queue.is_dropped = True
            return Received()
        return answer

    allowed = asyncio.Event()
    allowed.set()
    loop = ReceiveLoop(
        queue,
        fetch,
        lambda: 32,
        lambda: Thresholds(100, 1000),
        lambda _q, _m: None,
        allowed,
        asyncio.Event(),
        lambda: True,
    )
    rest_s, receive_loop.FAILED_S = receive_loop.FAILED_S, 0.0
    try:
        await loop.run()
    finally:
        receive_loop.FAILED_S = rest_s
    assert attempts[0] == attempts[1] == attempts[2] != attempts[3] != attempts[4]


async def test_5_08_an_ordered_group_is_assigned_every_queue_and_a_standard_one_any(
    own_broker: TestBroker,
) -> None:
    own_broker.create_topic("t", "FIFO", 4)
    own_broker.create_group("ordered", fifo=True)
    own_broker.create_group("standard")
    for group, queues in (("ordered", {0, 1, 2, 3}), ("standard", {-1})):
        async with PushConsumer(
            own_broker.endpoint, group=group, subscriptions={"t": "*"}, listener=Seen()
        ) as consumer:
            await reaches(lambda consumer=consumer: bool(consumer.running_info().queues))  # type: ignore[misc]  # bound now
            assert {one.queue_id for one in consumer.running_info().queues} == queues


async def test_5_18_a_message_is_held_until_its_ack_is_through(
    own_broker: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "RETRY_S", 0.02)
    seen = Seen()
    await send(own_broker, "t", b"x")
    async with PushConsumer(
        own_broker.endpoint, group="g", subscriptions={"t": "*"}, listener=seen
    ) as consumer:
        with own_broker.recording() as calls, own_broker.fault("AckMessage", unavailable=True):
            await reaches(lambda: calls.count("AckMessage") >= 3)
            assert consumer.statistics().cached_messages == 1
        await reaches(lambda: consumer.statistics().cached_messages == 0)
        await settled(own_broker)
    assert len(seen.messages) == 1


async def test_5_20_a_damaged_message_of_an_ordered_group_goes_to_the_dead_letters(
    own_broker: TestBroker,
) -> None:
    own_broker.create_topic("t", "FIFO", 1)
    own_broker.create_group("g", fifo=True)
    seen = Seen()
    await send(own_broker, "t", b"spoilt", group="one")
    with own_broker.fault("ReceiveMessage", corrupt=True, times=1):
        async with PushConsumer(
            own_broker.endpoint, group="g", subscriptions={"t": "*"}, listener=seen
        ) as consumer:
            await settled(own_broker, lambda left: left.dead == {"g": 1})
            await send(own_broker, "t", b"next", group="one")
            await seen.count(1)
            assert consumer.statistics().corrupted == 1
    assert [m.body for m in seen.messages] == [b"next"]


async def test_5_22_accelerated_message_groups_go_side_by_side_and_each_in_order(
    own_broker: TestBroker,
) -> None:
    own_broker.create_topic("t", "FIFO", 1)
    own_broker.create_group("g", fifo=True)
    gate = asyncio.Event()
    seen: list[bytes] = []

    async def listener(message: MessageView) -> ConsumeResult:
        if message.message_group == "slow":
            await gate.wait()
        seen.append(message.body)
        return SUCCESS

    async with Producer(own_broker.endpoint) as producer:
        for number in range(4):
            for group in ("slow", "fast"):
                body = f"{group}{number}".encode()
                await producer.send(Message("t", body, message_group=group))
    async with PushConsumer(
        own_broker.endpoint,
        group="g",
        subscriptions={"t": "*"},
        listener=listener,
        accelerated=True,
    ):
        await reaches(lambda: len(seen) == 4)
        gate.set()
        await reaches(lambda: len(seen) == 8)
    assert seen == [f"{group}{n}".encode() for group in ("fast", "slow") for n in range(4)]


class Everything(Interceptor):
    """Writes down every hook point, begun and ended."""

    def __init__(self) -> None:
        self.begun: list[HookPoint] = []
        self.ended: list[HookPoint] = []

    def before(self, context: HookContext) -> None:
        self.begun.append(context.point)

    def after(self, context: HookContext) -> None:
        self.ended.append(context.point)


async def test_5_24_4_72_every_hook_point_is_seen_begun_and_ended(own_broker: TestBroker) -> None:
    own_broker.create_topic("f", "FIFO", 1)
    own_broker.create_group("g", fifo=True, max_attempts=1)
    own_broker.create_group("h", backoff=(timedelta(milliseconds=10),))
    every = Everything()
    seen = Seen(lambda m: FAILURE if m.delivery_attempt == 1 else SUCCESS)
    options: dict[str, Any] = {"listener": seen, "interceptors": [every]}
    async with Producer(
        own_broker.endpoint,
        interceptors=[every],
        transaction_checker=lambda _: TransactionResolution.UNKNOWN,
    ) as producer:
        await producer.send(Message("f", b"x", message_group="one"))
        await producer.send_nowait(Message("t", b"x"))
        await producer.send([Message("u", b"x")])
        for _ in range(2):
            transaction = producer.begin_transaction()
            await producer.send(Message("u", b"x"), transaction=transaction)
            await (transaction.rollback() if _ else transaction.commit())
        later = await producer.send(Message("u", b"x", delay=timedelta(hours=1)))
        await producer.recall("u", later.recall_handle)
        assert every.begun.count(HookPoint.SEND) == 6
    async with (
        PushConsumer(own_broker.endpoint, group="g", subscriptions={"f": "*"}, **options),
        PushConsumer(own_broker.endpoint, group="h", subscriptions={"t": "*"}, **options),
    ):
        await seen.count(3)
        await reaches(lambda: set(every.ended) == set(HookPoint))
    assert set(every.begun) == set(HookPoint)


async def test_4_07_a_busy_queue_yields_to_the_others(own_broker: TestBroker) -> None:
    own_broker.create_group("g", fifo=True)
    seen = Seen()
    for topic, number in (("busy", 60), ("calm", 3)):
        own_broker.create_topic(topic, "FIFO", 1)
        await send(own_broker, topic, *(str(n).encode() for n in range(number)), group="one")
    async with PushConsumer(
        own_broker.endpoint,
        group="g",
        subscriptions={"busy": "*", "calm": "*"},
        listener=seen,
        concurrency=1,
    ):
        await seen.count(63)
    topics = [m.topic for m in seen.messages]
    assert max(n for n, topic in enumerate(topics) if topic == "calm") < 62


async def test_4_22_reading_begins_at_a_moment_where_nothing_is_stored(
    own_broker: TestBroker,
) -> None:
    await send(own_broker, "t", b"before")
    await asyncio.sleep(0.02)  # stored stamps are milliseconds
    moment = datetime.now(UTC)
    await send(own_broker, "t", b"after")
    async with PullConsumer(
        own_broker.endpoint, group="g", topics=["t"], start_from=moment
    ) as consumer:
        assert [m.body for m in await consumer.poll()] == [b"after"]


async def test_4_27_a_queue_that_is_taken_away_has_its_offset_kept(own_broker: TestBroker) -> None:
    own_broker.create_topic("t", queues=2)
    await send(own_broker, "t", *(str(n).encode() for n in range(8)))
    async with PullConsumer(own_broker.endpoint, group="g") as consumer:
        await consumer.assign([("t", 0)])
        first = await consumer.poll()
        await consumer.assign([("t", 1)])
        await consumer.assign([("t", 0)])
        assert consumer.position("t", 0) == len(first)


def cached(messages: int, size: int = 10) -> Any:
    from cosmodrome._client.pull_reader import Reader

    reader = Reader(MessageQueue("t", 0, "b", endpoints.parse("127.0.0.1:1")))
    reader.cached = [MessageView(str(n), "t", b"x" * size) for n in range(messages)]
    reader.cached_bytes = messages * size
    return reader


def test_4_30_to_4_33_a_queue_is_full_by_count_by_bytes_by_span_or_by_its_topics_share() -> None:
    assert not FlowControl(messages=4).is_full(cached(3), 1)
    assert FlowControl(messages=4).is_full(cached(4), 1)
    assert FlowControl(body_bytes=40).is_full(cached(4), 1)
    wide = cached(1)
    wide.next_read = 2000
    assert FlowControl().is_full(wide, 1)
    assert not FlowControl(span=0).is_full(wide, 1)
    # A topic's bound is shared by its queues and replaces theirs; never less than one.
    assert FlowControl(messages=1, topic_messages=16).is_full(cached(4), 4)
    assert not FlowControl(messages=1, topic_messages=16).is_full(cached(3), 4)
    assert FlowControl(topic_messages=2).is_full(cached(1), 8)
    assert FlowControl(topic_bytes=80).is_full(cached(2), 4)


@pytest.mark.parametrize(
    ("reset", "bodies"),
    [
        (OffsetReset.FIRST, [b"0", b"1"]),
        (OffsetReset.LAST, []),
        (OffsetReset.NEAREST, []),
    ],
)
async def test_4_36_an_offset_that_does_not_exist_is_reset_as_asked(
    own_broker: TestBroker, reset: OffsetReset, bodies: list[bytes]
) -> None:
    own_broker.create_topic("t", queues=1)
    await send(own_broker, "t", b"0", b"1")
    async with PullConsumer(
        own_broker.endpoint, group="g", topics=["t"], offset_reset=reset
    ) as consumer:
        await consumer.seek("t", 0, 99)
        assert [m.body for m in await consumer.poll(timeout=20 if bodies else 0.2)] == bodies
        if not bodies:
            await reaches(lambda: consumer.position("t", 0) == 2)


async def test_4_36_an_offset_that_does_not_exist_is_an_error_until_it_is_sought_elsewhere(
    own_broker: TestBroker,
) -> None:
    own_broker.create_topic("t", queues=1)
    await send(own_broker, "t", b"0")
    async with PullConsumer(
        own_broker.endpoint, group="g", topics=["t"], offset_reset=OffsetReset.ERROR
    ) as consumer:
        await consumer.seek("t", 0, 99)
        with pytest.raises(errors.OffsetNotFound, match="offset 99 of t 0"):
            await consumer.poll()
        await consumer.seek("t", 0, 0)
        assert [m.body for m in await consumer.poll()] == [b"0"]


async def test_4_39_f_12_tags_are_compared_here_too(
    own_broker: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A broker that lets everything pass stands for one that compares hashes: Aa and BB have one.
    monkeypatch.setattr(Filter, "to_wire", lambda _: pb.FilterExpression(expression="*"))
    seen = Seen()
    await send(own_broker, "t", b"no", tag="Aa")
    await send(own_broker, "t", b"yes", tag="BB")
    async with PushConsumer(
        own_broker.endpoint, group="g", subscriptions={"t": "BB || CC"}, listener=seen
    ):
        await seen.count(1)
        await settled(own_broker)
    async with SimpleConsumer(
        own_broker.endpoint, group="h", subscriptions={"t": "BB"}, await_duration=1
    ) as simple:
        while not (messages := await simple.receive(invisible=60)):
            pass  # what was left out came first
        assert [m.body for m in messages] == [b"yes"]
    assert [m.body for m in seen.messages] == [b"yes"]


async def test_4_56_members_that_subscribe_differently_are_told(
    own_broker: TestBroker, caplog: pytest.LogCaptureFixture
) -> None:
    for topic in ("a", "b"):
        own_broker.create_topic(topic)

    def member(group: str, *topics: str) -> SimpleConsumer:
        wanted = dict.fromkeys(topics, "*")
        return SimpleConsumer(own_broker.endpoint, group=group, subscriptions=wanted)

    def told() -> list[str]:
        return [one.getMessage() for one in caplog.records if one.name == "cosmodrome"]

    with caplog.at_level(logging.WARNING, "cosmodrome"):
        async with member("g", "a", "b"), member("h", "a"), member("h", "a"):
            assert not told()
            async with member("g", "a"):
                (words,) = told()
    assert "subscribe differently" in words


@pytest.mark.parametrize(
    "code",
    ["MASTER_PERSISTENCE_TIMEOUT", "SLAVE_PERSISTENCE_TIMEOUT", "HA_NOT_AVAILABLE"],
)
async def test_4_63_storage_that_is_late_says_the_message_may_be_stored(
    own_broker: TestBroker, code: str
) -> None:
    async with Producer(own_broker.endpoint, max_attempts=1) as producer:
        with own_broker.fault("SendMessage", code=code):
            with pytest.raises(errors.StatusError) as caught:
                await producer.send(Message("t", b"x"))
    assert caught.value.maybe_stored


async def test_4_75_an_operator_has_one_consumer_consume_one_message(
    own_broker: TestBroker,
) -> None:
    seen = Seen(lambda m: FAILURE if m.body == b"bad" else SUCCESS)
    own_broker.create_group("g", backoff=(timedelta(minutes=1),))
    async with Producer(own_broker.endpoint) as producer:
        good = await producer.send(Message("t", b"good"))
        bad = await producer.send(Message("t", b"bad"))
    async with (
        PushConsumer(
            own_broker.endpoint, group="g", subscriptions={"t": "*"}, listener=seen
        ) as consumer,
        AdminClient(own_broker.endpoint) as admin,
    ):
        await seen.count(2)
        await admin.verify(consumer.client_id, "g", "t", good.message_id)
        with pytest.raises(errors.StatusError):
            await admin.verify(consumer.client_id, "g", "t", bad.message_id)
    assert sorted(m.body for m in seen.messages) == [b"bad", b"bad", b"good", b"good"]


# What the catalogue of the reference does not cover (6.7).

RPCS = ["QueryRoute", "SendMessage", "QueryAssignment", "ReceiveMessage", "AckMessage", "Heartbeat"]


@pytest.mark.parametrize("rpc", [*RPCS, "ChangeInvisibleDuration", "PullMessage", "GetOffset"])
async def test_6_7_throttling_of_any_rpc_is_got_over(
    own_broker: TestBroker, rpc: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "RETRY_S", 0.02)
    monkeypatch.setattr(push_consumer, "SCAN_S", 0.05)
    monkeypatch.setattr(client, "HEARTBEAT_FIRST_S", 0.01)
    own_broker.create_topic("t")
    own_broker.create_group("g", backoff=(timedelta(milliseconds=10),))
    seen = Seen(lambda m: FAILURE if m.delivery_attempt == 1 else SUCCESS)
    with own_broker.fault(rpc, code="TOO_MANY_REQUESTS", times=1):
        async with (
            Producer(own_broker.endpoint, topics=["t"]) as producer,
            PushConsumer(own_broker.endpoint, group="g", subscriptions={"t": "*"}, listener=seen),
        ):
            await producer.send(Message("t", b"x"))
            await seen.count(2)
            await settled(own_broker)
        if rpc == "GetOffset":
            with pytest.raises(errors.TooManyRequests):
                await PullConsumer(own_broker.endpoint, group="p", topics=["t"]).start()
        async with PullConsumer(own_broker.endpoint, group="p", topics=["t"]) as pull:
            assert [m.body for m in await pull.poll()] == [b"x"]


async def test_4_70_routes_heartbeats_and_assignments_are_renewed_for_ever(
    own_broker: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HEARTBEAT_FIRST_S", "HEARTBEAT_S", "ROUTE_FIRST_S", "ROUTE_S"):
        monkeypatch.setattr(client, name, 0.01)
    monkeypatch.setattr(push_consumer, "SCAN_S", 0.01)
    own_broker.create_topic("t")
    with own_broker.recording() as calls:
        async with PushConsumer(
            own_broker.endpoint, group="g", subscriptions={"t": "*"}, listener=Seen()
        ):
            await reaches(
                lambda: min(map(calls.count, ("QueryRoute", "Heartbeat", "QueryAssignment"))) >= 3
            )


async def test_6_7_a_connection_that_hangs_is_given_up_after_two_heartbeats(
    own_broker: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "HEARTBEAT_FIRST_S", 0.01)
    monkeypatch.setattr(client, "HEARTBEAT_S", 0.01)
    hurried = ClientConfiguration(own_broker.endpoint, request_timeout=timedelta(milliseconds=200))
    async with Producer(own_broker.endpoint, topics=["t"]) as producer:
        with (
            monkeypatch.context() as patch,
            own_broker.recording() as calls,
            own_broker.fault("Heartbeat", drop=True, times=2),
        ):
            # Of the heartbeats alone: any other call may take longer than that.
            patch.setattr(producer._rpc, "_configuration", hurried)
            await reaches(lambda: calls.count("Telemetry") >= 1)
        await producer.send(Message("t", b"x"))


async def test_6_7_credentials_are_asked_for_before_every_call(own_broker: TestBroker) -> None:
    asked: list[Credentials] = []

    def rotating() -> Credentials:
        asked.append(Credentials(f"key{len(asked)}", "secret", session_token=f"token{len(asked)}"))
        return asked[-1]

    where = ClientConfiguration(own_broker.endpoint, credentials=rotating)
    async with Producer(where, topics=["t"], max_attempts=1) as producer:
        before = len(asked)
        await producer.send(Message("t", b"1"))
        await producer.send(Message("t", b"2"))
    assert len(asked) >= before + 2


async def test_6_7_ten_thousand_message_groups_arrive_once_each(own_broker: TestBroker) -> None:
    own_broker.create_topic("t", "FIFO", 8)
    own_broker.create_group("g", fifo=True)
    groups = 10_000
    async with Producer(own_broker.endpoint) as producer:
        await asyncio.gather(
            *(
                producer.send(Message("t", str(n).encode(), message_group=f"group-{n}"))
                for n in range(groups)
            )
        )
    seen: list[bytes] = []

    async def listener(message: MessageView) -> ConsumeResult:
        seen.append(message.body)
        return SUCCESS

    async with PushConsumer(
        own_broker.endpoint,
        group="g",
        subscriptions={"t": "*"},
        listener=listener,
        accelerated=True,
        concurrency=64,
    ):
        async with asyncio.timeout(60):
            while len(seen) < groups:  # noqa: ASYNC110 - a counter
                await asyncio.sleep(0.05)
    assert len(set(seen)) == len(seen) == groups


async def test_6_7_a_changed_filter_takes_effect_at_once(own_broker: TestBroker) -> None:
    own_broker.create_topic("t")
    seen = Seen()
    async with PushConsumer(
        own_broker.endpoint, group="g", subscriptions={"t": "old"}, listener=seen
    ) as consumer:
        await send(own_broker, "t", b"1", tag="old")
        await seen.count(1)
        await consumer.subscribe("t", "new")
        await send(own_broker, "t", b"2", tag="old")
        await send(own_broker, "t", b"3", tag="new")
        await seen.count(2)
    assert [m.body for m in seen.messages] == [b"1", b"3"]


async def test_6_7_brokers_that_no_route_names_any_more_are_left(own_broker: TestBroker) -> None:
    with TestBroker() as gone:
        async with Producer(own_broker.endpoint, topics=["t"]) as producer:
            elsewhere = endpoints.parse(gone.endpoint)
            producer._open_session(elsewhere)
            await reaches(lambda: producer._sessions[elsewhere].is_settled)
            await producer._refresh()
            assert [str(where) for where in producer._sessions] == [own_broker.endpoint]
            await producer.send(Message("t", b"x"))


# Rows of the end-to-end catalogue that no scenario of tests/conformance has.


async def test_sc_4_without_subscriptions_there_is_nothing_to_receive(
    own_broker: TestBroker,
) -> None:
    async with SimpleConsumer(own_broker.endpoint, group="g") as consumer:
        with pytest.raises(errors.IllegalArgument, match="nothing is subscribed"):
            await consumer.receive()


async def test_r_4_a_changed_maximum_of_attempts_holds_while_the_consumer_runs(
    own_broker: TestBroker,
) -> None:
    backoff = (timedelta(milliseconds=10),)
    own_broker.create_group("g", max_attempts=50, backoff=backoff)
    seen = Seen(lambda _: FAILURE)
    await send(own_broker, "t", b"x")
    async with PushConsumer(
        own_broker.endpoint, group="g", subscriptions={"t": "*"}, listener=seen
    ):
        await seen.count(2)
        own_broker.create_group("g", max_attempts=3, backoff=backoff)
        await settled(own_broker, lambda left: left.dead == {"g": 1})
    assert 3 <= len(seen.messages) < 50


async def test_a_10_a_11_delayed_and_committed_messages_are_received_and_acknowledged(
    timeless: TestBroker,
) -> None:
    timeless.create_group("g")
    async with (
        Producer(
            timeless.endpoint, transaction_checker=lambda _: TransactionResolution.UNKNOWN
        ) as producer,
        SimpleConsumer(
            timeless.endpoint, group="g", subscriptions={"t": "*"}, await_duration=1
        ) as consumer,
    ):
        async with producer.begin_transaction() as transaction:
            await producer.send(Message("t", b"half"), transaction=transaction)
            await transaction.commit()
        await producer.send(Message("t", b"later", delay=timedelta(seconds=10)))
        for body in (b"half", b"later"):
            (message,) = await consumer.receive()
            assert message.body == body
            await consumer.ack(message)
            await asyncio.to_thread(timeless.advance, timedelta(seconds=11))
    assert not timeless.leftovers()


async def test_ro_1_ro_2_a_group_is_reset_to_the_start_and_to_the_end(
    own_broker: TestBroker,
) -> None:
    own_broker.create_topic("t", queues=1)
    own_broker.create_group("g")
    await send(own_broker, "t", *(str(n).encode() for n in range(10)))
    async with AdminClient(own_broker.endpoint) as admin:
        for to, count in (("last", 0), ("first", 10)):
            await admin.reset_offset("g", "t", to)
            async with SimpleConsumer(
                own_broker.endpoint, group="g", subscriptions={"t": "*"}, await_duration=0.2
            ) as consumer:
                messages = await consumer.receive()
                assert len(messages) == count
                await consumer.ack(messages)
