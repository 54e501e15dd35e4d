"""What travels from the driver to a task: the ranges and how to read them."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from cosmodrome_spark.lake.base import Layout
from cosmodrome_spark.lake.files import write_files
from cosmodrome_spark.offsets import QueueRange, to_json
from cosmodrome_spark.options import Connection, ReadQuery, SourceOptions
from cosmodrome_spark.planning import TaskLimits, plan_tasks
from cosmodrome_spark.read.road import read_ranges

# The row of a stream whose tasks write files: what one task wrote, as JSON.
WRITTEN = "files STRING, offsets STRING"


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


def write_partition(
    options: SourceOptions, partition: InputPartition | None
) -> Iterator[pa.RecordBatch]:
    """Read one task's ranges and write them into files at once; one row says which.

    The messages never become rows of the JVM and back, which is most of what archiving
    would cost otherwise. Nothing is visible until the driver commits the files.
    """
    assert options.write_files is not None, "the caller has looked"
    layout = Layout(**json.loads(options.write_files))
    batches = read_partition(options.connection, options.query, partition)
    files, reached = write_files(layout, batches)
    said = {
        "files": [json.dumps([asdict(each) for each in files])],
        "offsets": [json.dumps(to_json(reached))],
    }
    yield pa.RecordBatch.from_pydict(said)
