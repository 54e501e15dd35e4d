"""The PySpark data source for RocketMQ 5 servers, and ready-made jobs.

    options, offsets, planning   what a user asks for; pure
    read/                        three roads from a broker to Arrow batches
    source/, sink/               Spark's data source: batch, streaming, writing
    lake/                        tables behind one protocol: Parquet, Delta, Iceberg
    transforms/                  DataFrame → DataFrame, nothing else
    jobs/                        one file per job, wiring only; `cosmodrome pipeline`

Importing this package needs neither Spark nor Java; its parts say what they miss.
"""

import sys
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: "SparkSession") -> None:
    """Make `format("rocketmq")` known to a session that does not find it by itself.

    Warns where the session's workers run another Python than this one: what is installed here may
    be missing there, and all that Spark says then is a traceback.
    """
    from cosmodrome_spark.session import foreign_python  # noqa: PLC0415  # it imports this module
    from cosmodrome_spark.source.data_source import (  # noqa: PLC0415  # Spark is optional
        RocketMQDataSource,
    )

    spark.dataSource.register(RocketMQDataSource)
    other = foreign_python(spark.conf.get("spark.master") or "")
    if other is not None:
        warnings.warn(
            f"Spark starts {other} for its workers, not {sys.executable}: if that one has no"
            " cosmodrome, set PYSPARK_PYTHON before Spark starts, activate this environment, or"
            " use cosmodrome_spark.session.build_session",
            RuntimeWarning,
            stacklevel=2,
        )
