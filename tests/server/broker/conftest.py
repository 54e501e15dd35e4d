"""Fixtures of the broker's tests."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from cosmodrome_server.model.group import Group
from cosmodrome_server.model.topic import Topic, TopicType
from tests.support.broker_world import Run, World


@pytest.fixture
def run() -> Run:
    """Run a test against a broker with a topic `orders` and a group `billing`."""

    def runner(scenario: Callable[[World], Awaitable[None]]) -> None:
        async def main() -> None:
            world = World()
            world.broker.create_topic(Topic("orders", queues=4))
            world.broker.create_topic(Topic("steps", TopicType.FIFO, queues=1))
            world.broker.create_group(Group("billing", max_attempts=3))
            world.broker.create_group(Group("ledger", is_fifo=True, max_attempts=3))
            await world.settle()
            await scenario(world)

        asyncio.run(main())

    return runner
