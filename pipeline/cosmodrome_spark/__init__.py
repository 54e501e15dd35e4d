"""The PySpark data source for RocketMQ 5 servers, and ready-made jobs.

    options, offsets, planning   what a user asks for; pure
    read/                        three roads from a broker to Arrow batches
    source/, sink/               Spark's data source: batch, streaming, writing
    lake/                        tables behind one protocol: Parquet, Delta, Iceberg
    transforms/                  DataFrame → DataFrame, nothing else
    jobs/                        one file per job, wiring only; `cosmodrome pipeline`

Importing this package needs neither Spark nor Java; its parts say what they miss.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: "SparkSession") -> None:
    """Make `format("rocketmq")` known to a session that does not find it by itself."""
    from cosmodrome_spark.source.data_source import (  # noqa: PLC0415  # Spark is optional
        RocketMQDataSource,
    )

    spark.dataSource.register(RocketMQDataSource)
