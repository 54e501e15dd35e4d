"""What operators do."""

import asyncio

import msgspec
import pytest

from cosmodrome_server.broker import operation_verbs
from cosmodrome_server.core.dead_letter import REDRIVE_GROUP
from cosmodrome_server.errors import (
    BrokerError,
    ConsumerGroupNotFound,
    TopicNotFound,
    Unsupported,
)
from cosmodrome_server.model import wire
from cosmodrome_server.model.log import MessageRecord
from cosmodrome_server.model.message import MessageType, StoredMessage
from cosmodrome_server.model.queries import MessageSearch, Redriven, RedriveQuery, Waiting
from cosmodrome_server.model.topic import Topic, TopicType
from tests.support.broker_world import Run, World, bodies, new_message


async def bury(world: World, *names: str) -> None:
    """Send messages to `orders` and forward each to the dead letters of `billing`."""
    for name in names:
        await world.send("orders", new_message(name.encode()))
        (delivery,) = world.receive("orders", "billing")
        world.broker.forward_to_dead_letter_queue("billing", "orders", delivery.receipt_handle)
    await world.settle()


def redrive(world: World, *offsets: int, most: int = 100, dry_run: bool = False) -> Redriven:
    query = RedriveQuery("billing", "", offsets, max_messages=most, dry_run=dry_run)
    return world.broker.redrive(query)


def test_dead_letters_go_back_once(run: Run) -> None:
    async def scenario(world: World) -> None:
        await bury(world, "a", "b", "c")
        assert redrive(world, dry_run=True) == Redriven(3, 3)
        assert redrive(world, most=2) == Redriven(2, 1, next_offset=2)
        await world.settle()
        again = world.receive("orders", "billing")
        assert bodies(again) == [b"a", b"b"]
        assert [delivery.attempt for delivery in again] == [1, 1]
        assert wire.dead_letter_origin(again[0].message.system) is None
        assert wire.message_id(again[0].message.system) == "a"
        assert redrive(world) == Redriven(1, 0)
        assert redrive(world) == Redriven(0, 0)

    run(scenario)


def test_a_redrive_that_read_large_letters_goes_on_from_there(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operation_verbs, "_REDRIVE_BYTES_MAX", 2)

    async def scenario(world: World) -> None:
        await bury(world, "a", "b", "c")
        assert redrive(world) == Redriven(2, 1, next_offset=2)
        assert redrive(world) == Redriven(1, 0)

    run(scenario)


def test_chosen_dead_letters_go_back_and_a_restart_remembers_which(run: Run) -> None:
    async def scenario(world: World) -> None:
        await bury(world, "a", "b", "c")
        assert redrive(world, 1) == Redriven(1, 2)
        await world.restart()
        assert redrive(world, 1) == Redriven(0, 2)
        assert redrive(world) == Redriven(2, 0)

    run(scenario)


def test_a_redrive_that_looked_at_enough_goes_on_from_there(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operation_verbs, "_REDRIVE_READ_MAX", 2)
    monkeypatch.setattr(operation_verbs, "_REDRIVE_SCAN_MAX", 3)

    async def scenario(world: World) -> None:
        await bury(world, *"abcdefg")
        world.broker.create_topic(Topic("others"))
        await world.send("others", new_message(b"x"))
        (delivery,) = world.receive("others", "billing")
        world.broker.forward_to_dead_letter_queue("billing", "others", delivery.receipt_handle)
        await world.settle()
        moved, steps, query = 0, 0, RedriveQuery("billing", topic="others")
        while True:
            done = world.broker.redrive(query)
            moved, steps = moved + done.moved, steps + 1
            if not done.next_offset:
                break
            assert done.next_offset - query.from_offset <= 2
            query = msgspec.structs.replace(query, from_offset=done.next_offset)
        assert (moved, steps) == (1, 4)
        # What went back is passed over without reading it, some at a time, too.
        assert redrive(world, 0, 1, 2, 3) == Redriven(2, 5, next_offset=2)
        assert redrive(world, 2, 3, 4, 5) == Redriven(2, 3, next_offset=4)
        assert redrive(world) == Redriven(2, 1, next_offset=6)
        assert redrive(world) == Redriven(1, 0)

    run(scenario)


def test_redriving_needs_a_group_and_a_topic_to_go_back_to(run: Run) -> None:
    async def scenario(world: World) -> None:
        assert redrive(world) == Redriven(0, 0)
        with pytest.raises(ConsumerGroupNotFound):
            world.broker.redrive(RedriveQuery("nobody"))
        await bury(world, "a")
        world.broker.delete_topic("orders")
        with pytest.raises(TopicNotFound):
            redrive(world)

    run(scenario)


def test_dead_letters_whose_topic_is_gone_keep_no_others_from_going_back(run: Run) -> None:
    async def scenario(world: World) -> None:
        world.broker.create_topic(Topic("others"))
        for topic in ("orders", "others", "orders"):
            await world.send(topic, new_message(topic.encode()))
            (delivery,) = world.receive(topic, "billing")
            world.broker.forward_to_dead_letter_queue("billing", topic, delivery.receipt_handle)
            await world.settle()
        world.broker.delete_topic("orders")
        assert redrive(world, dry_run=True) == Redriven(1, 3)
        assert redrive(world) == Redriven(1, 2)
        with pytest.raises(TopicNotFound, match="orders does not exist, where 2 dead letters"):
            redrive(world)
        world.broker.create_topic(Topic("orders"))
        assert redrive(world) == Redriven(2, 0)

    run(scenario)


def test_a_dead_letter_goes_back_to_the_queue_of_its_priority(run: Run) -> None:
    async def scenario(world: World) -> None:
        world.broker.create_topic(Topic("alarms", TopicType.PRIORITY, queues=4))
        for name in (b"a", b"b"):
            message = new_message(name, message_type=MessageType.PRIORITY, priority=9)
            message.system += wire.varint(wire.PRIORITY << 3) + wire.varint(9)
            await world.send("alarms", message)
        for delivery in world.receive("alarms", "billing"):
            world.broker.forward_to_dead_letter_queue("billing", "alarms", delivery.receipt_handle)
        await world.settle()
        assert redrive(world) == Redriven(2, 0)
        await world.settle()
        again = world.receive("alarms", "billing")
        assert [delivery.message.queue_id for delivery in again] == [3, 3]

    run(scenario)


def test_the_groups_of_the_broker_itself_are_not_listed(run: Run) -> None:
    async def scenario(world: World) -> None:
        await bury(world, "a")
        redrive(world)
        assert [group.name for group in world.broker.groups()] == ["billing", "ledger"]
        assert world.broker.has_group("billing")
        assert not world.broker.has_group(REDRIVE_GROUP)
        assert world.broker.topics_of("billing") == ["orders"]

    run(scenario)


def test_messages_are_found_by_what_the_key_index_says() -> None:
    async def main() -> None:
        world = World()
        asked: list[tuple[int, str, tuple[int, int], int]] = []

        def finder(
            topic_id: int, key: str, range_ms: tuple[int, int], most: int
        ) -> list[MessageRecord]:
            asked.append((topic_id, key, range_ms, most))
            return [world.log.read(1, 0, 0)]

        world.broker.abandon()
        world.finder = finder
        world.start(world.log.crashed())
        world.broker.create_topic(Topic("orders", queues=1))
        await world.send("orders", new_message(b"a"))
        answer: asyncio.Future[list[StoredMessage] | BrokerError] = (
            asyncio.get_running_loop().create_future()
        )
        world.broker.find(MessageSearch("orders", "a", 5, 0, 3), answer.set_result)
        found = await answer
        assert isinstance(found, list)
        (message,) = found
        assert (message.topic, message.queue_offset, message.body) == ("orders", 0, b"a")
        assert asked == [(1, "a", (5, 1 << 62), 3)]
        await world.broker.close()

    asyncio.run(main())


def test_a_broker_without_a_key_index_says_so(run: Run) -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(Unsupported):
            world.broker.find(MessageSearch("orders", "a", 0, 0, 3), print)
        with pytest.raises(TopicNotFound):
            world.broker.find(MessageSearch("nowhere", "a", 0, 0, 3), print)

    run(scenario)


def test_what_waits_is_counted(run: Run) -> None:
    async def scenario(world: World) -> None:
        assert world.broker.waiting() == Waiting({}, {}, {})

    run(scenario)
