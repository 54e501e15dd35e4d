"""PullMessage, UpdateOffset, GetOffset, QueryOffset."""

from typing import Any

import pytest

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.proxy.convert import to_duration, to_timestamp
from tests.support.broker_world import START_MS
from tests.support.proxy_world import (
    ProxyWorld,
    message,
    no_collector,
    resource,
    run,
    seen_to_go,
)


def queue(topic: str = "normal", queue_id: int = 0) -> pb.MessageQueue:
    return pb.MessageQueue(topic=resource(topic), id=queue_id)


def pull_request(offset: int, *, batch: int = 32, **changes: Any) -> rpc.PullMessageRequest:
    return rpc.PullMessageRequest(
        group=resource(changes.pop("group", "billing")),
        message_queue=changes.pop("message_queue", queue()),
        offset=offset,
        batch_size=batch,
        long_polling_timeout=to_duration(5_000),
        **changes,
    )


def update_request(offset: int, **changes: Any) -> rpc.UpdateOffsetRequest:
    return rpc.UpdateOffsetRequest(
        group=resource(changes.pop("group", "billing")),
        message_queue=changes.pop("message_queue", queue()),
        offset=offset,
    )


async def fill(world: ProxyWorld, count: int) -> int:
    """Send one batch; return the queue it went to."""
    await world.send(*[message(f"{n}".encode(), message_id=f"id{n}") for n in range(count)])
    await world.world.settle()
    bounds = [world.world.broker.bounds("normal", queue_id).max_offset for queue_id in range(2)]
    return bounds.index(count)


def test_a_pull_is_status_messages_and_the_next_offset() -> None:
    async def scenario(world: ProxyWorld) -> None:
        where = queue(queue_id=await fill(world, 3))
        answers = await world.answer("PullMessage", pull_request(1, message_queue=where))
        kinds = [one.WhichOneof("content") for one in answers]
        assert kinds == ["status", "message", "message", "next_offset"]
        assert [one.message.body for one in answers[1:3]] == [b"1", b"2"]
        assert answers[-1].next_offset == 3
        known = answers[1].message.system_properties
        assert not known.HasField("receipt_handle")
        assert not known.HasField("delivery_attempt")

    run(scenario)


def test_a_pull_hides_nothing_and_passes_over_what_its_filter_drops() -> None:
    async def scenario(world: ProxyWorld) -> None:
        await world.send(message(b"a", tag="a"), message(b"b", tag="b"))
        await world.world.settle()
        where = queue(queue_id=int(world.world.broker.bounds("normal", 1).max_offset > 0))
        wanted = pb.FilterExpression(type=pb.TAG, expression="a")
        request = pull_request(0, message_queue=where, filter_expression=wanted)
        for _ in range(2):
            answers = await world.answer("PullMessage", request)
            assert [one.message.body for one in answers[1:-1]] == [b"a"]
        assert len(await world.receive()) == 2

    run(scenario)


@pytest.mark.parametrize(("offset", "corrected"), [(-1, 0), (9, 3)])
def test_an_offset_outside_is_refused_with_the_nearest_inside(offset: int, corrected: int) -> None:
    async def scenario(world: ProxyWorld) -> None:
        where = queue(queue_id=await fill(world, 3))
        answers = await world.answer("PullMessage", pull_request(offset, message_queue=where))
        assert answers[0].status.code == pb.ILLEGAL_OFFSET
        assert [one.WhichOneof("content") for one in answers] == ["status", "next_offset"]
        assert answers[1].next_offset == corrected

    run(scenario)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"message_queue": queue("nope")}, pb.TOPIC_NOT_FOUND),
        ({"message_queue": queue("a b")}, pb.ILLEGAL_TOPIC),
        ({"message_queue": queue(queue_id=9)}, pb.BAD_REQUEST),
        ({"group": ""}, pb.ILLEGAL_CONSUMER_GROUP),
        ({"batch": -1}, pb.BAD_REQUEST),
    ],
)
def test_a_pull_that_cannot_be_is_a_status_alone(changes: dict[str, Any], code: int) -> None:
    async def scenario(world: ProxyWorld) -> None:
        answers = await world.answer("PullMessage", pull_request(0, **changes))
        assert [one.status.code for one in answers] == [code]

    run(scenario)


@pytest.mark.parametrize("is_served", [True, False])
def test_what_a_pull_carried_is_let_go_with_its_call(is_served: bool) -> None:
    async def scenario(world: ProxyWorld) -> None:
        where = queue(queue_id=await fill(world, 1))
        call = world.begin("PullMessage", pull_request(1, message_queue=where))
        for _ in range(2 if is_served else 0):
            await world.send(message())
        await world.world.settle()
        await world.later(5_000)
        assert len(call.messages) == (3 if is_served else 2)
        kept = seen_to_go(call)
        del call
        assert kept() is None

    with no_collector():
        run(scenario)


def test_a_pull_at_the_end_waits_and_is_served_or_says_where_to_go_on() -> None:
    async def scenario(world: ProxyWorld) -> None:
        where = queue(queue_id=await fill(world, 1))
        served = world.begin("PullMessage", pull_request(1, message_queue=where))
        cancelled = world.begin("PullMessage", pull_request(1, message_queue=where))
        cancelled.cancel()
        await world.send(message(b"new"))
        await world.send(message(b"new"))
        await world.world.settle()
        assert served.ended is not None
        assert rpc.PullMessageResponse.FromString(served.messages[1]).message.body == b"new"
        patient = world.begin("PullMessage", pull_request(2, message_queue=where))
        await world.later(5_000)
        status, following = map(rpc.PullMessageResponse.FromString, patient.messages)
        assert status.status.code == pb.MESSAGE_NOT_FOUND
        assert following.next_offset == 2

    run(scenario)


def test_an_offset_is_committed_and_read_back_also_backwards() -> None:
    async def scenario(world: ProxyWorld) -> None:
        where = queue(queue_id=await fill(world, 3))
        read = rpc.GetOffsetRequest(group=resource("billing"), message_queue=where)
        assert await world.code("GetOffset", read) == pb.OFFSET_NOT_FOUND
        for offset in (3, 1):
            update = update_request(offset, message_queue=where)
            assert await world.code("UpdateOffset", update) == pb.OK
            assert (await world.call("GetOffset", read)).offset == offset

    run(scenario)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (update_request(-1), pb.ILLEGAL_OFFSET),
        (update_request(0, group="nope"), pb.CONSUMER_GROUP_NOT_FOUND),
        (update_request(0, message_queue=queue("nope")), pb.TOPIC_NOT_FOUND),
        (update_request(0, message_queue=queue(queue_id=2)), pb.BAD_REQUEST),
    ],
)
def test_an_update_that_cannot_be_is_refused(request_: rpc.UpdateOffsetRequest, code: int) -> None:
    async def scenario(world: ProxyWorld) -> None:
        assert await world.code("UpdateOffset", request_) == code

    run(scenario)


def test_offsets_are_found_by_policy() -> None:
    async def scenario(world: ProxyWorld) -> None:
        where = queue(queue_id=await fill(world, 3))

        async def ask(policy: int, at_ms: int | None = None) -> Any:
            request = rpc.QueryOffsetRequest(
                message_queue=where, query_offset_policy=pb.QueryOffsetPolicy.ValueType(policy)
            )
            if at_ms is not None:
                request.timestamp.CopyFrom(to_timestamp(at_ms))
            return await world.call("QueryOffset", request)

        assert (await ask(pb.BEGINNING)).offset == 0
        assert (await ask(pb.END)).offset == 3
        assert (await ask(pb.TIMESTAMP, START_MS)).offset == 0
        assert (await ask(pb.TIMESTAMP, START_MS + 1)).offset == 3
        assert (await ask(pb.TIMESTAMP)).status.code == pb.BAD_REQUEST
        assert (await ask(9)).status.code == pb.BAD_REQUEST

    run(scenario)


def test_a_group_that_committed_on_one_queue_only_receives_from_all() -> None:
    async def scenario(world: ProxyWorld) -> None:
        first = await fill(world, 3)
        committed = queue(queue_id=1)
        at = rpc.UpdateOffsetRequest(group=resource("billing"), message_queue=committed)
        if first == 1:
            at.offset = 2
        assert await world.code("UpdateOffset", at) == pb.OK
        received = await world.receive()
        assert len(received) == (1 if first == 1 else 3)
        asked = rpc.GetOffsetRequest(group=resource("billing"), message_queue=committed)
        assert (await world.call("GetOffset", asked)).offset == (3 if first == 1 else 0)

    run(scenario)
