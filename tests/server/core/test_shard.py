"""A shard rebuilt from any prefix of its log, and from a log that lost a frame."""

import asyncio
import contextlib
import random

import pytest

from cosmodrome_server.core.lease import LeaseBlock, Leases
from cosmodrome_server.core.shard import Shard
from cosmodrome_server.errors import BrokerError
from cosmodrome_server.model.group import Group
from cosmodrome_server.model.log import Replayed
from cosmodrome_server.model.message import MessageType
from cosmodrome_server.model.topic import Topic, TopicType
from tests.support.broker_world import World, new_message
from tests.support.memory_log import MemoryLog

Seen = list[tuple[int, str]]


async def live(seed: int) -> tuple[World, Seen]:
    """A broker that did many things; the lease clock and the state hash after each frame."""
    choose = random.Random(seed)
    world = World()
    broker = world.broker
    seen: Seen = []
    original = broker._checkpoints.frame_sealed

    def sealed() -> None:
        # What was hidden for 0 ms in this turn is due now, here as after a start.
        broker._shard.advance(broker._shard.lease_ms)
        seen.append((broker._shard.lease_ms, broker.state_hash()))
        original()

    broker._commit._on_sealed = sealed
    broker.create_topic(Topic("orders", queues=3))
    broker.create_topic(Topic("steps", TopicType.FIFO, queues=2))
    broker.create_group(Group("billing", max_attempts=2))
    broker.create_group(Group("ledger", is_fifo=True, max_attempts=3))
    handles: list[tuple[str, str, str]] = []
    for number in range(300):
        topic, group = choose.choice([("orders", "billing"), ("steps", "ledger")])
        name = b"%d" % number
        match choose.randrange(8):
            case 0 | 1:
                message_group = choose.choice("ABC") if topic == "steps" else ""
                broker.send(topic, [new_message(name, group=message_group)] * choose.randint(1, 3))
            case 2 | 3:
                deliveries = world.receive(topic, group, choose.randint(1, 4))
                handles += [(group, topic, each.receipt_handle) for each in deliveries]
            case 4 | 5 if handles:
                handle = choose.choice(handles)
                try:
                    broker.ack(*handle)
                except BrokerError:
                    handles.remove(handle)
            case 6 if handles:
                with contextlib.suppress(BrokerError):
                    broker.change_invisible_duration(
                        *choose.choice(handles), choose.choice([0, 3_000]), suspend=False
                    )
            case _:
                await world.later(choose.choice([1, 4_000, 11_000]))
        if choose.random() < 0.5:
            await world.settle()
    await world.settle()
    broker.abandon()
    return world, seen


def rebuilt(log: MemoryLog) -> Shard:
    shard = Shard(log)
    shard.restore(log.rows())
    for replayed in log.replay():
        shard.replay(replayed)
    shard.started()
    return shard


@pytest.mark.parametrize("seed", range(5))
def test_every_prefix_of_the_log_gives_the_state_there_was_after_its_last_frame(seed: int) -> None:
    world, seen = asyncio.run(live(seed))
    frames = world.log.frames
    assert len(frames) == len(seen) > 50
    for count, (lease_ms, state_hash) in enumerate(seen, 1):
        shard = rebuilt(MemoryLog(frames[:count]))
        shard.advance(lease_ms)
        assert shard.state_hash() == state_hash, f"after frame {count}"
        assert shard.orphans == 0


@pytest.mark.parametrize("seed", range(3))
def test_packed_leases_and_progress_at_rest_are_the_state_of_a_replay_that_has_neither(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = 0
    original = Leases.pack

    def counted(leases: Leases) -> list[LeaseBlock]:
        nonlocal packed
        blocks = original(leases)
        packed += sum(map(len, blocks))
        return blocks

    with monkeypatch.context() as early:
        early.setattr("cosmodrome_server.core.consumptions._SWEEP_MIN", 1)
        early.setattr("cosmodrome_server.core.consumptions._LAY_MIN", 1)
        early.setattr("cosmodrome_server.core.lease._BLOCK_MIN", 1)
        early.setattr(Leases, "pack", counted)
        world, seen = asyncio.run(live(seed))
    assert packed > 20
    for count, (lease_ms, state_hash) in enumerate(seen, 1):
        shard = rebuilt(MemoryLog(world.log.frames[:count]))
        shard.advance(lease_ms)
        assert shard.state_hash() == state_hash, f"after frame {count}"


@pytest.mark.parametrize("seed", range(3))
def test_the_changed_rows_of_each_checkpoint_make_up_the_state(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cosmodrome_server.core.consumptions._LAY_MIN", 1 + seed)
    world, _ = asyncio.run(live(seed))
    shard = Shard(world.log)
    saved: dict[bytes, bytes] = {}
    choose = random.Random(seed)
    for replayed in world.log.replay():
        shard.replay(replayed)
        if choose.random() < 0.1:
            for key, value in shard.dirty_rows():
                saved.pop(key, None)
                if value is not None:
                    saved[key] = value
            again = Shard(world.log)
            again.restore(saved.items())
            assert again.state_hash() == shard.state_hash()
            assert [len(list(each.rows())) for each in again.consumptions.by_pair.values()] == [
                each.queues for each in shard.consumptions.by_pair.values()
            ]


@pytest.mark.parametrize("seed", range(3))
def test_a_log_that_lost_any_one_frame_still_starts(seed: int) -> None:
    world, _ = asyncio.run(live(seed))
    frames = world.log.frames
    for lost in range(len(frames)):
        log = MemoryLog([*frames[:lost], [], *frames[lost + 1 :]])
        shard = rebuilt(log)
        for consumption in shard.consumptions.by_pair.values():
            leased = sum(progress.inflight for progress in consumption.awake.values())
            assert consumption.inflight == leased
        shard.advance(shard.lease_ms + 100_000_000)
        assert all(each.inflight == 0 for each in shard.consumptions.by_pair.values())
        # Only what was in the lost frame is lost: every other message comes, again or at last.
        for consumption in shard.consumptions.by_pair.values():
            for progress in consumption.awake.values():
                seen = range(progress.done.floor, progress.cursor)
                assert all(each in progress.done or each in progress.ready for each in seen)


def test_the_same_seed_gives_the_same_states() -> None:
    assert asyncio.run(live(7))[1] == asyncio.run(live(7))[1]


async def queues_added() -> list[list[Replayed]]:
    """The frames of a broker that added queues to a topic in one of them, and used them."""
    world = World()
    broker = world.broker
    broker.create_topic(Topic("orders", TopicType.MIXED, queues=1))
    await world.settle()
    broker.create_topic(Topic("orders", TopicType.MIXED, queues=4))
    half = new_message(b"half", message_type=MessageType.TRANSACTION)
    broker.send("orders", [half], queue_id=3)
    await world.settle()
    broker.send("orders", [new_message(b"a"), new_message(b"b")], queue_id=1)
    await world.settle()
    delayed = new_message(b"c", message_type=MessageType.DELAY)
    delayed.delivery_timestamp_ms = world.clocks.now_ms() + 5_000
    broker.send("orders", [delayed], queue_id=2)
    await world.settle()
    broker.end_transaction("orders", "half", commit=True, from_check=False)
    await world.settle()
    broker.create_group(Group("billing"))
    broker.commit_offset("billing", "orders", 3, 1)
    await world.settle()
    broker.abandon()
    return world.log.frames


@pytest.mark.parametrize(
    ("others", "ends"), [((-2, -1), [0, 2, 0]), ((-2,), [0, 2, 0, 0]), ((-1,), [0, 2, 0, 1])]
)
def test_queues_that_were_added_in_a_lost_frame_are_there_if_anything_is_about_them(
    others: tuple[int, ...], ends: list[int]
) -> None:
    frames = asyncio.run(queues_added())
    added = [any(b'"queues":4' in each.payload for each in frame) for frame in frames]
    for lost in (added.index(True), *others):
        frames[lost] = []
    shard = rebuilt(MemoryLog(frames))
    topic = shard.catalogue.topic("orders")
    assert (shard.orphans, topic.topic.queues, list(topic.next_offsets)) == (0, len(ends), ends)
