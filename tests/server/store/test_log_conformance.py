"""One suite for everything that says it is a `Log`: the real one, and the fake."""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from cosmodrome_server.clock import SystemClock
from cosmodrome_server.errors import MessageNotFound
from cosmodrome_server.model.log import Log, MessageRecord, MessageState, RecordKind
from cosmodrome_server.store.commit_log import CommitLog
from cosmodrome_server.store.opening import open_log
from cosmodrome_server.store.platform import LogOptions, Platform
from tests.support.faulty_files import FaultyFiles
from tests.support.inline_worker import InlineWorker
from tests.support.log_world import DIRECTORY, SMALL, SteadyClock
from tests.support.memory_checkpoints import MemoryCheckpoints
from tests.support.memory_log import MemoryLog
from tests.support.replaying import replayed


class Opened(Protocol):
    """A log, and how to open it again after its process died."""

    log: Log

    def restart(self) -> None:
        """Kill and open."""

    def settle(self) -> None:
        """Wait until what was committed is durable."""


def start(log: Log) -> None:
    list(log.rows())
    list(log.replay())


class Memory:
    def __init__(self) -> None:
        self.memory = MemoryLog()
        self.log: Log = self.memory

    def restart(self) -> None:
        self.memory = self.memory.crashed()
        self.log = self.memory

    def settle(self) -> None:
        pass


class Simulated:
    def __init__(self) -> None:
        self.disk, self.checkpoints = FaultyFiles(), MemoryCheckpoints()
        self.open()

    def open(self) -> None:
        platform = Platform(
            self.disk, SteadyClock(), self.checkpoints, InlineWorker(), InlineWorker(), _salt
        )
        self.log: Log = CommitLog(DIRECTORY, SMALL, platform)

    def restart(self) -> None:
        self.disk = self.disk.killed()
        self.open()

    def settle(self) -> None:
        pass


class OnDisk:
    def __init__(self, data: Path) -> None:
        self.data = data
        self.open()

    def open(self) -> None:
        options = LogOptions(segment_bytes=64 << 10, reserve_bytes=4_096)
        self.real = open_log(self.data, options, SystemClock())
        self.log: Log = self.real

    def restart(self) -> None:
        self.real.close()
        self.open()

    def settle(self) -> None:
        self.real._writer.drain()


def _salt(length: int) -> bytes:
    _salt.last += 1  # type: ignore[attr-defined]  # a counter, so that no salt comes twice
    last: int = _salt.last  # type: ignore[attr-defined]  # see above
    return last.to_bytes(length, "big")


_salt.last = 0  # type: ignore[attr-defined]  # see above


@pytest.fixture(params=["memory", "simulated", "disk"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    made: Opened
    if request.param == "memory":
        made = Memory()
    elif request.param == "simulated":
        made = Simulated()
    else:
        made = OnDisk(tmp_path)
    yield made
    made.log.close()


def message(
    queue_offset: int, body: bytes = b"body", state: MessageState = MessageState.VISIBLE
) -> MessageRecord:
    return MessageRecord(
        state,
        1,
        0,
        queue_offset,
        100 + queue_offset,
        1_000 + 10 * queue_offset,
        0,
        b"s",
        b"u",
        body,
    )


def send(log: Log, record: MessageRecord) -> int:
    position = log.stage_message(record)
    entry = (position, record.tag_hash, record.store_timestamp_ms)
    log.index(record.topic_id, record.queue_id, record.queue_offset, entry)
    return position


def filled(opened: Opened, count: int, restart: bool) -> Log:
    start(opened.log)
    opened.log.set_snapshot(list)
    for offset in range(count):
        send(opened.log, message(offset, b"%d" % offset))
        assert opened.log.commit(lambda: None)
        opened.settle()
    if restart:
        opened.restart()
        replay(opened.log)
    return opened.log


def replay(log: Log) -> list[RecordKind]:
    list(log.rows())
    return [kind for kind, _ in replayed(log)]


both = pytest.mark.parametrize("restart", [False, True], ids=["live", "restarted"])


def test_a_new_log_is_empty(opened: Opened) -> None:
    assert list(opened.log.rows()) == []
    assert list(opened.log.replay()) == []
    assert (opened.log.open_lsn, opened.log.durable_lsn) == (1, 0)
    assert not opened.log.has_staged
    assert opened.log.max_offset(1, 0) == opened.log.min_offset(1, 0) == 0


def test_frames_are_numbered_and_announced_in_order(opened: Opened) -> None:
    start(opened.log)
    announced = []
    for lsn in range(1, 6):
        opened.log.stage(RecordKind.ACK, b"x")
        assert opened.log.has_staged
        assert opened.log.open_lsn == lsn
        assert opened.log.commit(lambda lsn=lsn: announced.append(lsn))  # type: ignore[misc]  # bound now
        assert not opened.log.has_staged
        opened.settle()
        assert opened.log.durable_lsn == lsn
    assert announced == [1, 2, 3, 4, 5]


@both
def test_what_was_stored_is_read(opened: Opened, restart: bool) -> None:
    log = filled(opened, 10, restart)

    assert (log.min_offset(1, 0), log.max_offset(1, 0)) == (0, 10)
    for offset in range(10):
        found = log.read(1, 0, offset)
        assert found == message(offset, b"%d" % offset)
        assert log.read_position(log.position(1, 0, offset)) == found
        assert log.timestamp(1, 0, offset) == 1_000 + 10 * offset


@both
def test_tag_hashes_are_those_of_the_range(opened: Opened, restart: bool) -> None:
    log = filled(opened, 10, restart)

    assert list(log.tag_hashes(1, 0, 3, 7)) == [103, 104, 105, 106]
    assert list(log.tag_hashes(1, 0, 3, 3)) == []


@both
def test_offsets_are_found_by_time(opened: Opened, restart: bool) -> None:
    log = filled(opened, 10, restart)

    assert [log.offset_at(1, 0, at) for at in (0, 1_000, 1_001, 1_090, 1_091)] == [0, 0, 1, 9, 10]
    assert log.offset_at(1, 7, 5) == 0


@both
def test_offsets_outside_the_queue_are_not_found(opened: Opened, restart: bool) -> None:
    log = filled(opened, 3, restart)

    for queue, offset in [(0, 3), (0, 99), (5, 0)]:
        with pytest.raises(MessageNotFound):
            log.read(1, queue, offset)
        with pytest.raises(MessageNotFound):
            log.position(1, queue, offset)


@both
def test_a_half_message_is_read_at_the_offset_its_commit_gave_it(
    opened: Opened, restart: bool
) -> None:
    log = opened.log
    start(log)
    position = log.stage_message(message(0, b"half", MessageState.HALF))
    log.commit(lambda: None)
    opened.settle()
    if restart:
        opened.restart()
        log = opened.log
        start(log)
    log.index(4, 2, 0, (position, 7, 9_999))

    found = log.read(4, 2, 0)

    assert (found.topic_id, found.queue_id, found.queue_offset) == (4, 2, 0)
    assert (found.tag_hash, found.store_timestamp_ms, found.body) == (7, 9_999, b"half")
    assert log.read_position(position).state is MessageState.HALF


def test_records_are_replayed_in_order_after_a_restart(opened: Opened) -> None:
    start(opened.log)
    opened.log.stage(RecordKind.TOPIC, b"topic")
    send(opened.log, message(0))
    opened.log.stage(RecordKind.ACK, b"")
    opened.log.commit(lambda: None)
    opened.settle()
    opened.restart()

    list(opened.log.rows())
    assert list(replayed(opened.log)) == [
        (RecordKind.TOPIC, b"topic"),
        (RecordKind.MESSAGE, b""),
        (RecordKind.ACK, b""),
    ]
    assert opened.log.max_offset(1, 0) == 1


def test_a_checkpoint_is_where_replay_begins(opened: Opened) -> None:
    log = opened.log
    start(log)
    for step in range(3):
        send(log, message(step))
        log.stage(RecordKind.ACK, b"%d" % step)
        log.commit(lambda: None)
        opened.settle()
        if step == 1:
            log.checkpoint([(b"a", b"1"), (b"b", b"2"), (b"gone", None)], log.open_lsn - 1)
    opened.restart()

    assert sorted(opened.log.rows()) == [(b"a", b"1"), (b"b", b"2")]
    assert [payload for _, payload in replayed(opened.log)] == [b"", b"2"]
    assert opened.log.read(1, 0, 1) == message(1)
    assert opened.log.max_offset(1, 0) == 3


def test_rows_of_later_checkpoints_replace_earlier_ones(opened: Opened) -> None:
    log = opened.log
    start(log)
    for rows in [[(b"a", b"1"), (b"b", b"1")], [(b"a", b"2"), (b"b", None)]]:
        log.stage(RecordKind.ACK, b"")
        log.commit(lambda: None)
        opened.settle()
        log.checkpoint(rows, log.open_lsn - 1)  # type: ignore[arg-type]  # the list's type is wider
    opened.restart()

    assert list(opened.log.rows()) == [(b"a", b"2")]


def test_the_queues_of_a_deleted_topic_are_gone(opened: Opened) -> None:
    log = filled(opened, 3, restart=False)

    log.drop_queues(1)

    assert log.max_offset(1, 0) == 0
    with pytest.raises(MessageNotFound):
        log.read(1, 0, 0)


def test_the_queues_of_a_deleted_topic_do_not_come_back_with_a_checkpoint(opened: Opened) -> None:
    log = filled(opened, 3, restart=False)
    log.checkpoint([], log.open_lsn - 1)
    log.drop_queues(1)
    log.stage(RecordKind.TOPIC_DELETED, b"")
    log.commit(lambda: None)
    opened.settle()
    log.checkpoint([], log.open_lsn - 1)
    opened.restart()
    start(opened.log)

    assert opened.log.max_offset(1, 0) == 0


def test_staging_many_messages_is_all_or_none_and_in_order(opened: Opened) -> None:
    start(opened.log)
    positions = opened.log.stage_messages([message(offset) for offset in range(5)])

    assert positions == sorted(positions)
    assert [opened.log.read_position(at).queue_offset for at in positions] == [0, 1, 2, 3, 4]


def test_what_is_staged_at_the_end_is_written_by_close(opened: Opened) -> None:
    start(opened.log)
    send(opened.log, message(0, b"last words"))
    opened.log.close()
    opened.restart()

    assert replay(opened.log) == [RecordKind.MESSAGE]
    assert opened.log.read(1, 0, 0).body == b"last words"


def test_many_messages_are_read_as_one_by_one(opened: Opened) -> None:
    start(opened.log)
    for offset in range(60):
        send(opened.log, message(offset, b"%d" % offset * (1 + offset * 37 % 900)))
        if offset % 7 == 0:
            opened.log.commit(lambda: None)
            opened.settle()
    opened.log.close()
    opened.restart()
    replay(opened.log)

    found = opened.log.read_many(1, 0, 3, 60)

    assert found == [opened.log.read(1, 0, offset) for offset in range(3, 60)]


def test_what_is_not_stored_is_none_among_many(opened: Opened) -> None:
    log = filled(opened, 3, restart=False)

    assert log.read_many(1, 0, 1, 5) == [log.read(1, 0, 1), log.read(1, 0, 2), None, None]
    assert log.read_many(9, 0, 0, 2) == [None, None]
