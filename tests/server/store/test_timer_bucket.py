from pathlib import Path
from random import Random
from threading import Event, Thread, current_thread

import pytest

from cosmodrome_server.errors import CorruptFrame, ReadFailed, StoreFull
from cosmodrome_server.model.log import MessageRecord, MessageState
from cosmodrome_server.store import timer_bucket
from cosmodrome_server.store.patience import READS_MAX
from cosmodrome_server.store.timer_bucket import HOUR_MS, TimerBuckets, hour_of
from tests.support.faulty_files import FaultyFiles

DIRECTORY = Path("/data/timer")
NOON_MS = 500_000 * HOUR_MS


def delayed(due_ms: int, body: bytes) -> MessageRecord:
    return MessageRecord(MessageState.DELAYED, 1, 0, 0, 5, 1_000, due_ms, b"s", b"u", body)


def buckets_on(disk: FaultyFiles) -> TimerBuckets:
    return TimerBuckets(disk, DIRECTORY, Random(3).randbytes)


def bodies(buckets: TimerBuckets, hour: int) -> list[bytes]:
    return [buckets.read(hour, start).body for start in buckets.load(hour).starts]


def test_messages_come_back_in_the_order_they_are_due() -> None:
    buckets = buckets_on(FaultyFiles())
    due = [(NOON_MS + 5, 30), (NOON_MS + 1, 20), (NOON_MS + 5, 10), (NOON_MS + HOUR_MS, 40)]
    buckets.append([(at, position, delayed(at, b"%d" % position)) for at, position in due])

    loaded = buckets.load(hour_of(NOON_MS))

    assert list(loaded.due_ms) == [NOON_MS + 1, NOON_MS + 5, NOON_MS + 5]
    assert list(loaded.positions) == [20, 10, 30]
    assert bodies(buckets, hour_of(NOON_MS)) == [b"20", b"10", b"30"]
    assert buckets.hours() == [hour_of(NOON_MS), hour_of(NOON_MS) + 1]


def test_a_message_copied_twice_is_loaded_once() -> None:
    buckets = buckets_on(FaultyFiles())
    for _ in range(2):
        buckets.append([(NOON_MS, 7, delayed(NOON_MS, b"once"))])

    assert bodies(buckets, hour_of(NOON_MS)) == [b"once"]


def test_a_recalled_message_is_not_loaded_even_when_it_is_copied_again() -> None:
    buckets = buckets_on(FaultyFiles())
    buckets.append([(NOON_MS, n, delayed(NOON_MS, b"%d" % n)) for n in range(3)])
    buckets.recall(NOON_MS, 1)
    buckets.append([(NOON_MS, 1, delayed(NOON_MS, b"1"))])

    assert bodies(buckets, hour_of(NOON_MS)) == [b"0", b"2"]


def test_a_write_the_disk_refuses_is_not_taken_for_want_of_space() -> None:
    disk = FaultyFiles()
    buckets = buckets_on(disk)
    copy = [(NOON_MS, 1, delayed(NOON_MS, b"1"))]
    disk.bytes_max = 0
    with pytest.raises(StoreFull, match="no space for copies"):
        buckets.append(copy)
    disk.bytes_max, disk.fail_write_after = None, 0
    with pytest.raises(OSError, match="does not write"):
        buckets.append(copy)
    disk.fail_write_after = None
    buckets.append(copy)
    assert bodies(buckets, hour_of(NOON_MS)) == [b"1"]


def test_a_recall_in_an_hour_without_a_bucket_makes_none() -> None:
    buckets = buckets_on(FaultyFiles())
    buckets.recall(NOON_MS, 1)

    assert buckets.hours() == []
    assert list(buckets.load(hour_of(NOON_MS)).due_ms) == []


def test_what_was_synced_survives_a_power_cut_and_what_is_torn_is_overwritten() -> None:
    for seed in range(200):
        random = Random(seed)
        disk = FaultyFiles()
        buckets = buckets_on(disk)
        buckets.append([(NOON_MS, n, delayed(NOON_MS, random.randbytes(700))) for n in range(5)])
        buckets.sync()
        buckets.append([(NOON_MS, n, delayed(NOON_MS, bytes(1_500))) for n in range(5, 8)])

        after = buckets_on(disk.power_cut(random))

        assert list(after.load(hour_of(NOON_MS)).positions)[:5] == [0, 1, 2, 3, 4]
        after.append([(NOON_MS, 99, delayed(NOON_MS, b"after"))])
        starts = after.load(hour_of(NOON_MS)).starts
        assert after.read(hour_of(NOON_MS), starts[-1]).body == b"after"


@pytest.mark.parametrize("crowd", [1, 20_000])
def test_of_a_message_copied_again_after_a_power_cut_the_second_copy_counts(
    monkeypatch: pytest.MonkeyPatch, crowd: int
) -> None:
    """The head of the first may be on the disk, and its message not."""
    monkeypatch.setattr(timer_bucket, "_NUMPY_FROM", crowd)
    disk = FaultyFiles()
    buckets = buckets_on(disk)
    buckets.append([(NOON_MS, n, delayed(NOON_MS, b"x" * 700)) for n in range(5)])
    (name,) = disk.names(DIRECTORY)
    torn = buckets.load(hour_of(NOON_MS)).starts[2] + 600
    disk.content(DIRECTORY / name)[torn:] = bytes(len(disk.content(DIRECTORY / name)) - torn)

    after = buckets_on(disk)
    after.append([(NOON_MS, n, delayed(NOON_MS, b"x" * 700)) for n in range(5)])

    assert bodies(after, hour_of(NOON_MS)) == [b"x" * 700] * 5


def test_every_flipped_bit_costs_one_entry_at_most() -> None:
    disk = FaultyFiles()
    buckets = buckets_on(disk)
    buckets.append([(NOON_MS, n, delayed(NOON_MS, b"body-%d" % n)) for n in range(3)])
    name = disk.names(DIRECTORY)[0]
    good = bytes(disk.content(DIRECTORY / name))
    expected = [b"body-0", b"body-1", b"body-2"]
    for bit in range(8 * len(good)):
        damaged = disk.killed()
        damaged.content(DIRECTORY / name)[bit // 8] ^= 1 << bit % 8
        after = buckets_on(damaged)
        found = []
        for start in after.load(hour_of(NOON_MS)).starts:
            try:
                found.append(after.read(hour_of(NOON_MS), start).body)
            except CorruptFrame:
                continue
        assert set(found) <= set(expected)
        assert len(found) >= 2


def test_a_deleted_bucket_is_gone() -> None:
    buckets = buckets_on(FaultyFiles())
    buckets.append([(NOON_MS, 1, delayed(NOON_MS, b"x"))])
    buckets.delete(hour_of(NOON_MS))
    buckets.delete(hour_of(NOON_MS))

    assert buckets.hours() == []


def test_many_hours_need_few_open_files() -> None:
    disk = FaultyFiles()
    buckets = buckets_on(disk)
    hours = range(200)
    for hour in hours:
        at = NOON_MS + hour * HOUR_MS
        buckets.append([(at, hour, delayed(at, b"%d" % hour))])
    buckets.close()

    after = buckets_on(disk.power_cut(Random(1)))

    assert [bodies(after, hour_of(NOON_MS) + hour) for hour in hours] == [
        [b"%d" % hour] for hour in hours
    ]


def test_a_message_the_disk_refuses_for_a_while_is_not_lost_and_for_long_is_damaged() -> None:
    disk = FaultyFiles()
    buckets = buckets_on(disk)
    buckets.append([(NOON_MS, 1, delayed(NOON_MS, b"x"))])
    start = buckets.load(hour_of(NOON_MS)).starts[0]
    for end in (1_000, 0, 1_000):
        disk.unreadable = (".tb", 0, end)
        if end:
            for _ in range(READS_MAX // 2 - 1):
                with pytest.raises(ReadFailed, match="cannot be read"):
                    buckets.read(hour_of(NOON_MS), start)
        else:
            assert buckets.read(hour_of(NOON_MS), start).body == b"x"

    with pytest.raises(ReadFailed):
        buckets.read(hour_of(NOON_MS), start)
    with pytest.raises(CorruptFrame, match="cannot be read"):
        buckets.read(hour_of(NOON_MS), start)


def test_a_bad_sector_of_a_bucket_costs_the_messages_in_it_and_no_other() -> None:
    disk = FaultyFiles()
    buckets = buckets_on(disk)
    buckets.append([(NOON_MS, n, delayed(NOON_MS, b"%d" % n * 900)) for n in range(5)])
    start = buckets.load(hour_of(NOON_MS)).starts[2]
    after = buckets_on(disk.killed())
    after._files.unreadable = (".tb", start + 100, start + 101)  # type: ignore[attr-defined]  # faulty files

    for _ in range(READS_MAX - 1):
        with pytest.raises(ReadFailed, match="cannot be read"):
            after.load(hour_of(NOON_MS))
    loaded = after.load(hour_of(NOON_MS))

    found = {}
    for position, start in zip(loaded.positions, loaded.starts, strict=True):
        try:
            found[position] = after.read(hour_of(NOON_MS), start).body[:1]
        except ReadFailed:
            assert position == 2
    assert found == {0: b"0", 1: b"1", 3: b"3", 4: b"4"}
    after.delete(hour_of(NOON_MS))
    with pytest.raises(CorruptFrame, match="no timer bucket"):
        after.read(hour_of(NOON_MS), 100)
    after.close()


def test_a_bucket_whose_end_is_not_found_is_read_and_closed() -> None:
    disk = FaultyFiles()
    buckets = buckets_on(disk)
    buckets.append([(NOON_MS, n, delayed(NOON_MS, b"%d" % n * 900)) for n in range(3)])
    first, _, last = buckets.load(hour_of(NOON_MS)).starts
    disk.unreadable = (".tb", last + 100, last + 101)
    after = buckets_on(disk)

    for _ in range(2):
        assert after.read(hour_of(NOON_MS), first).body[:1] == b"0"
    after.close()


def test_only_buckets_that_were_written_to_are_synced() -> None:
    disk = FaultyFiles()
    buckets = buckets_on(disk)
    for hours in ((0, 1, 2), (1,), ()):
        due = [(NOON_MS + hour * HOUR_MS, 10 * len(hours) + hour) for hour in hours]
        buckets.append([(at, position, delayed(at, b"x")) for at, position in due])
        before = disk.syncs
        buckets.sync()
        # Those, and the names of the directory.
        assert disk.syncs - before == len(hours) + 1


def test_a_bucket_that_has_become_shorter_gives_what_it_has() -> None:
    disk = FaultyFiles()
    buckets = buckets_on(disk)
    buckets.append([(NOON_MS, n, delayed(NOON_MS, b"%d" % n)) for n in range(2)])
    start = buckets.load(hour_of(NOON_MS)).starts[0]
    (name,) = disk.names(DIRECTORY)
    del disk.content(DIRECTORY / name)[start - 10 :]

    assert list(buckets.load(hour_of(NOON_MS)).positions) == []


def test_a_bucket_that_ends_early_is_damage() -> None:
    disk = FaultyFiles()
    buckets = buckets_on(disk)
    buckets.append([(NOON_MS, 1, delayed(NOON_MS, b"x"))])

    with pytest.raises(CorruptFrame, match="ends before"):
        buckets.read(hour_of(NOON_MS), 10_000)


def test_a_crowded_hour_is_sorted_like_a_quiet_one(monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(4)
    disk = FaultyFiles()
    buckets = buckets_on(disk)
    due = [(NOON_MS + random.randrange(50), position) for position in range(300)]
    buckets.append([(at, position, delayed(at, b"x")) for at, position in due + due[:50]])
    for position in range(0, 300, 7):
        buckets.recall(NOON_MS, position)
    quiet = buckets.load(hour_of(NOON_MS))
    monkeypatch.setattr(timer_bucket, "_NUMPY_FROM", 10)

    crowded = buckets.load(hour_of(NOON_MS))

    assert list(crowded.positions) == list(quiet.positions)
    assert list(crowded.due_ms) == list(quiet.due_ms)
    assert [buckets.read(hour_of(NOON_MS), start).due_ms for start in crowded.starts] == list(
        quiet.due_ms
    )


def test_who_lists_a_bucket_while_it_is_appended_to_loses_none_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = FaultyFiles()
    buckets = buckets_on(disk)
    buckets.append([(NOON_MS, 1, delayed(NOON_MS, b"1"))])
    buckets.close()
    reached, appended = Event(), Event()

    def scan(self: TimerBuckets, name: str, salt: int) -> object:
        bucket = reopen(self, name, salt)
        if current_thread() is loading:
            # It knows where the bucket ends, and says so late.
            reached.set()
            appended.wait(0.1)
        return bucket

    reopen = TimerBuckets._reopen
    monkeypatch.setattr(TimerBuckets, "_reopen", scan)
    loading = Thread(target=buckets.load, args=(hour_of(NOON_MS),))
    loading.start()
    reached.wait()
    buckets.append([(NOON_MS, 2, delayed(NOON_MS, b"2"))])
    appended.set()
    loading.join()
    buckets.append([(NOON_MS, 3, delayed(NOON_MS, b"3"))])

    assert bodies(buckets, hour_of(NOON_MS)) == [b"1", b"2", b"3"]
    assert bodies(buckets_on(disk), hour_of(NOON_MS)) == [b"1", b"2", b"3"]
