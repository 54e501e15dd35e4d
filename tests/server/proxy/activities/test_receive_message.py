"""ReceiveMessage: stream order, bounds, waiting, what cannot be written goes back."""

import asyncio

import pytest

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from tests.support.proxy_world import (
    FakeCall,
    ProxyWorld,
    ack_request,
    consumer_settings,
    handle_of,
    message,
    no_collector,
    receive_request,
    run,
    seen_to_go,
)


def order(answers: list[rpc.ReceiveMessageResponse]) -> list[str | None]:
    return [one.WhichOneof("content") for one in answers]


def messages_of(call: FakeCall) -> list[pb.Message]:
    answers = [rpc.ReceiveMessageResponse.FromString(one) for one in call.messages]
    return [answer.message for answer in answers if answer.HasField("message")]


def test_status_comes_first_then_messages_then_the_delivery_timestamp() -> None:
    async def scenario(world: ProxyWorld) -> None:
        await world.send(message(b"a"), message(b"b"))
        answers = await world.answer("ReceiveMessage", receive_request())
        assert order(answers) == ["status", "message", "message", "delivery_timestamp"]
        assert [one.message.body for one in answers[1:3]] == [b"a", b"b"]
        assert answers[-1].delivery_timestamp.ToMilliseconds() == world.clocks.now_ms()

    run(scenario)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": ""}, pb.ILLEGAL_TOPIC),
        ({"topic": "nope"}, pb.TOPIC_NOT_FOUND),
        ({"group": "a b"}, pb.ILLEGAL_CONSUMER_GROUP),
        ({"group": "nope"}, pb.CONSUMER_GROUP_NOT_FOUND),
        ({"invisible_ms": 9_999}, pb.ILLEGAL_INVISIBLE_TIME),
        ({"invisible_ms": None}, pb.ILLEGAL_INVISIBLE_TIME),
        ({"invisible_ms": 43_200_001}, pb.ILLEGAL_INVISIBLE_TIME),
        ({"batch": -1}, pb.BAD_REQUEST),
        (
            {"filter_expression": pb.FilterExpression(type=pb.FilterType.ValueType(9))},
            pb.BAD_REQUEST,
        ),
        (
            {"filter_expression": pb.FilterExpression(type=pb.SQL, expression="a >")},
            pb.ILLEGAL_FILTER_EXPRESSION,
        ),
    ],
)
def test_an_error_is_a_status_and_then_the_delivery_timestamp(
    changes: dict[str, object], code: int
) -> None:
    async def scenario(world: ProxyWorld) -> None:
        answers = await world.answer("ReceiveMessage", receive_request(**changes))  # type: ignore[arg-type] # rows
        assert answers[0].status.code == code
        assert order(answers) == ["status", "delivery_timestamp"]

    run(scenario)


@pytest.mark.parametrize("invisible_ms", [10_000, 43_200_000])
def test_the_bounds_of_the_invisible_duration_are_inside(invisible_ms: int) -> None:
    async def scenario(world: ProxyWorld) -> None:
        await world.send(message())
        (received,) = await world.receive(invisible_ms=invisible_ms)
        told = received.system_properties.invisible_duration.ToMilliseconds()
        assert told == invisible_ms

    run(scenario)


def test_with_auto_renew_the_invisible_duration_is_the_servers() -> None:
    async def scenario(world: ProxyWorld) -> None:
        await world.send(message())
        (received,) = await world.receive(invisible_ms=1, auto_renew=True)
        assert received.system_properties.invisible_duration.ToMilliseconds() == 60_000

    run(scenario)


@pytest.mark.parametrize(("asked", "given"), [(0, 1), (1, 1), (32, 32), (1000, 32)])
def test_a_batch_is_1_to_32(asked: int, given: int) -> None:
    async def scenario(world: ProxyWorld) -> None:
        await world.send(*[message()] * 40)
        assert len(await world.receive(batch=asked)) == given

    run(scenario)


def test_an_empty_receive_is_answered_just_before_its_polling_time_ends() -> None:
    async def scenario(world: ProxyWorld) -> None:
        call = world.begin("ReceiveMessage", receive_request(poll_ms=5_000))
        await world.later(4_940)
        assert call.ended is None
        await world.later(20)
        assert call.ended is not None
        answers = [rpc.ReceiveMessageResponse.FromString(one) for one in call.messages]
        assert order(answers) == ["status", "delivery_timestamp"]
        assert answers[0].status.code == pb.MESSAGE_NOT_FOUND

    run(scenario)


def test_a_waiting_receive_is_served_when_a_message_arrives() -> None:
    async def scenario(world: ProxyWorld) -> None:
        call = world.begin("ReceiveMessage", receive_request())
        await world.world.settle()
        assert call.ended is None
        await world.send(message(b"late"))
        await world.world.settle()
        assert call.ended is not None
        assert rpc.ReceiveMessageResponse.FromString(call.messages[1]).message.body == b"late"

    run(scenario)


def test_more_waiting_receives_than_may_be_are_told_to_come_back() -> None:
    async def scenario(world: ProxyWorld) -> None:
        patient = world.begin("ReceiveMessage", receive_request())
        assert await world.code("ReceiveMessage", receive_request()) == pb.TOO_MANY_REQUESTS
        patient.cancel()
        again = world.begin("ReceiveMessage", receive_request())
        assert again.ended is None

    run(scenario, delivery__waiters_per_group="1")


def test_a_cancelled_receive_takes_nothing() -> None:
    async def scenario(world: ProxyWorld) -> None:
        call = world.begin("ReceiveMessage", receive_request())
        await world.world.settle()
        call.cancel()
        await world.send(message())
        (received,) = await world.receive()
        assert received.system_properties.delivery_attempt == 1

    run(scenario)


def test_messages_whose_client_went_away_before_they_were_written_come_again_at_once() -> None:
    async def scenario(world: ProxyWorld) -> None:
        await world.send(message())
        world.world.log.holding = True
        call = world.begin("ReceiveMessage", receive_request())
        await asyncio.sleep(0)
        call.cancel()
        await world.world.release()
        await world.later(1_100)
        (received,) = await world.receive()
        assert received.system_properties.delivery_attempt == 1, "the lost delivery does not count"

    run(scenario)


def test_a_deadline_too_short_for_polling_is_refused_before_anything_is_taken() -> None:
    async def scenario(world: ProxyWorld) -> None:
        await world.send(message())
        code = await world.code("ReceiveMessage", receive_request(), deadline_ms=3_000)
        assert code == pb.ILLEGAL_POLLING_TIME

    run(scenario)


def test_a_client_without_settings_receives_and_settles() -> None:
    async def scenario(world: ProxyWorld) -> None:
        await world.send(message())
        (received,) = await world.receive()
        assert await world.code("AckMessage", ack_request(handle_of(received))) == pb.OK

    run(scenario)


def test_a_fifo_push_consumer_gets_the_queue_it_names_and_a_simple_one_gets_any() -> None:
    async def scenario(world: ProxyWorld) -> None:
        ids = ["order-1", "order-2", "user-42", "b", "c"]
        await world.send(*[message(b"0", "fifo", message_group=group) for group in ids[:1]])
        for group in ids:
            await world.send(message(group.encode(), "fifo", message_group=group))
        world.telemetry(consumer_settings("ledger", "fifo", pb.PUSH_CONSUMER), client_id="push")
        request = receive_request(topic="fifo", group="ledger", queue_id=1)
        pushed = await world.answer("ReceiveMessage", request, client_id="push")
        queues = {one.message.system_properties.queue_id for one in pushed if one.message.body}
        assert queues == {1}
        world.telemetry(consumer_settings("ledger", "fifo"), client_id="simple")
        simple = await world.answer("ReceiveMessage", request, client_id="simple")
        assert any(one.message.body for one in simple), "served from the other queue"

    run(scenario)


def test_a_silent_client_that_renews_is_given_up_after_the_expiry() -> None:
    async def scenario(world: ProxyWorld) -> None:
        await world.send(message())
        assert len(await world.receive(auto_renew=True)) == 1
        for _ in range(13):
            await world.later(10_000)
        received = await world.receive()
        assert [one.system_properties.delivery_attempt for one in received] == [2]

    run(scenario)


@pytest.mark.parametrize(
    "end", ["at once", "when some come", "with nothing", "given up at once", "given up later"]
)
def test_what_a_receive_carried_is_let_go_with_its_call(end: str) -> None:
    """Many MiB each: the collector of cycles comes only after thousands."""

    async def scenario(world: ProxyWorld) -> None:
        if end == "at once":
            await world.send(message())
        call = world.begin("ReceiveMessage", receive_request())
        if end == "when some come":
            await world.send(message())
        elif end == "with nothing":
            await world.later(5_000)
        elif end == "given up at once":
            call.cancel()
        elif end == "given up later":
            await world.world.settle()
            call.cancel()
        await world.world.settle()
        kept = seen_to_go(call)
        del call
        assert kept() is None

    with no_collector():
        run(scenario)


def test_a_client_that_goes_away_in_the_turn_it_asked_in_takes_nothing() -> None:
    async def scenario(world: ProxyWorld) -> None:
        await world.send(message())
        world.begin("ReceiveMessage", receive_request()).cancel()
        await world.world.settle()
        (received,) = await world.receive()
        assert received.system_properties.delivery_attempt == 1
        gone = world.begin("ReceiveMessage", receive_request())
        gone.cancel()
        await world.world.settle()
        await world.send(message())
        assert len(await world.receive()) == 1, "it does not wait"

    run(scenario)


def test_receives_of_one_turn_are_each_answered() -> None:
    async def scenario(world: ProxyWorld) -> None:
        await world.send(message(b"1"))
        await world.send(message(b"2"))
        calls = [world.begin("ReceiveMessage", receive_request(batch=1)) for _ in range(3)]
        await world.world.settle()
        found = [[one.body for one in messages_of(call)] for call in calls[:2]]
        assert sorted(found) == [[b"1"], [b"2"]]
        assert calls[2].ended is None
        await world.send(message(b"3"))
        await world.world.settle()
        assert [one.body for one in messages_of(calls[2])] == [b"3"]

    run(scenario)


def test_a_bug_in_the_answer_of_one_receive_is_that_ones_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(world: ProxyWorld) -> None:
        def fails(_config: object, call: FakeCall, answer: list[bytes]) -> list[bytes]:
            if call is broken:
                raise RuntimeError("a bug")
            return answer

        monkeypatch.setattr("cosmodrome_server.proxy.activities.receive_message.packed", fails)
        await world.send(message(b"1"), message(b"2"))
        broken = world.begin("ReceiveMessage", receive_request(batch=1))
        other = world.begin("ReceiveMessage", receive_request(batch=1))
        await world.world.settle()
        status = rpc.ReceiveMessageResponse.FromString(broken.messages[0]).status
        assert status.code == pb.INTERNAL_SERVER_ERROR
        assert "a bug" not in status.message
        assert len(messages_of(other)) == 1

    run(scenario)
    assert "ReceiveMessage failed" in caplog.text
