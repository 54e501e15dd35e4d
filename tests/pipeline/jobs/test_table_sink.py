"""Which checkpoint goes on with which table."""

from pathlib import Path

import pyarrow as pa
import pytest

from cosmodrome_spark.errors import InvalidJobConfig, TableConflict
from cosmodrome_spark.jobs.table_sink import resume
from cosmodrome_spark.lake.base import LakeTable, Layout, Origin
from cosmodrome_spark.lake.parquet import ParquetTable


@pytest.fixture
def table(tmp_path: Path) -> ParquetTable:
    made = ParquetTable(Layout(str(tmp_path / "table")))
    made.create(pa.schema([("topic", pa.string())]))
    return made


def write(table: LakeTable, lineage: str, batch: int) -> bool:
    return table.commit([], Origin("job", lineage, batch))


def test_a_job_that_took_a_table_over_knows_its_batches_when_it_is_started_again(
    table: ParquetTable, tmp_path: Path
) -> None:
    checkpoint = str(tmp_path / "checkpoint")
    write(table, "another", 5)
    taken = resume(table, "job", checkpoint, force_new=True)
    assert write(table, taken.lineage, 0)

    again = resume(table, "job", checkpoint, force_new=True)

    assert again.lineage == taken.lineage
    assert not write(table, again.lineage, 0)


def test_a_query_with_state_does_not_go_on_without_its_checkpoint(
    table: ParquetTable, tmp_path: Path
) -> None:
    first = resume(table, "job", str(tmp_path / "first"), has_state=True)
    write(table, first.lineage, 0)
    second = str(tmp_path / "second")

    with pytest.raises(TableConflict, match="force_new_lineage"):
        resume(table, "job", second, has_state=True)
    taken = resume(table, "job", second, has_state=True, force_new=True)

    assert taken.lineage != first.lineage


@pytest.mark.parametrize("prefix", ["", "file:", "file://"])
def test_a_checkpoint_is_the_same_folder_with_and_without_its_scheme(
    table: ParquetTable, tmp_path: Path, prefix: str
) -> None:
    folder = tmp_path / "checkpoint"

    resumed = resume(table, "job", f"{prefix}{folder}")

    assert (folder / "cosmodrome-lineage").read_text() == resumed.lineage


def test_a_checkpoint_elsewhere_is_refused(table: ParquetTable) -> None:
    with pytest.raises(InvalidJobConfig, match="local disk or NFS"):
        resume(table, "job", "hdfs://names:9000/checkpoint")
