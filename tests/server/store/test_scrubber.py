from cosmodrome_server.store import segment
from tests.support.log_world import DIRECTORY, World


def filled() -> World:
    world = World()
    for n in range(60):
        world.send(0, b"%02d" % n * 200)
        world.commit()
    return world


def test_a_tour_of_a_whole_log_finds_nothing() -> None:
    world = filled()
    for _ in range(100):
        world.log.scrubber.step(2_000)

    assert world.log.scrubber.damaged_ranges == 0
    assert world.log.scrubber.bytes_verified > 60 * 400


def test_rot_is_found_and_counted() -> None:
    world = filled()
    sealed = world.log.segments()[0]
    content = world.disk.content(segment.path_of(DIRECTORY, sealed))
    content[bytes(content).index(b"0303")] ^= 1

    world.log.scrubber.step(1 << 20)

    assert world.log.scrubber.damaged_ranges == 1


def test_a_tour_begins_once_a_week() -> None:
    world = filled()
    world.log.scrubber.step(1 << 20)
    once = world.log.scrubber.bytes_verified
    world.log.scrubber.step(1 << 20)
    assert world.log.scrubber.bytes_verified == once

    world.clock.time_ms += 7 * 86_400_000
    world.log.scrubber.step(1 << 20)

    assert world.log.scrubber.bytes_verified == 2 * once


def test_a_segment_that_retention_took_is_passed_over() -> None:
    world = filled()
    world.log.scrubber.step(1)
    world.disk.remove(segment.path_of(DIRECTORY, world.log.segments()[0]))

    world.log.scrubber.step(1 << 20)

    assert world.log.scrubber.damaged_ranges == 0
