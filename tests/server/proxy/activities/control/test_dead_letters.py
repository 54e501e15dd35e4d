"""Redrive: dead letters go back where they came from."""

from typing import Any

import pytest

from cosmodrome_proto import control_pb2 as control
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from tests.support.proxy_world import ProxyWorld, handle_of, message, resource, run


async def bury(world: ProxyWorld, *bodies: bytes) -> None:
    for body in bodies:
        await world.send(message(body, message_id=body.decode()))
        (received,) = await world.receive()
        request = rpc.ForwardMessageToDeadLetterQueueRequest(
            group=resource("billing"),
            topic=resource("normal"),
            receipt_handle=handle_of(received),
            message_id=body.decode(),
        )
        assert await world.code("ForwardMessageToDeadLetterQueue", request) == pb.OK


async def redrive(world: ProxyWorld, **settings: Any) -> control.RedriveResponse:
    answer = await world.call("Redrive", control.RedriveRequest(group="billing", **settings))
    assert isinstance(answer, control.RedriveResponse)
    return answer


def test_dead_letters_go_back_in_their_order_by_as_many_as_asked_for() -> None:
    async def scenario(world: ProxyWorld) -> None:
        await bury(world, b"a", b"b", b"c")
        tried = await redrive(world, dry_run=True)
        assert (tried.moved, tried.remaining) == (3, 3)
        first = await redrive(world, max_messages=2)
        assert (first.moved, first.remaining) == (2, 1)
        assert sorted(one.body for one in await world.receive()) == [b"a", b"b"]
        second = await redrive(world, from_offset=first.next_offset)
        assert (second.moved, second.remaining) == (1, 0)
        assert [one.body for one in await world.receive()] == [b"c"]
        assert (await redrive(world)).moved == 0

    run(scenario)


def test_single_ones_are_chosen_by_offset_and_topic() -> None:
    async def scenario(world: ProxyWorld) -> None:
        await bury(world, b"a", b"b", b"c")
        assert (await redrive(world, topic="fifo")).moved == 0
        assert (await redrive(world, offsets=[1], topic="normal")).moved == 1
        assert [one.body for one in await world.receive()] == [b"b"]

    run(scenario)


@pytest.mark.parametrize(
    ("request_", "code", "words"),
    [
        (control.RedriveRequest(), pb.ILLEGAL_CONSUMER_GROUP, "group"),
        (control.RedriveRequest(group="nobody"), pb.CONSUMER_GROUP_NOT_FOUND, "nobody"),
        (control.RedriveRequest(group="billing", max_messages=-1), pb.BAD_REQUEST, "-1"),
    ],
)
def test_a_redrive_that_cannot_be_is_refused(
    request_: control.RedriveRequest, code: int, words: str
) -> None:
    async def scenario(world: ProxyWorld) -> None:
        answer = await world.call("Redrive", request_)
        assert answer.status.code == code
        assert words in answer.status.message

    run(scenario)


def test_without_dead_letters_nothing_moves() -> None:
    async def scenario(world: ProxyWorld) -> None:
        answer = await redrive(world)
        assert (answer.status.code, answer.moved, answer.remaining) == (pb.OK, 0, 0)

    run(scenario)


def test_letters_whose_topic_is_gone_are_refused_and_stay() -> None:
    async def scenario(world: ProxyWorld) -> None:
        await bury(world, b"a")
        await world.call("DeleteTopic", control.DeleteTopicRequest(name="normal"))
        answer = await redrive(world)
        assert answer.status.code == pb.TOPIC_NOT_FOUND
        assert "normal" in answer.status.message
        await world.call(
            "CreateTopic", control.CreateTopicRequest(topic=control.Topic(name="normal", queues=2))
        )
        assert (await redrive(world)).moved == 1

    run(scenario)
