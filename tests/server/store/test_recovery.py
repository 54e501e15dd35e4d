"""Where a start begins and what it makes of what it finds; more in test_power_cuts, test_faults."""

import errno
from bisect import bisect_right
from pathlib import Path
from random import Random
from typing import NoReturn

import pytest
from msgspec.structs import replace

from cosmodrome_server.errors import CorruptFrame, ReadFailed, StoreError
from cosmodrome_server.model.log import RecordKind
from cosmodrome_server.store import key_index, record, sealed_index, segment
from cosmodrome_server.store.files import OsFiles
from cosmodrome_server.store.made_index import entries_of
from cosmodrome_server.store.recovery import Ending, find_beginning, mend_tail
from tests.support.faulty_files import FaultyFiles
from tests.support.log_world import DIRECTORY, INTERVAL, SMALL, World
from tests.support.memory_checkpoints import MemoryCheckpoints


def filled(messages: int = 60) -> World:
    world = World()
    for n in range(messages):
        world.send(0, b"%02d" % n * 200)
        world.ack(b"counter-%d" % (n % 3))
        world.commit()
    return world


def segment_path(world: World, at: int) -> Path:
    return segment.path_of(DIRECTORY, world.log.segments()[at])


def test_an_empty_directory_begins_with_nothing() -> None:
    beginning = find_beginning(FaultyFiles(), DIRECTORY, MemoryCheckpoints())

    assert (beginning.segments, beginning.rows, beginning.lsn) == ([], [], 0)


def test_with_a_checkpoint_replay_begins_right_after_it() -> None:
    world = filled()
    world.checkpoint()
    world.ack(b"after")
    world.commit()

    beginning = find_beginning(world.disk, DIRECTORY, world.checkpoints)

    assert beginning.is_checkpoint
    assert beginning.lsn == 60
    assert dict(beginning.rows) == {b"counter-%d" % n: (20).to_bytes(8, "little") for n in range(3)}


def test_without_one_replay_begins_at_the_newest_segment() -> None:
    world = filled()

    beginning = find_beginning(world.disk, DIRECTORY, MemoryCheckpoints())

    last = world.log.segments()[-1]
    assert not beginning.is_checkpoint
    assert beginning.segments[beginning.first] == last
    assert beginning.lsn == last.first_lsn - 1
    assert beginning.rows


def test_without_an_index_replay_begins_at_its_segment() -> None:
    world = filled()
    world.checkpoint()
    world.disk.remove(DIRECTORY / "0000000002.idx")

    beginning = find_beginning(world.disk, DIRECTORY, world.checkpoints)

    assert beginning.segments[beginning.first].number == 2
    assert not beginning.is_checkpoint


def test_a_damaged_snapshot_is_passed_over_for_an_older_one() -> None:
    world = filled()
    last = world.log.segments()[-1]
    world.disk.content(segment_path(world, -1))[segment.HEADER_BYTES + 60] ^= 1

    beginning = find_beginning(world.disk, DIRECTORY, MemoryCheckpoints())

    assert beginning.segments[beginning.first].number == last.number - 1
    after = World(world.disk.killed())
    lost = [offset for offset, body in after.messages(1, 0) if body is None]
    assert len(lost) == 1
    assert [damage.segment for damage in after.log.damages] == [last.number]


def without_a_beginning(world: World) -> None:
    """The oldest segment can neither be replayed, for want of its snapshot, nor passed over."""
    world.disk.remove(DIRECTORY / "0000000001.idx")
    world.disk.content(segment_path(world, 0))[segment.HEADER_BYTES + 60] ^= 1


@pytest.mark.parametrize("space", [None, 0])
def test_a_later_snapshot_is_begun_at_if_no_earlier_one_is_left(space: int | None) -> None:
    world = filled()
    without_a_beginning(world)
    disk = world.disk.killed()
    if space is not None:
        disk.bytes_max = disk.used_bytes + space

    beginning = find_beginning(disk.killed(), DIRECTORY, MemoryCheckpoints())
    after = World(disk)

    assert beginning.segments[beginning.first].number == 2
    assert (after.counters, after.halves) == (world.counters, world.halves)
    lost = [offset for offset, body in after.messages(1, 0) if body is None]
    assert len(after.messages(1, 0)) == len(world.messages(1, 0))
    assert len(lost) <= 1
    assert [damage.segment for damage in after.log.damages] == [1]
    assert ("0000000001.idx" in disk.names(DIRECTORY)) is (space is None)


def test_no_replay_goes_over_a_segment_that_is_missing_if_it_need_not() -> None:
    world = filled()
    world.log.close()
    disk = world.disk.killed()
    for header in world.log.segments()[1:-2]:
        disk.remove(segment.path_of(DIRECTORY, header))
        disk.remove(sealed_index.path_of(DIRECTORY, header.number))
    disk.remove(DIRECTORY / "0000000001.idx")

    after = World(disk)

    assert (after.counters, after.halves) == (world.counters, world.halves)
    assert "0000000001.idx" in disk.names(DIRECTORY)
    numbers = [header.number for header in world.log.segments()]
    assert [each.segment for each in after.log.damages if not each.end] == numbers[1:-2]


def test_over_a_gap_a_replay_goes_rather_than_from_nowhere() -> None:
    world = filled()
    world.log.close()
    disk = world.disk.killed()
    one, gone, *rest = world.log.segments()
    disk.remove(segment.path_of(DIRECTORY, gone))
    for header in rest:
        disk.content(segment.path_of(DIRECTORY, header))[segment.HEADER_BYTES + 60] ^= 1

    assert find_beginning(disk, DIRECTORY, MemoryCheckpoints()).first == 0
    assert World(disk).counters.keys() == world.counters.keys()
    assert one.number == 1


def test_an_index_without_which_nothing_begins_is_not_made_of_what_cannot_be_read() -> None:
    world = filled()
    without_a_beginning(world)
    disk = world.disk.killed()
    disk.unreadable = (segment_path(world, 0).name, 4_096, 4_608)

    with pytest.raises(ReadFailed, match="segment 1 cannot be read"):
        find_beginning(disk, DIRECTORY, MemoryCheckpoints())
    assert find_beginning(disk, DIRECTORY, MemoryCheckpoints(), is_strict=False).first == 1


def test_a_log_whose_every_snapshot_is_lost_still_serves_its_messages() -> None:
    world = World()
    for n in range(5):
        world.send(0, b"%d" % n)
        world.commit()
    world.disk.content(segment_path(world, 0))[segment.HEADER_BYTES + 60] ^= 1

    after = World(world.disk.killed())

    assert [body for _, body in after.messages(1, 0)] == [None, b"1", b"2", b"3", b"4"]


def test_a_segment_that_begins_with_no_snapshot_is_no_beginning() -> None:
    world = filled(3)
    content = bytes(world.disk.content(segment_path(world, 0)))
    end = record.encode_state(RecordKind.SNAPSHOT_END, b"")
    assert content.count(end) == 1

    other = World()
    other.log._parts.clear()
    other.log._records = other.log._snapshot_records = 0
    other.log._begin_frame(segment.HEADER_BYTES)
    other.ack(b"x")
    other.commit()
    beginning = find_beginning(other.disk, DIRECTORY, MemoryCheckpoints())

    assert beginning.rows == []
    assert World(other.disk.killed()).counters == {b"x": 1}


def test_a_checkpoint_of_another_log_is_not_believed() -> None:
    mine, other = filled(), World()
    other.log._platform.random_bytes(8)
    other.ack(b"other")
    other.commit()
    other.checkpoint()
    saved = other.checkpoints.load()
    assert saved is not None
    foreign = MemoryCheckpoints()
    foreign.save(saved.mark._replace(salt=1), saved.rows, [])

    after = World(mine.disk.killed(), foreign)

    assert after.state() == mine.state()
    assert foreign.load() is None


def test_a_damaged_segment_header_is_written_again() -> None:
    world = filled(3)
    content = world.disk.content(segment_path(world, -1))
    good = bytes(content[: segment.HEADER_BYTES])
    content[3] ^= 1

    after = World(world.disk.killed())

    assert after.state() == world.state()
    found = segment.decode_header(bytes(after.disk.content(segment_path(world, -1))))
    assert (found.number, found.salt) == (
        segment.decode_header(good).number,
        segment.decode_header(good).salt,
    )


def test_a_newer_version_is_refused_and_nothing_is_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segment, "VERSION", 2)
    world = filled(3)
    monkeypatch.undo()
    before = bytes(world.disk.content(segment_path(world, 0)))

    with pytest.raises(StoreError, match="format 2"):
        World(world.disk)
    assert bytes(world.disk.content(segment_path(world, 0))) == before


def test_a_record_of_a_newer_version_stops_the_start() -> None:
    world = World()
    world.log.stage(250, b"from the future")  # type: ignore[arg-type]  # a kind not yet known
    world.commit()

    with pytest.raises(CorruptFrame, match="newer version"):
        World(world.disk.killed())


def test_what_was_cut_never_comes_back() -> None:
    """A hole among frames that were never promised: what follows it is cut for good."""
    for seed in range(200):
        random = Random(seed)
        world = World(options=INTERVAL)
        world.send(0, b"promised")
        world.commit()
        world.clock.time_ms += 60
        world.writer.tick()
        for n in range(6):
            world.send(0, b"%d" % n * 600)
            world.commit()
        after = world.power_cut(random)
        kept = after.messages(1, 0)
        # The next frames are shorter than those that were cut: remains lie behind them.
        after.send(1, b"short")
        after.commit()
        again = after.killed()
        assert again.messages(1, 0) == kept
        assert again.messages(1, 1) == [(0, b"short")]
        assert again.log.damages == []


def test_frames_missing_between_segments_are_reported() -> None:
    world = filled()
    disk = world.disk.killed()
    for name in disk.names(DIRECTORY):
        if name.endswith(".idx"):
            disk.remove(DIRECTORY / name)
    content = disk.content(segment_path(world, 0))
    at = bytes(content).rindex(b"CFM1")
    content[at:] = bytes(len(content) - at)
    lost_lsn = world.log.segments()[1].first_lsn - 1

    after = World(disk)

    assert [(damage.first_lsn, damage.last_lsn) for damage in after.log.damages] == [
        (lost_lsn, lost_lsn)
    ]


def test_a_gap_between_good_frames_is_reported() -> None:
    world = World()
    for n in range(3):
        world.send(0, b"%d" % n)
        if n == 1:
            world.log._open_lsn += 1
        world.commit()

    after = World(world.disk.killed())

    assert [(damage.first_lsn, damage.last_lsn) for damage in after.log.damages] == [(2, 2)]


TAIL_BYTES = 64 << 10


# The scanner, which decides where a log ends, is asked about each of these bytes in test_scanner.
@pytest.mark.parametrize("step", [1_021, pytest.param(13, marks=pytest.mark.slow)])
def test_a_log_that_ends_at_any_byte_is_what_it_was_after_its_last_whole_frame(step: int) -> None:
    random = Random(5)
    world = World(options=replace(SMALL, segment_bytes=4 * TAIL_BYTES))
    ends, states = [segment.HEADER_BYTES], [world.state()]
    path = segment.path_of(DIRECTORY, world.log.segments()[0])
    while ends[-1] < TAIL_BYTES + 8_192:
        world.send(random.randrange(3), random.randbytes(random.randint(1, 3_000)))
        world.ack(b"counted")
        world.commit()
        ends.append(len(bytes(world.disk.content(path)).rstrip(b"\0")))
        states.append(world.state())
    written = bytes(world.disk.content(path))
    rests = (bytes, lambda count: b"\xff" * count, random.randbytes, lambda _: b"")
    for cut in range(ends[-1] - TAIL_BYTES, ends[-1], step):
        disk = world.disk.killed()
        data = disk.content(path)
        data[cut:] = random.choice(rests)(len(data) - cut)
        whole = bisect_right(ends, cut)
        # What follows may happen to be just what was cut off.
        while whole < len(ends) and data[cut : ends[whole]] == written[cut : ends[whole]]:
            whole += 1

        after = World(disk, options=world.options)

        assert after.state() == states[whole - 1], f"cut at byte {cut}"
        assert after.log.damages == []


def test_a_long_torn_tail_becomes_zeros_and_nothing_before_it_is_touched(tmp_path: Path) -> None:
    """Longer than what is zeroed at a time: a direct write of many MiB that never ended."""
    header = segment.SegmentHeader(1, 7, 1, 0, 0, 1)
    kept = segment.encode_header(header) + b"good frames" * 400_000
    torn = b"torn" * 700_000
    path = segment.path_of(tmp_path, header)
    path.write_bytes(kept + torn)

    mend_tail(OsFiles(), tmp_path, header, Ending(len(kept), 1, 0, len(torn)))

    assert path.read_bytes() == kept + bytes(len(torn))


def test_a_name_that_came_back_over_a_recycled_file_is_no_segment_with_another_name() -> None:
    world = World()
    for n in range(60):
        world.send(0, b"%02d" % n * 150)
        world.commit()
    world.checkpoint()
    first, *_, last = world.log.segments()
    disk = world.disk.killed()
    recycled = disk.content(segment.path_of(DIRECTORY, first))
    recycled[:] = disk.content(segment.path_of(DIRECTORY, last))

    after = World(disk, world.checkpoints.copy())

    assert after.messages(1, 0)[-1] == world.messages(1, 0)[-1]
    assert [header.number for header in after.log.segments()] == [
        header.number for header in world.log.segments()
    ]


def test_an_index_of_a_segment_that_took_frames_again_is_not_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    while len(world.log.segments()) == 1:
        world.writer.holding = True
        world.send(0, b"never on the disk" * 10)
        world.commit()
        if len(world.log.segments()) == 1:
            world.writer.release()
    world.disk.open(key_index.path_of(DIRECTORY, 1), create=True)
    assert "0000000001.idx" in world.disk.names(DIRECTORY)

    def refused(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "no space for an index: the test says so")

    after = World(world.disk.killed())
    assert not {"0000000001.idx", "0000000001.key"} & set(after.disk.names(DIRECTORY))
    with monkeypatch.context() as patch:
        patch.setattr(sealed_index, "write", refused)
        while len(after.log.segments()) < 3:
            after.send(1, b"acknowledged" * 20)
            after.commit()
    assert after.acked_lsn == after.log.open_lsn - 1

    assert World(after.disk.killed()).messages(1, 1) == after.messages(1, 1)


def test_what_a_crash_left_of_segments_that_retention_took_is_removed() -> None:
    world = filled()
    gone, kept = world.log.segments()[:2]
    disk = world.disk.killed()
    disk.remove(segment_path(world, 0))
    half_written = f"{gone.number:010d}.key.new"
    disk.open(DIRECTORY / half_written, create=True)

    after = World(disk)

    indexes = [name for name in after.disk.names(DIRECTORY) if ".idx" in name or ".key" in name]
    assert indexes[0] == f"{kept.number:010d}.idx"


def test_a_sector_that_comes_back_after_its_offset_was_given_anew_stops_no_start() -> None:
    world = World(options=replace(SMALL, reads_around_bad_sectors=True))
    for queue_id, body in ((0, b"a"), (0, b"x"), (1, b"b"), (1, b"c")):
        world.send(queue_id, body * 700)
        world.commit()
    lost = (world.log.position(1, 0, 1) & segment.OFFSET_MASK) + 400
    header = world.log.segments()[0]
    name = segment.path_of(DIRECTORY, header).name
    checkpoints, disk = MemoryCheckpoints(), world.disk.killed()
    disk.unreadable = (name, lost, lost + 1)
    world = World(disk, checkpoints, world.options)
    assert world.log.max_offset(1, 0) == 1
    world.send(0, b"new")
    world.commit()

    disk = world.disk.killed()
    again = World(disk, checkpoints, world.options)

    assert again.messages(1, 0) == [(0, b"a" * 700), (1, b"new")]
    assert again.messages(1, 1) == [(0, b"b" * 700), (1, b"c" * 700)]
    rebuilt = entries_of(disk, DIRECTORY, header)[1 << 32]
    assert (rebuilt.base, rebuilt.end) == (0, 2)
    assert rebuilt.words[3] == again.log.position(1, 0, 1)
