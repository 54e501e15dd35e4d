"""A Spark session with the settings that paid off, each with its reason.

* `PYSPARK_PYTHON`: without it workers run whatever `python3` is first on the path.
* Unix sockets between the JVM and Python: a fifth faster than loopback TCP.
* The checkpoint manager that renames: halves the commit time of a small batch on local
  disks and NFS (it relies on atomic renames, which those have).
* `local[*,4]`: without the second number a failed task fails the query at once.
* Pushdown on: our reader takes part only when its option `filterPushdown` asks.
* The JVM's compilers, collector and class archive: `java.py`.
"""

import os
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cosmodrome_spark import register
from cosmodrome_spark.errors import MissingDependency
from cosmodrome_spark.java import java, java_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CHECKPOINTS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """What a job may say about its session.

    Attributes:
        app_name: Shown by Spark's tools.
        master: `local[*]` for this machine, `spark://…`, `yarn`, `k8s://…`.
        driver_memory: Of the JVM; it must be said before the JVM starts.
        shuffle_partitions: None for as many as cores. A checkpoint keeps the first value.
        share_classes: Keep a class data archive in the user's cache.
        warm_workers: Fork Spark's Python workers from one that has imported what they need;
            on this machine only.
        conf: Goes before everything here.
    """

    app_name: str = "cosmodrome"
    master: str = "local[*,4]"
    driver_memory: str = "1g"
    shuffle_partitions: int | None = None
    share_classes: bool = False
    warm_workers: bool = False
    conf: dict[str, str] = field(default_factory=dict)


def build_session(
    options: SessionOptions | None = None, python: str | None = None
) -> "SparkSession":
    """Start Spark, or take the session that runs, and make our format known to it.

    Args:
        options: See there; None for the defaults.
        python: What Spark starts as Python, unless PYSPARK_PYTHON says; None for this one. What
            it leads to has what this one has.

    Raises:
        MissingDependency: pyspark or Java is not installed.
    """
    check_installed()
    options = options or SessionOptions()
    from pyspark.sql import SparkSession  # noqa: PLC0415  # checked just above

    os.environ.setdefault("PYSPARK_PYTHON", python or sys.executable)
    # Despite its name the JVM looks for data sources with this one.
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", python or sys.executable)
    os.environ.setdefault("SPARK_LOCAL_HOSTNAME", "localhost")
    builder = SparkSession.builder.appName(options.app_name).master(_with_retries(options.master))
    settings = _settings(options)
    for name, value in {**settings, **options.conf}.items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel(os.environ.get("COSMODROME_SPARK_LOG", "ERROR"))
    if options.shuffle_partitions is None:
        cores = spark.sparkContext.defaultParallelism
        spark.conf.set("spark.sql.shuffle.partitions", cores)
    if python is not None and os.environ["PYSPARK_DRIVER_PYTHON"] == python:
        # Whatever its name is, it was made to lead here: there is nothing to warn of.
        from cosmodrome_spark.source.data_source import (  # noqa: PLC0415  # Spark is optional
            RocketMQDataSource,
        )

        spark.dataSource.register(RocketMQDataSource)
    else:
        register(spark)
    return spark


def check_installed() -> None:
    """Check that Spark can start here.

    Raises:
        MissingDependency: Says what to install.
    """
    try:
        import pyspark  # noqa: F401, PLC0415  # is it there?
    except ImportError as error:
        raise MissingDependency(
            "the pipeline needs pyspark: pip install 'cosmodrome[spark]'"
        ) from error
    if java() is None:
        raise MissingDependency(
            "the pipeline needs Java 17 or later (Debian: apt-get install openjdk-17-jre-headless)"
        )


def foreign_python(master: str) -> str | None:
    """The Python that a session of others starts for our code, where it is not this one.

    Spark looks at PYSPARK_DRIVER_PYTHON, then PYSPARK_PYTHON, then takes the path's `python3`,
    which in an environment that is not activated is the system's.

    Args:
        master: Spark's; of a cluster nobody here knows what its machines have.

    Returns:
        None where it is this environment's.
    """
    if not master.startswith("local"):
        return None
    chosen = os.environ.get("PYSPARK_DRIVER_PYTHON") or os.environ.get("PYSPARK_PYTHON")
    found = shutil.which(chosen or "python3")
    if found is not None and Path(found).parent == Path(sys.executable).parent:
        return None
    return found or chosen or "python3"


def _settings(options: SessionOptions) -> dict[str, str]:
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": options.driver_memory,
        "spark.driver.extraJavaOptions": java_options(share_classes=options.share_classes),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        # Names that hold secrets, so that no plan or log shows their values.
        "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|credentials",
        "spark.sql.redaction.options.regex": "(?i)secret|password|token|accesskey|credentials",
    }
    if options.shuffle_partitions is not None:
        settings["spark.sql.shuffle.partitions"] = str(options.shuffle_partitions)
    if options.master.startswith("local"):
        settings["spark.driver.host"] = "127.0.0.1"
        settings["spark.driver.bindAddress"] = "127.0.0.1"
    return settings


def _with_retries(master: str) -> str:
    """`local[n]` with four attempts a task: by itself it has one."""
    if master == "local":
        return "local[1,4]"
    if master.startswith("local[") and "," not in master:
        return f"{master[:-1]},4]"
    return master
