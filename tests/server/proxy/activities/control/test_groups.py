"""CreateGroup, ListGroups and DeleteGroup."""

from typing import Any

import pytest

from cosmodrome_proto import Timestamp
from cosmodrome_proto import control_pb2 as control
from cosmodrome_proto import definition_pb2 as pb
from tests.support.proxy_world import ProxyWorld, message, run


async def create(world: ProxyWorld, **settings: Any) -> control.CreateGroupResponse:
    group = control.Group(**settings)
    answer = await world.call("CreateGroup", control.CreateGroupRequest(group=group))
    assert isinstance(answer, control.CreateGroupResponse)
    return answer


def test_a_group_is_told_as_it_was_made_and_what_was_left_out_is_the_default() -> None:
    async def scenario(world: ProxyWorld) -> None:
        plain = (await create(world, name="plain")).group
        assert (plain.fifo, plain.max_attempts, plain.paused, plain.priority_factor) == (
            *(False, 17, False, 100),
        )
        backoff = pb.ExponentialBackoff(multiplier=2)
        backoff.initial.seconds, backoff.max.seconds = 1, 60
        asked = control.Group(
            name="careful",
            fifo=True,
            max_attempts=5,
            retry_policy=pb.RetryPolicy(max_attempts=5, exponential_backoff=backoff),
            consume_from="first",
            paused=True,
            priority_factor=0,
            attributes={"inflight.max": "10"},
        )
        answer = await world.call("CreateGroup", control.CreateGroupRequest(group=asked))
        told = answer.group
        told.ClearField("created")
        told.ClearField("consume_timestamp")
        assert told == asked

    run(scenario)


def test_what_a_change_of_a_group_leaves_out_stays() -> None:
    async def scenario(world: ProxyWorld) -> None:
        policy = pb.RetryPolicy()
        policy.customized_backoff.next.add(seconds=9)
        made = control.Group(
            name="g",
            fifo=True,
            max_attempts=3,
            retry_policy=policy,
            consume_from="timestamp",
            consume_timestamp=Timestamp(seconds=5),
            priority_factor=7,
            attributes={"inflight.max": "10"},
        )
        await world.call("CreateGroup", control.CreateGroupRequest(group=made))
        before = (await create(world, name="g")).group
        assert before.retry_policy.customized_backoff == policy.customized_backoff
        assert (before.fifo, before.max_attempts, before.priority_factor) == (True, 3, 7)
        after = (await create(world, name="g", paused=True)).group
        before.paused = True
        assert after == before
        assert not (await create(world, name="g", fifo=False)).group.fifo

    run(scenario)


@pytest.mark.parametrize(
    ("settings", "code", "words"),
    [
        ({"name": ""}, pb.ILLEGAL_CONSUMER_GROUP, "group"),
        ({"name": "x" * 121}, pb.ILLEGAL_CONSUMER_GROUP, "group_chars"),
        ({"name": "g", "max_attempts": 1_001}, pb.BAD_REQUEST, "1 to 1000, not 1001"),
        ({"name": "g", "max_attempts": -1}, pb.BAD_REQUEST, "not -1"),
        ({"name": "g", "priority_factor": 101}, pb.BAD_REQUEST, "0 to 100, not 101"),
        ({"name": "g", "consume_from": "MIDDLE"}, pb.BAD_REQUEST, "'MIDDLE' is none of"),
        ({"name": "g", "lite_bind_topic": "nope"}, pb.TOPIC_NOT_FOUND, "nope: there is no such"),
        ({"name": "g", "lite_bind_topic": "fifo"}, pb.BAD_REQUEST, "fifo: its type is FIFO, only"),
    ],
)
def test_a_group_that_cannot_be_is_refused(settings: dict[str, Any], code: int, words: str) -> None:
    async def scenario(world: ProxyWorld) -> None:
        answer = await create(world, **settings)
        assert answer.status.code == code
        assert words in answer.status.message
        assert all(group.name != "g" for group in world.world.broker.groups())

    run(scenario)


def test_a_group_is_bound_to_a_lite_topic_and_stays_so_when_that_is_deleted() -> None:
    async def scenario(world: ProxyWorld) -> None:
        for paused in (False, True):
            told = (await create(world, name="g", lite_bind_topic="lite", paused=paused)).group
            assert (told.lite_bind_topic, told.paused) == ("lite", paused)
            if not paused:
                world.world.broker.delete_topic("lite")

    run(scenario)


def test_more_groups_than_there_may_be_are_refused_with_the_setting() -> None:
    async def scenario(world: ProxyWorld) -> None:
        answer = await create(world, name="one-too-many")
        assert answer.status.code == pb.TOO_MANY_REQUESTS
        assert answer.status.message == "there are 3 consumer groups already (topics.groups_max)"

    run(scenario, topics__groups_max="3")


def test_groups_are_listed_with_how_far_behind_they_are_if_asked() -> None:
    async def scenario(world: ProxyWorld) -> None:
        await world.send(message(b"a"), message(b"b"))
        assert len(await world.receive(batch=1)) == 1
        request = control.ListGroupsRequest(prefix="billing")
        (plain,) = (await world.call("ListGroups", request)).groups
        assert (plain.group.name, len(plain.progress)) == ("billing", 0)
        request.lag = True
        (state,) = (await world.call("ListGroups", request)).groups
        (progress,) = state.progress
        assert (progress.topic, progress.ready, progress.inflight) == ("normal", 1, 1)

    run(scenario)


def test_a_group_is_deleted_once_and_none_is_made_by_deleting_it() -> None:
    async def scenario(world: ProxyWorld) -> None:
        request = control.DeleteGroupRequest(name="billing")
        assert await world.code("DeleteGroup", request) == pb.OK
        for name in ("billing", "nobody"):
            again = await world.call("DeleteGroup", control.DeleteGroupRequest(name=name))
            assert again.status.code == pb.CONSUMER_GROUP_NOT_FOUND
            assert again.status.message == f"there is no consumer group {name}"

    run(scenario, server__dev="true")
