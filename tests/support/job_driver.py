"""Runs a streaming job in a process that is killed, JVM and all, at a chosen moment.

    python -m tests.support.job_driver '{"sets": […], "kill": "after-commit", "batch": 1}'

    before-log      the batch's end is known, Spark's write-ahead log does not say so yet
    in-task         a task has read and written, the driver does not know yet
    before-commit   the driver has the files; the table has not
    after-commit    the table has them, the checkpoint does not say so
    after-publish   the same for a topic: messages are visible, the checkpoint does not say so
    never           it ends by itself

The first, second and last happen in Python processes that Spark starts: this module is the
main one, so its classes travel there by value.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition, WriterCommitMessage
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from cosmodrome_spark.jobs import archive, mirror
from cosmodrome_spark.jobs.config import TableConfig, load
from cosmodrome_spark.jobs.run import JobContext
from cosmodrome_spark.lake.base import DataFile, LakeTable, Origin
from cosmodrome_spark.offsets import OffsetsJson
from cosmodrome_spark.options import SinkOptions, SourceOptions
from cosmodrome_spark.sink.writers import StreamTopicWriter
from cosmodrome_spark.source.data_source import RocketMQDataSource
from cosmodrome_spark.source.stream import StreamReader


@dataclass
class Doom:
    """When a job dies, and which process group that is."""

    moment: str
    batch: int
    group: int

    def strike(self, moment: str, batch: int) -> None:
        """End the job's processes if their time has come."""
        if (self.moment, self.batch) == (moment, batch):
            os.killpg(self.group, signal.SIGKILL)
            os._exit(1)  # a worker of Spark's is in another group


class DoomedTable:
    """A table that ends the job beside one of its commits."""

    def __init__(self, table: LakeTable, doom: Doom) -> None:
        self._table, self._doom = table, doom

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def commit(self, files: Sequence[DataFile], origin: Origin) -> bool:
        self._doom.strike("before-commit", origin.batch)
        done = self._table.commit(files, origin)
        self._doom.strike("after-commit", origin.batch)
        return done


class DoomedReader(StreamReader):
    """A reader that ends the job when offsets are asked for, or inside a task."""

    def __init__(self, options: SourceOptions, doom: Doom) -> None:
        super().__init__(options)
        self._doom = doom
        self._asked = -1

    def latestOffset(self, start: OffsetsJson, limit: ReadLimit) -> OffsetsJson:  # noqa: N802  # Spark's
        end = super().latestOffset(start, limit)
        self._asked += 1
        self._doom.strike("before-log", self._asked)
        return end

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from super().read(partition)
        context = TaskContext.get()
        batch = context.getLocalProperty("streaming.sql.batchId") if context else None
        self._doom.strike("in-task", int(batch or -1))


class DoomedWriter(StreamTopicWriter):
    """A writer that ends the job when its messages are visible."""

    def __init__(self, options: SinkOptions, doom: Doom) -> None:
        super().__init__(options)
        self._doom = doom

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's
        super().commit(messages, batchId)
        self._doom.strike("after-publish", batchId)


def doomed_source(doom: Doom) -> type[RocketMQDataSource]:
    """Our data source with the reader and the writer above."""

    class DoomedSource(RocketMQDataSource):
        def streamReader(self, schema: StructType) -> DoomedReader:  # noqa: N802  # Spark's
            return DoomedReader(self._source_options(schema, streaming=True), doom)

        def streamWriter(self, schema: StructType, overwrite: bool) -> DoomedWriter:  # noqa: N802  # Spark's
            plain = super().streamWriter(schema, overwrite)
            return DoomedWriter(plain._options, doom)

    return DoomedSource


def main(told: dict[str, Any]) -> int:
    doom = Doom(told["kill"], told["batch"], os.getpgid(0))
    opened = TableConfig.open

    def open_doomed(self: TableConfig, *arguments: Any) -> Any:
        return DoomedTable(opened(self, *arguments), doom)

    TableConfig.open = open_doomed  # type: ignore[method-assign, assignment]  # the point of it
    job = told.get("job", "archive")
    context = JobContext(load(job, None, told["sets"]), once=True)
    context.spark.dataSource.register(doomed_source(doom))
    try:
        return {"archive": archive.run, "mirror": mirror.run}[job](context)
    finally:
        context.close()


if __name__ == "__main__":
    os.setpgid(0, 0)
    sys.exit(main(json.loads(sys.argv[1])))
