"""One suite for every format: what `LakeTable` promises."""

import datetime as dt
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cosmodrome_spark.errors import TableConflict
from cosmodrome_spark.lake.base import LakeTable, Layout, Origin, Progress, check_lineage
from cosmodrome_spark.lake.files import FileWriter, rewrite, table_schema, write_files
from cosmodrome_spark.lake.open import open_table
from cosmodrome_spark.offsets import MessageQueue
from cosmodrome_spark.schema import ALL_COLUMNS, arrow_schema

QUEUE = MessageQueue("orders", "broker-a", 0)
MORNING = dt.datetime(2026, 11, 20, 23, 59, 58, tzinfo=dt.UTC)
MakeTable = Callable[[], LakeTable]


@pytest.fixture(params=["parquet", "delta", "iceberg"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> MakeTable:
    if request.param != "parquet":
        pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[request.param])
    return lambda: open_table(request.param, Layout(str(tmp_path / "table")))


def batch(start: int, end: int, topic: str = "orders") -> pa.RecordBatch:
    """Messages one second apart, so that some lie on either side of midnight."""
    rows: list[dict[str, Any]] = [
        {
            **dict.fromkeys(ALL_COLUMNS),
            "topic": topic,
            "broker": "broker-a",
            "queue_id": 0,
            "queue_offset": offset,
            "keys": [str(offset)],
            "properties": [("a", "b")],
            "body": b"x" * 10,
            "store_timestamp": MORNING + dt.timedelta(seconds=offset),
        }
        for offset in range(start, end)
    ]
    return pa.RecordBatch.from_pylist(rows, arrow_schema())


def write(table: LakeTable, number: int, *batches: pa.RecordBatch, lineage: str = "l1") -> bool:
    files, reached = write_files(table.layout, batches)
    return table.commit(files, Origin("archive", lineage, number, reached))


def offsets_in(table: LakeTable) -> list[int]:
    found = []
    for file in table.files():
        path = Path(table.layout.root) / file.path
        found += pq.ParquetFile(path).read(["queue_offset"])["queue_offset"].to_pylist()
    return sorted(found)


def test_committed_files_are_visible_to_everybody_who_opens_the_table(make: MakeTable) -> None:
    table = make()
    table.create(table_schema(arrow_schema()))

    assert write(table, 0, batch(0, 4))

    assert offsets_in(make()) == [0, 1, 2, 3]
    assert sorted(file.partition["date"] for file in make().files()) == ["2026-11-20", "2026-11-21"]
    assert sum(file.rows for file in make().files()) == 4


def test_files_that_were_written_but_not_committed_are_not_seen(make: MakeTable) -> None:
    table = make()
    table.create(table_schema(arrow_schema()))

    write_files(table.layout, [batch(0, 4)])

    assert make().files() == []
    assert make().progress("archive") is None


def test_a_batch_that_comes_again_changes_nothing(make: MakeTable) -> None:
    table = make()
    table.create(table_schema(arrow_schema()))
    write(table, 0, batch(0, 4))
    write(table, 1, batch(4, 6))

    again = make()
    assert not write(again, 1, batch(4, 6))
    assert not write(again, 0, batch(0, 4))

    assert offsets_in(make()) == list(range(6))


def test_the_same_number_under_another_lineage_is_another_batch(make: MakeTable) -> None:
    table = make()
    table.create(table_schema(arrow_schema()))
    write(table, 0, batch(0, 4))

    assert write(make(), 0, batch(4, 6), lineage="l2")

    assert offsets_in(make()) == list(range(6))


def test_the_table_itself_says_how_far_a_job_is(make: MakeTable) -> None:
    table = make()
    table.create(table_schema(arrow_schema()))
    write(table, 0, batch(0, 4), batch(0, 2, "payments"))
    write(table, 1, batch(4, 6))

    other = MessageQueue("payments", "broker-a", 0)
    assert make().progress("archive") == Progress("l1", 1, {QUEUE: 6, other: 2})
    assert make().progress("another job") is None


def test_an_empty_batch_is_remembered_too(make: MakeTable) -> None:
    table = make()
    table.create(table_schema(arrow_schema()))
    write(table, 0, batch(0, 2))

    assert table.commit([], Origin("archive", "l1", 1))

    assert make().progress("archive") == Progress("l1", 1, {QUEUE: 2})


def test_a_table_with_other_columns_is_refused(make: MakeTable) -> None:
    make().create(table_schema(arrow_schema(("topic", "queue_offset", "store_timestamp"))))

    with pytest.raises(TableConflict, match=r"lacks the columns .*body"):
        make().create(table_schema(arrow_schema()))


def test_creating_twice_keeps_what_is_there(make: MakeTable) -> None:
    table = make()
    table.create(table_schema(arrow_schema()))
    write(table, 0, batch(0, 2))

    make().create(table_schema(arrow_schema()))

    assert offsets_in(make()) == [0, 1]


def test_vacuum_removes_orphans_and_nothing_visible(make: MakeTable) -> None:
    table = make()
    table.create(table_schema(arrow_schema()))
    write(table, 0, batch(0, 4))
    orphans, _ = write_files(table.layout, [batch(0, 1)])
    later = 1 << 62

    if "Delta" in type(table).__name__:
        later = 0  # Delta reckons in hours before now; all of time is a no-op there
        pytest.skip("delta-rs vacuums only files its log names")

    assert table.vacuum(0, dry_run=False) == []
    assert table.vacuum(later, dry_run=True) == [orphans[0].path]
    assert table.vacuum(later, dry_run=False) == [orphans[0].path]
    assert offsets_in(make()) == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", ["parquet", "iceberg"])
def test_compaction_swaps_files_and_keeps_rows(kind: str, tmp_path: Path) -> None:
    if kind == "iceberg":
        pytest.importorskip("pyiceberg")
    table = open_table(kind, Layout(str(tmp_path / "table")))
    table.create(table_schema(arrow_schema()))
    for number in range(4):
        write(table, number, batch(10 + number, 11 + number))
    old = table.files()

    new = rewrite(table.layout, [each.path for each in old], ("queue_id", "queue_offset"))
    table.replace(old, new, "compact")

    assert len(table.files()) == 1
    assert sum(each.rows for each in table.files()) == 4
    with pytest.raises(TableConflict):
        table.replace(old, new, "compact")
    assert table.progress("archive") == Progress("l1", 3, {QUEUE: 14})


@pytest.mark.parametrize("kind", ["parquet", "iceberg"])
def test_compaction_leaves_files_alone_that_it_does_not_name(kind: str, tmp_path: Path) -> None:
    if kind == "iceberg":
        pytest.importorskip("pyiceberg")
    table = open_table(kind, Layout(str(tmp_path / "table")))
    table.create(table_schema(arrow_schema()))
    write(table, 0, batch(2, 40))
    large = table.files()
    write(table, 1, batch(40, 41))
    write(table, 2, batch(41, 42))
    old = [each for each in table.files() if each not in large]

    table.replace(old, rewrite(table.layout, [each.path for each in old], ()), "compact")

    assert offsets_in(table) == list(range(2, 42))
    assert len(table.files()) == 2
    assert {each.path for each in large} < {each.path for each in table.files()}


def test_dead_letters_are_found_under_the_name_of_their_topic(make: MakeTable) -> None:
    table = make()
    table.create(table_schema(arrow_schema()))
    write(table, 0, batch(0, 4, topic="%DLQ%billing"))

    removed = table.vacuum(1 << 50, dry_run=False)

    assert removed == []
    assert offsets_in(table) == [0, 1, 2, 3]
    assert {each.partition["topic"] for each in table.files()} == {"%DLQ%billing"}


def test_a_table_says_when_its_files_came(make: MakeTable) -> None:
    table = make()
    table.create(table_schema(arrow_schema()))
    before_ms = time.time_ns() // 1_000_000
    write(table, 0, batch(0, 4))

    assert all(each.modified_ms >= before_ms for each in make().files())


def test_a_jobs_last_commit_is_found_behind_many_of_another(make: MakeTable) -> None:
    table = make()
    table.create(table_schema(arrow_schema()))
    write(table, 0, batch(0, 1))
    for number in range(20):
        table.commit([], Origin("another", "l1", number))

    assert table.progress("archive") == Progress("l1", 0, {QUEUE: 1})
    assert table.progress("third") is None


def test_a_frame_without_a_store_timestamp_goes_into_a_table_without_days(tmp_path: Path) -> None:
    layout = Layout(str(tmp_path / "table"), partition_by=())

    files, _ = write_files(layout, [pa.RecordBatch.from_pydict({"number": [1, 2]})])

    assert [each.rows for each in files] == [2]


def test_of_two_writers_of_one_batch_one_wins(make: MakeTable) -> None:
    first, second = make(), make()
    first.create(table_schema(arrow_schema()))
    second.create(table_schema(arrow_schema()))

    assert [write(first, 0, batch(0, 4)), write(second, 0, batch(0, 4))] == [True, False]

    assert offsets_in(make()) == [0, 1, 2, 3]


def test_an_error_in_a_task_leaves_no_file_behind(tmp_path: Path) -> None:
    layout = Layout(str(tmp_path))

    def half_a_task() -> None:
        with FileWriter(layout) as writer:
            writer.write(batch(0, 4).append_column("date", pa.array([dt.date(2026, 1, 1)] * 4)))
            raise ConnectionError

    with pytest.raises(ConnectionError):
        half_a_task()
    assert list(tmp_path.rglob("*.parquet")) == []


def test_an_older_checkpoint_may_not_write_beside_a_newer_one() -> None:
    progress = Progress("l2", 7, {})

    check_lineage(progress, "archive", "l2", is_new=False)
    check_lineage(progress, "archive", "l3", is_new=True)
    with pytest.raises(TableConflict, match="force_new_lineage"):
        check_lineage(progress, "archive", "l1", is_new=False)


def test_a_parquet_table_survives_many_commits_by_its_snapshots(tmp_path: Path) -> None:
    table = open_table("parquet", Layout(str(tmp_path)))
    table.create(table_schema(arrow_schema()))
    files, reached = write_files(table.layout, [batch(0, 1)])
    table.commit(files, Origin("archive", "l1", 0, reached))
    for number in range(1, 140):
        table.commit([], Origin("archive", "l1", number))

    fresh = open_table("parquet", Layout(str(tmp_path)))

    assert len(list((tmp_path / "_manifest").glob("snapshot-*"))) == 2
    assert fresh.progress("archive") == Progress("l1", 139, {QUEUE: 1})
    assert offsets_in(fresh) == [0]
