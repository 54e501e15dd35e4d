"""What consumers of an ordered group see."""

import pytest

from cosmodrome_server.broker.receive_verbs import INFLIGHT_ATTRIBUTE
from cosmodrome_server.core import message_group
from cosmodrome_server.errors import InvalidReceiptHandle
from cosmodrome_server.model.filter import Filter
from cosmodrome_server.model.group import Group
from cosmodrome_server.model.log import MessageRecord
from cosmodrome_server.model.message import Delivery
from cosmodrome_server.model.queries import ANY_QUEUE, ReceiveQuery, Waiter
from cosmodrome_server.model.topic import Topic, TopicType
from tests.support.broker_world import Run, World, bodies, new_message


async def send_steps(world: World, *steps: str) -> None:
    """Send messages named by message group and number: A1, B1, A2."""
    await world.send(
        "steps", *[new_message(step.encode(), group=f"group-{step[0]}") for step in steps]
    )


def test_a_group_with_a_message_in_flight_is_held_back_and_others_go_on(run: Run) -> None:
    async def scenario(world: World) -> None:
        await send_steps(world, "A1", "B1", "A2", "C1", "B2")
        (first,) = world.receive("steps", "ledger", 1)
        assert bodies([first]) == [b"A1"]
        assert bodies(world.receive("steps", "ledger")) == [b"B1", b"C1", b"B2"]
        assert world.receive("steps", "ledger") == []
        world.broker.ack("ledger", "steps", first.receipt_handle)
        (held,) = world.receive("steps", "ledger")
        assert (bodies([held]), held.attempt) == ([b"A2"], 1)

    run(scenario)


def test_acknowledged_messages_behind_an_unsettled_one_do_not_come_again(run: Run) -> None:
    async def scenario(world: World) -> None:
        await send_steps(world, "A1", "A2", "A3")
        deliveries = world.receive("steps", "ledger")
        assert bodies(deliveries) == [b"A1", b"A2", b"A3"]
        world.broker.ack("ledger", "steps", deliveries[1].receipt_handle)
        await world.later(10_000)
        again = world.receive("steps", "ledger")
        assert [(d.message.body, d.attempt) for d in again] == [(b"A1", 2), (b"A3", 2)]

    run(scenario)


def test_a_group_is_not_delivered_again_while_any_of_it_is_in_flight(run: Run) -> None:
    async def scenario(world: World) -> None:
        await send_steps(world, "A1", "A2")
        first, second = world.receive("steps", "ledger", invisible_ms=60_000)
        world.broker.change_invisible_duration(
            "ledger", "steps", first.receipt_handle, 1_000, suspend=False
        )
        await world.later(1_000)
        assert world.receive("steps", "ledger") == []
        world.broker.ack("ledger", "steps", second.receipt_handle)
        assert bodies(world.receive("steps", "ledger")) == [b"A1"]

    run(scenario)


def test_a_repeated_receive_takes_its_messages_over_under_new_handles(run: Run) -> None:
    async def scenario(world: World) -> None:
        await send_steps(world, "A1", "A2", "B1")
        lost = world.receive("steps", "ledger", 2, attempt_id="try-1")
        again = world.receive("steps", "ledger", 2, attempt_id="try-1")
        assert [(d.message.body, d.attempt) for d in again] == [(b"A1", 1), (b"A2", 1)]
        with pytest.raises(InvalidReceiptHandle):
            world.broker.ack("ledger", "steps", lost[0].receipt_handle)
        world.broker.ack("ledger", "steps", again[0].receipt_handle)
        assert bodies(world.receive("steps", "ledger", attempt_id="try-2")) == [b"B1"]

    run(scenario)


def test_a_receive_can_be_repeated_although_others_came_in_between(run: Run) -> None:
    async def scenario(world: World) -> None:
        await send_steps(world, "A1", "A2", "B1")
        lost = world.receive("steps", "ledger", 2, attempt_id="try-1")
        other = world.receive("steps", "ledger", 2, attempt_id="try-2")
        assert (bodies(lost), bodies(other)) == ([b"A1", b"A2"], [b"B1"])
        assert world.receive("steps", "ledger", attempt_id="finds nothing") == []
        before = world.broker.state_hash()
        await world.restart()
        assert world.broker.state_hash() == before
        again = world.receive("steps", "ledger", 2, attempt_id="try-1")
        assert [(d.message.body, d.attempt) for d in again] == [(b"A1", 1), (b"A2", 1)]
        world.broker.ack("ledger", "steps", again[0].receipt_handle)
        rest = world.receive("steps", "ledger", 2, attempt_id="try-1")
        assert bodies(rest) == [b"A2"]
        assert bodies(world.receive("steps", "ledger", attempt_id="try-2")) == [b"B1"]

    run(scenario)


def test_a_receive_can_be_repeated_although_its_group_may_have_no_more_in_flight(run: Run) -> None:
    async def scenario(world: World) -> None:
        full = Group("ledger", is_fifo=True, attributes={INFLIGHT_ATTRIBUTE: "1"})
        world.broker.create_group(full)
        await send_steps(world, "A1", "B1")
        for _ in range(2):
            assert bodies(world.receive("steps", "ledger", attempt_id="try-1")) == [b"A1"]
        assert world.receive("steps", "ledger", attempt_id="try-2") == []

    run(scenario)


@pytest.mark.parametrize("is_settled", [True, False])
def test_room_is_for_who_waits_at_any_queue(run: Run, *, is_settled: bool) -> None:
    async def scenario(world: World) -> None:
        world.broker.create_group(
            Group("ledger", is_fifo=True, attributes={INFLIGHT_ATTRIBUTE: "1"})
        )
        world.broker.create_topic(Topic("steps", TopicType.FIFO, queues=2))
        await send_steps(world, "A1", "B1", "C1", "D1")
        (first,) = world.receive("steps", "ledger", queue_id=0)
        query = ReceiveQuery("ledger", "steps", 1, "c", 32, 10_000)
        assert world.broker.receive(query) == []
        given: list[Delivery] = []
        world.broker.wait(Waiter(query, world.clocks.run_ms + 20_000, given.extend))
        await world.settle()
        assert given == []
        if is_settled:
            world.broker.ack("ledger", "steps", first.receipt_handle)
            await world.settle()
        else:
            await world.later(10_000)
        assert [delivery.message.queue_id for delivery in given] == [1]

    run(scenario)


def test_a_match_behind_many_messages_of_other_tags_is_not_waited_for(run: Run) -> None:
    async def scenario(world: World) -> None:
        for number in range(1_200):
            world.broker.send("steps", [new_message(b"%d" % number, group="A", tag="b")])
        await world.send("steps", new_message(b"wanted", group="A", tag="a"))
        assert bodies(await waited_for(world, Filter(expression="a"))) == [b"wanted"]

    run(scenario)


def test_what_waits_behind_a_message_that_matches_no_more_is_not_waited_for(run: Run) -> None:
    async def scenario(world: World) -> None:
        await world.send("steps", new_message(b"A1", group="A", tag="old"))
        world.receive("steps", "ledger")
        await world.later(10_000)
        await world.send("steps", new_message(b"A2", group="A", tag="new"))
        given: list[Delivery] = []
        query = ReceiveQuery(
            "ledger", "steps", ANY_QUEUE, "c", 32, 10_000, filter=Filter(expression="new")
        )
        # A1 is given up by this receive, and holds A2 back in it.
        given += world.broker.receive(query)
        if not given:
            world.broker.wait(Waiter(query, world.clocks.run_ms + 20_000, given.extend))
        await world.settle()
        assert bodies(given) == [b"A2"]

    run(scenario)


def test_what_matches_no_more_is_settled_some_at_a_time(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(world: World) -> None:
        tags = ["old"] * 20 + ["new"]
        await world.send(
            "steps",
            *[
                new_message(b"%d" % number, group=str(number), tag=tag)
                for number, tag in enumerate(tags)
            ],
        )
        assert len(world.receive("steps", "ledger")) == 21
        await world.later(10_000)
        monkeypatch.setattr(message_group, "_READ_MAX", 6)
        query = ReceiveQuery(
            "ledger", "steps", ANY_QUEUE, "c", 32, 10_000, filter=Filter(expression="new")
        )
        assert world.broker.receive(query) == []
        assert world.broker.accumulation("ledger", "steps").ready == 21 - 6
        given: list[Delivery] = []
        world.broker.wait(Waiter(query, world.clocks.run_ms + 20_000, given.extend))
        await world.settle()
        assert bodies(given) == [b"20"]

    run(scenario)


def test_what_retention_took_is_passed_over_at_once(run: Run) -> None:
    async def scenario(world: World) -> None:
        await send_steps(world, "A0")
        assert len(world.receive("steps", "ledger", 1)) == 1
        await send_steps(world, *["A1"] * 1_200, "B1")
        topic_id = world.broker._shard.catalogue.topic("steps").topic_id
        world.log.trim(topic_id, 0, 1_201)
        assert bodies(world.receive("steps", "ledger", 1)) == [b"B1"]
        assert world.broker.accumulation("ledger", "steps").ready == 0

    run(scenario)


async def waited_for(world: World, wanted: Filter) -> list[Delivery]:
    """What one receive gets that is asked for, and waits if there is nothing at once."""
    query = ReceiveQuery("ledger", "steps", ANY_QUEUE, "client", 1, 10_000, filter=wanted)
    found = world.broker.receive(query)
    if not found:
        world.broker.wait(Waiter(query, world.clocks.run_ms + 9_000, found.extend))
        await world.settle()
    return found


def test_a_repeated_receive_gets_what_it_had_of_every_queue(run: Run) -> None:
    async def scenario(world: World) -> None:
        world.broker.create_topic(Topic("steps", TopicType.FIFO, queues=3))
        names = [f"{group}{number}" for number in range(2) for group in "ABCDEFGH"]
        await send_steps(world, *names)
        lost = world.receive("steps", "ledger", attempt_id="try-1")
        assert len({each.message.queue_id for each in lost}) > 1
        again = world.receive("steps", "ledger", attempt_id="try-1")
        assert bodies(again) == bodies(lost)
        world.kill()
        third = world.receive("steps", "ledger", attempt_id="try-1")
        assert bodies(third) == bodies(lost)
        for each in third:
            world.broker.ack("ledger", "steps", each.receipt_handle)
        assert world.receive("steps", "ledger", attempt_id="try-1") == []

    run(scenario)


def test_a_dead_letter_frees_its_group(run: Run) -> None:
    async def scenario(world: World) -> None:
        await send_steps(world, "A1", "A2")
        for _ in range(3):
            (delivery,) = world.receive("steps", "ledger", 1)
            assert bodies([delivery]) == [b"A1"]
            await world.later(10_000)
        assert bodies(world.receive("steps", "ledger")) == [b"A2"]
        assert bodies(world.receive("%DLQ%ledger", "ledger")) == [b"A1"]

    run(scenario)


def test_a_dead_letter_that_retention_took_frees_its_group(run: Run) -> None:
    async def scenario(world: World) -> None:
        await send_steps(world, "A1", "A2")
        (first,) = world.receive("steps", "ledger", 1)
        query = ReceiveQuery("ledger", "steps", ANY_QUEUE, "c", 32, 10_000)
        assert world.broker.receive(query) == []
        given: list[Delivery] = []
        world.broker.wait(Waiter(query, world.clocks.run_ms + 20_000, given.extend))
        await world.settle()
        world.log.trim(world.broker.place_of("steps", 0)[0], 0, 1)
        world.broker.forward_to_dead_letter_queue("ledger", "steps", first.receipt_handle)
        await world.settle()
        assert bodies(given) == [b"A2"]

    run(scenario)


def test_a_reset_frees_what_was_blocked(run: Run) -> None:
    async def scenario(world: World) -> None:
        await send_steps(world, "A1", "A2")
        world.receive("steps", "ledger", 1)
        world.broker.reset_offset("ledger", "steps", 0, 0)
        assert bodies(world.receive("steps", "ledger")) == [b"A1", b"A2"]

    run(scenario)


def test_held_messages_survive_a_restart(run: Run) -> None:
    async def scenario(world: World) -> None:
        await send_steps(world, "A1", "B1", "A2")
        (first,) = world.receive("steps", "ledger", 1)
        assert bodies(world.receive("steps", "ledger")) == [b"B1"]
        before = world.broker.state_hash()
        await world.restart()
        assert world.broker.state_hash() == before
        assert world.receive("steps", "ledger") == []
        world.broker.ack("ledger", "steps", first.receipt_handle)
        assert bodies(world.receive("steps", "ledger")) == [b"A2"]

    run(scenario)


def test_a_queue_gives_no_more_than_each_receive_can_look_through(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_group, "INFLIGHT_MAX", 3)

    async def scenario(world: World) -> None:
        await send_steps(world, "A1", "B1", "C1", "D1", "E1")
        first = world.receive("steps", "ledger", 2)
        assert bodies(first + world.receive("steps", "ledger", 1)) == [b"A1", b"B1", b"C1"]
        assert world.receive("steps", "ledger") == []
        world.broker.ack("ledger", "steps", first[0].receipt_handle)
        assert bodies(world.receive("steps", "ledger")) == [b"D1", b"E1"]

    run(scenario)


def test_a_receive_that_read_enough_goes_on_in_the_next_turn(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_group, "_READ_MAX", 2)

    async def scenario(world: World) -> None:
        await send_steps(world, "A1", "A2", "A3", "B1")
        got: list[Delivery] = []
        (first,) = world.receive("steps", "ledger", 1)
        waiter = Waiter(
            ReceiveQuery("ledger", "steps", ANY_QUEUE, "client", 32, 10_000), 1 << 40, got.extend
        )
        world.broker.wait(waiter)
        await world.settle()
        assert bodies([first, *got]) == [b"A1", b"B1"]

    run(scenario)


def test_what_is_held_after_a_start_is_looked_through_some_at_a_time(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(world: World) -> None:
        await send_steps(world, *[f"A{number}" for number in range(20)])
        assert bodies(world.receive("steps", "ledger", 1)) == [b"A0"]
        assert world.receive("steps", "ledger") == []
        await world.settle()
        await world.restart()
        await send_steps(world, "B0")
        monkeypatch.setattr(message_group, "_READ_MAX", 5)
        read, reads = world.log.read, []

        def counted(topic_id: int, queue_id: int, queue_offset: int) -> MessageRecord:
            reads.append(queue_offset)
            return read(topic_id, queue_id, queue_offset)

        monkeypatch.setattr(world.log, "read", counted)
        query = ReceiveQuery("ledger", "steps", ANY_QUEUE, "c", 32, 10_000)
        for _ in range(4):
            reads.clear()
            assert world.broker.receive(query) == []
            assert len(reads) == 5
        given: list[Delivery] = []
        world.broker.wait(Waiter(query, world.clocks.run_ms + 9_000, given.extend))
        await world.settle()
        assert bodies(given) == [b"B0"]

    run(scenario)
