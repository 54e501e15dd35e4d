"""What operators do."""

import pytest

from cosmodrome_server.errors import ConsumerGroupNotFound, TopicNotFound
from cosmodrome_server.model import wire
from cosmodrome_server.model.queries import Redriven
from tests.support.broker_world import Run, World, bodies, new_message


async def bury(world: World, *names: str) -> None:
    """Send messages to `orders` and forward each to the dead letters of `billing`."""
    for name in names:
        await world.send("orders", new_message(name.encode()))
        (delivery,) = world.receive("orders", "billing")
        world.broker.forward_to_dead_letter_queue("billing", "orders", delivery.receipt_handle)
    await world.settle()


def redrive(world: World, *offsets: int, most: int = 100, dry_run: bool = False) -> Redriven:
    return world.broker.redrive(
        "billing", topic="", queue_offsets=offsets, max_messages=most, dry_run=dry_run
    )


def test_dead_letters_go_back_once(run: Run) -> None:
    async def scenario(world: World) -> None:
        await bury(world, "a", "b", "c")
        assert redrive(world, dry_run=True) == Redriven(3, 3)
        assert redrive(world, most=2) == Redriven(2, 1)
        await world.settle()
        again = world.receive("orders", "billing")
        assert bodies(again) == [b"a", b"b"]
        assert [delivery.attempt for delivery in again] == [1, 1]
        assert wire.dead_letter_origin(again[0].message.system) is None
        assert wire.message_id(again[0].message.system) == "a"
        assert redrive(world) == Redriven(1, 0)
        assert redrive(world) == Redriven(0, 0)

    run(scenario)


def test_chosen_dead_letters_go_back_and_a_restart_remembers_which(run: Run) -> None:
    async def scenario(world: World) -> None:
        await bury(world, "a", "b", "c")
        assert redrive(world, 1) == Redriven(1, 2)
        await world.restart()
        assert redrive(world, 1) == Redriven(0, 2)
        assert redrive(world) == Redriven(2, 0)

    run(scenario)


def test_redriving_needs_a_group_and_a_topic_to_go_back_to(run: Run) -> None:
    async def scenario(world: World) -> None:
        assert redrive(world) == Redriven(0, 0)
        with pytest.raises(ConsumerGroupNotFound):
            world.broker.redrive(
                "nobody", topic="", queue_offsets=(), max_messages=1, dry_run=False
            )
        await bury(world, "a")
        world.broker.delete_topic("orders")
        with pytest.raises(TopicNotFound):
            redrive(world)

    run(scenario)


def test_the_groups_of_the_broker_itself_are_not_listed(run: Run) -> None:
    async def scenario(world: World) -> None:
        await bury(world, "a")
        redrive(world)
        assert [group.name for group in world.broker.groups()] == ["billing", "ledger"]
        assert world.broker.topics_of("billing") == ["orders"]

    run(scenario)
