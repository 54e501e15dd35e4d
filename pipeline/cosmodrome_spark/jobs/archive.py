"""archive: topics into a lake table, every message exactly once.

Tasks write what they read into files at once; the rows that reach the driver only name the
files. Messages as rows of the JVM, and back, would cost several times as much.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cosmodrome_spark.jobs.config import JobConfig
from cosmodrome_spark.jobs.read import with_offsets
from cosmodrome_spark.jobs.run import JobContext, run_query
from cosmodrome_spark.jobs.table_sink import WrittenSink, layout_text, resume
from cosmodrome_spark.lake.files import table_schema
from cosmodrome_spark.offsets import Offsets, to_text
from cosmodrome_spark.options import source_options
from cosmodrome_spark.schema import arrow_schema, check_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

NEEDED = ("topic", "broker", "queue_id", "queue_offset", "store_timestamp")
BATCH_BYTES = "256MiB"


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """Options of archive and of other jobs that write a table.

    Attributes:
        force_new_lineage: Take the table over from another checkpoint.
    """

    force_new_lineage: bool = False


def run(context: JobContext) -> int:
    """Archive what the source says into the table; return the exit code."""
    config = context.config
    options = config.options(ArchiveOptions)
    columns = columns_to_keep(config)
    table = config.must_table().open()
    table.create(table_schema(arrow_schema(columns)))
    resumed = resume(
        table, config.name, config.must_checkpoint(), force_new=options.force_new_lineage
    )
    sink = WrittenSink(table, config.name, resumed.lineage)
    layout = layout_text(table.layout)

    def writer() -> "DataStreamWriter":
        stream = read_stream(context, columns, resumed.offsets, write_files=layout)
        return stream.writeStream.foreachBatch(sink)

    return run_query(context, writer, sink.rows_of)


def columns_to_keep(config: JobConfig) -> tuple[str, ...]:
    """The columns that the source asks for, with those that no archive can do without."""
    chosen = source_options(stream_defaults(config), streaming=True).query.columns
    return check_columns(dict.fromkeys((*NEEDED, *chosen)))


def stream_defaults(config: JobConfig) -> dict[str, str]:
    """The source's options with the defaults of jobs: from the beginning, bounded batches."""
    defaults = {"startingOffsets": "earliest", "maxBytesPerTrigger": BATCH_BYTES}
    given = {name.lower() for name in config.source}
    if "maxoffsetspertrigger" in given:
        del defaults["maxBytesPerTrigger"]
    return {k: v for k, v in defaults.items() if k.lower() not in given} | config.source


def read_stream(
    context: JobContext,
    columns: tuple[str, ...],
    offsets: Offsets | None = None,
    *,
    write_files: str = "",
) -> "DataFrame":
    """The source as a stream of some columns, from given offsets where there are any."""
    options = stream_defaults(context.config)
    options = {name: value for name, value in options.items() if name.lower() != "columns"}
    if offsets:
        options = with_offsets(options, {"startingOffsets": to_text(offsets)})
    options.setdefault("cores", str(context.spark.sparkContext.defaultParallelism))
    reader = context.spark.readStream.format("rocketmq").options(**options)
    if write_files:
        reader = reader.option("writeFiles", write_files)
    return reader.option("columns", ",".join(columns)).load()
