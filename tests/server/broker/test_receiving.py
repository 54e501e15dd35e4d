"""Which messages a receive gets: filters, fairness, damage, and what is refused."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosmodrome_server.core import receive
from cosmodrome_server.errors import (
    BadRequest,
    ConsumerGroupNotFound,
    CorruptFrame,
    Forbidden,
    MessageTypeConflict,
)
from cosmodrome_server.model.filter import Filter
from cosmodrome_server.model.group import Group
from cosmodrome_server.model.log import MessageRecord
from cosmodrome_server.model.message import Delivery, MessageType
from cosmodrome_server.model.queries import ANY_QUEUE, PullQuery, ReceiveQuery, Waiter
from cosmodrome_server.model.topic import Permission, Topic, TopicType
from tests.support.broker_world import Run, World, bodies, new_message


def tagged(world: World, tag: str, count: int = 32) -> list[Delivery]:
    wanted = Filter(expression=tag)
    query = ReceiveQuery("billing", "line", ANY_QUEUE, "c", count, 60_000, filter=wanted)
    return world.broker.receive(query)


async def line(world: World, tags: list[str]) -> None:
    """A topic with one queue and a message per tag, named by its offset."""
    world.broker.create_topic(Topic("line", queues=1))
    for number, tag in enumerate(tags):
        world.broker.send("line", [new_message(b"%d" % number, tag=tag)])
    await world.settle()


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 700)), max_size=12), st.integers(1, 40))
@settings(max_examples=25, deadline=None)
def test_a_filtered_receive_finds_every_match_however_far_apart(
    runs: list[tuple[bool, int]], batch: int
) -> None:
    tags = [tag for wanted, length in runs for tag in ["a" if wanted else "b"] * length]

    async def scenario(world: World) -> None:
        await line(world, tags)
        found: list[Delivery] = []
        while more := tagged(world, "a", batch):
            assert len(more) <= batch
            found += more
        wanted = [b"%d" % number for number, tag in enumerate(tags) if tag == "a"]
        assert bodies(found) == wanted
        behind = world.broker.accumulation("billing", "line")
        assert (behind.ready, behind.inflight) == (0, len(wanted))
        await world.settle()
        before = world.broker.state_hash()
        await world.restart()
        assert world.broker.state_hash() == before
        for delivery in found:
            world.broker.ack("billing", "line", delivery.receipt_handle)
        assert world.broker.committed_offset("billing", "line", 0) == len(tags)
        world.broker.abandon()

    world_runner(scenario)


def world_runner(scenario: object) -> None:
    async def main() -> None:
        world = World()
        world.broker.create_group(Group("billing"))
        await scenario(world)  # type: ignore[operator]  # a coroutine function

    asyncio.run(main())


def test_tags_that_share_a_hash_are_told_apart(run: Run) -> None:
    async def scenario(world: World) -> None:
        await line(world, ["Aa", "BB", "Aa"])
        assert bodies(tagged(world, "BB")) == [b"1"]
        pulled = world.broker.pull(PullQuery("", "line", 0, 0, 9, Filter(expression="Aa")))
        assert [message.body for message in pulled.messages] == [b"0", b"2"]
        assert pulled.next_offset == 3

    run(scenario)


def test_a_waiter_is_served_although_its_match_lies_behind_a_long_scan(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(world: World) -> None:
        monkeypatch.setattr(receive, "SCAN_OFFSETS_MAX", 100)
        monkeypatch.setattr(receive, "_SCAN_STEP", 50)
        await line(world, ["b"] * 1_000 + ["a"])
        assert tagged(world, "a") == []
        given_: list[list[bytes]] = []
        query = ReceiveQuery(
            "billing", "line", ANY_QUEUE, "c", 1, 60_000, filter=Filter(expression="a")
        )
        world.broker.wait(
            Waiter(query, world.clocks.run_ms + 9_000, lambda found: given_.append(bodies(found)))
        )
        for _ in range(5):
            await world.settle()
        assert given_ == [[b"1000"]]

    run(scenario)


def test_a_redelivery_that_matches_no_more_is_settled(run: Run) -> None:
    async def scenario(world: World) -> None:
        await line(world, ["a", "b"])
        assert len(world.receive("line", "billing")) == 2
        await world.later(10_000)
        assert bodies(tagged(world, "b")) == [b"1"]
        assert world.broker.accumulation("billing", "line").ready == 0

    run(scenario)


def test_redeliveries_that_match_no_more_are_settled_some_at_a_time(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(world: World) -> None:
        monkeypatch.setattr(receive, "SCAN_OFFSETS_MAX", 160)
        await line(world, ["b"] * 100 + ["a"])
        assert sum(len(world.receive("line", "billing")) for _ in range(4)) == 101
        await world.later(10_000)
        assert tagged(world, "a") == []
        left = world.broker.accumulation("billing", "line").ready
        assert 0 < left < 101
        given_: list[Delivery] = []
        query = ReceiveQuery(
            "billing", "line", ANY_QUEUE, "c", 1, 60_000, filter=Filter(expression="a")
        )
        world.broker.wait(Waiter(query, world.clocks.run_ms + 9_000, given_.extend))
        for _ in range(5):
            await world.settle()
        assert bodies(given_) == [b"100"]
        assert world.broker.accumulation("billing", "line").ready == 0

    run(scenario)


def test_every_queue_is_served_whatever_queue_a_client_names(run: Run) -> None:
    async def scenario(world: World) -> None:
        for number in range(8):
            await world.send("orders", new_message(b"%d" % number))
        seen = world.receive("orders", "billing", queue_id=2)
        assert {delivery.message.queue_id for delivery in seen} == {0, 1, 2, 3}
        assert len(seen) == 8

    run(scenario)


def test_no_queue_starves_while_another_is_busy(run: Run) -> None:
    async def scenario(world: World) -> None:
        for number in range(40):
            await world.send("orders", new_message(b"%d" % number))
        queues = [
            delivery.message.queue_id
            for _ in range(8)
            for delivery in world.receive("orders", "billing", 1)
        ]
        assert sorted(queues) == [0, 0, 1, 1, 2, 2, 3, 3]

    run(scenario)


def test_redeliveries_and_new_messages_share_a_batch(run: Run) -> None:
    async def scenario(world: World) -> None:
        world.broker.create_topic(Topic("line", queues=1))
        await world.send("line", *[new_message(b"old") for _ in range(20)])
        world.receive("line", "billing", 20)
        await world.later(10_000)
        await world.send("line", *[new_message(b"new") for _ in range(20)])
        batch = bodies(world.receive("line", "billing", 10))
        assert (batch.count(b"old"), batch.count(b"new")) == (5, 5)
        singles = [bodies(world.receive("line", "billing", 1))[0] for _ in range(6)]
        assert (singles.count(b"old"), singles.count(b"new")) == (3, 3)
        rest = bodies(world.receive("line", "billing", 32))
        assert (rest.count(b"old"), rest.count(b"new")) == (12, 12)

    run(scenario)


def test_new_messages_the_filter_passes_over_take_no_place_from_redeliveries(run: Run) -> None:
    async def scenario(world: World) -> None:
        await line(world, ["a", "a"])
        assert len(tagged(world, "a")) == 2
        await world.later(60_000)
        assert bodies(tagged(world, "a", 1)) == [b"0"]
        await world.send("line", *[new_message(b"%d" % number, tag="b") for number in range(2, 9)])
        # The next place is for a new message, and none of them is wanted.
        assert bodies(tagged(world, "a", 1)) == [b"1"]
        assert world.broker.accumulation("billing", "line").ready == 0

    run(scenario)


def test_a_damaged_message_is_passed_over_and_counted(run: Run) -> None:
    async def scenario(world: World) -> None:
        await line(world, [""] * 4)
        original = world.log.read

        def read(topic_id: int, queue_id: int, queue_offset: int) -> MessageRecord:
            if queue_offset == 1:
                raise CorruptFrame("injected")
            return original(topic_id, queue_id, queue_offset)

        world.log.read = read  # type: ignore[method-assign]  # damage
        assert bodies(world.receive("line", "billing")) == [b"0", b"2", b"3"]
        pulled = world.broker.pull(PullQuery("", "line", 0, 0, 9))
        assert [message.body for message in pulled.messages] == [b"0", b"2", b"3"]
        assert world.broker.statistics().lost_messages == 2

    run(scenario)


@pytest.mark.parametrize("count", [1, 32])
def test_what_lies_behind_damage_is_not_waited_for(run: Run, count: int) -> None:
    async def scenario(world: World) -> None:
        await line(world, [])
        assert world.receive("line", "billing") == []
        await world.settle()
        world.broker.send("line", [new_message(b"%d" % number) for number in range(40)])
        await world.settle()
        read = world.log.read

        def damaged(topic_id: int, queue_id: int, queue_offset: int) -> MessageRecord:
            if queue_offset < 35:
                raise CorruptFrame("injected")
            return read(topic_id, queue_id, queue_offset)

        world.log.read = damaged  # type: ignore[method-assign]  # damage
        query = ReceiveQuery("billing", "line", ANY_QUEUE, "c", count, 10_000)
        assert world.broker.receive(query) == []
        given: list[Delivery] = []
        world.broker.wait(Waiter(query, world.clocks.run_ms + 20_000, given.extend))
        for _ in range(35):
            await world.settle()
        assert bodies(given) == [b"%d" % number for number in range(35, 40)][:count]
        assert world.broker.statistics().lost_messages == 35

    run(scenario)


def test_what_may_not_be_read_or_written_is_refused(run: Run) -> None:
    async def scenario(world: World) -> None:
        world.broker.create_topic(Topic("sealed", permission=Permission.READ, queues=1))
        world.broker.create_topic(Topic("blind", permission=Permission.WRITE, queues=1))
        world.broker.create_group(Group("asleep", is_consumable=False))
        with pytest.raises(Forbidden, match="its permission is READ"):
            world.broker.send("sealed", [new_message()])
        with pytest.raises(Forbidden, match="its permission is WRITE"):
            world.receive("blind", "billing")
        with pytest.raises(Forbidden, match="its permission is WRITE"):
            world.broker.pull(PullQuery("", "blind", 0, 0, 1))
        with pytest.raises(Forbidden, match="asleep"):
            world.receive("orders", "asleep")
        with pytest.raises(ConsumerGroupNotFound):
            world.receive("orders", "nobody")
        with pytest.raises(BadRequest, match="queues 0 to 0"):
            world.receive("steps", "ledger", queue_id=1)
        with pytest.raises(BadRequest, match="1024"):
            world.receive("steps", "ledger", attempt_id="x" * 1_025)

    run(scenario)


def test_every_message_of_a_batch_must_fit_its_topic(run: Run) -> None:
    async def scenario(world: World) -> None:
        wrong = new_message(b"b", message_type=MessageType.DELAY)
        with pytest.raises(MessageTypeConflict, match="message b is DELAY"):
            world.broker.send("orders", [new_message(b"a"), wrong])
        world.broker.create_topic(Topic("mixed", TopicType.MIXED, queues=1))
        world.broker.send("mixed", [new_message(b"a"), new_message(b"b", group="g"), wrong])
        with pytest.raises(MessageTypeConflict):
            world.broker.send("mixed", [new_message(message_type=MessageType.LITE)])

    run(scenario)


def test_messages_of_a_message_group_go_to_one_queue_also_inside_a_batch(run: Run) -> None:
    async def scenario(world: World) -> None:
        world.broker.create_topic(Topic("ordered", TopicType.FIFO, queues=4))
        names = ["order-1", "order-2", "user-42"] * 3
        world.broker.send("ordered", [new_message(b"x", group=name) for name in names])
        await world.settle()
        assert [world.broker.bounds("ordered", queue).max_offset for queue in range(4)] == [
            0,
            3,
            3,
            3,
        ]

    run(scenario)


def test_a_topic_can_grow_under_a_group_that_reads_it(run: Run) -> None:
    async def scenario(world: World) -> None:
        await line(world, ["", ""])
        world.receive("line", "billing", 1)
        world.broker.create_topic(Topic("line", queues=3))
        with pytest.raises(BadRequest, match="shrink"):
            world.broker.create_topic(Topic("line", queues=1))
        with pytest.raises(BadRequest, match="cannot become"):
            world.broker.create_topic(Topic("line", TopicType.FIFO, queues=3))
        for number in range(3):
            await world.send("line", new_message(b"new-%d" % number))
        assert len(world.receive("line", "billing")) == 4

    run(scenario)


def test_priorities_choose_their_queue(run: Run) -> None:
    async def scenario(world: World) -> None:
        world.broker.create_topic(Topic("ranked", TopicType.PRIORITY, queues=3))
        for priority in (0, 2, 9):
            world.broker.send(
                "ranked", [new_message(message_type=MessageType.PRIORITY, priority=priority)]
            )
        await world.settle()
        ends = [world.broker.bounds("ranked", queue).max_offset for queue in range(3)]
        assert ends == [1, 0, 2]

    run(scenario)
