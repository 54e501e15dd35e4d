"""The log as a whole: staging, bounds, segments. Crashes and faults have files of their own."""

from random import Random

import pytest
from msgspec.structs import replace

from cosmodrome_server.errors import CorruptFrame, MessageNotFound, OverloadedError, StoreFull
from cosmodrome_server.store import segment
from cosmodrome_server.store.check import check_log
from cosmodrome_server.store.files import File
from cosmodrome_server.store.platform import LogOptions
from cosmodrome_server.store.recent import RecentMessages
from cosmodrome_server.store.space import Space
from tests.support.faulty_files import FaultyFiles
from tests.support.log_world import DIRECTORY, SMALL, SteadyClock, World, message

NARROW = LogOptions(SMALL.durability, 64 << 10, 0, 2_000, 0, 0, 0)


def test_a_long_history_leaves_a_log_without_problems() -> None:
    random = Random(5)
    world = World()
    for _ in range(400):
        world.random_step(random)
    state = world.state()
    world.log.close()

    assert check_log(world.disk, DIRECTORY).problems == []
    assert world.killed().state() == state


def test_segments_follow_each_other_and_hold_the_state_they_began_with() -> None:
    world = World()
    for n in range(80):
        world.send(0, b"x" * 300)
        world.ack(b"counter")
        world.commit()
        del n

    headers = world.log.segments()

    assert [header.number for header in headers] == list(range(1, len(headers) + 1))
    assert len(headers) > 3
    assert min(header.first_lsn for header in headers) == 1


def test_more_than_may_wait_for_the_disk_is_refused_until_it_is_written() -> None:
    world = World(options=NARROW)
    world.writer.holding = True
    world.send(0, b"x" * 900)
    world.log.commit(lambda: None)
    world.send(0, b"x" * 500)
    with pytest.raises(OverloadedError, match=r"store\.staged_mib"):
        world.send(0, b"x" * 500)
    world.ack(b"acknowledgements are always taken" * 100)

    world.writer.release()
    world.commit()
    world.send(0, b"x" * 900)
    world.commit()
    assert len(world.messages(1, 0)) == 3


def test_one_message_larger_than_what_may_wait_is_taken_alone() -> None:
    world = World(options=NARROW)
    world.send(0, b"x" * 50_000)
    world.commit()

    assert world.killed().messages(1, 0) == [(0, b"x" * 50_000)]


def test_a_message_larger_than_a_segment_is_stored_whole() -> None:
    world = World()
    world.send(0, b"y" * 100_000)
    world.commit()
    world.send(0, b"next")
    world.commit()
    after = world.killed()

    assert after.messages(1, 0) == [(0, b"y" * 100_000), (1, b"next")]


def test_a_state_larger_than_a_segment_does_not_end_every_segment_where_it_begins() -> None:
    world = World()
    for n in range(300):
        world.counters[b"counter-%04d" % n * 10] = 1
    for _ in range(100):
        world.send(0, b"x" * 300)
        world.commit()

    assert len(world.log.segments()) < 15
    assert World(world.disk.killed()).counters == world.counters


def test_a_segment_never_grows_beyond_what_a_position_can_name() -> None:
    world = World()
    world.log._segment.capacity = world.log._segment.message_capacity = segment.OFFSET_MASK
    world.log._begin_frame(segment.OFFSET_MASK - 100)

    with pytest.raises(StoreFull):
        world.send(0, b"x" * 300)


def test_time_never_goes_back_in_the_log() -> None:
    world = World()
    times = [5_000, 3_000, 9_000, 1]
    for at in times:
        world.clock.time_ms = at
        world.ack(b"x")
        world.commit()
    after = World(world.disk.killed(), clock=SteadyClock(0))
    after.ack(b"x")
    after.commit()

    log = World(after.disk.killed()).log
    assert log._timestamp_ms == 9_000


@pytest.mark.parametrize("messages", [1, 100])
def test_nor_after_a_clean_stop_and_a_clock_set_back(messages: int) -> None:
    world = World()
    for _ in range(messages):
        world.send(0, b"x" * 200)
        world.commit()
    world.checkpoint()
    world.log.close()
    stored_ms = world.log.timestamp(1, 0, messages - 1)

    after = World(world.disk.killed(), world.checkpoints.copy(), clock=SteadyClock(0))
    for _ in range(100):
        after.ack(b"x" * 200)
        after.commit()

    assert after.log.segments()[-1].created_ms == stored_ms
    assert after.log._timestamp_ms == stored_ms


def test_a_message_is_read_the_same_from_memory_and_from_disk() -> None:
    world = World()
    bodies = [bytes([n]) * size for n, size in enumerate([1, 4_000, 4_096, 5_000, 70_000, 1 << 20])]
    for body in bodies:
        world.send(0, body)
        world.commit()

    after = world.killed()

    assert after.messages(1, 0) == list(enumerate(bodies)) == world.messages(1, 0)


def test_messages_written_long_ago_are_no_longer_held_in_memory() -> None:
    recent = RecentMessages(bytes_max=10_000)
    for frame in range(10):
        for position in range(10 * frame, 10 * frame + 3):
            recent.messages[position] = message(1, 0, 0, b"")
        recent.end_frame(1_000)
        assert recent.get(10 * frame) is not None, "it cannot be read from the disk yet"

    for _ in range(100):
        recent.end_frame(1_000)

    held = [at for at, record in enumerate(recent.find(range(100))) if record is not None]
    assert held[-1] == 92
    assert 0 < len(held) < 15


def test_a_length_that_is_damaged_is_no_reason_to_ask_for_gigabytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    world.send(0, b"x")
    world.commit()
    after = world.killed()
    position = after.log.position(1, 0, 0)
    file = after.log._reader.file(position >> 32)
    file.write(position & segment.OFFSET_MASK, [b"\xff\xff\xff\x3f"])
    read = type(file).read

    def bounded(of: File, at: int, length: int) -> bytes:
        assert length <= of.size()
        return read(of, at, length)

    monkeypatch.setattr(type(file), "read", bounded)
    with pytest.raises(CorruptFrame, match="length"):
        after.log.read_position(position)


def test_a_position_that_is_no_message_is_refused() -> None:
    world = World()
    world.send(0, b"x")
    world.ack(b"state")
    world.commit()
    after = world.killed()
    position = after.log.position(1, 0, 0)

    for wrong in (position + 1, position - 48, (1 << 32) + 7_000):
        with pytest.raises(CorruptFrame):
            after.log.read_position(wrong)
    with pytest.raises(MessageNotFound, match="retention took it"):
        after.log.read_position(99 << 32 | 64)


def test_an_index_that_names_another_message_is_noticed() -> None:
    world = World()
    world.send(0, b"x")
    position = world.log.position(1, 0, 0)
    world.log.index(5, 0, 0, (position, 0, 0))
    world.commit()

    with pytest.raises(CorruptFrame, match="another message"):
        world.log.read(5, 0, 0)


def test_few_files_are_open_however_many_segments_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cosmodrome_server.store.message_reader._OPEN_FILES_MAX", 4)
    world = World()
    for n in range(200):
        world.send(0, b"%03d" % n * 100)
        world.commit()
    after = world.killed()

    assert after.messages(1, 0) == [(n, b"%03d" % n * 100) for n in range(200)]
    assert len(after.log._reader._open) <= 5


def test_closing_twice_is_closing_once() -> None:
    world = World()
    world.ack(b"x")
    world.log.close()
    world.log.close()

    assert world.killed().counters == {b"x": 1}


def test_a_spare_left_by_an_earlier_run_is_used_if_it_fits() -> None:
    disk = FaultyFiles()
    for name, size in [("spare-3", 100), ("spare-4", 8_192), ("spare-x", 8_192)]:
        disk.open(DIRECTORY / name, create=True).write(0, [bytes(size)])
    space = Space(disk, DIRECTORY, 8_192, 0)

    space.prepare()
    spare = space.take_spare()

    assert spare is not None
    assert spare.path.name == "spare-4"
    space.prepare()
    other = space.take_spare()
    assert other is not None
    assert other.path.name == "spare-5"
    assert "spare-3" not in disk.names(DIRECTORY)


def test_a_smaller_spare_is_better_than_none() -> None:
    disk = FaultyFiles()
    disk.bytes_max = 6 << 20
    space = Space(disk, DIRECTORY, 16 << 20, 0)

    space.prepare()

    spare = space.take_spare()
    assert spare is not None
    assert spare.capacity == 4 << 20
    assert not space.is_full


def test_a_missing_reserve_is_made_as_soon_as_there_is_space() -> None:
    disk = FaultyFiles()
    disk.bytes_max = 9_000
    space = Space(disk, DIRECTORY, 8_192, 2_048)
    space.prepare()
    assert disk.names(DIRECTORY) == ["spare-1"]
    disk.bytes_max = None
    space.keep()

    assert disk.names(DIRECTORY) == ["reserve", "spare-1"]
    space.close()


@pytest.mark.parametrize("wanted", [0, 512, 2_048, 20_000])
@pytest.mark.parametrize("there", [0, 1_000, 2_048])
def test_a_reserve_of_another_size_becomes_what_the_settings_say(there: int, wanted: int) -> None:
    world = World()
    world.disk.open(DIRECTORY / "reserve", create=True).allocate(0, there)
    world.log.close()

    after = World(world.disk.killed(), options=replace(SMALL, reserve_bytes=wanted))
    after.background.tick()

    names = after.disk.names(DIRECTORY)
    assert ("reserve" in names) is (wanted > 0)
    if wanted:
        assert len(after.disk.content(DIRECTORY / "reserve")) == wanted


def test_a_reserve_stays_as_small_as_it_is_while_there_is_no_space_for_more() -> None:
    world = World()
    world.background.tick()
    world.log.close()

    after = World(world.disk.killed(), options=replace(SMALL, reserve_bytes=20_000))
    after.disk.bytes_max = after.disk.used_bytes
    after.background.tick()
    assert len(after.disk.content(DIRECTORY / "reserve")) == SMALL.reserve_bytes
    after.disk.bytes_max = None
    after.background.tick()
    assert len(after.disk.content(DIRECTORY / "reserve")) == 20_000


def test_the_first_message_of_a_new_log_may_be_larger_than_its_first_segment() -> None:
    world = World(options=LogOptions())
    body = b"x" * (4 << 20)

    world.send(0, body)
    world.commit()
    world.send(0, b"next")
    world.commit()

    again = world.killed()
    assert again.log.read(1, 0, 0).body == body
    assert again.log.read(1, 0, 1).body == b"next"
