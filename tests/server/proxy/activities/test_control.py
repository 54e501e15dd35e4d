"""CreateTopic and CreateGroup: what is kept must be what can be told again."""

from typing import Any

import pytest

from cosmodrome_proto import Duration, Timestamp
from cosmodrome_proto import control_pb2 as control
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_server.proxy.activities.control.groups import MULTIPLIER_MAX
from cosmodrome_server.proxy.convert import LONGEST_S
from tests.support.proxy_world import ProxyWorld, run

TOO_LONG = Duration(seconds=LONGEST_S + 1)


def exponential(multiplier: float) -> pb.RetryPolicy:
    backoff = pb.ExponentialBackoff(multiplier=multiplier)
    backoff.initial.seconds, backoff.max.seconds = 1, 10
    return pb.RetryPolicy(exponential_backoff=backoff)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("retention", TOO_LONG),
        ("retention", Duration(seconds=-1)),
        ("lite_expiration", TOO_LONG),
        ("lite_expiration", Duration(nanos=-1)),
        ("lite_expiration", Duration(nanos=2_000_000_000)),
    ],
)
def test_a_topic_with_a_duration_that_is_none_is_refused(setting: str, value: Any) -> None:
    async def scenario(world: ProxyWorld) -> None:
        topic = control.Topic(name="strange", **{setting: value})
        answer = await world.call("CreateTopic", control.CreateTopicRequest(topic=topic))
        assert answer.status.code == pb.BAD_REQUEST
        assert setting in answer.status.message
        listed = await world.call("ListTopics", control.ListTopicsRequest(prefix="strange"))
        assert len(listed.topics) == 0

    run(scenario)


@pytest.mark.parametrize(
    ("setting", "value", "named"),
    [
        ("consume_timestamp", Timestamp(seconds=LONGEST_S + 1), "consume_timestamp"),
        ("consume_timestamp", Timestamp(seconds=-1), "consume_timestamp"),
        (
            "retry_policy",
            pb.RetryPolicy(customized_backoff=pb.CustomizedBackoff(next=[TOO_LONG])),
            "customized_backoff",
        ),
        ("retry_policy", exponential(float("nan")), "multiplier"),
        ("retry_policy", exponential(float("inf")), "multiplier"),
        ("retry_policy", exponential(MULTIPLIER_MAX + 1), "multiplier"),
        ("retry_policy", exponential(0.5), "multiplier"),
    ],
)
def test_a_group_with_a_time_or_a_backoff_that_is_none_is_refused(
    setting: str, value: Any, named: str
) -> None:
    async def scenario(world: ProxyWorld) -> None:
        group = control.Group(name="strange", **{setting: value})
        answer = await world.call("CreateGroup", control.CreateGroupRequest(group=group))
        assert answer.status.code == pb.BAD_REQUEST
        assert named in answer.status.message
        listed = await world.call("ListGroups", control.ListGroupsRequest(prefix="strange"))
        assert len(listed.groups) == 0

    run(scenario)


def test_the_extremes_are_told_as_they_were_given() -> None:
    async def scenario(world: ProxyWorld) -> None:
        longest = Duration(seconds=LONGEST_S)
        topic = control.Topic(name="old", retention=longest, lite_expiration=longest)
        made = await world.call("CreateTopic", control.CreateTopicRequest(topic=topic))
        assert made.topic.retention == longest
        group = control.Group(name="late", consume_timestamp=Timestamp(seconds=LONGEST_S))
        told = await world.call("CreateGroup", control.CreateGroupRequest(group=group))
        assert told.group.consume_timestamp.seconds == LONGEST_S

    run(scenario)
