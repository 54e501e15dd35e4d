"""CreateTopic, ListTopics and DeleteTopic."""

from typing import Any

import pytest

from cosmodrome_proto import Duration
from cosmodrome_proto import control_pb2 as control
from cosmodrome_proto import definition_pb2 as pb
from tests.support.broker_world import START_MS
from tests.support.proxy_world import ProxyWorld, message, run


async def create(world: ProxyWorld, **settings: Any) -> control.CreateTopicResponse:
    topic = control.Topic(**settings)
    answer = await world.call("CreateTopic", control.CreateTopicRequest(topic=topic))
    assert isinstance(answer, control.CreateTopicResponse)
    return answer


async def listed(world: ProxyWorld, prefix: str) -> list[control.TopicState]:
    answer = await world.call("ListTopics", control.ListTopicsRequest(prefix=prefix))
    assert answer.status.code == pb.OK
    return list(answer.topics)


def test_a_topic_is_made_with_defaults_and_grows() -> None:
    async def scenario(world: ProxyWorld) -> None:
        made = (await create(world, name="orders")).topic
        assert (made.type, made.queues, made.permission) == ("NORMAL", 8, "READ_WRITE")
        assert made.created.ToMilliseconds() == START_MS
        grown = await create(world, name="orders", queues=12, attributes={"team": "shop"})
        assert (grown.topic.queues, dict(grown.topic.attributes)) == (12, {"team": "shop"})

    run(scenario)


def test_what_a_change_of_a_topic_leaves_out_stays() -> None:
    async def scenario(world: ProxyWorld) -> None:
        week = Duration(seconds=7 * 86_400)
        kind = {"type": "FIFO", "permission": "READ", "queues": 12}
        attributes = {"team": "shop", "tier": "2"}
        await create(world, name="t", retention=week, attributes=attributes, **kind)
        changed = (await create(world, name="t", attributes={"tier": "", "owner": "me"})).topic
        assert (changed.type, changed.permission, changed.queues) == ("FIFO", "READ", 12)
        assert changed.retention == week
        assert dict(changed.attributes) == {"team": "shop", "owner": "me"}
        changed = (await create(world, name="t", retention=Duration())).topic
        assert changed.retention == Duration()

    run(scenario)


@pytest.mark.parametrize(
    ("settings", "code", "words"),
    [
        ({"name": ""}, pb.ILLEGAL_TOPIC, "topic"),
        ({"name": "a b"}, pb.ILLEGAL_TOPIC, "a b"),
        ({"name": "x" * 128}, pb.ILLEGAL_TOPIC, "topic_chars"),
        ({"name": "t", "queues": 1_025}, pb.BAD_REQUEST, "1 to 1024 queues, not 1025"),
        ({"name": "t", "queues": -1}, pb.BAD_REQUEST, "1 to 1024 queues, not -1"),
        (
            {"name": "t", "attributes": {"a": "9" * 1_025}},
            pb.BAD_REQUEST,
            "'a' or its value has more than 1024 characters",
        ),
        ({"name": "t", "attributes": {"a" * 1_025: "1"}}, pb.BAD_REQUEST, "more than 1024"),
        ({"name": "t", "type": "SUPER"}, pb.BAD_REQUEST, "'SUPER' is none of NORMAL"),
        ({"name": "t", "permission": "rw"}, pb.BAD_REQUEST, "'rw' is none of"),
        ({"name": "normal", "queues": 1}, pb.BAD_REQUEST, "queues"),
    ],
)
def test_a_topic_that_cannot_be_is_refused(settings: dict[str, Any], code: int, words: str) -> None:
    async def scenario(world: ProxyWorld) -> None:
        answer = await create(world, **settings)
        assert answer.status.code == code
        assert words in answer.status.message

    run(scenario)


def test_more_topics_than_there_may_be_are_refused_with_the_setting() -> None:
    async def scenario(world: ProxyWorld) -> None:
        known = len(world.world.broker.topics())
        assert (await create(world, name="one-more")).status.code == pb.OK
        answer = await create(world, name="two-more")
        assert answer.status.code == pb.TOO_MANY_REQUESTS
        assert answer.status.message == f"there are {known + 1} topics already (topics.topics_max)"
        assert (await create(world, name="one-more", queues=9)).status.code == pb.OK, "it is there"

    run(scenario, topics__topics_max="8")


def test_topics_are_listed_with_what_their_queues_hold() -> None:
    async def scenario(world: ProxyWorld) -> None:
        for body in (b"a", b"b", b"c"):
            await world.send(message(body))
        (state,) = await listed(world, "normal")
        assert sum(queue.max_offset - queue.min_offset for queue in state.queues) == 3
        assert [queue.queue_id for queue in state.queues] == [0, 1]
        assert await listed(world, "nothing") == []
        assert len(await listed(world, "")) >= 7

    run(scenario)


def test_a_topic_is_deleted_once() -> None:
    async def scenario(world: ProxyWorld) -> None:
        request = control.DeleteTopicRequest(name="normal")
        assert await world.code("DeleteTopic", request) == pb.OK
        assert (await world.send(message())).status.code == pb.TOPIC_NOT_FOUND
        again = await world.call("DeleteTopic", request)
        assert again.status.code == pb.TOPIC_NOT_FOUND
        assert "normal" in again.status.message

    run(scenario)
