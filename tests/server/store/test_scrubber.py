import errno
from pathlib import Path

import pytest

from cosmodrome_server.store import frame as framing
from cosmodrome_server.store import segment
from cosmodrome_server.store.files import File
from cosmodrome_server.store.platform import LogOptions
from tests.support.log_world import DIRECTORY, SMALL, World


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


def test_rot_at_the_end_of_a_segment_is_found() -> None:
    world = filled()
    content = world.disk.content(segment.path_of(DIRECTORY, world.log.segments()[0]))
    last = bytes(content).rindex(framing.MAGIC_BYTES)
    content[last] ^= 1

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


def test_a_segment_that_is_recycled_while_it_is_read_is_not_damaged() -> None:
    # Longer than what is read at a time.
    world = World(options=LogOptions(SMALL.durability, 4 << 20, 0, 8 << 20, 1, 0, 0))
    world.disk.bytes_max = 17 << 20

    def send(count: int) -> None:
        for n in range(count):
            world.send(0, b"%03d" % n * 20_000)
            world.commit()

    send(200)
    for _ in range(20):  # … frames: some of them are of the second segment
        world.log.scrubber.step(1)
    assert world.log.retain(10_000) > 0
    send(62)  # Some of these are in its file, over a part of what it was.

    world.log.scrubber.step(1 << 26)

    assert world.log.scrubber.damaged_ranges == 0


def test_a_segment_that_cannot_be_opened_now_does_not_end_the_tour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = filled()
    first = segment.path_of(DIRECTORY, world.log.segments()[0])
    opened = world.disk.open

    def refused(path: Path, *, create: bool = False) -> File:
        if path == first:
            raise OSError(errno.EMFILE, "too many open files")
        return opened(path, create=create)

    monkeypatch.setattr(world.disk, "open", refused)
    world.log.scrubber.step(1 << 20)

    assert world.log.scrubber.bytes_verified > 50 * 400
