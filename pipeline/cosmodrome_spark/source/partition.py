"""What travels from the driver to a task: the ranges and how to read them."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from cosmodrome_spark.offsets import QueueRange
from cosmodrome_spark.options import Connection, ReadQuery, SourceOptions
from cosmodrome_spark.planning import TaskLimits, plan_tasks
from cosmodrome_spark.read.road import read_ranges


@dataclass
class RangesPartition(InputPartition):
    """The ranges that one task reads, in order."""

    spans: tuple[QueueRange, ...]


def plan_partitions(spans: list[QueueRange], options: SourceOptions) -> list[RangesPartition]:
    """Cut ranges into tasks; see `planning.plan_tasks`."""
    limits = TaskLimits(
        min_partitions=options.min_partitions,
        max_partitions=options.max_partitions,
        max_records=options.max_records,
        cores=options.cores,
    )
    return [RangesPartition(tuple(task)) for task in plan_tasks(spans, limits)]


def read_partition(
    connection: Connection, query: ReadQuery, partition: InputPartition | None
) -> Iterator[pa.RecordBatch]:
    """Read one task's ranges, on an executor.

    Spark makes one task without a partition where there is nothing to read.
    """
    if isinstance(partition, RangesPartition):
        yield from read_ranges(connection, partition.spans, query)
