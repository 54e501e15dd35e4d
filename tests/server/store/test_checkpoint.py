"""One suite for the checkpoint in SQLite and for the fake in memory."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from cosmodrome_server.errors import CorruptFrame
from cosmodrome_server.store.checkpoint import CheckpointStore, Mark, SqliteCheckpoints
from cosmodrome_server.store.queue_columns import NewEntries
from tests.support.memory_checkpoints import MemoryCheckpoints

Reopen = Callable[[], CheckpointStore]


@pytest.fixture(params=["sqlite", "memory"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Reopen:
    held = MemoryCheckpoints()
    last: list[SqliteCheckpoints] = []

    def open_again() -> CheckpointStore:
        if request.param == "memory":
            return held
        for store in last:
            store.close()
        last[:] = [SqliteCheckpoints(tmp_path / "state.db")]
        request.addfinalizer(last[0].close)
        return last[0]

    return open_again


def mark(lsn: int, segment: int = 1) -> Mark:
    return Mark(lsn, segment << 32 | 64 * lsn, lsn, 99)


def entries(key: int, base: int, count: int) -> NewEntries:
    return NewEntries(key, base + count, base, bytes(24 * count))


def test_nothing_saved_is_nothing_loaded(reopen: Reopen) -> None:
    assert reopen().load() is None


def test_what_was_saved_is_loaded(reopen: Reopen) -> None:
    reopen().save(mark(3), {b"b": b"2", b"a": b"1"}.items(), [entries(7, 5, 2)])

    saved = reopen().load()

    assert saved is not None
    assert saved.mark == mark(3)
    assert saved.rows == [(b"a", b"1"), (b"b", b"2")]
    assert saved.ends == {7: 7}
    assert saved.entries == [(7, 5, bytes(48))]


def test_later_rows_replace_and_remove_earlier_ones(reopen: Reopen) -> None:
    store = reopen()
    store.save(mark(1), {b"a": b"1", b"b": b"1", b"c": b"1"}.items(), [])
    store.save(mark(2), {b"a": b"2", b"b": None, b"never": None}.items(), [])

    saved = reopen().load()

    assert saved is not None
    assert saved.rows == [(b"a", b"2"), (b"c", b"1")]


def test_entries_of_one_segment_add_up_in_order(reopen: Reopen) -> None:
    store = reopen()
    store.save(mark(1), {}.items(), [entries(7, 0, 2), entries(8, 0, 1)])
    store.save(mark(2), {}.items(), [entries(7, 2, 3)])

    saved = reopen().load()

    assert saved is not None
    assert [(key, base) for key, base, _ in saved.entries] == [(7, 0), (7, 2), (8, 0)]
    assert saved.ends == {7: 5, 8: 1}


def test_entries_of_sealed_segments_are_dropped_but_not_where_queues_end(reopen: Reopen) -> None:
    store = reopen()
    store.save(mark(1, segment=1), {}.items(), [entries(7, 0, 2)])
    store.save(mark(2, segment=2), {}.items(), [entries(8, 0, 1)])

    saved = reopen().load()

    assert saved is not None
    assert [key for key, _, _ in saved.entries] == [8]
    assert saved.ends == {7: 2, 8: 1}


def test_a_queue_that_is_gone_is_forgotten(reopen: Reopen) -> None:
    store = reopen()
    store.save(mark(1), {}.items(), [entries(7, 0, 2), entries(8, 0, 2)])
    store.save(mark(2), {}.items(), [NewEntries(7, 0, 0, b"")])

    saved = reopen().load()

    assert saved is not None
    assert saved.ends == {8: 2}


def test_a_clean_stop_is_remembered(reopen: Reopen) -> None:
    store = reopen()
    store.save(mark(3), {b"a": b"1"}.items(), [])
    store.note_durable(9)

    saved = reopen().load()

    assert saved is not None
    assert saved.mark == mark(3)._replace(durable_lsn=9)


def test_a_clean_stop_without_a_checkpoint_leaves_nothing(reopen: Reopen) -> None:
    reopen().note_durable(9)

    assert reopen().load() is None


def test_a_discarded_checkpoint_is_gone(reopen: Reopen) -> None:
    reopen().save(mark(3), {b"a": b"1"}.items(), [])
    reopen().discard()

    assert reopen().load() is None
    reopen().save(mark(4), {b"b": b"1"}.items(), [])
    saved = reopen().load()
    assert saved is not None
    assert saved.rows == [(b"b", b"1")]


def saved_file(path: Path) -> None:
    store = SqliteCheckpoints(path)
    rows: dict[bytes, bytes | None] = {b"key-%d" % n: b"value-%d" % n * 20 for n in range(100)}
    store.save(mark(3), rows.items(), [entries(n, 0, 3) for n in range(20)])
    store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE rows SET value = x'00' WHERE key = CAST('key-7' AS BLOB)",
        "UPDATE rows SET key = x'00' WHERE key = CAST('key-7' AS BLOB)",
        "DELETE FROM rows WHERE key = CAST('key-7' AS BLOB)",
        "UPDATE digest SET value = value + 1",
        "DELETE FROM digest",
        "INSERT INTO rows VALUES (0, x'01', x'01', 5)",
    ],
)
def test_a_row_changed_behind_its_back_is_noticed(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "state.db"
    saved_file(path)
    with sqlite3.connect(path) as connection:
        connection.execute(damage)
    connection.close()

    assert SqliteCheckpoints(path).load() is None
    assert (tmp_path / "state.db.damaged").exists()


def test_flipped_bits_are_noticed_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    saved_file(path)
    good = path.read_bytes()
    reference = SqliteCheckpoints(path)
    expected = reference.read()
    reference.close()
    for at in range(100, len(good), 97):
        data = bytearray(good)
        data[at] ^= 1 << at % 8
        path.write_bytes(data)
        store = SqliteCheckpoints(path)
        found = store.load()
        store.close()
        assert found in (None, expected)


def test_a_newer_format_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cosmodrome_server.store.checkpoint._FORMAT", 2)
    saved_file(tmp_path / "state.db")
    monkeypatch.undo()

    store = SqliteCheckpoints(tmp_path / "state.db")
    with pytest.raises(CorruptFrame, match="format 2"):
        store.read()
    store.close()


def test_a_file_that_is_no_database_is_put_aside(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_bytes(b"rubbish" * 1_000)

    store = SqliteCheckpoints(tmp_path / "state.db")

    assert store.load() is None
    store.save(mark(1), {}.items(), [])
    store.close()


def test_to_be_read_it_needs_no_file_that_a_full_disk_has_no_space_for(tmp_path: Path) -> None:
    store = SqliteCheckpoints(tmp_path / "state.db")
    store.save(mark(1), {b"a": b"1"}.items(), [])
    store.load()

    # The write-ahead log may be empty; shared memory is 32 KiB.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state.db", "state.db-wal"]
    store.close()


def test_a_save_that_fails_changes_nothing(tmp_path: Path) -> None:
    store = SqliteCheckpoints(tmp_path / "state.db")
    store.save(mark(1), {b"a": b"1"}.items(), [])
    store.close()
    with sqlite3.connect(tmp_path / "state.db") as connection:
        connection.execute(
            "CREATE TRIGGER full BEFORE INSERT ON rows WHEN NEW.key = CAST('b' AS BLOB) "
            "BEGIN SELECT RAISE(FAIL, 'the disk is full'); END"
        )
    connection.close()
    with pytest.raises(OSError, match=r"state\.db: the disk is full"):
        store.save(mark(2), {b"a": b"2", b"b": b"2"}.items(), [])

    saved = store.load()
    store.close()

    assert saved is not None
    assert (saved.mark.lsn, saved.rows) == (1, [(b"a", b"1")])
