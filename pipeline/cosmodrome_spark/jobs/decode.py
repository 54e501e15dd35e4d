"""decode: bodies into typed columns; what does not decode goes into a rejects table."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cosmodrome_spark.errors import InvalidJobConfig
from cosmodrome_spark.jobs.archive import read_stream
from cosmodrome_spark.jobs.run import JobContext, run_query
from cosmodrome_spark.jobs.table_sink import TableSink, resume

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

COLUMNS = ("topic", "broker", "queue_id", "queue_offset", "message_id", "store_timestamp", "body")


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """Options of decode.

    Attributes:
        schema: DDL of the columns to make.
        format: json, avro or protobuf.
        schema_file: An Avro schema, or a Protobuf descriptor set.
        message: The Protobuf message's full name.
        mode: `permissive` sets rows aside, `fail` ends the job.
        force_new_lineage: As in archive.
    """

    schema: str
    format: str = "json"
    schema_file: str = ""
    message: str = ""
    mode: str = "permissive"
    force_new_lineage: bool = False


def run(context: JobContext) -> int:
    """Decode the source into the table; return the exit code."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415  # Spark is optional

    config = context.config
    options = config.options(DecodeOptions)
    if config.rejects is None:
        raise InvalidJobConfig("section [rejects] is missing: a table for rows that do not decode")
    table, rejects = config.must_table().open(), config.rejects.open()
    empty = context.spark.createDataFrame([], _message_ddl())
    good, bad = split(empty, options)
    from cosmodrome_spark.lake.files import table_schema  # noqa: PLC0415  # beside its use

    table.create(table_schema(to_arrow_schema(good.schema, timezone="UTC")))
    rejects.create(table_schema(to_arrow_schema(bad.schema, timezone="UTC")))
    checkpoint = config.must_checkpoint()
    resumed = resume(table, config.name, checkpoint, force_new=options.force_new_lineage)
    into = TableSink(table, config.name, resumed.lineage)
    aside = TableSink(rejects, config.name, resumed.lineage)

    def both(frame: "DataFrame", batch: int) -> None:
        good, bad = split(frame.persist(), options)
        try:
            if options.mode == "fail" and (first := bad.first()) is not None:
                raise InvalidJobConfig(
                    f"{first['topic']} {first['queue_id']} at {first['queue_offset']} does not "
                    f"decode: {first['reason']}; mode = 'permissive' sets such rows aside"
                )
            # Rejects first: the table's offsets say that the batch is done.
            aside(bad, batch)
            into(good, batch)
        finally:
            frame.unpersist()

    def writer() -> "DataStreamWriter":
        return read_stream(context, COLUMNS, resumed.offsets).writeStream.foreachBatch(both)

    return run_query(context, writer)


def split(messages: "DataFrame", options: DecodeOptions) -> tuple["DataFrame", "DataFrame"]:
    """Good rows and rejects, by the format of the options; raises InvalidJobConfig."""
    from cosmodrome_spark.transforms import decode  # noqa: PLC0415  # needs Spark

    match options.format:
        case "json":
            return decode.from_json(messages, options.schema)
        case "avro":
            maker = decode.avro_decoder(options.schema_file)
        case "protobuf":
            maker = decode.protobuf_decoder(options.schema_file, options.message)
        case _:
            raise InvalidJobConfig(
                f"job.format = {options.format!r}: expected json, avro or protobuf"
            )
    return decode.from_dicts(messages, options.schema, maker)


def _message_ddl() -> str:
    from cosmodrome_spark.schema import ddl  # noqa: PLC0415  # beside its use

    return ddl(COLUMNS)
