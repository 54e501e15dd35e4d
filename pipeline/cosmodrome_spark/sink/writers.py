"""Spark's writers: always Arrow, always waiting for every ack before a task ends."""

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from cosmodrome_spark.errors import InvalidOption, PipelineError
from cosmodrome_spark.lake.files import sync_file
from cosmodrome_spark.options import SinkOptions
from cosmodrome_spark.sink.encode import Encoder, Place, check_schema
from cosmodrome_spark.sink.sender import Refused, Sender
from cosmodrome_spark.sink.staging import StagingSender, publish

# Spark keeps these on every task of a micro-batch; a test pins them for each version.
_BATCH_PROPERTY, _QUERY_PROPERTY = "streaming.sql.batchId", "sql.streaming.queryId"


@dataclass
class Written(WriterCommitMessage):
    """What one task wrote: how many, and its tokens where it only staged.

    `lineage` is the checkpoint's id: batch numbers begin again with a new checkpoint.
    """

    partition: int
    rows: int
    refused: int
    tokens: tuple[int, ...] = ()
    lineage: str = ""


class TopicWriter(DataSourceArrowWriter):
    """A batch write."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        # New for each write, and the same in every attempt of its tasks.
        self._run = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write one task's rows, on an executor."""
        job = self._options.job or self._run
        return write_task(self._options, iterator, Place(job, 0, _partition(), self._run))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish what was staged."""
        _publish(self._options, self._options.job or self._run, self._run, 0, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Staged messages are forgotten by the server; sent ones are sent."""


class StreamTopicWriter(DataSourceStreamArrowWriter):
    """A streaming write."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write one task's rows, on an executor."""
        context = TaskContext.get()
        batch = context.getLocalProperty(_BATCH_PROPERTY) if context else None
        query = context.getLocalProperty(_QUERY_PROPERTY) if context else None
        if batch is None:
            raise PipelineError(
                "this Spark does not say which batch a task belongs to: use dedup=none, "
                "or a dedupKey with foreachBatch"
            )
        job = self._options.job or query or ""
        place = Place(job, int(batch), _partition(), query or "")
        written = write_task(self._options, iterator, place)
        return replace(written, lineage=query or job)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's
        """Publish what was staged; Spark may call this again after a crash."""
        job = self._options.job
        if self._options.dedup == "transaction":
            assert job, "checked when the writer was made"
            lineages = {each.lineage for each in messages if isinstance(each, Written)}
            _publish(self._options, job, next(iter(lineages), job), batchId, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's
        """Staged messages are forgotten by the server; sent ones are sent."""


def batch_writer(options: SinkOptions, schema: StructType, *, overwrite: bool) -> TopicWriter:
    """A batch write of these columns; raises InvalidOption."""
    _check(options, schema, overwrite=overwrite)
    return TopicWriter(options)


def stream_writer(
    options: SinkOptions, schema: StructType, *, overwrite: bool
) -> StreamTopicWriter:
    """A streaming write of these columns; raises InvalidOption."""
    _check(options, schema, overwrite=overwrite)
    if options.dedup == "transaction" and not options.job:
        raise InvalidOption(
            "dedup=transaction needs the option job: the name that repeats are recognised by, "
            "one for each checkpoint"
        )
    return StreamTopicWriter(options)


def write_task(options: SinkOptions, batches: Iterator[pa.RecordBatch], place: Place) -> Written:
    """Send or stage the rows of one task and wait for every ack."""
    refused: list[Refused] = []
    sender: Sender | StagingSender
    if options.dedup == "transaction":
        sender = StagingSender(options, place.job)
    else:
        sender = Sender(options, refused.append)
    try:
        encoder = Encoder(options, place, time.time_ns() // 1_000_000)
        for batch in batches:
            for message in encoder.messages(batch):
                sender.send(message)
        sender.flush()
    finally:
        sender.close()
    if refused:
        _set_aside(Path(options.dead_letter_path or ""), refused, place)
    tokens = tuple(sender.tokens) if isinstance(sender, StagingSender) else ()
    return Written(place.partition, sender.sent, len(refused), tokens)


def _check(options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
    if overwrite:
        raise InvalidOption("a topic cannot be overwritten: use mode append")
    check_schema({each.name: each.dataType.simpleString() for each in schema.fields}, options)


def _publish(
    options: SinkOptions,
    job: str,
    lineage: str,
    batch: int,
    messages: list[WriterCommitMessage | None],
) -> None:
    written = [each for each in messages if isinstance(each, Written)]
    tokens = [token for each in sorted(written, key=lambda w: w.partition) for token in each.tokens]
    if options.dedup == "transaction" and tokens:
        publish(options.connection, job, lineage, batch, tokens)


def _partition() -> int:
    context = TaskContext.get()
    return context.partitionId() if context else 0


def _set_aside(folder: Path, refused: list[Refused], place: Place) -> None:
    """Write refused messages where a person finds them, before the task ends.

    A repeat of the task takes the place of its file; another run of the job has others.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "topic": each.message.topic.name,
            "message_id": each.message.system_properties.message_id,
            "reason": each.reason,
            "message": each.message.SerializeToString(),
        }
        for each in refused
    ]
    name = f"{place.job}-{place.run}-{place.batch}-{place.partition}.parquet".replace("/", "_")
    # Two attempts of a task may be at it at a time: the file of each is its own until it is whole.
    temporary = folder / f".{uuid.uuid4().hex}"
    pq.write_table(pa.Table.from_pylist(rows), temporary)
    sync_file(temporary)
    temporary.replace(folder / name)
    sync_file(folder / name)
