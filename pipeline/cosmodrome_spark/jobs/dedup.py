"""dedup: the first of each key within a horizon, into a table."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cosmodrome_spark.jobs.archive import columns_to_keep, read_stream
from cosmodrome_spark.jobs.run import JobContext, run_query
from cosmodrome_spark.jobs.table_sink import TableSink, resume
from cosmodrome_spark.lake.files import table_schema
from cosmodrome_spark.schema import arrow_schema, check_columns

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter


@dataclass(frozen=True, slots=True)
class DedupOptions:
    """Options of dedup.

    Attributes:
        key: A SQL expression that names a message; by default what our sink sets, else the
            message id.
        horizon: How long a repeat is recognised.
        force_new_lineage: As in archive.
    """

    key: str = "coalesce(properties['spark_dedup_id'], message_id)"
    horizon: str = "1 hour"
    force_new_lineage: bool = False


def run(context: JobContext) -> int:
    """Run; return the exit code."""
    config = context.config
    options = config.options(DedupOptions)
    columns = check_columns(dict.fromkeys((*columns_to_keep(config), "message_id", "properties")))
    table = config.must_table().open()
    table.create(table_schema(arrow_schema(columns)))
    # No resuming from the table's offsets: the keys seen are in the checkpoint alone.
    checkpoint, force_new = config.must_checkpoint(), options.force_new_lineage
    resumed = resume(table, config.name, checkpoint, force_new=force_new, has_state=True)
    sink = TableSink(table, config.name, resumed.lineage)

    def writer() -> "DataStreamWriter":
        rows = read_stream(context, columns).withWatermark("store_timestamp", options.horizon)
        keyed = rows.selectExpr("*", f"{options.key} AS _key")
        once = keyed.dropDuplicatesWithinWatermark(["_key"]).drop("_key")
        return once.writeStream.foreachBatch(sink)

    return run_query(context, writer)
