"""Long answers: made in turns of the loop, of what is there when its turn comes."""

import asyncio
from collections.abc import Iterator
from itertools import repeat

import pytest

from cosmodrome_proto import admin_pb2 as admin
from cosmodrome_proto import control_pb2 as control
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_server.errors import OverloadedError
from cosmodrome_server.model.group import Group
from cosmodrome_server.model.topic import Topic
from cosmodrome_server.proxy.turns import QUEUES_PER_TURN, answer_in_turns
from tests.support.proxy_world import FakeCall, ProxyWorld, message, resource, run

QUEUES = 256
TOPICS = 4 * QUEUES_PER_TURN // QUEUES


async def turns_until_answered(call: FakeCall) -> int:
    turns = 0
    while call.ended is None:
        turns += 1
        assert turns < 50, "not answered"
        await asyncio.sleep(0)
    return turns


def many_topics(world: ProxyWorld) -> list[str]:
    names = [f"many{number:02}" for number in range(TOPICS)]
    for name in names:
        world.world.broker.create_topic(Topic(name, queues=QUEUES))
    return names


def test_topics_are_listed_in_turns() -> None:
    async def scenario(world: ProxyWorld) -> None:
        names = many_topics(world)
        call = world.begin("ListTopics", control.ListTopicsRequest(prefix="many"))
        assert await turns_until_answered(call) > 3
        answer = control.ListTopicsResponse.FromString(call.messages[0])
        assert [state.topic.name for state in answer.topics] == names
        assert {len(state.queues) for state in answer.topics} == {QUEUES}

    run(scenario)


def test_a_topic_that_is_deleted_meanwhile_is_left_out_and_not_made_again() -> None:
    async def scenario(world: ProxyWorld) -> None:
        names = many_topics(world)
        call = world.begin("ListTopics", control.ListTopicsRequest(prefix="many"))
        assert call.ended is None
        world.world.broker.delete_topic(names[-1])
        await turns_until_answered(call)
        answer = control.ListTopicsResponse.FromString(call.messages[0])
        assert [state.topic.name for state in answer.topics] == names[:-1]
        assert not world.world.broker.has_topic(names[-1])

    run(scenario, topics__auto_create="true")


def test_groups_are_listed_in_turns_with_what_is_there_of_them() -> None:
    async def scenario(world: ProxyWorld) -> None:
        names = [f"many{number:03}" for number in range(QUEUES_PER_TURN // 4)]
        for name in names:
            world.world.broker.create_group(Group(name))
        for topic in ("normal", "mixed"):
            await world.send(message(topic=topic))
            await world.receive(topic=topic, group=names[-1])
        call = world.begin("ListGroups", control.ListGroupsRequest(prefix="many", lag=True))
        assert call.ended is None
        world.world.broker.delete_topic("mixed")
        await turns_until_answered(call)
        answer = control.ListGroupsResponse.FromString(call.messages[0])
        assert [state.group.name for state in answer.groups] == names
        (progress,) = answer.groups[-1].progress
        assert (progress.topic, progress.inflight) == ("normal", 1)

    run(scenario)


def test_what_a_group_reads_is_described_in_turns() -> None:
    async def scenario(world: ProxyWorld) -> None:
        names = [f"many{number:03}" for number in range(QUEUES_PER_TURN // 4)]
        for name in names:
            world.world.broker.create_topic(Topic(name, queues=1))
        for name in names:
            await world.send(message(topic=name))
            await world.receive(topic=name)
        await world.world.settle()
        asked = [resource(name) for name in names]
        billing = resource("billing")
        described = world.begin(
            "DescribeGroupAccumulation", admin.DescribeGroupAccumulationRequest(group=billing)
        )
        spans = world.begin(
            "QueryTimeSpan", admin.QueryTimeSpanRequest(group=billing, topics=asked)
        )
        world.world.broker.delete_topic(names[-1])
        assert described.ended is None
        assert await turns_until_answered(described) > 0
        answer = admin.DescribeGroupAccumulationResponse.FromString(described.messages[0])
        assert sorted(answer.topic_accumulation) == names[:-1]
        assert answer.accumulation.inflight_messages == len(names) - 1
        assert spans.ended is None
        await turns_until_answered(spans)
        told = admin.QueryTimeSpanResponse.FromString(spans.messages[0])
        assert told.status.code == pb.TOPIC_NOT_FOUND

    run(scenario)


def begun(world: ProxyWorld, steps: Iterator[int]) -> FakeCall:
    call = FakeCall()
    answer = control.ListTopicsResponse()
    answer_in_turns(world.context, "ListTopics", call, answer, steps)
    return call


def test_for_who_went_away_nothing_more_is_looked_at() -> None:
    async def scenario(world: ProxyWorld) -> None:
        steps = repeat(QUEUES_PER_TURN, 10)
        call = begun(world, steps)
        call.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(list(steps)) == 9
        assert not call.messages

    run(scenario)


@pytest.mark.parametrize(
    ("error", "code"),
    [(OverloadedError("full"), pb.TOO_MANY_REQUESTS), (KeyError(), pb.INTERNAL_SERVER_ERROR)],
)
def test_a_step_that_fails_in_a_later_turn_is_the_answer(error: Exception, code: int) -> None:
    def steps() -> Iterator[int]:
        yield QUEUES_PER_TURN
        raise error

    async def scenario(world: ProxyWorld) -> None:
        call = begun(world, steps())
        assert await turns_until_answered(call) == 1
        answer = control.ListTopicsResponse.FromString(call.messages[0])
        assert answer.status.code == code

    run(scenario)
