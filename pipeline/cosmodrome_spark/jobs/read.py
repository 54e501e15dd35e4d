"""What jobs that look once read: topics as a batch, or a lake table."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cosmodrome_spark.errors import InvalidJobConfig
from cosmodrome_spark.jobs.run import JobContext
from cosmodrome_spark.lake.open import read_table
from cosmodrome_spark.schema import ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OFFSETS = ("startingOffsets", "endingOffsets")


def read_batch(context: JobContext, **extra: str) -> "DataFrame":
    """The source as a batch; `extra` go before the configured options."""
    options = with_offsets(context.config.source, extra)
    options.setdefault("cores", str(context.spark.sparkContext.defaultParallelism))
    return context.spark.read.format("rocketmq").options(**options).load()


def with_offsets(source: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """Options with others on top; offsets take the place of all that says where to begin or end.

    A moment to begin at, or to end at, would go before them.
    """
    ends = tuple(name[: -len("Offsets")] for name in _OFFSETS if name in extra)
    kept = {name: value for name, value in source.items() if not name.lower().startswith(ends)}
    return {**kept, **extra}


def read_either(context: JobContext) -> "DataFrame":
    """The table where there is one, else the topics.

    Raises:
        InvalidJobConfig: Neither is configured, or both.
    """
    config = context.config
    if (config.table is None) == (not config.source):
        raise InvalidJobConfig("give either [table] or [source]: where the rows come from")
    if config.table is not None:
        return read_table(context.spark, config.table.open(), schema=ddl())
    return read_batch(context)
