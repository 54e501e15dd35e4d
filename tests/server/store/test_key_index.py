from collections.abc import Callable

import pytest
from msgspec.structs import replace

from cosmodrome_server.model import wire
from cosmodrome_server.model.log import MessageRecord, MessageState
from cosmodrome_server.store import key_index
from cosmodrome_server.store.key_index import KeyIndex
from tests.support.log_world import DIRECTORY, SteadyClock, World

ALWAYS = (0, 1 << 62)


def send(world: World, topic_id: int, message_id: str, keys: list[str]) -> int:
    system = b"".join(wire.encode_bytes(wire.KEYS, key.encode()) for key in keys)
    system += wire.encode_bytes(wire.MESSAGE_ID, message_id.encode())
    offset = world.log.max_offset(topic_id, 0)
    record = MessageRecord(
        MessageState.VISIBLE, topic_id, 0, offset, 0, 1_000 + offset, 0, system, b"", b"x" * 200
    )
    position = world.log.stage_message(record)
    world.log.index(topic_id, 0, offset, (position, 0, record.store_timestamp_ms))
    return position


@pytest.fixture
def world() -> World:
    """60 messages over several segments; each tenth has the key "tenth"."""
    world = World(clock=SteadyClock(1_000))
    for n in range(60):
        world.clock.time_ms = 1_000 + n
        send(world, 1, f"id-{n}", [f"key-{n}"] + ["tenth"] * (n % 10 == 0))
        world.commit()
    assert len(world.log.segments()) > 3
    return world


def offsets(found: list[MessageRecord]) -> list[int]:
    return [record.queue_offset for record in found]


def index_of(world: World) -> KeyIndex:
    return KeyIndex(world.disk, DIRECTORY, world.log.segments)


@pytest.mark.parametrize("name", [lambda n: f"id-{n}", lambda n: f"key-{n}"], ids=["id", "key"])
def test_a_message_is_found_by_id_and_by_key(world: World, name: Callable[[int], str]) -> None:
    index = index_of(world)
    for n in (0, 30, 59):
        assert offsets(index.find(1, name(n), ALWAYS, 10)) == [n]


def test_a_repeated_key_finds_all_newest_first_up_to_the_maximum(world: World) -> None:
    expected = [50, 40, 30, 20, 10, 0]

    assert offsets(index_of(world).find(1, "tenth", ALWAYS, 10)) == expected
    assert offsets(index_of(world).find(1, "tenth", ALWAYS, 2)) == expected[:2]


def test_a_message_on_its_way_to_the_disk_is_found_later_although_its_segment_is_full() -> None:
    world = World(clock=SteadyClock(1_000))
    while len(world.log.segments()) == 1:
        world.writer.release()
        world.writer.holding = True
        send(world, 1, "last of its segment", [])
        world.commit()

    index, last = index_of(world), world.log.max_offset(1, 0) - 1
    assert last not in offsets(index.find(1, "last of its segment", ALWAYS, 100))
    world.writer.release()
    assert offsets(index.find(1, "last of its segment", ALWAYS, 1)) == [last]
    send(world, 1, "names the next one", [])
    world.commit()
    assert offsets(index.find(1, "last of its segment", ALWAYS, 1)) == [last]


def test_the_time_range_is_half_open(world: World) -> None:
    found = index_of(world).find(1, "tenth", (1_010, 1_030), 10)

    assert offsets(found) == [20, 10]


def test_a_clock_that_was_set_back_hides_no_message_from_a_time_range(world: World) -> None:
    world.checkpoint()
    world.log.close()
    again = world.killed()
    again.clock.time_ms = 0
    while len(again.log.segments()) < len(world.log.segments()) + 3:
        again.send(0, b"x" * 500)
        again.commit()

    for n in (0, 30, 59):
        assert offsets(index_of(again).find(1, f"id-{n}", (1_000 + n, 1_001 + n), 10)) == [n]


def test_nor_does_a_segment_whose_header_is_damaged(world: World) -> None:
    segments = world.log.segments()
    segments[2] = replace(segments[2], created_ms=0, first_lsn=0)

    index = KeyIndex(world.disk, DIRECTORY, lambda: segments)

    for n in (0, 30, 59):
        assert offsets(index.find(1, f"id-{n}", (1_000 + n, 1_001 + n), 10)) == [n]


def test_a_full_disk_is_searched_and_no_fuller_afterwards(world: World) -> None:
    before = world.disk.names(DIRECTORY)
    world.disk.bytes_max = world.disk.used_bytes + 100

    assert offsets(index_of(world).find(1, "id-0", ALWAYS, 10)) == [0]
    assert world.disk.names(DIRECTORY) == before


def test_another_topic_and_unknown_keys_find_nothing(world: World) -> None:
    assert index_of(world).find(2, "key-1", ALWAYS, 10) == []
    assert index_of(world).find(1, "key", ALWAYS, 10) == []


def test_the_index_of_a_sealed_segment_is_made_once_and_used_again(world: World) -> None:
    index_of(world).find(1, "nobody", ALWAYS, 10)
    made = {name for name in world.disk.names(DIRECTORY) if name.endswith(key_index.SUFFIX)}
    assert len(made) == len(world.log.segments()) - 1
    syncs = world.disk.syncs

    assert offsets(index_of(world).find(1, "key-3", ALWAYS, 10)) == [3]
    assert world.disk.syncs == syncs


@pytest.mark.parametrize("at", [0, 40, -1])
def test_a_damaged_index_is_made_again(world: World, at: int) -> None:
    index_of(world).find(1, "nobody", ALWAYS, 10)
    world.disk.content(key_index.path_of(DIRECTORY, 1))[at] ^= 1

    assert offsets(index_of(world).find(1, "key-1", ALWAYS, 10)) == [1]


def test_an_index_that_ends_early_is_made_again(world: World) -> None:
    index_of(world).find(1, "nobody", ALWAYS, 10)
    del world.disk.content(key_index.path_of(DIRECTORY, 1))[10:]

    assert offsets(index_of(world).find(1, "key-1", ALWAYS, 10)) == [1]


def test_a_message_whose_properties_are_no_protobuf_is_passed_over() -> None:
    world = World()
    record = MessageRecord(MessageState.VISIBLE, 1, 0, 0, 0, 1, 0, b"\xff", b"", b"x")
    world.log.stage_message(record)
    send(world, 1, "id", ["key"])
    world.commit()

    assert len(index_of(world).find(1, "key", ALWAYS, 10)) == 1


def test_a_transactional_message_is_found_once_it_is_committed_and_where_it_is() -> None:
    world = World()
    for name in (b"half-000", b"half-001", b"half-002"):
        world.send_half(name)
        world.commit()
    while len(world.log.segments()) < 3:
        send(world, 1, "other", [])
        world.commit()
    world.roll_back(b"half-001")
    world.end(b"half-002")
    world.end(b"half-000")
    world.commit()

    found = index_of(world).find(2, "id", ALWAYS, 10)

    assert [(record.queue_offset, record.body) for record in found] == [
        (1, b"half-000"),
        (0, b"half-002"),
    ]
    assert {record.store_timestamp_ms for record in found} == {5_000}
