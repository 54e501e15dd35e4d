"""Offsets and pulling."""

import pytest

from cosmodrome_server.broker import offset_verbs
from cosmodrome_server.errors import (
    BadRequest,
    CorruptFrame,
    IllegalOffset,
    InvalidReceiptHandle,
    OffsetNotFound,
)
from cosmodrome_server.model.filter import Filter, FilterType
from cosmodrome_server.model.group import ConsumeFrom, Group
from cosmodrome_server.model.log import MessageRecord
from cosmodrome_server.model.queries import Pulled, PullQuery, PullWaiter, QueueBounds
from cosmodrome_server.model.topic import Topic
from tests.support.broker_world import START_MS, Run, World, bodies, new_message
from tests.support.memory_log import MemoryLog


async def send_line(world: World, count: int) -> None:
    """A topic with one queue and `count` messages named by their offsets."""
    world.broker.create_topic(Topic("line", queues=1))
    for number in range(count):
        await world.send("line", new_message(b"%d" % number))
        world.clocks.pass_ms(10)


def test_pulling_reads_in_order_and_hides_nothing(run: Run) -> None:
    async def scenario(world: World) -> None:
        await send_line(world, 5)
        for _ in range(2):
            pulled = world.broker.pull(PullQuery("", "line", 0, 1, 3))
            assert [message.body for message in pulled.messages] == [b"1", b"2", b"3"]
            assert pulled.next_offset == 4

    run(scenario)


def test_a_pull_reads_what_it_may_and_says_where_to_go_on(run: Run) -> None:
    async def scenario(world: World) -> None:
        await send_line(world, 200)
        whole = world.broker.pull(PullQuery("", "line", 0, 3, 150))
        assert [message.queue_offset for message in whole.messages] == list(range(3, 153))
        assert whole.next_offset == 153
        rest = world.broker.pull(PullQuery("", "line", 0, 153, 150))
        assert (len(rest.messages), rest.next_offset) == (47, 200)

    run(scenario)


def test_a_pull_that_read_enough_of_what_does_not_match_says_where_to_go_on(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_verbs, "_PULL_PASSED_BYTES_MAX", 4_097)

    async def scenario(world: World) -> None:
        world.broker.create_topic(Topic("line", queues=1))
        await world.send("line", *(new_message(name) for name in (b"a", b"b", b"c", b"d")))
        await world.send("line", new_message(b"e", tag="wanted"))
        wanted = Filter(FilterType.SQL, "TAGS = 'wanted'")
        first = world.broker.pull(PullQuery("", "line", 0, 0, 32, wanted))
        assert (first.messages, first.next_offset) == ([], 2)
        second = world.broker.pull(PullQuery("", "line", 0, 2, 32, wanted))
        third = world.broker.pull(PullQuery("", "line", 0, second.next_offset, 32, wanted))
        assert [message.body for message in second.messages + third.messages] == [b"e"]

    run(scenario)


def test_a_pull_ends_at_some_4_mib_of_bodies(run: Run) -> None:
    async def scenario(world: World) -> None:
        world.broker.create_topic(Topic("line", queues=1))
        for _ in range(24):
            await world.send("line", new_message(b"x" * (1 << 20)))
        pulled = world.broker.pull(PullQuery("", "line", 0, 0, 24))
        assert 4 <= len(pulled.messages) <= 6
        assert pulled.next_offset == len(pulled.messages)

    run(scenario)


def test_a_pull_passes_over_a_damaged_message_and_counts_it(run: Run) -> None:
    async def scenario(world: World) -> None:
        await send_line(world, 40)
        read = world.log.read

        def damaged(topic_id: int, queue_id: int, queue_offset: int) -> MessageRecord:
            if queue_offset == 20:
                raise CorruptFrame("injected")
            return read(topic_id, queue_id, queue_offset)

        world.log.read = damaged  # type: ignore[method-assign]  # damage
        pulled = world.broker.pull(PullQuery("", "line", 0, 0, 39))
        assert [message.queue_offset for message in pulled.messages] == [
            *range(20),
            *range(21, 40),
        ]
        assert pulled.next_offset == 40
        assert world.broker.statistics().lost_messages == 1

    run(scenario)


def test_a_pull_outside_the_queue_is_told_the_nearest_offset_inside(run: Run) -> None:
    async def scenario(world: World) -> None:
        await send_line(world, 5)
        world.log.trim(1, 0, 0)
        with pytest.raises(IllegalOffset) as refused:
            world.broker.pull(PullQuery("", "line", 0, 6, 3))
        assert refused.value.corrected == 5
        with pytest.raises(IllegalOffset) as refused:
            world.broker.pull(PullQuery("", "line", 0, -1, 3))
        assert refused.value.corrected == 0
        with pytest.raises(BadRequest):
            world.broker.pull(PullQuery("", "line", 1, 0, 3))

    run(scenario)


def test_a_waiting_pull_is_served_by_the_next_message(run: Run) -> None:
    async def scenario(world: World) -> None:
        await send_line(world, 1)
        served: list[Pulled] = []
        world.broker.wait_pull(
            PullWaiter(PullQuery("", "line", 0, 1, 3), world.clocks.run_ms + 9_000, served.append)
        )
        await world.send("line", new_message(b"next"))
        assert [message.body for message in served[0].messages] == [b"next"]
        world.broker.wait_pull(
            PullWaiter(PullQuery("", "line", 0, 2, 3), world.clocks.run_ms + 9_000, served.append)
        )
        await world.later(9_000)
        assert served[1] == Pulled([], 2)

    run(scenario)


def test_offsets_are_found_by_bounds_and_by_time(run: Run) -> None:
    async def scenario(world: World) -> None:
        await send_line(world, 5)
        assert world.broker.bounds("line", 0) == QueueBounds(0, 5)
        assert world.broker.offset_at("line", 0, START_MS + 20) == 2
        assert world.broker.offset_at("line", 0, START_MS + 21) == 3
        assert world.broker.offset_at("line", 0, START_MS + 999) == 5

    run(scenario)


def test_a_committed_offset_is_where_receiving_goes_on(run: Run) -> None:
    async def scenario(world: World) -> None:
        await send_line(world, 5)
        with pytest.raises(OffsetNotFound):
            world.broker.committed_offset("billing", "line", 0)
        world.broker.commit_offset("billing", "line", 0, 3)
        assert world.broker.committed_offset("billing", "line", 0) == 3
        assert bodies(world.receive("line", "billing")) == [b"3", b"4"]

    run(scenario)


def test_a_commit_beyond_the_end_passes_over_nothing_that_is_yet_to_come(run: Run) -> None:
    async def scenario(world: World) -> None:
        await send_line(world, 2)
        world.broker.commit_offset("billing", "line", 0, 1_000)
        assert world.broker.committed_offset("billing", "line", 0) == 2
        await world.send("line", new_message(b"next"))
        assert bodies(world.receive("line", "billing")) == [b"next"]

    run(scenario)


def test_a_reset_by_time_forgets_what_is_in_flight(run: Run) -> None:
    async def scenario(world: World) -> None:
        await send_line(world, 5)
        world.broker.commit_offset("billing", "line", 0, 0)
        before, kept = world.receive("line", "billing", 1), world.receive("line", "billing", 1)
        again = world.broker.offset_at("line", 0, START_MS + 10)
        world.broker.reset_offset("billing", "line", 0, again)
        assert world.broker.accumulation("billing", "line").inflight == 0
        # Before the new place it is done; behind it the delivery to come is the one that counts.
        world.broker.ack("billing", "line", before[0].receipt_handle)
        with pytest.raises(InvalidReceiptHandle):
            world.broker.ack("billing", "line", kept[0].receipt_handle)
        found = world.receive("line", "billing")
        assert [(each.message.body, each.attempt) for each in found] == [
            (b"%d" % number, 1) for number in range(1, 5)
        ]
        # The deadlines of the old deliveries are nobody's any more.
        await world.later(9_999)
        assert world.receive("line", "billing") == []
        await world.later(1)
        assert {each.attempt for each in world.receive("line", "billing")} == {2}

    run(scenario)


def test_commits_are_ignored_until_a_consumer_noticed_the_reset(run: Run) -> None:
    async def scenario(world: World) -> None:
        await send_line(world, 5)
        world.broker.commit_offset("billing", "line", 0, 4)
        world.broker.reset_offset("billing", "line", 0, 1)
        world.broker.commit_offset("billing", "line", 0, 5)
        assert world.broker.committed_offset("billing", "line", 0) == 1
        world.broker.pull(PullQuery("billing", "line", 0, 1, 1))
        world.broker.commit_offset("billing", "line", 0, 2)
        assert world.broker.committed_offset("billing", "line", 0) == 2
        with pytest.raises(IllegalOffset):
            world.broker.reset_offset("billing", "line", 0, 6)

    run(scenario)


def test_a_reset_that_retention_overtook_is_noticed_where_messages_begin_now(run: Run) -> None:
    async def scenario(world: World) -> None:
        await send_line(world, 5)
        world.broker.commit_offset("billing", "line", 0, 4)
        world.broker.reset_offset("billing", "line", 0, 1)
        world.log.trim(world.broker.place_of("line", 0)[0], 0, 3)
        with pytest.raises(IllegalOffset) as refused:
            world.broker.pull(PullQuery("billing", "line", 0, 1, 32))
        assert refused.value.corrected == 3
        world.broker.pull(PullQuery("billing", "line", 0, 3, 32))
        world.broker.commit_offset("billing", "line", 0, 5)
        assert world.broker.committed_offset("billing", "line", 0) == 5

    run(scenario)


@pytest.mark.parametrize(
    ("consume_from", "first"),
    [
        (ConsumeFrom.FIRST, b"0"),
        (ConsumeFrom.LAST, b"news"),
        (ConsumeFrom.TIMESTAMP, b"2"),
        (ConsumeFrom.AUTO, b"0"),
    ],
)
def test_a_new_group_begins_where_it_was_told_to(
    run: Run, consume_from: ConsumeFrom, first: bytes
) -> None:
    async def scenario(world: World) -> None:
        await send_line(world, 5)
        world.broker.create_group(
            Group("new", consume_from=consume_from, consume_timestamp_ms=START_MS + 20)
        )
        found = bodies(world.receive("line", "new", 1))
        await world.send("line", new_message(b"news"))
        found += bodies(world.receive("line", "new", 1))
        assert found[0] == first

    run(scenario)


def test_a_new_group_on_an_old_queue_begins_with_its_newest_message(run: Run) -> None:
    async def scenario(world: World) -> None:
        await send_line(world, 5)
        world.clocks.pass_ms(73 * 3_600_000)
        assert bodies(world.receive("line", "billing")) == [b"4"]

    run(scenario)


def test_accumulation_counts_what_waits_and_what_is_in_flight(run: Run) -> None:
    async def scenario(world: World) -> None:
        await send_line(world, 5)
        first, _ = world.receive("line", "billing", 2)
        world.broker.ack("billing", "line", first.receipt_handle)
        behind = world.broker.accumulation("billing", "line")
        assert (behind.ready, behind.inflight) == (3, 1)
        assert behind.oldest_unconsumed_ms == START_MS + 10
        assert behind.oldest_ready_ms == START_MS + 20

    run(scenario)


def test_a_group_begins_on_a_queue_whose_first_message_was_lost_to_corruption(run: Run) -> None:
    async def scenario(world: World) -> None:
        world.broker.create_topic(Topic("line", queues=1))
        await world.settle()
        await send_line(world, 3)
        world.broker.abandon()
        frames = [
            [] if any(each.message and each.message.body == b"0" for each in frame) else frame
            for frame in world.log.frames
        ]
        assert frames.count([]) == 1
        world.start(MemoryLog(frames))
        behind = world.broker.accumulation("billing", "line")
        assert (behind.ready, behind.oldest_unconsumed_ms) == (3, START_MS + 10)
        assert bodies(world.receive("line", "billing")) == [b"1", b"2"]

    run(scenario)


def test_messages_taken_by_retention_are_passed_over(run: Run) -> None:
    async def scenario(world: World) -> None:
        await send_line(world, 5)
        world.receive("line", "billing", 2)
        await world.later(10_000)
        topic_id = world.broker._shard.catalogue.topic("line").topic_id
        world.log.trim(topic_id, 0, 3)
        assert bodies(world.receive("line", "billing")) == [b"3", b"4"]
        assert world.broker.bounds("line", 0) == QueueBounds(3, 5)

    run(scenario)
