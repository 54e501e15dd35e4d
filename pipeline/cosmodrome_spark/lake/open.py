"""Tables by the name of their format."""

from typing import TYPE_CHECKING, cast

from cosmodrome_spark.errors import InvalidJobConfig
from cosmodrome_spark.lake.base import LakeTable, Layout
from cosmodrome_spark.lake.parquet import ParquetTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ("parquet", "delta", "iceberg")


def open_table(table_format: str, layout: Layout) -> LakeTable:
    """A table that may or may not exist yet.

    Raises:
        InvalidJobConfig: No such format.
        MissingDependency: Its package is not installed.
    """
    match table_format:
        case "parquet":
            return ParquetTable(layout)
        case "delta":
            from cosmodrome_spark.lake.delta import DeltaLakeTable  # noqa: PLC0415  # optional

            return cast("LakeTable", DeltaLakeTable(layout))
        case "iceberg":
            from cosmodrome_spark.lake.iceberg import IcebergTable  # noqa: PLC0415  # optional

            return cast("LakeTable", IcebergTable(layout))
        case _:
            raise InvalidJobConfig(f"no table format {table_format!r}: {', '.join(FORMATS)}")


def read_table(
    spark: "SparkSession", table: LakeTable, *, schema: str | None = None
) -> "DataFrame":
    """The visible rows of a table as a DataFrame, read by Spark's own Parquet reader.

    Args:
        spark: The session.
        table: Any format.
        schema: DDL of what to return when there are no files yet.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  # Spark's own convention

    root = table.layout.root
    files = table.files()
    if not files:
        return spark.createDataFrame([], schema or "queue_offset BIGINT")
    paths = [f"{root}/{each.path}" for each in files]
    if table.layout.keeps_partition_columns:
        # The files hold all columns, so Spark must not add those it reads off the folders.
        return spark.read.option("recursiveFileLookup", "true").parquet(*paths)
    frame = spark.read.option("basePath", root).parquet(*paths)
    return frame.withColumn("topic", F.col("topic").cast("string"))
