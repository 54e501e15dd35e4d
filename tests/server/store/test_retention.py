import errno
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from msgspec.structs import replace

from cosmodrome_server.errors import MessageNotFound, ReadFailed
from cosmodrome_server.model.log import KeptLonger
from cosmodrome_server.store import sealed_index
from cosmodrome_server.store.consume_queue import ConsumeQueues
from cosmodrome_server.store.group_commit import Durability
from cosmodrome_server.store.message_reader import MessageReader
from cosmodrome_server.store.platform import LogOptions
from cosmodrome_server.store.retention import Limits, Stored, first_to_keep
from tests.support.log_world import DIRECTORY, SMALL, World, message

NO_FLOOR = 1 << 31


def stored(number: int, last_ms: int = 0, oldest: int | None = None, size: int = 10) -> Stored:
    return Stored(number, last_ms, number if oldest is None else oldest, size)


SEALED = [stored(1, 100), stored(2, 200), stored(3, 300)]
ACTIVE = stored(4)


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        (Limits(0, 0, NO_FLOOR), 1),
        (Limits(100, 0, NO_FLOOR), 1),
        (Limits(101, 0, NO_FLOOR), 2),
        (Limits(250, 0, NO_FLOOR), 3),
        (Limits(999, 0, NO_FLOOR), 4),
        (Limits(0, 40, NO_FLOOR), 1),
        (Limits(0, 39, NO_FLOOR), 2),
        (Limits(0, 20, NO_FLOOR), 3),
        (Limits(0, 1, NO_FLOOR), 4),
        (Limits(999, 0, 2), 2),
        (Limits(999, 1, 1), 1),
        (Limits(999, 0, NO_FLOOR, 2), 2),
        (Limits(999, 1, NO_FLOOR, 2), 4),
    ],
)
def test_age_size_and_floor_decide_what_is_kept(limits: Limits, kept: int) -> None:
    assert first_to_keep(SEALED, ACTIVE, limits) == kept


def test_a_segment_that_a_later_one_points_into_is_kept() -> None:
    sealed = [stored(1, 100), stored(2, 200), stored(3, 300, oldest=2)]

    assert first_to_keep(sealed, ACTIVE, Limits(250, 0, NO_FLOOR)) == 2
    assert first_to_keep(SEALED, stored(4, oldest=3), Limits(999, 0, NO_FLOOR)) == 3


def test_segments_that_only_each_other_need_go_together() -> None:
    sealed = [stored(1, 100), stored(2, 200, oldest=1), stored(3, 300, oldest=2), stored(4, 400)]

    assert first_to_keep(sealed, stored(5), Limits(350, 0, NO_FLOOR)) == 4
    assert first_to_keep(sealed, stored(5), Limits(250, 0, NO_FLOOR)) == 1
    assert first_to_keep(sealed, stored(5, oldest=3), Limits(999, 0, NO_FLOOR)) == 1


def old_world(options: LogOptions = SMALL) -> World:
    world = World(options=options)
    for n in range(100):
        world.send(0, b"%02d" % n * 150)
        world.commit()
    return world


AGED = LogOptions(SMALL.durability, 8_192, 2_048, 1 << 20, 1, 0, 0)


def test_old_segments_go_and_the_rest_is_served() -> None:
    world = old_world(AGED)
    before = world.log.segments()

    gone = world.log.retain(10_000)

    assert gone == len(before) - 1
    first = world.log.min_offset(1, 0)
    assert 0 < first < 100
    with pytest.raises(MessageNotFound, match="not stored"):
        world.log.read(1, 0, first - 1)
    stored_now = world.messages(1, 0)
    assert stored_now == [(n, b"%02d" % n * 150) for n in range(first, 100)]
    names = world.disk.names(DIRECTORY)
    assert sum(name.endswith(".seg") for name in names) == 1
    assert not any(name.endswith(".idx") for name in names)


def test_an_index_that_could_not_be_written_does_not_come_after_its_segment_went(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "the test's disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(sealed_index, "write", full)
        world = old_world(AGED)
        world.log.retain(10_000)
    world.background.tick()

    names = world.disk.names(DIRECTORY)
    assert not any(name.endswith(".idx") for name in names)
    for n in range(40):
        world.send(0, b"%02d" % n * 150)
        world.commit()
    assert any(name.endswith(".idx") for name in world.disk.names(DIRECTORY))


def test_a_segment_that_cannot_be_removed_costs_no_start_its_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = old_world(AGED)
    world.ack(b"counter")
    world.commit()
    world.checkpoint()
    first = world.segment_path(1)
    rename, remove = world.disk.rename, world.disk.remove

    def refuse(source: Path, target: Path | None = None) -> None:
        if source == first:
            raise OSError(errno.EPERM, "somebody holds it")
        rename(source, target) if target else remove(source)

    with monkeypatch.context() as patch:
        patch.setattr(world.disk, "rename", refuse)
        patch.setattr(world.disk, "remove", refuse)
        world.log.retain(10_000)
    names = world.disk.names(DIRECTORY)
    assert [name for name in names if name.startswith("0000000001")] == [
        first.name,
        "0000000001.idx",
    ]
    # What lay between is gone: a start from there would know nothing of what happened since.
    for again in (world.killed(), World(world.disk.killed(), options=AGED)):
        assert again.counters == world.counters
        assert again.messages(1, 0)[-1] == world.messages(1, 0)[-1]

    while world.log.retain(10_000) == 0:
        world.send(0, b"x" * 300)
        world.commit()
    assert not [name for name in world.disk.names(DIRECTORY) if name.startswith("0000000001")]


def test_a_topic_that_keeps_its_messages_longer_keeps_the_segments_they_are_in() -> None:
    world = old_world(AGED)
    world.send_half(b"kept")
    world.commit()
    world.end(b"kept")  # at 5,000
    world.commit()
    kept = world.log.segments()[-1].number
    for n in range(100):
        world.send(0, b"%02d" % n * 150)
        world.commit()

    world.log.retain(10_000, longer=[KeptLonger(2, 1, 5_000)])
    assert world.log.segments()[0].number == kept
    assert world.messages(2, 0) == [(0, b"kept")]
    world.log.retain(10_000, longer=[KeptLonger(2, 1, 4_999)])
    assert world.log.segments()[0].number > kept


def test_a_topic_that_keeps_its_messages_longer_does_not_where_they_are_too_many() -> None:
    world = old_world(replace(SMALL, retention_bytes=20_000))
    assert world.log.retain(10_000, longer=[KeptLonger(1, 2, 1 << 40)]) > 0


def test_a_topic_that_keeps_its_messages_for_ever_keeps_no_segment_without_them() -> None:
    world = old_world(AGED)
    since_before_1970_ms = 1 << 48
    assert world.log.retain(10_000, longer=[KeptLonger(2, 1, since_before_1970_ms)]) > 0


def test_while_nothing_is_old_no_topic_is_asked() -> None:
    def asked() -> Iterator[KeptLonger]:
        raise AssertionError("it costs the loop a look at each topic")
        yield

    world = old_world(replace(AGED, retention_ms=1 << 40))
    assert world.log.retain(10_000, longer=asked()) == 0


def test_who_keeps_segments_that_are_old_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world = old_world(AGED)
    for _ in range(2):
        world.log.retain(10_000, longer=[KeptLonger(1, 2, 1 << 40)])
    said = [
        record.getMessage() for record in caplog.records if "kept_longer" in record.getMessage()
    ]
    assert said == ["segments_kept_longer first=1 topic_id=1 queue_id=0"]


def test_an_index_that_cannot_be_read_now_keeps_its_segment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: object) -> NoReturn:
        raise ReadFailed("the disk refuses it now")

    world = old_world(AGED)
    with monkeypatch.context() as patch:
        patch.setattr(ConsumeQueues, "sealed_ms", refused)
        assert world.log.retain(10_000, longer=[KeptLonger(2, 1, 9_000)]) == 0
    assert world.log.retain(10_000, longer=[KeptLonger(2, 1, 9_000)]) > 0


def test_a_restart_knows_offsets_that_retention_took() -> None:
    world = old_world(AGED)
    world.log.retain(10_000)

    after = World(world.disk.killed())

    assert after.messages(1, 0) == world.messages(1, 0)
    assert after.log.max_offset(1, 0) == 100


def test_a_queue_whose_messages_are_all_gone_goes_on_where_it_was() -> None:
    world = World(options=AGED)
    world.send(1, b"early")
    for _ in range(60):
        world.send(0, b"x" * 300)
        world.commit()
    world.log.retain(10_000)

    for found in (world, World(world.disk.killed(), options=AGED)):
        assert found.log.min_offset(1, 1) == found.log.max_offset(1, 1) == 1
        found.send(1, b"late")
        found.commit()
        assert found.messages(1, 1) == [(1, b"late")]


def test_an_open_half_message_keeps_its_segment() -> None:
    world = World(options=AGED)
    world.send_half(b"00000001")
    position = world.halves[b"half00000001"]
    for _ in range(60):
        world.send(0, b"x" * 300)
        world.commit()

    assert world.log.retain(10_000, floor_position=position) == 0
    assert world.log.read_position(position).body == b"00000001"


def test_a_committed_half_message_keeps_its_segment_as_long_as_its_offset() -> None:
    world = World(options=AGED)
    world.send_half(b"00000001")
    for n in range(60):
        world.send(0, b"x" * 300)
        world.commit()
        if n == 40:
            world.end(b"00000001")
    world.log.retain(1_041)

    assert world.messages(2, 0) == [(0, b"00000001")]


def test_what_a_checkpoint_says_of_a_committed_half_message_keeps_its_segment() -> None:
    world = World(options=AGED)
    world.send_half(b"00000001")
    for _ in range(60):
        world.send(0, b"x" * 300)
        world.commit()
    world.end(b"00000001")
    world.commit()
    world.checkpoint()
    world.log.close()

    after = World(world.disk.killed(), world.checkpoints.copy(), options=AGED)
    after.log.retain(10_000)

    assert after.messages(2, 0) == [(0, b"00000001")]


def test_a_segment_of_messages_that_are_in_no_queue_is_as_old_as_its_last_frame() -> None:
    world = World(options=AGED)
    for n in range(60):
        world.send_half(b"%08d" % n + b"x" * 300)
        world.commit()
    assert len(world.log.segments()) > 2

    assert world.log.retain(world.clock.time_ms) == 0
    assert World(world.disk.killed(), options=AGED).log.retain(world.clock.time_ms) == 0
    world.clock.time_ms += 2
    assert world.log.retain(world.clock.time_ms) > 0


def test_a_removed_segment_is_recycled_as_the_next_one() -> None:
    world = World(options=LogOptions(SMALL.durability, 8_192, 0, 1 << 20, 1, 0, 0))
    world.disk.bytes_max = 50_000
    made: list[str] = []
    world.disk.on_operation = made.append
    for n in range(600):
        world.send(0, b"%03d" % n * 100)
        world.commit()
        if n % 10 == 0:
            world.log.retain(1_000 + n)

    world.disk.on_operation = lambda _: None
    # An index for each segment, and files of their own for the first few only.
    segments = world.log.segments()[-1].number
    assert segments > 20
    assert made.count("create") < segments + 8
    assert world.messages(1, 0)[-1] == (599, b"599" * 100)
    assert World(world.disk.killed()).messages(1, 0) == world.messages(1, 0)


def test_offsets_are_found_by_time_at_every_edge_of_sealed_segments() -> None:
    world = World(options=SMALL)
    for n in range(100):
        record = message(1, 0, n, b"%02d" % n * 150)
        # Runs of one time, also over the end of a segment, and times nothing was stored at.
        record.store_timestamp_ms = 1_000 + n // 7 * 3
        world._index(record, world.log.stage_message(record))
        world.commit()
    assert len(world.log.segments()) > 3
    stored_ms = [world.log.timestamp(1, 0, n) for n in range(100)]
    for log in (world.log, World(world.disk.killed()).log):
        for moment in range(995, 1_050):
            first = next((n for n, at in enumerate(stored_ms) if at >= moment), 100)
            assert log.offset_at(1, 0, moment) == first


def test_a_segment_whose_size_is_not_known_now_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = old_world(LogOptions(SMALL.durability, 8_192, 0, 1 << 20, 0, 12_000, 0))

    def refused(*_: object) -> NoReturn:
        raise OSError("the disk does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(MessageReader, "file", refused)
        assert world.log.retain(1) == 0
    assert world.log.retain(1) > 0


def test_a_log_that_nobody_syncs_or_writes_to_remembers_no_more_with_every_look() -> None:
    world = World(options=replace(SMALL, durability=Durability(is_synced=False)))
    for body in (b"synced with its segment", b"never synced"):
        world.send(0, body)
        world.commit()
    for _ in range(50):
        world.log.retain(1_000)
    assert len(world.log._retention._floors) == 1
