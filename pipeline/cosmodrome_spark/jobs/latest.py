"""latest: the latest row of each key, in a Delta table that is merged by batch.

A repeat of a batch merges the same rows: the table looks the same. A row that is older than
the one in the table (by `order`) changes nothing, and one whose `delete` is true removes.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from cosmodrome_spark.errors import InvalidJobConfig, MissingDependency
from cosmodrome_spark.jobs.archive import read_stream
from cosmodrome_spark.jobs.config import TableConfig
from cosmodrome_spark.jobs.run import JobContext, run_query
from cosmodrome_spark.schema import ALL_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter


@dataclass(frozen=True, slots=True)
class LatestOptions:
    """Options of latest.

    Attributes:
        select: SQL expressions of the columns to keep, separated by `;`.
        key: One of those columns.
        order: Columns that say which row is later.
        delete: A SQL condition on the columns: remove the key.
    """

    select: str
    key: str
    order: str = "store_timestamp, queue_offset"
    delete: str = ""


def run(context: JobContext) -> int:
    """Run; return the exit code."""
    config = context.config
    options = config.options(LatestOptions)
    if config.must_table().format != "delta":
        raise InvalidJobConfig("latest needs table.format = 'delta': rows change in place")
    expressions = [each.strip() for each in options.select.split(";") if each.strip()]
    missing = [name for name in _columns(options.order) if name not in expressions]

    def merge(frame: "DataFrame", _batch: int) -> None:
        merge_batch(frame.selectExpr(*expressions, *missing), config.must_table(), options)

    def writer() -> "DataStreamWriter":
        return read_stream(context, ALL_COLUMNS).writeStream.foreachBatch(merge)

    return run_query(context, writer)


def merge_batch(rows: "DataFrame", where: TableConfig, options: LatestOptions) -> None:
    """Merge one batch; a repeat changes nothing.

    Raises:
        MissingDependency: deltalake is not installed.
    """
    from cosmodrome_spark.transforms.latest import latest  # noqa: PLC0415  # needs Spark

    merge_rows(latest(rows, options.key, _columns(options.order)).toArrow(), where, options)


def merge_rows(table: pa.Table, where: TableConfig, options: LatestOptions) -> None:
    """Merge rows of which no key comes twice; raises as `merge_batch`."""
    try:
        from deltalake import DeltaTable  # noqa: PLC0415  # optional
    except ImportError as error:
        raise MissingDependency(
            "latest needs deltalake: pip install 'cosmodrome[delta]'"
        ) from error
    storage = where.storage or None
    target = DeltaTable.create(where.path, table.schema, mode="ignore", storage_options=storage)
    if not table.num_rows:
        return
    newer = _newer(_columns(options.order))
    merge = target.merge(
        table, f"t.{options.key} = s.{options.key}", source_alias="s", target_alias="t"
    )
    if options.delete:
        # A condition that is null, for want of what it asks about, removes nothing.
        gone = f"coalesce(({_on_source(options.delete, table.schema.names)}), false)"
        merge = merge.when_matched_delete(f"{newer} AND {gone}")
        merge = merge.when_not_matched_insert_all(f"NOT {gone}")
    else:
        merge = merge.when_not_matched_insert_all()
    merge.when_matched_update_all(newer).execute()


def _columns(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(","))


def _newer(order: tuple[str, ...]) -> str:
    """Whether the source's row is at least as late, column by column."""
    condition = f"s.{order[-1]} >= t.{order[-1]}"
    for name in reversed(order[:-1]):
        condition = f"(s.{name} > t.{name} OR (s.{name} = t.{name} AND {condition}))"
    return condition


def _on_source(condition: str, names: list[str]) -> str:
    import re  # noqa: PLC0415  # only here

    # Texts in quotes are passed over, whatever they say.
    pattern = r"'(?:[^']|'')*'|\b(" + "|".join(map(re.escape, names)) + r")\b"
    return re.sub(pattern, lambda found: f"s.{found[1]}" if found[1] else found[0], condition)
