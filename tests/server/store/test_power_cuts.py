"""Crashes at any point, on a disk that keeps only what was synced."""

from random import Random

import pytest
from msgspec.structs import replace

from tests.support.faulty_files import SECTOR_BYTES, Crash, FaultyFiles
from tests.support.log_world import DIRECTORY, INTERVAL, SMALL, State, World


def crash_at(world: World, operation: int) -> None:
    """Have the process end in the middle of its n-th operation of the disk from now."""
    left = operation

    def count(_: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Crash

    world.disk.on_operation = count


def run_until_crash(
    random: Random, steps: int, sector_bytes: int = SECTOR_BYTES
) -> tuple[World, dict[int, State]]:
    """A world that stopped in the middle of an operation, and its state after each frame."""
    states: dict[int, State] = {}
    world = World()
    world.disk.sector_bytes = sector_bytes
    states[world.log.open_lsn - 1] = world.state()
    crash_at(world, random.randint(1, 12 * steps))
    try:
        for _ in range(steps):
            lsn = world.random_step(random)
            states[lsn] = world.state()
            if random.random() < 0.2:
                world.background.tick()
    except Crash:
        # The frame that was being written may be there, whole; then so is its effect.
        if world.log.open_lsn - 1 not in states:
            states[world.log.open_lsn - 1] = world.state()
    world.disk.on_operation = lambda _: None
    return world, states


def check_after_crash(world: World, after: World, states: dict[int, State]) -> None:
    lsn = after.log.open_lsn - 1
    assert lsn >= world.acked_lsn, "an acknowledged frame is lost"
    assert after.state() == states[lsn], "the state is not that of the last frame"
    assert after.log.damages == []
    after.send(0, b"and on it goes")
    after.commit()
    assert after.messages(1, 0)[-1][1] == b"and on it goes"


@pytest.mark.parametrize("sector_bytes", [SECTOR_BYTES, 4_096])
@pytest.mark.parametrize("seed", range(60))
def test_after_a_power_cut_the_log_is_what_it_was_after_some_acknowledged_frame(
    seed: int, sector_bytes: int
) -> None:
    random = Random(seed)
    world, states = run_until_crash(random, 40, sector_bytes)
    for _ in range(5):
        check_after_crash(world, world.power_cut(random), states)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4_000))
def test_after_many_power_cuts_nothing_acknowledged_is_lost(seed: int) -> None:
    random = Random(1_000_000 + seed)
    world, states = run_until_crash(random, 60, SECTOR_BYTES if seed % 2 else 4_096)
    for _ in range(25):
        check_after_crash(world, world.power_cut(random), states)


@pytest.mark.parametrize("seed", range(30))
def test_a_second_power_cut_during_recovery_loses_nothing_either(seed: int) -> None:
    random = Random(seed)
    world, states = run_until_crash(random, 40)
    after = world.power_cut(random)
    again = after.power_cut(random)
    assert again.log.open_lsn == after.log.open_lsn
    check_after_crash(world, again, states)


@pytest.mark.parametrize("seed", range(20))
def test_a_killed_process_loses_nothing_it_wrote(seed: int) -> None:
    random = Random(seed)
    world, states = run_until_crash(random, 40)
    check_after_crash(world, world.killed(), states)


@pytest.mark.parametrize("seed", range(20))
def test_without_a_checkpoint_the_log_alone_gives_the_same_state(seed: int) -> None:
    random = Random(seed)
    world, states = run_until_crash(random, 60)
    disk = world.disk.power_cut(random)
    check_after_crash(world, World(disk), states)


@pytest.mark.parametrize("seed", range(20))
def test_without_indexes_and_checkpoint_the_log_alone_gives_the_same_state(seed: int) -> None:
    random = Random(seed)
    world, states = run_until_crash(random, 60)
    disk = world.disk.killed()
    forget_indexes(disk)
    check_after_crash(world, World(disk), states)


@pytest.mark.parametrize("seed", range(20))
def test_a_lost_index_is_made_again_whatever_the_checkpoint_says(seed: int) -> None:
    random = Random(seed)
    world, states = run_until_crash(random, 60)
    disk = world.disk.killed()
    forget_indexes(disk)
    check_after_crash(world, World(disk, world.checkpoints.copy()), states)


@pytest.mark.parametrize("seed", range(20))
def test_with_interval_a_power_cut_loses_only_what_was_not_synced(seed: int) -> None:
    random = Random(seed)
    world = World(options=INTERVAL)
    states = {0: world.state()}
    synced_lsn = 0
    for _ in range(40):
        lsn = world.random_step(random)
        states[lsn] = world.state()
        if random.random() < 0.3:
            world.clock.time_ms += 60
            world.writer.tick()
            synced_lsn = world.log.open_lsn - 1
    after = world.power_cut(random)
    assert after.log.open_lsn - 1 >= synced_lsn
    assert after.state() == states[after.log.open_lsn - 1]


RETAINED = replace(SMALL, retention_bytes=24_000)


def recycle_until_crash(random: Random, steps: int) -> tuple[World, dict[int, object]]:
    """As `run_until_crash`, with retention; the counters after each frame."""
    world = World(options=RETAINED)
    counters: dict[int, object] = {}
    crash_at(world, random.randint(1, 14 * steps))
    try:
        for _ in range(steps):
            lsn = world.random_step(random)
            counters[lsn] = dict(world.counters)
            if random.random() < 0.5:
                world.log.retain(world.clock.time_ms, world.oldest_half())
            if random.random() < 0.2:
                world.background.tick()
            if random.random() < 0.2:
                # The thread is behind: what it synced by the way is not on the disk either.
                world.background.holding = not world.background.holding
                if not world.background.holding:
                    world.background.release()
    except Crash:
        counters.setdefault(world.log.open_lsn - 1, dict(world.counters))
    world.disk.on_operation = lambda _: None
    return world, counters


def check_after_recycling(world: World, after: World, counters: dict[int, object]) -> None:
    lsn = after.log.open_lsn - 1
    assert lsn >= world.acked_lsn, "an acknowledged frame is lost"
    assert after.counters == counters.get(lsn, {})
    assert after.log.damages == []
    for queue in ((1, 0), (1, 1), (1, 2), (2, 0)):
        # What retention had taken may be back, whole or not.
        found = dict(after.messages(*queue))
        for offset, body in world.messages(*queue):
            if body is not None and offset in found:
                assert found[offset] == body
    after.send(0, b"and on it goes")
    after.commit()
    assert after.messages(1, 0)[-1][1] == b"and on it goes"


@pytest.mark.parametrize("seed", range(60))
def test_a_power_cut_while_segments_are_recycled_loses_nothing(seed: int) -> None:
    random = Random(seed)
    world, counters = recycle_until_crash(random, 80)
    for _ in range(5):
        check_after_recycling(world, world.power_cut(random), counters)


@pytest.mark.parametrize("seed", range(60))
def test_a_power_cut_after_a_kill_takes_nothing_that_the_start_found(seed: int) -> None:
    """The second life stands on what the first wrote and perhaps never synced."""
    random = Random(seed)
    world, counters = recycle_until_crash(random, 40)
    second = World(world.disk, world.checkpoints.copy(), RETAINED)
    assert second.log.open_lsn - 1 >= world.acked_lsn
    for _ in range(random.randint(0, 3)):
        lsn = second.random_step(random)
        counters[lsn] = dict(second.counters)
    counters.setdefault(second.log.open_lsn - 1, dict(second.counters))
    after = second.power_cut(random)
    assert after.log.open_lsn == second.log.open_lsn
    check_after_recycling(second, after, counters)


@pytest.mark.parametrize("nth", range(2, 24))
def test_a_segment_whose_name_was_not_synced_at_a_kill_has_it_after_the_next_start(
    nth: int,
) -> None:
    world, random, left = World(), Random(nth), nth

    def count(operation: str) -> None:
        nonlocal left
        left -= operation == "sync directory"
        if left == 0:
            raise Crash

    world.disk.on_operation = count
    with pytest.raises(Crash):
        for _ in range(400):
            world.send(0, random.randbytes(500))
            world.commit()
    world.disk.on_operation = lambda _: None

    second = World(world.disk, world.checkpoints.copy())
    second.ack(b"answered")
    lsn = second.commit()
    assert second.acked_lsn == lsn
    for _ in range(5):
        assert second.power_cut(random).counters[b"answered"] == 1


def forget_indexes(disk: FaultyFiles) -> None:
    for name in disk.names(DIRECTORY):
        if name.endswith(".idx"):
            disk.remove(DIRECTORY / name)


def test_a_clean_stop_needs_no_replay() -> None:
    world = World()
    for step in range(50):
        world.send(0, b"x" * 300)
        world.ack(b"%d" % (step % 3))
        world.commit()
    world.checkpoint()
    expected = world.state()
    world.log.close()

    after = World(world.disk.killed(), world.checkpoints.copy(), SMALL)

    assert after.state() == expected
    assert after.log.open_lsn == world.log.open_lsn


def test_one_seed_gives_one_log_byte_for_byte() -> None:
    def run(seed: int) -> list[tuple[str, bytes]]:
        random = Random(seed)
        world, _ = run_until_crash(random, 60)
        after = world.power_cut(random)
        after.random_step(random)
        names = after.disk.names(DIRECTORY)
        return [(name, bytes(after.disk.content(DIRECTORY / name))) for name in names]

    for seed in range(5):
        assert run(seed) == run(seed)
    assert run(1) != run(2)
