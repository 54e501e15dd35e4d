"""aggregate: a SQL query over messages, into a table or a topic.

The query reads the view `messages`; with a window over `store_timestamp` it is emitted once
the watermark has passed the window. Into a topic each row becomes a JSON body.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cosmodrome_spark.errors import InvalidJobConfig
from cosmodrome_spark.jobs.archive import columns_to_keep, read_stream
from cosmodrome_spark.jobs.run import JobContext, run_query
from cosmodrome_spark.jobs.table_sink import TableSink, resume

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter


@dataclass(frozen=True, slots=True)
class AggregateOptions:
    """Options of aggregate.

    Attributes:
        sql: The query, or
        sql_file: a file that holds it.
        watermark: How late a message may be.
        output_mode: append, update or complete; a table takes append.
        force_new_lineage: As in archive.
    """

    sql: str = ""
    sql_file: str = ""
    watermark: str = "1 minute"
    output_mode: str = "append"
    force_new_lineage: bool = False


def run(context: JobContext) -> int:
    """Run; return the exit code."""
    config = context.config
    options = config.options(AggregateOptions)
    sql = _sql(options)
    if (config.table is None) == (not config.target):
        raise InvalidJobConfig("give either [table] or [target]: where the rows go")
    if config.table is not None and options.output_mode != "append":
        raise InvalidJobConfig("a table takes output_mode = 'append': its rows never change")

    def rows() -> "DataFrame":
        messages = read_stream(context, columns_to_keep(config))
        watermarked = messages.withWatermark("store_timestamp", options.watermark)
        watermarked.createOrReplaceTempView("messages")
        return context.spark.sql(sql)

    if config.table is None:
        return run_query(context, lambda: _to_topic(context, rows(), options))
    sink = _table_sink(context, rows(), options)
    return run_query(context, lambda: rows().writeStream.foreachBatch(sink))


def _table_sink(context: JobContext, rows: "DataFrame", options: AggregateOptions) -> TableSink:
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415  # Spark is optional

    config = context.config
    table = config.must_table().open(partition_by=())
    table.create(to_arrow_schema(rows.schema, timezone="UTC"))
    checkpoint, force_new = config.must_checkpoint(), options.force_new_lineage
    resumed = resume(table, config.name, checkpoint, force_new=force_new, has_state=True)
    return TableSink(table, config.name, resumed.lineage)


def _to_topic(
    context: JobContext, rows: "DataFrame", options: AggregateOptions
) -> "DataStreamWriter":
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  # Spark's own convention

    bodies = rows.select(F.to_json(F.struct("*")).alias("body"))
    target = context.config.target

    def send(frame: "DataFrame", batch: int) -> None:
        # Spark takes a Python sink in append mode only. The job's name carries the batch,
        # so that a repeat is recognised.
        job = f"{context.config.name}:{batch}"
        frame.write.format("rocketmq").mode("append").options(**{"job": job, **target}).save()

    return bodies.writeStream.outputMode(options.output_mode).foreachBatch(send)


def _sql(options: AggregateOptions) -> str:
    if bool(options.sql) == bool(options.sql_file):
        raise InvalidJobConfig("give either job.sql or job.sql_file")
    try:
        return options.sql or Path(options.sql_file).read_text()
    except OSError as error:
        raise InvalidJobConfig(f"job.sql_file: {error}") from error
