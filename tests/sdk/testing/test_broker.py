"""The testing kit: a broker that restarts, errs and lets time pass on demand."""

import asyncio
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cosmodrome import ClientConfiguration, Message, MessageView, Producer, SimpleConsumer, errors
from cosmodrome.testing import TestBroker


def impatient(broker: TestBroker) -> ClientConfiguration:
    return ClientConfiguration(broker.endpoint, request_timeout=timedelta(milliseconds=300))


async def test_a_delay_of_a_day_takes_no_time(timeless: TestBroker) -> None:
    timeless.create_topic("t", "DELAY")
    async with (
        Producer(timeless.endpoint, topics=["t"]) as producer,
        SimpleConsumer(timeless.endpoint, group="g", subscriptions={"t": "*"}) as consumer,
    ):
        await producer.send(Message("t", b"x", delay=timedelta(hours=23)))
        waiting = asyncio.create_task(consumer.receive())
        await asyncio.to_thread(timeless.advance, timedelta(hours=22))
        assert not waiting.done() or waiting.result() == []
        await asyncio.to_thread(timeless.advance, timedelta(hours=1, seconds=5))
        found = await waiting or await consumer.receive()
        assert [message.body for message in found] == [b"x"]
        await consumer.ack(found)


async def test_what_is_sent_for_tomorrow_is_there_when_exactly_a_day_has_passed(
    timeless: TestBroker,
) -> None:
    timeless.create_topic("t", "DELAY")
    timeless.create_group("g")
    async with Producer(timeless.endpoint, topics=["t"]) as producer:
        await producer.send(Message("t", b"x", delay=timedelta(days=1)))
        for _ in range(2):
            await asyncio.to_thread(timeless.advance, timedelta(days=1))
            async with SimpleConsumer(
                timeless.endpoint, group="g", subscriptions={"t": "*"}, await_duration=1
            ) as consumer:
                (message,) = await consumer.receive()
                await consumer.ack(message)
            # The next day counts from the day that has come, not from the real one.
            await producer.send(Message("t", b"x", delay=timedelta(days=1)))
            left = await asyncio.to_thread(timeless.leftovers)
            assert not left.ready


async def test_an_invisible_duration_of_twelve_hours_takes_no_time(timeless: TestBroker) -> None:
    async with (
        Producer(timeless.endpoint, topics=["t"]) as producer,
        SimpleConsumer(timeless.endpoint, group="g", subscriptions={"t": "*"}) as consumer,
    ):
        await producer.send(Message("t", b"x"))
        await consumer.receive(1, timedelta(hours=12))
        await asyncio.to_thread(timeless.advance, timedelta(hours=12, seconds=1))
        (again,) = await consumer.receive(1)
        assert again.delivery_attempt == 2


def test_time_passes_by_hand_only_where_it_is_virtual(broker: TestBroker) -> None:
    with pytest.raises(RuntimeError, match="virtual_time"):
        broker.advance(timedelta(seconds=1))


@pytest.mark.parametrize("crash", [False, True])
async def test_what_was_sent_survives_a_restart(own_broker: TestBroker, crash: bool) -> None:
    endpoint = own_broker.endpoint
    async with Producer(endpoint, topics=["t"]) as producer:
        await producer.send(Message("t", b"before"))
        await asyncio.to_thread(own_broker.restart, crash=crash)
        assert own_broker.endpoint == endpoint
        await producer.send(Message("t", b"after"))
    async with SimpleConsumer(endpoint, group="g", subscriptions={"t": "*"}) as consumer:
        found: list[MessageView] = []
        while len(found) < 2:
            found += await consumer.receive()
        await consumer.ack(found)
    assert {message.body for message in found} == {b"before", b"after"}


async def test_an_error_code_is_answered_as_often_as_asked(own_broker: TestBroker) -> None:
    async with Producer(own_broker.endpoint, topics=["t"], max_attempts=1) as producer:
        with own_broker.fault("SendMessage", code="TOO_MANY_REQUESTS", times=1):
            with pytest.raises(errors.TooManyRequests):
                await producer.send(Message("t", b"1"))
            await producer.send(Message("t", b"2"))


async def test_a_dropped_answer_is_a_deadline(own_broker: TestBroker) -> None:
    async with Producer(impatient(own_broker), topics=["t"], max_attempts=1) as producer:
        with own_broker.fault("SendMessage", drop=True):
            with pytest.raises(errors.DeadlineExceeded) as caught:
                await producer.send(Message("t", b"x"))
    assert caught.value.maybe_stored


async def test_an_answer_lost_after_the_work_leaves_the_message_stored(
    own_broker: TestBroker,
) -> None:
    own_broker.create_group("g")
    async with Producer(impatient(own_broker), topics=["t"], max_attempts=1) as producer:
        with own_broker.fault("SendMessage", drop=True, after_handling=True, times=1):
            with pytest.raises(errors.DeadlineExceeded):
                await producer.send(Message("t", b"x"))
    async with SimpleConsumer(own_broker.endpoint, group="g", subscriptions={"t": "*"}) as c:
        assert [message.body for message in await c.receive()] == [b"x"]


async def test_an_unavailable_broker_is_tried_again(own_broker: TestBroker) -> None:
    async with Producer(own_broker.endpoint, topics=["t"], max_attempts=3) as producer:
        with own_broker.fault("SendMessage", unavailable=True, times=2) as fault:
            await producer.send(Message("t", b"x"))
            assert fault.times == 0


async def test_leftovers_tell_ready_from_in_flight(own_broker: TestBroker) -> None:
    own_broker.create_topic("t", queues=1)
    async with (
        Producer(own_broker.endpoint, topics=["t"]) as producer,
        SimpleConsumer(own_broker.endpoint, group="g", subscriptions={"t": "*"}) as consumer,
    ):
        for body in (b"1", b"2", b"3"):
            await producer.send(Message("t", body))
        await consumer.receive(1)
        left = await asyncio.to_thread(own_broker.leftovers)
    assert left
    assert (left.ready, left.in_flight, left.dead) == ({("g", "t"): 2}, {("g", "t"): 1}, {})


async def test_topics_need_creating_where_they_are_not_created_on_use() -> None:
    with TestBroker(auto_create=False) as broker:
        with pytest.raises(errors.NotFound):
            async with Producer(broker.endpoint, topics=["nowhere"]):
                pass


def test_closing_a_broker_twice_or_before_it_starts_is_fine() -> None:
    broker = TestBroker()
    broker.close()
    with TestBroker() as running:
        running.close()


async def test_clients_are_served_while_time_passes(timeless: TestBroker) -> None:
    passing = asyncio.create_task(asyncio.to_thread(timeless.advance, timedelta(days=2)))
    await asyncio.to_thread(timeless.leftovers)  # it has begun, or begins after this
    await asyncio.to_thread(timeless.leftovers)
    assert not passing.done()
    await passing


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"rpc": "SendMesage"}, "no RPC 'SendMesage'; did you mean SendMessage"),
        ({"code": "TOO_MANY_REQUEST"}, "did you mean TOO_MANY_REQUESTS"),
        ({"after_handling": True}, "loses an answer"),
    ],
)
def test_a_fault_that_nobody_would_ever_see_is_refused(
    broker: TestBroker, fault: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words), broker.fault(**fault):
        pass


def test_a_broker_that_does_not_start_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broker: TestBroker
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(Exception, match="no area"):
        TestBroker(settings={"sever.port": "1"})
    taken = broker.endpoint.rpartition(":")[2]
    second = TestBroker(settings={"server.port": taken})
    with pytest.raises(OSError, match="in use"):
        second.start()
    assert not second.is_running
    assert list(tmp_path.iterdir()) == []


def test_a_broker_that_does_not_run_says_so() -> None:
    with TestBroker() as closed:
        pass
    with pytest.raises(RuntimeError, match="not running"):
        closed.create_topic("t")
