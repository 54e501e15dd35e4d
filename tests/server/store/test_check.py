"""The checker, on real files; and the data directory of each release."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from cosmodrome_server.clock import SystemClock
from cosmodrome_server.errors import CorruptFrame, StoreError, StoreLocked
from cosmodrome_server.model.log import (
    END_TRANSACTION_HEAD,
    MessageRecord,
    MessageState,
    RecordKind,
)
from cosmodrome_server.store import check, segment
from cosmodrome_server.store.commit_log import CommitLog
from cosmodrome_server.store.files import OsFiles
from cosmodrome_server.store.opening import SHARD_NAME, open_log
from cosmodrome_server.store.platform import LogOptions
from cosmodrome_server.store.timer_bucket import TimerBuckets
from tests.support.replaying import replayed

GOLDEN = Path(__file__).parent / "golden"
OPTIONS = LogOptions(segment_bytes=32 << 10, reserve_bytes=4_096, scrub_bytes_s=0)


def write(data: Path, messages: int = 120) -> None:
    log = opened(data)
    start = log.max_offset(1, 0)
    for n in range(start, start + messages):
        body = b"message %d " % n * 30
        record = MessageRecord(MessageState.VISIBLE, 1, 0, n, n, 1_000 + n, 0, b"s", b"u", body)
        position = log.stage_message(record)
        log.index(1, 0, n, (position, n, 1_000 + n))
        log.stage(RecordKind.ACK, b"%d" % n)
        log.commit(lambda: None)
        log._writer.drain()
        log._platform.background.submit(log._space.prepare)
    log.checkpoint([(b"count", b"%d" % (start + messages))], log.open_lsn - 1)
    log.close()


def opened(data: Path) -> CommitLog:
    log = open_log(data, OPTIONS, SystemClock())
    list(log.rows())
    list(replayed(log))
    log.set_snapshot(lambda: [(b"count", b"?")])
    return log


def contents(data: Path) -> list[tuple[int, bytes]]:
    log = opened(data)
    found = [
        (log.timestamp(1, 0, n), log.read(1, 0, n).body)
        for n in range(log.min_offset(1, 0), log.max_offset(1, 0))
    ]
    log.close()
    return found


def segments(data: Path) -> list[Path]:
    return sorted((data / SHARD_NAME).glob("*.seg"))


def damage(path: Path, wanted: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[content.index(wanted)] ^= 1
    path.write_bytes(content)


def test_a_whole_log_has_no_problems(tmp_path: Path) -> None:
    write(tmp_path)

    report = check.check(tmp_path)

    assert report.problems == []
    assert report.is_whole
    assert (report.messages, report.queues, report.frames) == (120, 1, 120)
    assert (report.first_lsn, report.last_lsn) == (1, 120)
    assert report.segments == len(segments(tmp_path)) > 1


def test_a_queue_of_committed_messages_counts_and_one_of_half_messages_does_not(
    tmp_path: Path,
) -> None:
    log = opened(tmp_path)
    half = MessageRecord(MessageState.HALF, 7, 0, 0, 0, 1_000, 0, b"s", b"", b"body")
    position = log.stage_message(half)
    log.stage_message(replace(half, topic_id=8))
    head = END_TRANSACTION_HEAD.pack(0, position, 1_000, 7, 0, 0, 0, True)
    log.stage(RecordKind.END_TRANSACTION, head + b"id")
    log.close()

    report = check.check(tmp_path)

    assert (report.messages, report.queues) == (2, 1)


def test_a_damaged_message_is_found_and_placed(tmp_path: Path) -> None:
    write(tmp_path)
    damage(segments(tmp_path)[0], b"message 7 ")

    report = check.check(tmp_path)

    assert not report.is_whole
    assert {problem.file for problem in report.problems} == {segments(tmp_path)[0].name}
    assert report.messages == 119


def test_a_damaged_header_loses_nothing(tmp_path: Path) -> None:
    write(tmp_path)
    damage(segments(tmp_path)[0], b"COSMOSEG")

    report = check.check(tmp_path)

    assert report.is_whole
    assert [problem.start for problem in report.problems] == [0]
    assert len(contents(tmp_path)) == 120


def test_damaged_derived_files_lose_nothing(tmp_path: Path) -> None:
    write(tmp_path)
    shard = tmp_path / SHARD_NAME
    damage(next(shard.glob("*.idx")), b"COSMOIDX")
    (shard / "state.db").write_bytes(b"rubbish" * 1_000)
    for suffix in ("-wal", "-shm"):
        (shard / f"state.db{suffix}").unlink(missing_ok=True)

    report = check.check(tmp_path)

    assert report.is_whole
    assert len(report.problems) == 2
    assert len(contents(tmp_path)) == 120
    assert check.check(tmp_path).problems == []


def test_an_index_that_lies_is_found(tmp_path: Path) -> None:
    write(tmp_path)
    one, two = sorted((tmp_path / SHARD_NAME).glob("*.idx"))[:2]
    lies = two.read_bytes()
    header_of = segment.named(path.name for path in segments(tmp_path))
    one.write_bytes(lies)

    report = check.check(tmp_path)

    assert [problem.file for problem in report.problems] == [one.name]
    assert len(header_of) > 2


def test_a_missing_segment_is_found(tmp_path: Path) -> None:
    write(tmp_path)
    segments(tmp_path)[1].unlink()

    report = check.check(tmp_path)

    assert any("missing" in problem.what for problem in report.problems)


def test_a_log_that_lost_its_end_is_found_by_its_checkpoint(tmp_path: Path) -> None:
    write(tmp_path)
    for path in segments(tmp_path)[1:]:
        path.unlink()

    report = check.check(tmp_path)

    assert any("the checkpoint knows frame 120" in problem.what for problem in report.problems)


def test_a_torn_end_is_no_problem(tmp_path: Path) -> None:
    write(tmp_path, 3)
    last = segments(tmp_path)[-1]
    content = bytearray(last.read_bytes())
    at = content.index(b"message 2 ") + 100
    content[at:] = bytes(len(content) - at)
    last.write_bytes(content)
    (tmp_path / SHARD_NAME / "state.db").unlink()

    report = check.check(tmp_path)

    assert report.problems == []
    assert report.torn_bytes_at is not None
    assert report.messages == 2


@pytest.mark.parametrize("checkpointed", [1, 3])
def test_a_rotten_end_that_was_whole_at_a_clean_stop_is_no_torn_one(
    tmp_path: Path, checkpointed: int
) -> None:
    log = opened(tmp_path)
    for n in range(3):
        body = b"message %d " % n * 30
        log.stage_message(MessageRecord(MessageState.VISIBLE, 1, 0, n, 0, 1_000, 0, b"", b"", body))
        log.commit(lambda: None)
        log._writer.drain()
        if n + 1 == checkpointed:
            log.checkpoint([], log.open_lsn - 1)
    log.close()
    damage(segments(tmp_path)[0], b"message 2 ")

    report = check.check(tmp_path)

    assert [problem.what for problem in report.problems] == [
        "the checkpoint knows frame 3, the log ends at 2"
    ]
    assert report.torn_bytes_at is None
    assert not report.is_whole


def bucket_of(data: Path, bodies: list[bytes]) -> Path:
    """One hour's bucket with these messages, and one that was recalled."""
    buckets = TimerBuckets(OsFiles(), data / SHARD_NAME / "timer")
    for number, body in enumerate(bodies):
        record = MessageRecord(MessageState.DELAYED, 1, 0, 0, 0, 1_000, 5_000, b"s", b"u", body)
        buckets.append([(5_000, number, record)])
    buckets.recall(5_000, 99)
    buckets.close()
    return buckets.path(0)


def test_damaged_copies_of_delayed_messages_are_found(tmp_path: Path) -> None:
    write(tmp_path, 3)
    path = bucket_of(tmp_path, [b"first one", b"second one", b"third one"])
    assert check.check(tmp_path).problems == []

    damage(path, b"second one")
    report = check.check(tmp_path)

    assert [problem.file for problem in report.problems] == [f"timer/{path.name}"]
    assert "a delayed message may be lost" in report.problems[0].what
    assert not report.is_whole


def test_of_two_copies_of_a_delayed_message_one_may_be_damaged(tmp_path: Path) -> None:
    write(tmp_path, 3)
    path = bucket_of(tmp_path, [b"first one"])
    bucket_of(tmp_path, [b"first one"])

    damage(path, b"first one")

    assert check.check(tmp_path).problems == []


def test_a_copy_whose_head_is_damaged_is_found_by_the_gap_it_leaves(tmp_path: Path) -> None:
    write(tmp_path, 3)
    path = bucket_of(tmp_path, [b"first one", b"second one"])
    content = bytearray(path.read_bytes())
    content[24 + 9] ^= 1
    path.write_bytes(content)

    report = check.check(tmp_path)

    assert [problem.start for problem in report.problems] == [24]
    assert "bytes are no entry" in report.problems[0].what


def test_a_copy_that_was_not_finished_is_no_problem(tmp_path: Path) -> None:
    write(tmp_path, 3)
    path = bucket_of(tmp_path, [b"first one"])
    whole = path.read_bytes()
    path.write_bytes(whole + whole[24:60])

    assert check.check(tmp_path).problems == []


def test_a_running_broker_keeps_others_out(tmp_path: Path) -> None:
    log = opened(tmp_path)
    with pytest.raises(StoreLocked, match="another process owns"):
        check.check(tmp_path)
    with pytest.raises(StoreLocked):
        open_log(tmp_path, OPTIONS, SystemClock())
    log.close()
    check.check(tmp_path)


@pytest.mark.parametrize("verb", [check.check, check.rebuild, lambda data: list(check.dump(data))])
def test_data_of_a_later_format_is_left_alone(
    tmp_path: Path, verb: Callable[[Path], object]
) -> None:
    write(tmp_path)
    before = sorted(path.name for path in (tmp_path / SHARD_NAME).iterdir())
    (tmp_path / "VERSION").write_text("cosmodrome 9.9.9 format 2\n")

    with pytest.raises(StoreError, match=r"has format 2, written by cosmodrome 9\.9\.9"):
        verb(tmp_path)

    assert sorted(path.name for path in (tmp_path / SHARD_NAME).iterdir()) == before
    (tmp_path / "VERSION").unlink()
    opened(tmp_path).close()


def test_dump_shows_every_record_in_order(tmp_path: Path) -> None:
    write(tmp_path, 5)

    dumped = list(check.dump(tmp_path))

    kinds = [item.record.kind for item in dumped if item.record.kind is not RecordKind.QUEUE_ENDS]
    assert kinds == [RecordKind.SNAPSHOT_END, *[RecordKind.MESSAGE, RecordKind.ACK] * 5]
    assert [item.lsn for item in dumped] == sorted(item.lsn for item in dumped)
    assert list(check.dump(tmp_path, first_segment=99)) == []


def test_rebuild_removes_what_the_next_start_makes_again(tmp_path: Path) -> None:
    write(tmp_path)
    expected = contents(tmp_path)

    removed = check.rebuild(tmp_path)

    assert "state.db" in removed
    assert not list((tmp_path / SHARD_NAME).glob("*.idx"))
    assert contents(tmp_path) == expected
    assert check.check(tmp_path).problems == []


def test_rebuild_refuses_to_throw_away_the_only_copy(tmp_path: Path) -> None:
    write(tmp_path)
    path = segments(tmp_path)[0]
    content = bytearray(path.read_bytes())
    content[segment.HEADER_BYTES] ^= 1
    path.write_bytes(content)

    with pytest.raises(CorruptFrame, match="does not begin with a snapshot"):
        check.rebuild(tmp_path)
    assert list((tmp_path / SHARD_NAME).glob("*.idx"))


@pytest.mark.parametrize("release", sorted(path.name for path in GOLDEN.iterdir()))
def test_the_data_of_each_release_can_be_read_and_goes_on(release: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(GOLDEN / release, data)
    assert check.check(data).problems == []
    found = contents(data)
    assert found == [(1_000 + n, b"message %d " % n * 30) for n in range(120)]
    write(data, 10)
    assert contents(data)[-1] == (1_129, b"message 129 " * 30)
