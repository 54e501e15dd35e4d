"""What the log does when the disk does not do its part."""

import contextlib
from itertools import cycle
from random import Random

import msgspec
import pytest

from cosmodrome_server.errors import (
    CorruptFrame,
    MessageNotFound,
    ReadFailed,
    StoreFailed,
    StoreFull,
)
from cosmodrome_server.store import segment
from cosmodrome_server.store.patience import READS_MAX
from tests.support.log_world import DIRECTORY, INTERVAL, SMALL, World


@pytest.mark.parametrize("seed", range(1_000))
def test_after_a_failed_write_or_sync_nothing_is_acknowledged_ever_again(seed: int) -> None:
    random = Random(seed)
    world = World()
    for _ in range(random.randint(0, 6)):
        world.random_step(random)
    acked_lsn = world.acked_lsn
    if seed % 2:
        world.disk.fail_sync_after = 0
    else:
        world.disk.fail_write_after = 0
    world.send(0, b"doomed")

    world.commit()

    assert world.acked_lsn == acked_lsn
    assert world.log.durable_lsn == acked_lsn
    assert [type(error) for error in world.failed] == [OSError]
    # Even when the disk is well again: nobody knows what it holds.
    world.disk.fail_sync_after = world.disk.fail_write_after = None
    syncs = world.disk.syncs
    with pytest.raises(StoreFailed):
        world.send(0, b"refused")
    with pytest.raises(StoreFailed):
        world.ack(b"refused")
    assert not world.log.commit(lambda: pytest.fail("a false acknowledgement"))
    world.log.close()
    assert (world.disk.syncs, world.acked_lsn) == (syncs, acked_lsn)


def test_a_failed_interval_sync_stops_the_log() -> None:
    world = World(options=INTERVAL)
    for _ in range(2):  # the first frame of a segment is always synced
        world.send(0, b"in the kernel")
        world.commit()
    world.disk.fail_sync_after = 0
    world.clock.time_ms += 1_000

    world.writer.tick()

    assert len(world.failed) == 1
    with pytest.raises(StoreFailed):
        world.send(0, b"refused")


def test_interval_syncs_once_per_interval_and_not_per_frame() -> None:
    world = World(options=INTERVAL)
    world.send(0, b"first")
    world.commit()
    syncs = world.disk.syncs
    for _ in range(10):
        world.send(0, b"more")
        world.commit()
    assert world.disk.syncs == syncs
    world.clock.time_ms += 50
    world.send(0, b"more")
    world.commit()
    assert world.disk.syncs == syncs + 1


@pytest.mark.parametrize("gaps_ms", [(1, 48), (48, 1), (49,), (51,), (12, 13), (300, 2, 46)])
@pytest.mark.parametrize("wakes_thread", [True, False])
def test_with_interval_no_frame_waits_longer_than_that(
    gaps_ms: tuple[int, ...], *, wakes_thread: bool
) -> None:
    world = World(options=INTERVAL)
    idle_ms, gaps = 0, cycle(gaps_ms)
    next_ms, written = world.clock.time_ms, {}
    for _ in range(1_000):
        world.clock.time_ms += 1
        idle_ms += 1
        if world.clock.time_ms >= next_ms:
            world.send(0, b"in the kernel")
            written[world.commit()] = world.clock.time_ms
            next_ms += next(gaps)
            # A small frame is written on the loop; the thread sleeps on.
            idle_ms = 0 if wakes_thread else idle_ms
        if idle_ms >= world.writer.interval_s * 1_000:
            world.writer.tick()
            idle_ms = 0
        for lsn, written_ms in written.items():
            waits_ms = world.clock.time_ms - written_ms
            assert waits_ms <= 50 or lsn <= world.log.synced_lsn, f"frame {lsn} waits {waits_ms} ms"


def test_a_sync_that_fails_while_a_checkpoint_is_saved_stops_the_log() -> None:
    world = World(options=INTERVAL)
    for _ in range(2):
        world.ack(b"counter")
        world.commit()
    world.disk.fail_sync_after = 0

    world.checkpoint()

    assert world.checkpoints.saves == 0
    assert len(world.failed) == 1


def test_after_a_failed_sync_no_checkpoint_is_ahead_of_the_disk() -> None:
    world = World(options=INTERVAL)
    for _ in range(2):
        world.ack(b"counter")
        world.commit()
    world.disk.fail_sync_after = 0
    world.clock.time_ms += 1_000
    world.writer.tick()

    world.checkpoint()

    assert world.checkpoints.saves == 0


def fill(world: World) -> int:
    """Send until the disk is full; return how many messages were taken."""
    for sent in range(10_000):
        try:
            world.send(0, b"x" * 400)
        except StoreFull:
            return sent
        world.commit()
    raise AssertionError("the disk never filled")


def test_on_a_full_disk_messages_are_refused_and_everything_else_goes_on() -> None:
    world = World()
    world.disk.bytes_max = 60_000
    world.background.tick()
    sent = fill(world)

    assert world.log.is_full
    assert [offset for offset, _ in world.messages(1, 0)] == list(range(sent))
    for count in range(20):
        world.ack(b"counter")
        world.commit()
        assert world.counters[b"counter"] == count + 1
    assert world.failed == []
    with pytest.raises(StoreFull, match="the disk is full"):
        world.send(0, b"x")


def test_a_state_that_a_new_segment_has_no_space_for_waits_in_the_old_one() -> None:
    world = World(options=msgspec.structs.replace(SMALL, segment_bytes=64 << 10, reserve_bytes=0))
    for n in range(3_000):
        world.counters[b"counter-%06d" % n] = n
    # For the spare there is space, and not for the 100 KiB of the state.
    world.disk.bytes_max = world.disk.used_bytes + 70_000
    world.background.tick()
    sent = fill(world)

    assert len(world.log.segments()) == 1
    for _ in range(20):
        world.ack(b"counter-000001")
        world.commit()
    assert world.counters[b"counter-000001"] == 21
    world.disk.bytes_max = None
    world.background.tick()
    world.send(0, b"welcome")
    world.commit()
    assert len(world.log.segments()) == 2
    assert world.messages(1, 0)[-1] == (sent, b"welcome")
    assert world.killed().state() == world.state()


def test_when_there_is_space_again_messages_are_taken_without_a_restart() -> None:
    world = World()
    world.disk.bytes_max = 60_000
    world.background.tick()
    sent = fill(world)
    world.ack(b"counter")
    world.commit()

    world.disk.bytes_max = 120_000
    world.background.tick()

    world.send(0, b"welcome")
    world.commit()
    assert world.messages(1, 0)[-1] == (sent, b"welcome")
    assert not world.log.is_full
    assert world.killed().state() == world.state()


def test_when_even_the_reserve_is_used_up_acknowledgements_are_refused_too() -> None:
    world = World()
    world.disk.bytes_max = 60_000
    world.background.tick()
    fill(world)

    def acknowledge_for_ever() -> None:
        for _ in range(10_000):
            world.ack(b"counter")
            world.commit()

    with pytest.raises(StoreFull):
        acknowledge_for_ever()
    assert world.failed == []
    assert world.killed().counters == world.counters


@pytest.mark.parametrize("bytes_max", range(30_000, 40_000, 500))
def test_what_goes_with_the_last_message_finds_space_without_a_reserve(bytes_max: int) -> None:
    world = World(options=msgspec.structs.replace(SMALL, reserve_bytes=0))
    world.disk.bytes_max = bytes_max
    world.background.tick()

    def send_for_ever() -> None:
        for _ in range(10_000):
            world.send(0, b"x" * 300)
            # As large as what says how far a batch of the pipeline is published may be.
            world.ack(b"m" * 1_900)
            world.commit()

    with pytest.raises(StoreFull, match="messages are refused"):
        send_for_ever()
    sent = len(world.messages(1, 0))
    assert world.counters == {b"m" * 1_900: sent}


def test_the_space_of_the_reserve_is_given_to_acknowledgements() -> None:
    world = World()
    world.disk.bytes_max = 60_000
    world.background.tick()
    fill(world)
    assert "reserve" in world.disk.names(DIRECTORY)

    acknowledged = 0
    with contextlib.suppress(StoreFull):
        while acknowledged < 10_000:
            world.ack(b"counter")
            world.commit()
            acknowledged += 1

    assert "reserve" not in world.disk.names(DIRECTORY)
    assert world.counters[b"counter"] == acknowledged > 0
    assert world.killed().counters == world.counters


def test_a_full_disk_loses_nothing_over_a_restart() -> None:
    world = World()
    world.disk.bytes_max = 40_000
    fill(world)
    world.ack(b"counter")
    world.commit()

    after = world.killed()

    assert after.state() == world.state()


def test_a_bad_sector_costs_the_messages_in_it_and_no_other() -> None:
    world = World()
    for n in range(10):
        world.send(0, b"%d" % n * 600)
        world.commit()
    after = world.killed()
    position = after.log.position(1, 0, 4)
    name = segment.path_of(DIRECTORY, after.log.segments()[segment.segment_of(position) - 1]).name
    start = segment.offset_of(position) + 300
    after.disk.unreadable = (name, start, start + 1)

    for _ in range(READS_MAX - 1):
        with pytest.raises(ReadFailed, match="cannot be read"):
            after.log.read(1, 0, 4)
    with pytest.raises(CorruptFrame, match="cannot be read"):
        after.log.read(1, 0, 4)
    assert after.log.read(1, 0, 6).body == b"6" * 600


def test_a_message_that_could_not_be_read_for_a_while_is_not_lost() -> None:
    world = World()
    world.send(0, b"x" * 600)
    world.commit()
    after = world.killed()
    position = after.log.position(1, 0, 0)
    name = segment.path_of(DIRECTORY, after.log.segments()[segment.segment_of(position) - 1]).name
    start = segment.offset_of(position)
    after.disk.unreadable = (name, start, start + 1)
    with pytest.raises(ReadFailed):
        after.log.read(1, 0, 0)

    after.disk.unreadable = None

    assert after.log.read(1, 0, 0).body == b"x" * 600


def _neighbours() -> tuple[World, str, list[int]]:
    """Ten messages of one frame after a restart: the file they are in, and where each begins."""
    world = World()
    for n in range(10):
        world.send(0, b"%d" % n * 600)
    world.commit()
    after = world.killed()
    positions = [after.log.position(1, 0, n) for n in range(10)]
    header = after.log.segments()[segment.segment_of(positions[0]) - 1]
    name = segment.path_of(DIRECTORY, header).name
    return after, name, [segment.offset_of(position) for position in positions]


def test_damage_to_one_of_many_read_together_costs_only_that_one() -> None:
    world, name, starts = _neighbours()
    world.disk.content(DIRECTORY / name)[starts[4] + 300] ^= 1

    found = world.log.read_many(1, 0, 0, 10)

    assert [n for n, record in enumerate(found) if record is None] == [4]


def test_a_wrong_length_of_one_of_many_read_together_costs_only_that_one() -> None:
    world, name, starts = _neighbours()
    world.disk.content(DIRECTORY / name)[starts[4] + 3] = 0xFF

    found = world.log.read_many(1, 0, 0, 10)

    assert [n for n, record in enumerate(found) if record is None] == [4]


def test_many_read_together_fail_while_the_disk_refuses_one_and_are_not_lost() -> None:
    world, name, starts = _neighbours()
    world.disk.unreadable = (name, starts[9] + 300, starts[9] + 301)
    with pytest.raises(ReadFailed, match="cannot be read"):
        world.log.read_many(1, 0, 0, 10)
    assert None not in world.log.read_many(1, 0, 0, 3)

    world.disk.unreadable = None

    assert None not in world.log.read_many(1, 0, 0, 10)


def test_a_bad_sector_never_costs_the_message_before_it() -> None:
    world, name, starts = _neighbours()
    world.disk.unreadable = (name, starts[9] + 300, starts[9] + 301)

    for _ in range(READS_MAX + 1):
        assert world.log.read(1, 0, 8).body == b"8" * 600


@pytest.mark.parametrize("seed", range(40))
def test_a_flipped_bit_anywhere_costs_its_frame_and_is_reported(seed: int) -> None:
    flip_and_check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("thousand", range(1, 21))
def test_nor_does_any_of_many_flipped_bits_cost_more(thousand: int) -> None:
    for seed in range(1_000 * thousand, 1_000 * (thousand + 1)):
        flip_and_check(seed)


def flip_and_check(seed: int) -> None:
    random = Random(seed)
    world = World()
    for n in range(30):
        world.send(0, b"%02d" % n * 100)
        world.commit()
    disk = world.disk.killed()
    header = random.choice(world.log.segments())
    content = disk.content(segment.path_of(DIRECTORY, header))
    used = len(bytes(content).rstrip(b"\0"))
    at = random.randrange(used)
    content[at] ^= 1 << random.randrange(8)
    for name in disk.names(DIRECTORY):
        # Without indexes all of the log is replayed; with them damage shows when it is read.
        if name.endswith(".idx") and seed % 2:
            disk.remove(DIRECTORY / name)

    after = World(disk)

    stored = after.messages(1, 0)
    lost = [offset for offset in range(30) if (offset, b"%02d" % offset * 100) not in stored]
    assert len(lost) <= 1
    assert all(body is None for offset, body in stored if offset in lost)
    if lost and lost != [29]:
        is_replayed = seed % 2 or header is world.log.segments()[-1]
        reported = [damage.segment for damage in after.log.damages]
        assert reported == ([header.number] if is_replayed else [])
        with pytest.raises((MessageNotFound, CorruptFrame)):
            after.log.read(1, 0, lost[0])
    after.send(0, b"next")
    after.commit()
    assert after.messages(1, 0)[-1][1] == b"next"


def test_a_rotten_last_frame_that_was_known_durable_is_reported_and_not_cut_silently() -> None:
    world = World()
    for _ in range(3):
        world.send(0, b"precious")
        world.commit()
    world.checkpoint()
    world.send(0, b"precious too")
    world.commit()
    world.log.close()
    disk = world.disk.killed()
    content = disk.content(segment.path_of(DIRECTORY, world.log.segments()[-1]))
    content[bytes(content).index(b"precious too")] ^= 1

    after = World(disk, world.checkpoints.copy())

    assert [(damage.first_lsn, damage.last_lsn) for damage in after.log.damages] == [(4, 4)]
    assert after.log.open_lsn == 5


def test_a_lost_segment_is_reported_and_the_rest_is_served() -> None:
    world = World(options=SMALL)
    for n in range(60):
        world.send(0, b"%02d" % n * 200)
        world.commit()
    disk = world.disk.killed()
    gone = world.log.segments()[1]
    disk.remove(segment.path_of(DIRECTORY, gone))

    after = World(disk)

    stored = {offset for offset, body in after.messages(1, 0) if body is not None}
    assert 0 in stored
    assert 59 in stored
    assert [damage.segment for damage in after.log.damages] == [gone.number]


def test_a_damaged_index_found_while_running_is_made_again_from_the_messages() -> None:
    world = World()
    for n in range(60):
        world.send(0, b"%02d" % n * 200)
        world.commit()
    world.checkpoint()
    disk = world.disk.killed()
    index = next(name for name in disk.names(DIRECTORY) if name.endswith(".idx"))
    disk.content(DIRECTORY / index)[-1] ^= 1

    after = World(disk, world.checkpoints.copy())

    assert after.messages(1, 0) == world.messages(1, 0)


def _sealed_world() -> tuple[World, str]:
    """Messages and committed half messages in several segments; one index that was not read."""
    world = World()
    for n in range(60):
        world.send(0, b"%02d" % n * 200)
        world.send_half(b"half-%03d" % n)
        world.commit()
        world.end(b"half-%03d" % n)
        world.send_half(b"back-%03d" % n)
        world.roll_back(b"back-%03d" % n)
        world.commit()
    world.checkpoint()
    after = World(world.disk.killed(), world.checkpoints.copy())
    return after, next(name for name in after.disk.names(DIRECTORY) if name.endswith(".idx"))


def test_an_index_made_again_has_the_half_messages_that_were_committed_there() -> None:
    world, index = _sealed_world()
    expected = World(world.disk.killed(), world.checkpoints.copy()).messages(2, 0)
    world.disk.content(DIRECTORY / index)[-1] ^= 1

    found = world.messages(2, 0)

    assert found == expected
    assert [body for _, body in found] == [b"half-%03d" % n for n in range(60)]


def test_an_index_the_disk_refuses_is_tried_again_and_then_made_again() -> None:
    world, index = _sealed_world()
    world.disk.unreadable = (index, 0, 10)
    with pytest.raises(ReadFailed, match="index of segment"):
        world.log.read(2, 0, 0)
    world.disk.unreadable = None
    assert world.log.read(2, 0, 0).body == b"half-000"

    world, index = _sealed_world()
    world.disk.unreadable = (index, 0, 10)
    for _ in range(READS_MAX - 1):
        with pytest.raises(ReadFailed):
            world.log.read(2, 0, 0)
    assert world.log.read(2, 0, 0).body == b"half-000"


def test_an_index_is_not_made_again_from_a_segment_the_disk_refuses_now() -> None:
    world, index = _sealed_world()
    world.disk.content(DIRECTORY / index)[-1] ^= 1
    world.disk.unreadable = (".seg", 0, 1 << 30)
    with pytest.raises(ReadFailed):
        world.log.read(2, 0, 0)

    world.disk.unreadable = None

    assert world.log.read(2, 0, 0).body == b"half-000"


def test_a_checkpoint_that_cannot_be_saved_is_saved_later_with_what_came_since() -> None:
    world = World()
    world.checkpoints.failing = True
    world.ack(b"first")
    world.commit()
    world.checkpoint()
    world.checkpoints.failing = False
    world.ack(b"second")
    world.commit()
    world.checkpoint()

    after = World(world.disk.killed(), world.checkpoints.copy())

    assert after.counters == {b"first": 1, b"second": 1}


def test_an_index_that_cannot_be_written_stays_in_memory_and_is_written_later() -> None:
    world = World()
    for n in range(60):
        world.send(0, b"%02d" % n * 200)
        world.commit()
        if n == 20:
            world.background.holding = True
    failing, world.disk.fail_write_after = world.disk.fail_write_after, 0
    world.background.release()
    assert len(world.messages(1, 0)) == 60
    world.disk.fail_write_after = failing
    world.background.tick()

    sealed = [header.number for header in world.log.segments()[:-1]]
    written = [name for name in world.disk.names(DIRECTORY) if name.endswith(".idx")]
    assert written == [f"{number:010d}.idx" for number in sealed]


def _with_an_unreadable_last_frame() -> tuple[World, str, int]:
    """A stopped log: its disk, and where in which file the last frame, acknowledged, lies."""
    world = World()
    for n in range(3):
        world.send(0, b"%d" % n * 2_000)
        world.commit()
    header = world.log.segments()[-1]
    return (
        world,
        segment.path_of(DIRECTORY, header).name,
        segment.offset_of(world.log.position(1, 0, 2)),
    )


def test_a_start_that_cannot_read_the_last_frame_does_not_take_it_for_torn() -> None:
    world, name, start = _with_an_unreadable_last_frame()
    disk = world.disk.killed()
    disk.unreadable = (name, start, start + 1)
    before = bytes(disk.killed().content(DIRECTORY / name))

    for _ in range(2):
        with pytest.raises(ReadFailed, match="read_around_bad_sectors"):
            World(disk=disk, checkpoints=world.checkpoints.copy())
    assert bytes(disk.content(DIRECTORY / name)) == before

    disk.unreadable = None
    assert World(disk=disk, checkpoints=world.checkpoints.copy()).state() == world.state()


def test_an_operator_may_give_up_what_cannot_be_read_at_a_start() -> None:
    world, name, start = _with_an_unreadable_last_frame()
    disk = world.disk.killed()
    disk.unreadable = (name, start, start + 1)

    after = World(disk=disk, options=msgspec.structs.replace(SMALL, reads_around_bad_sectors=True))

    assert [after.log.read(1, 0, n).body[:1] for n in range(2)] == [b"0", b"1"]
    after.send(0, b"next")
    after.commit()


def test_a_segment_header_that_cannot_be_read_ends_the_start_too() -> None:
    world, name, _ = _with_an_unreadable_last_frame()
    disk = world.disk.killed()
    disk.unreadable = (name, 0, 1)

    with pytest.raises(ReadFailed, match=r"segment \d cannot be read"):
        World(disk=disk)

    after = World(disk=disk, options=msgspec.structs.replace(SMALL, reads_around_bad_sectors=True))
    assert after.log.read(1, 0, 2).body[:1] == b"2"
