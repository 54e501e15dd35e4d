"""ResetOffset: a group goes where it is told, on one queue or on all."""

from typing import Any

import pytest

from cosmodrome_proto import Timestamp
from cosmodrome_proto import control_pb2 as control
from cosmodrome_proto import definition_pb2 as pb
from tests.support.broker_world import START_MS
from tests.support.proxy_world import ProxyWorld, ack_request, handle_of, message, run


def request_of(**settings: Any) -> control.ResetOffsetRequest:
    return control.ResetOffsetRequest(**{"group": "billing", "topic": "normal", **settings})


async def some_consumed(world: ProxyWorld) -> None:
    for number in range(4):
        await world.send(message(b"%d" % number))
        world.clocks.pass_ms(1_000)
    received = await world.receive()
    assert len(received) == 4
    await world.call("AckMessage", ack_request(*map(handle_of, received)))
    assert await world.receive_nothing()


@pytest.mark.parametrize(
    ("target", "bodies"),
    [
        ({"policy": pb.BEGINNING}, [b"0", b"1", b"2", b"3"]),
        ({"policy": pb.END}, []),
        ({"timestamp": Timestamp(seconds=START_MS // 1000 + 2)}, [b"2", b"3"]),
    ],
)
def test_a_group_goes_back_and_forth_on_all_queues(
    target: dict[str, Any], bodies: list[bytes]
) -> None:
    async def scenario(world: ProxyWorld) -> None:
        await some_consumed(world)
        answer = await world.call("ResetOffset", request_of(**target))
        assert answer.status.code == pb.OK
        assert [offset.queue_id for offset in answer.offsets] == [0, 1]
        if not bodies:
            assert await world.receive_nothing()
        else:
            assert sorted(one.body for one in await world.receive()) == bodies

    run(scenario)


def test_one_queue_goes_to_an_offset() -> None:
    async def scenario(world: ProxyWorld) -> None:
        await some_consumed(world)
        answer = await world.call("ResetOffset", request_of(queue_id=1, offset=1))
        assert [(one.queue_id, one.offset) for one in answer.offsets] == [(1, 1)]
        assert len(await world.receive()) == 1

    run(scenario)


@pytest.mark.parametrize(
    ("settings", "code", "words"),
    [
        ({"topic": "normla", "policy": pb.END}, pb.TOPIC_NOT_FOUND, "no topic normla"),
        ({"group": "biling", "policy": pb.END}, pb.CONSUMER_GROUP_NOT_FOUND, "biling"),
        ({}, pb.BAD_REQUEST, "needs a timestamp, BEGINNING, END, or an offset"),
        ({"policy": pb.TIMESTAMP}, pb.BAD_REQUEST, "needs a timestamp"),
        ({"offset": 0}, pb.BAD_REQUEST, "name queue_id"),
        ({"queue_id": 2, "policy": pb.END}, pb.BAD_REQUEST, "2"),
        ({"queue_id": -1, "policy": pb.END}, pb.BAD_REQUEST, "-1"),
        ({"queue_id": 0, "offset": 99}, pb.ILLEGAL_OFFSET, "99"),
        ({"queue_id": 0, "offset": -1}, pb.ILLEGAL_OFFSET, "-1"),
    ],
)
def test_a_reset_that_cannot_be_changes_nothing(
    settings: dict[str, Any], code: int, words: str
) -> None:
    async def scenario(world: ProxyWorld) -> None:
        await some_consumed(world)
        known = [topic.name for topic in world.world.broker.topics()]
        answer = await world.call("ResetOffset", request_of(**settings))
        assert answer.status.code == code
        assert words in answer.status.message
        assert await world.receive_nothing()
        assert [topic.name for topic in world.world.broker.topics()] == known, "none was made"

    run(scenario, topics__auto_create="true")
