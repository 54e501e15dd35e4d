"""The order of queues of a priority topic."""

import asyncio

import pytest

from cosmodrome_server.core.priority import from_top, is_from_top
from cosmodrome_server.model.group import Group
from cosmodrome_server.model.message import MessageType
from cosmodrome_server.model.topic import Topic, TopicType
from tests.support.broker_world import World, new_message


@pytest.mark.parametrize("factor", [0, 1, 30, 99, 100])
def test_the_factor_is_the_share_of_receives_from_the_top(factor: int) -> None:
    assert sum(is_from_top(receives, factor) for receives in range(1_000)) == 10 * factor


def test_the_highest_queue_comes_first() -> None:
    assert list(from_top(3)) == [2, 1, 0]


def drained(factor: int) -> list[bytes]:
    """Messages of three priorities as single receives deliver them."""

    async def main() -> list[bytes]:
        world = World()
        world.broker.create_topic(Topic("ranked", TopicType.PRIORITY, queues=3))
        world.broker.create_group(Group("billing", priority_factor=factor))
        for number in range(30):
            name = b"%d" % (number % 3)
            message = new_message(name, message_type=MessageType.PRIORITY, priority=number % 3)
            world.broker.send("ranked", [message])
        await world.settle()
        seen = []
        while found := world.receive("ranked", "billing", 1):
            seen.append(found[0].message.body)
        world.broker.abandon()
        return seen

    return asyncio.run(main())


def test_with_the_full_factor_higher_priorities_go_first() -> None:
    assert drained(100) == [b"2"] * 10 + [b"1"] * 10 + [b"0"] * 10


def test_with_a_lower_factor_no_priority_starves() -> None:
    seen = drained(50)
    assert b"0" in seen[:10]
    assert seen[:10].count(b"2") > 3


def test_a_redelivery_comes_after_new_messages_of_any_priority() -> None:
    async def main() -> None:
        world = World()
        world.broker.create_topic(Topic("ranked", TopicType.PRIORITY, queues=2))
        world.broker.create_group(Group("billing"))
        for name, priority in ((b"high", 1), (b"low", 0)):
            message = new_message(name, message_type=MessageType.PRIORITY, priority=priority)
            world.broker.send("ranked", [message])
        await world.settle()
        assert world.receive("ranked", "billing", 1)[0].message.body == b"high"
        await world.later(10_000)
        names = [each.message.body for each in world.receive("ranked", "billing", 2)]
        assert names == [b"low", b"high"]
        world.broker.abandon()

    asyncio.run(main())
