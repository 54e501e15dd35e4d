"""latest: the latest row of each key, in a Delta table that is merged by batch.

A repeat of a batch merges the same rows: the table looks the same. A row that is older than
the one in the table (by `order`) changes nothing, and one whose `delete` is true removes.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cosmodrome_spark.errors import InvalidJobConfig, MissingDependency
from cosmodrome_spark.jobs.archive import read_stream
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
    order = tuple(each.strip() for each in options.order.split(","))
    missing = [name for name in order if name not in expressions]

    def merge(frame: "DataFrame", _batch: int) -> None:
        merge_batch(frame.selectExpr(*expressions, *missing), config.must_table().path, options)

    def writer() -> "DataStreamWriter":
        return read_stream(context, ALL_COLUMNS).writeStream.foreachBatch(merge)

    return run_query(context, writer)


def merge_batch(rows: "DataFrame", path: str, options: LatestOptions) -> None:
    """Merge one batch; a repeat changes nothing.

    Raises:
        MissingDependency: deltalake is not installed.
    """
    try:
        from deltalake import DeltaTable  # noqa: PLC0415  # optional
    except ImportError as error:
        raise MissingDependency(
            "latest needs deltalake: pip install 'cosmodrome[delta]'"
        ) from error
    from cosmodrome_spark.transforms.latest import latest  # noqa: PLC0415  # needs Spark

    order = tuple(each.strip() for each in options.order.split(","))
    table = latest(rows, options.key, order).toArrow()
    target = DeltaTable.create(path, table.schema, mode="ignore")
    if not table.num_rows:
        return
    newer = _newer(order)
    merge = target.merge(
        table, f"t.{options.key} = s.{options.key}", source_alias="s", target_alias="t"
    )
    if options.delete:
        gone = f"({_on_source(options.delete, table.schema.names)})"
        merge = merge.when_matched_delete(f"{newer} AND {gone}")
        merge = merge.when_not_matched_insert_all(f"NOT {gone}")
    else:
        merge = merge.when_not_matched_insert_all()
    merge.when_matched_update_all(newer).execute()


def _newer(order: tuple[str, ...]) -> str:
    """Whether the source's row is at least as late, column by column."""
    condition = f"s.{order[-1]} >= t.{order[-1]}"
    for name in reversed(order[:-1]):
        condition = f"(s.{name} > t.{name} OR (s.{name} = t.{name} AND {condition}))"
    return condition


def _on_source(condition: str, names: list[str]) -> str:
    import re  # noqa: PLC0415  # only here

    pattern = r"\b(" + "|".join(map(re.escape, names)) + r")\b"
    return re.sub(pattern, r"s.\1", condition)
