import contextlib
from array import array

import pytest
from msgspec.structs import replace

from cosmodrome_server.errors import MessageNotFound, ReadFailed
from cosmodrome_server.store import sealed_index, segment
from cosmodrome_server.store.first_offsets import FirstOffsets, read_first_offsets
from cosmodrome_server.store.patience import READS_MAX
from tests.support.log_world import DIRECTORY, SMALL, World

QUEUE_1 = 1 << 32 | 1


def filled(segments: int) -> World:
    """Segments of queue 0 of topic 1."""
    world = World()
    while len(world.log.segments()) < segments:
        world.send(0, b"x" * 900)
        world.commit()
    return world


def test_queues_are_found_in_whatever_order_they_come() -> None:
    firsts = FirstOffsets(array("Q", (7, 70, 9, 90, 2, 20, 8, 80)))

    assert [firsts.of(key) for key in (2, 7, 8, 9)] == [20, 70, 80, 90]
    assert [firsts.of(key) for key in (1, 3, 10)] == [0, 0, 0]


def test_a_segment_says_where_queues_ended_when_it_began() -> None:
    world = filled(3)
    second = world.log.segments()[1]

    firsts = read_first_offsets(world.disk, DIRECTORY, second)

    assert firsts is not None
    assert firsts.of(1 << 32) == next(
        offset for offset in range(100) if world.log.position(1, 0, offset) >> 32 == second.number
    )
    assert firsts.of(QUEUE_1) == 0


def test_a_damaged_first_frame_says_nothing() -> None:
    world = filled(2)
    first = world.log.segments()[0]
    world.disk.content(segment.path_of(DIRECTORY, first))[segment.HEADER_BYTES + 50] ^= 1

    assert read_first_offsets(world.disk, DIRECTORY, first) is None


def test_a_queue_newer_than_older_segments_begins_without_a_look_at_their_indexes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = filled(5)
    world.send(1, b"first")
    world.commit()
    world = world.killed()
    for header in world.log.segments()[:-1]:
        world.disk.remove(sealed_index.path_of(DIRECTORY, header.number))

    assert world.log.min_offset(1, 1) == 0
    assert world.log.min_offset(1, 0) == 0
    assert "index_damaged" not in caplog.text


def test_what_retention_left_begins_where_the_oldest_segment_did() -> None:
    world = World(options=replace(SMALL, retention_bytes=3 * 8_192))
    while len(world.log.segments()) < 6:
        world.send(0, b"x" * 900)
        world.commit()
    world.send(1, b"first")
    world.commit()
    assert world.log.min_offset(1, 0) == 0

    world.log.retain(world.clock.now_ms())

    oldest = world.log.segments()[0].number
    assert oldest > 1
    first = world.log.min_offset(1, 0)
    assert world.log.position(1, 0, first) >> 32 == oldest
    with pytest.raises(MessageNotFound):
        world.log.position(1, 0, first - 1)
    assert world.log.min_offset(1, 1) == 0
    assert world.killed().log.min_offset(1, 0) == first


def test_a_disk_that_refuses_the_first_frame_now_is_asked_again() -> None:
    world = filled(3).killed()
    oldest = segment.path_of(DIRECTORY, world.log.segments()[0])
    world.disk.unreadable = (oldest.name, 0, 1 << 20)
    with pytest.raises(ReadFailed):
        world.log.min_offset(1, 0)
    for _ in range(READS_MAX):
        with contextlib.suppress(ReadFailed):
            world.log.min_offset(1, 0)

    assert world.log.min_offset(1, 0) == 0
