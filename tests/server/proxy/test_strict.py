"""Strict mode does without what is ours; and where a producer chooses its queue, it is kept."""

import pytest

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.proxy.activities.send_message import QUEUE_ID
from cosmodrome_server.proxy.front import GrpcStatus
from cosmodrome_server.proxy.service import OURS_ONLY
from tests.support.proxy_world import METHODS, FakeCall, ProxyWorld, consumer_settings, message, run

STRICT = {"server__strict": "true"}


async def offsets(world: ProxyWorld) -> list[int]:
    await world.world.settle()
    return [world.world.broker.bounds("normal", queue).max_offset for queue in range(2)]


def test_a_chosen_queue_is_kept_for_the_whole_request() -> None:
    async def scenario(world: ProxyWorld) -> None:
        for _ in range(2):
            answer = await world.send(message(), message(), headers={QUEUE_ID: "1"})
            assert answer.status.code == pb.OK
        assert await offsets(world) == [0, 4]

    run(scenario)


@pytest.mark.parametrize("wrong", ["2", "-1", "one", "", "٣", "9" * 5_000])
def test_a_queue_that_does_not_exist_is_refused(wrong: str) -> None:
    async def scenario(world: ProxyWorld) -> None:
        answer = await world.send(message(), headers={QUEUE_ID: wrong})
        assert answer.status.code == pb.BAD_REQUEST
        assert await offsets(world) == [0, 0]

    run(scenario)


def test_under_strict_a_batch_has_one_entry_and_the_server_chooses_queues() -> None:
    async def scenario(world: ProxyWorld) -> None:
        for _ in range(2):
            sent = [message(message_id=f"id{n}") for n in range(3)]
            answer = await world.send(*sent, headers={QUEUE_ID: "1"})
            assert [entry.message_id for entry in answer.entries] == ["id0"]
        assert await offsets(world) == [3, 3]

    run(scenario, **STRICT)


@pytest.mark.parametrize("name", sorted(OURS_ONLY))
def test_under_strict_the_rpcs_of_pulling_do_not_exist(name: str) -> None:
    async def scenario(world: ProxyWorld) -> None:
        path = METHODS[name].path
        assert path not in world.handlers
        call = FakeCall()
        world.handlers[f"{path.rpartition('/')[0]}/*"](call)
        assert call.ended is not None
        assert call.ended[0] is GrpcStatus.UNIMPLEMENTED

    run(scenario, **STRICT)


def test_under_strict_a_pull_consumer_is_refused() -> None:
    async def scenario(world: ProxyWorld) -> None:
        call = world.telemetry(consumer_settings(kind=pb.PULL_CONSUMER))
        assert call.ended is not None
        assert call.ended[0] is GrpcStatus.INVALID_ARGUMENT
        fine = world.telemetry(consumer_settings())
        assert fine.ended is None
        assert fine.commands()[0].HasField("settings")

    run(scenario, **STRICT)


def test_pulling_is_there_where_nothing_is_strict() -> None:
    async def scenario(world: ProxyWorld) -> None:
        request = rpc.QueryOffsetRequest(
            message_queue=pb.MessageQueue(topic=pb.Resource(name="normal"), id=0),
            query_offset_policy=pb.END,
        )
        assert await world.code("QueryOffset", request) == pb.OK

    run(scenario)
