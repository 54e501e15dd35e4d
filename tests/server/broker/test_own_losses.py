"""What could be lost here, found by reading: one test each, on a simulated disk."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from cosmodrome_server.core.lite_subscription import lite_topic_name
from cosmodrome_server.errors import InvalidReceiptHandle, MessageNotFound
from cosmodrome_server.model.group import ConsumeFrom, Group
from cosmodrome_server.model.message import MessageType
from cosmodrome_server.model.queries import QueueBounds
from cosmodrome_server.model.topic import Topic, TopicType
from cosmodrome_server.store import sealed_index, segment
from cosmodrome_server.store.platform import LogOptions
from tests.support.broker_world import bodies, new_message
from tests.support.disk_world import DIRECTORY, NEVER_SYNCED, SYNCED, DiskWorld

HOUR_MS = 3_600_000
SMALL = replace(SYNCED, retention_bytes=40_000)


def run(scenario: Callable[[DiskWorld], Awaitable[None]], options: LogOptions = SYNCED) -> None:
    async def main() -> None:
        world = DiskWorld(options)
        world.open()
        await world.create()
        await scenario(world)
        world.broker.abandon()

    asyncio.run(main())


async def fill(world: DiskWorld, count: int) -> None:
    """Push out what retention would let go."""
    for _ in range(count):
        world.broker.send("plain", [new_message(b"x" * 4_000)])
        await world.settle()


async def due_with_its_hour(world: DiskWorld, name: str) -> None:
    """A message that is the last of its hour, and due when next copies are made: it needs none."""
    left_ms = HOUR_MS - world.clocks.wall_ms % HOUR_MS
    await world.later(left_ms - 61_000)
    # The next copies are made a minute after these.
    world.broker.send("later", [world.delayed("copied", 5 * HOUR_MS)])
    await world.later(0, 52_000)
    world.broker.send("later", [world.delayed(name, 8_950)])


def test_retention_leaves_what_has_fired_until_that_is_on_the_disk() -> None:
    async def scenario(world: DiskWorld) -> None:
        await due_with_its_hour(world, "a")
        await fill(world, 40)
        assert len(world.log.segments()) > 2
        world.writer.holding = True
        # In one turn it fires, and segments are looked for that may go.
        await world.later(10_000, 10_000)
        world.kill()
        await world.later(1, 1)
        assert bodies(world.receive("later")) == [b"a"]
        assert world.broker.statistics().lost_messages == 0

    run(scenario, SMALL)


def test_retention_goes_on_when_that_is_on_the_disk() -> None:
    async def scenario(world: DiskWorld) -> None:
        await due_with_its_hour(world, "a")
        await fill(world, 40)
        await world.later(10_000, 10_000)
        assert len(world.log.segments()) < 14
        assert bodies(world.receive("later")) == [b"a"]

    run(scenario, SMALL)


def test_a_bucket_stays_while_a_power_cut_can_take_its_fires_back() -> None:
    async def scenario(world: DiskWorld) -> None:
        world.broker.send("later", [world.delayed("a", 2 * HOUR_MS)])
        await world.later(60_000)
        names = world.disk.names(DIRECTORY / "timer")
        assert len(names) == 1
        await world.later(2 * HOUR_MS, 1, HOUR_MS, HOUR_MS, HOUR_MS)
        assert bodies(world.receive("later")) == [b"a"]
        assert world.disk.names(DIRECTORY / "timer") == names

    run(scenario, NEVER_SYNCED)


@pytest.mark.parametrize("first_ms", [-1, 3 * HOUR_MS])
def test_a_batch_that_was_never_on_the_disk_leaves_no_copy_in_a_bucket(first_ms: int) -> None:
    async def scenario(world: DiskWorld) -> None:
        world.writer.holding = True
        world.broker.send("plain", [new_message(b"x")])
        await world.settle()
        batch = [world.delayed("a", first_ms), world.delayed("b", 3 * HOUR_MS)]
        world.broker.send("later", batch)
        await world.later(60_000, 1)
        assert world.disk.names(DIRECTORY / "timer") == []
        world.kill()
        await world.later(60_000, 4 * HOUR_MS, 1, 1)
        assert world.receive("later") == []

    run(scenario)


async def lost(world: DiskWorld, names: list[str], after_ms: int) -> list[str]:
    """Delayed messages that were answered, and a power cut took; their recall handles."""
    messages = [world.delayed(name, after_ms) for name in names]
    handles = [receipt.recall_handle for receipt in world.broker.send("later", messages)]
    await world.settle()
    await world.later(60_000)
    world.power_cut(5)
    assert world.log.open_lsn == 2, "choose another seed"
    return handles


def test_a_recall_handle_of_a_message_lost_in_a_power_cut_takes_no_other_one_back() -> None:
    async def scenario(world: DiskWorld) -> None:
        (handle,) = await lost(world, ["a"], 3 * HOUR_MS)
        world.broker.send("later", [world.delayed("b", 3 * HOUR_MS)])
        await world.settle()
        with pytest.raises(MessageNotFound):
            world.broker.recall("later", handle)
        assert [one.message_id for one in world.broker.scheduled("later", 9)] == ["b"]

    run(scenario, NEVER_SYNCED)


def test_a_copy_of_a_message_lost_in_a_power_cut_lets_no_other_one_come_early() -> None:
    async def scenario(world: DiskWorld) -> None:
        await lost(world, ["a"], 3 * HOUR_MS)
        world.broker.send("later", [world.delayed("b", 8 * HOUR_MS)])
        world.broker.send("later", [world.delayed("c", 3 * HOUR_MS)])
        await world.settle()
        await world.later(60_000, 2 * HOUR_MS, HOUR_MS, 1, 1)
        # Its copy was on the disk: it may come, and it is itself.
        assert bodies(world.receive("later")) in ([b"a", b"c"], [b"c"])
        await world.later(5 * HOUR_MS, 1, 1)
        assert b"b" in bodies(world.receive("later"))

    run(scenario, NEVER_SYNCED)


def test_a_handle_of_a_group_lost_in_a_power_cut_is_not_of_the_one_that_got_its_number() -> None:
    async def scenario(world: DiskWorld) -> None:
        group = Group("brief", consume_from=ConsumeFrom.FIRST)
        world.broker.create_group(group)
        world.broker.send("plain", [new_message(b"lost")])
        await world.settle()
        (lost,) = world.receive("plain", "brief")
        await world.later(60_000)
        world.power_cut(5)
        assert world.log.open_lsn == 2, "choose another seed"
        # A later lease makes those of the lost life look like what a start has read.
        await world.later(2 * HOUR_MS)
        world.broker.send("plain", [new_message(b"kept")])
        await world.settle()
        assert bodies(world.receive("plain")) == [b"kept"]
        await world.later(60_000)
        world.kill()
        world.broker.create_group(group)
        (kept,) = world.receive("plain", "brief")
        world.broker.ack("brief", "plain", kept.receipt_handle)
        with pytest.raises(InvalidReceiptHandle):
            world.broker.ack("brief", "plain", lost.receipt_handle)

    run(scenario, NEVER_SYNCED)


def test_a_topic_keeps_its_messages_for_as_long_as_it_was_told() -> None:
    async def scenario(world: DiskWorld) -> None:
        week = Topic("week", queues=1, retention_ms=168 * HOUR_MS)
        world.broker.create_topic(week)
        world.broker.send("week", [new_message(b"kept")])
        await fill(world, 40)
        await world.later(10_000, 100 * HOUR_MS, 31 * 60_000, 10_000)
        assert bodies(world.receive("week")) == [b"kept"]
        world.broker.create_topic(replace(week, retention_ms=0))
        await world.later(10_000)
        assert world.broker.bounds("week", 0) == QueueBounds(1, 1)

    run(scenario, replace(SYNCED, retention_ms=72 * HOUR_MS))


def test_lite_topics_keep_their_messages_for_as_long_as_their_parent_was_told_last() -> None:
    async def scenario(world: DiskWorld) -> None:
        parent = Topic("agents", TopicType.LITE, queues=1)
        names = [lite_topic_name("agents", each) for each in "ab"]
        world.broker.create_topic(parent)
        kept = replace(new_message(b"kept", message_type=MessageType.LITE), lite_topic="a")
        world.broker.send("agents", [kept])
        world.broker.create_topic(replace(parent, retention_ms=168 * HOUR_MS))
        world.broker.send("agents", [replace(kept, lite_topic="b")])
        await fill(world, 40)
        await world.later(10_000, 100 * HOUR_MS, 31 * 60_000, 10_000)
        assert [world.broker.bounds(name, 0) for name in names] == 2 * [QueueBounds(0, 1)]
        world.broker.create_topic(parent)
        await world.later(10_000)
        assert [world.broker.bounds(name, 0) for name in names] == 2 * [QueueBounds(1, 1)]

    run(scenario, replace(SYNCED, retention_ms=72 * HOUR_MS))


def test_a_clock_that_jumps_ahead_for_a_while_costs_no_message() -> None:
    async def scenario(world: DiskWorld) -> None:
        world.broker.send("plain", [new_message(b"kept")])
        await fill(world, 40)
        world.clocks.wall_ms += 40 * 24 * HOUR_MS
        await world.later(10_000, 10_000, 30 * 60_000)
        world.clocks.wall_ms -= 40 * 24 * HOUR_MS
        await world.later(10_000, 10_000, 30 * 60_000, 10_000)
        assert bodies(world.receive("plain"))[0] == b"kept"

    run(scenario, replace(SYNCED, retention_ms=72 * HOUR_MS))


def test_a_clock_that_stays_ahead_is_believed() -> None:
    async def scenario(world: DiskWorld) -> None:
        await fill(world, 40)
        world.clocks.wall_ms += 40 * 24 * HOUR_MS
        await world.later(10_000, 30 * 60_000, 31 * 60_000, 10_000)
        assert len(world.log.segments()) == 1

    run(scenario, replace(SYNCED, retention_ms=72 * HOUR_MS))


def test_a_start_that_passes_a_snapshot_begins_no_earlier_than_that_was_taken() -> None:
    async def scenario(world: DiskWorld) -> None:
        await world.broker.close()
        world.open()  # with a checkpoint, which the snapshots below are behind
        world.broker.send("plain", [new_message(b"a")])
        await world.later(HOUR_MS)
        await fill(world, 10)
        assert len(world.log.segments()) > 1
        world.clocks.wall_ms -= 2 * HOUR_MS
        world.kill()
        assert bodies(world.receive("plain"))[0] == b"a"
        await world.settle()
        world.lose_checkpoints()
        world.kill()
        assert world.receive("plain") == []

    run(scenario)


def rot(world: DiskWorld, at: int) -> None:
    """The process dies, what was written at a position rots, the next start has but the log."""
    world.broker.abandon()
    disk = world.disk.killed()
    numbers = {header.number: header for header in world.log.segments()}
    file = disk.open(segment.path_of(DIRECTORY, numbers[segment.segment_of(at)]))
    file.write(segment.offset_of(at), [b"rot"])
    for name in disk.names(DIRECTORY):
        if name.endswith(sealed_index.SUFFIX):
            disk.remove(DIRECTORY / name)
    world.lose_checkpoints()
    world.open(disk)
    assert len(world.log.damages) == 1


async def damaged_at_the_end(world: DiskWorld, *, is_acknowledged: bool) -> None:
    """The frame of the newest message rots after another one told of what became of it."""
    world.broker.send("plain", [new_message(b"whole")])
    world.receive("plain")
    await world.settle()
    lost = world.log.end_position
    world.broker.send("plain", [new_message(b"lost")])
    await world.settle()
    delivered = world.receive("plain")
    await world.settle()
    if is_acknowledged:
        world.broker.ack("billing", "plain", delivered[0].receipt_handle)
        await world.settle()
    rot(world, lost)


@pytest.mark.parametrize("is_acknowledged", [True, False])
def test_a_message_sent_after_one_was_lost_to_rot_is_not_taken_for_that(
    is_acknowledged: bool,
) -> None:
    async def scenario(world: DiskWorld) -> None:
        await damaged_at_the_end(world, is_acknowledged=is_acknowledged)
        world.broker.send("plain", [new_message(b"new")])
        await world.settle()
        assert bodies(world.receive("plain")) == [b"new"]
        await world.settle()
        state = world.broker.state_hash()
        world.lose_checkpoints()
        world.kill()
        assert world.broker.state_hash() == state

    run(scenario)


@pytest.mark.parametrize(
    ("consume_from", "again"), [(ConsumeFrom.FIRST, [b"a", b"b"]), (ConsumeFrom.LAST, [b"b"])]
)
def test_what_a_group_got_first_comes_again_when_the_frame_of_its_beginning_is_lost(
    consume_from: ConsumeFrom, again: list[bytes]
) -> None:
    async def scenario(world: DiskWorld) -> None:
        world.broker.create_group(Group("billing", consume_from=consume_from))
        world.broker.send("plain", [new_message(b"a")])
        await world.settle()
        lost = world.log.end_position
        assert bodies(world.receive("plain")) == again[:-1]
        await world.settle()
        world.broker.send("plain", [new_message(b"b")])
        await world.settle()
        assert bodies(world.receive("plain")) == [b"b"]
        await world.settle()
        rot(world, lost)
        await world.later(10_000)
        assert sorted(bodies(world.receive("plain"))) == again

    run(scenario)


def test_what_a_lost_frame_told_comes_from_the_snapshot_behind_it() -> None:
    async def scenario(world: DiskWorld) -> None:
        world.broker.create_topic(Topic("other", queues=1))
        await world.settle()
        lost = world.log.end_position
        world.broker.send("other", [new_message(b"lost"), new_message(b"lost too")])
        world.broker.create_topic(Topic("made", queues=1))
        await world.settle()
        await fill(world, 20)
        world.broker.send("made", [new_message(b"a")])
        await world.settle()
        rot(world, lost)
        assert bodies(world.receive("made")) == [b"a"]
        world.broker.send("other", [new_message(b"new")])
        await world.settle()
        # This start knows of the first segments what their indexes and the last snapshot say.
        world.lose_checkpoints()
        world.kill()
        assert world.log.damages == []
        assert world.broker.bounds("other", 0) == QueueBounds(0, 3)
        assert bodies(world.receive("other")) == [b"new"]

    run(scenario)


def test_the_number_of_a_topic_that_was_lost_with_its_frame_is_not_given_to_another() -> None:
    async def scenario(world: DiskWorld) -> None:
        lost = world.log.end_position
        world.broker.create_topic(Topic("made", queues=1))
        await world.settle()
        world.broker.send("made", [new_message(b"a")])
        await world.settle()
        number, _ = world.broker.place_of("made", 0)
        rot(world, lost)
        world.broker.create_topic(Topic("other", queues=1))
        assert world.broker.place_of("other", 0)[0] > number
        world.broker.send("other", [new_message(b"b")])
        await world.settle()
        world.kill()
        assert bodies(world.receive("other")) == [b"b"]

    run(scenario)
