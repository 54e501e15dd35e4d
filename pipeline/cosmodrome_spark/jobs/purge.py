"""purge: delete the rows of some keys from a table, with a reason, for good.

Parquet: files that hold such rows are rewritten and swapped; the old ones go with the next
`compact`. Delta and Iceberg delete by their own means; expire their old versions too.
"""

import datetime as dt
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cosmodrome_spark.errors import InvalidJobConfig
from cosmodrome_spark.jobs.config import TableConfig
from cosmodrome_spark.jobs.run import JobContext
from cosmodrome_spark.lake.base import DataFile, LakeTable
from cosmodrome_spark.lake.files import FileWriter, filesystem


@dataclass(frozen=True, slots=True)
class PurgeOptions:
    """Options of purge.

    Attributes:
        column: A text column of the table, like message_id or message_group.
        values: Which, separated by commas, or
        values_file: a file with one on each line.
        reason: Why; kept in the log.
        log: A file that gets one JSON line for each run.
        dry_run: Only count.
    """

    column: str
    reason: str
    values: str = ""
    values_file: str = ""
    log: str = ""
    dry_run: bool = False


def run(context: JobContext) -> int:
    """Purge; return the exit code."""
    config = context.config
    options = config.options(PurgeOptions)
    values = _values(options)
    where = config.must_table()
    count = purge(where, options.column, values, job=config.name, dry_run=options.dry_run)
    line = json.dumps(
        {
            "job": config.name,
            "at": dt.datetime.fromtimestamp(time.time_ns() / 1e9, dt.UTC).isoformat(),
            "column": options.column,
            "values": len(values),
            "rows": count,
            "reason": options.reason,
            "dry_run": options.dry_run,
        }
    )
    sys.stdout.write(line + "\n")
    if options.log:
        with Path(options.log).open("a") as file:
            file.write(line + "\n")
    return 0


def purge(
    where: TableConfig, column: str, values: Sequence[str], *, job: str, dry_run: bool
) -> int:
    """Delete rows; return how many they are."""
    table = where.open()
    count = 0
    changed: list[DataFile] = []
    for file in table.files():
        content = _opened(table, file)
        if column not in content.schema_arrow.names:
            raise InvalidJobConfig(f"job.column: the table has no column {column!r}")
        batches = content.iter_batches(columns=[column])
        hits = sum(pc.sum(_is_hit(batch, column, values)).as_py() or 0 for batch in batches)
        if hits:
            count += hits
            changed.append(file)
    if not dry_run and changed:
        _delete(where, table, (column, values), changed, job)
    return count


def _opened(table: LakeTable, file: DataFile) -> pq.ParquetFile:
    filesystem_, root = filesystem(table.layout)
    return pq.ParquetFile(filesystem_.open_input_file(f"{root}/{file.path}"))


def _is_hit(batch: pa.RecordBatch, column: str, values: Sequence[str]) -> pa.Array:
    return pc.is_in(batch.column(column), pa.array(values, pa.string()))


def _delete(
    where: TableConfig,
    table: LakeTable,
    what: tuple[str, Sequence[str]],
    changed: Sequence[DataFile],
    job: str,
) -> None:
    column, values = what
    if where.format == "parquet":
        with FileWriter(table.layout) as writer:
            for file in changed:
                for batch in _opened(table, file).iter_batches():
                    writer.write(batch.filter(pc.invert(_is_hit(batch, column, values))))
        table.replace(changed, writer.files, job)
    elif where.format == "delta":
        from deltalake import DeltaTable  # noqa: PLC0415  # optional

        listed = ", ".join("'" + value.replace("'", "''") + "'" for value in values)
        DeltaTable(where.path, storage_options=where.storage or None).delete(
            f"{column} IN ({listed})"
        )
    else:
        from cosmodrome_spark.lake.iceberg import IcebergTable  # noqa: PLC0415  # optional

        assert isinstance(table, IcebergTable), "the third of three formats"
        table.delete(column, values)


def _values(options: PurgeOptions) -> list[str]:
    if bool(options.values) == bool(options.values_file):
        raise InvalidJobConfig("give either job.values or job.values_file")
    if options.values:
        return [value.strip() for value in options.values.split(",") if value.strip()]
    try:
        lines = Path(options.values_file).read_text().splitlines()
    except OSError as error:
        raise InvalidJobConfig(f"job.values_file: {error}") from error
    return [line.strip() for line in lines if line.strip()]
