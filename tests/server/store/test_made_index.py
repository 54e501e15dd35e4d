"""What a segment's records say of its index; how it is used, in test_recovery and test_faults."""

import pytest

from cosmodrome_server.store import sealed_index
from cosmodrome_server.store.made_index import SegmentEntries, entries_of
from cosmodrome_server.store.scanner import Found, scan
from cosmodrome_server.store.segment import path_of
from tests.support.faulty_files import FaultyFiles
from tests.support.log_world import DIRECTORY, World


@pytest.fixture
def world() -> World:
    """Two segments; in the first one messages, rollbacks, and commits of the first and second."""
    world = World()
    for n in range(10):
        world.send_half(b"%08d" % n)
    while len(world.log.segments()) < 3:
        world.send(0, b"x" * 100)
        world.send(1, b"y" * 100)
        world.commit()
        if world.halves:
            world.end(min(world.halves)[4:])
            world.commit()
    return world


def made(world: World, number: int) -> tuple[FaultyFiles, SegmentEntries]:
    (header,) = (each for each in world.log.segments() if each.number == number)
    disk = world.disk.killed()
    entries = SegmentEntries(header)
    for item in scan(disk.open(path_of(DIRECTORY, header)), header):
        if isinstance(item, Found):
            entries.add(item)
    return disk, entries


@pytest.mark.parametrize("number", [1, 2])
def test_it_is_what_was_indexed_when_the_messages_came(world: World, number: int) -> None:
    disk, entries = made(world, number)
    path = sealed_index.path_of(DIRECTORY, number)
    before, known = (
        bytes(disk.content(path)),
        sealed_index.read_header(disk, DIRECTORY, entries.segment),
    )
    disk.remove(path)

    header = entries.write(disk, DIRECTORY)

    assert bytes(disk.content(path)) == before
    assert header == known._replace(crc=0)
    assert entries.runs() == entries_of(disk, DIRECTORY, entries.segment)


def test_without_space_it_is_not_written_and_known_all_the_same(world: World) -> None:
    disk, entries = made(world, 1)
    known = sealed_index.read_header(disk, DIRECTORY, entries.segment)
    disk.remove(sealed_index.path_of(DIRECTORY, 1))
    disk.bytes_max = disk.used_bytes

    assert entries.write(disk, DIRECTORY) == known._replace(crc=0)
    assert "0000000001.idx" not in disk.names(DIRECTORY)
