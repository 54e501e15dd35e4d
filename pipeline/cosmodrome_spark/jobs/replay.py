"""replay: rows of a table, or of a range of topics, into a topic.

Order. Rows of one message group or queue stay in one task, sorted by offset. Repeats are
recognised by where a row came from: a replay that is run again writes the messages again,
under the same ids. With `dedup=transaction` each run publishes once, all of it or nothing.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from cosmodrome_spark.jobs.read import read_either
from cosmodrome_spark.jobs.run import JobContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ORIGIN = "cosmodrome_origin"


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """Options of replay.

    Attributes:
        where: A SQL condition on the rows.
        pace: 0 as fast as it goes, 1 as it was, 2 twice as fast …
        keep_message_id: Send under the id a message had; else a new one, and the old one
            in the property `cosmodrome_origin`.
    """

    where: str = ""
    pace: float = 0.0
    keep_message_id: bool = False


def run(context: JobContext) -> int:
    """Replay; return the exit code."""
    options = context.config.options(ReplayOptions)
    rows = to_send(read_either(context), options)
    target = {"job": context.config.name, **context.config.target}
    if "dedupkey" in {name.lower() for name in target}:
        rows = rows.drop(ORIGIN)
    else:
        target["dedupKey"] = ORIGIN
    if any(name.lower() == "topic" for name in target):
        rows = rows.drop("topic")
    rows.write.format("rocketmq").mode("append").options(**target).save()
    return 0


def to_send(rows: "DataFrame", options: ReplayOptions) -> "DataFrame":
    """The rows of a write: selected, ordered by queue, paced."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  # Spark's own convention

    if options.where:
        rows = rows.where(options.where)
    place = F.concat_ws(":", "topic", "broker", "queue_id", "queue_offset")
    rows = rows.repartition("topic", "queue_id").sortWithinPartitions(
        "topic", "broker", "queue_id", "queue_offset"
    )
    if options.pace > 0:
        rows = _paced(rows, options.pace)
    # A message that was replayed, or went back from dead letters, before has one already.
    others = F.map_filter("properties", lambda key, _: key != ORIGIN)
    with_origin = F.map_concat(others, F.create_map(F.lit(ORIGIN), F.col("message_id")))
    rows = rows.withColumn(ORIGIN, place)
    chosen = ["topic", "body", "tag", "keys", "message_group", ORIGIN]
    # A table may have been made without these.
    chosen += [name for name in ("priority", "delivery_timestamp") if name in rows.columns]
    if options.keep_message_id:
        return rows.select(*chosen, "properties", "message_id")
    return rows.select(*chosen, with_origin.alias("properties"))


def _paced(rows: "DataFrame", pace: float) -> "DataFrame":
    """Hold batches back until their time has come, reckoned from the earliest row of all."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  # as above

    first = rows.agg(F.min("store_timestamp")).first()
    assert first is not None, "an aggregate has one row"
    if first[0] is None:
        return rows
    first_us = int(first[0].timestamp() * 1_000_000)
    begin_ns = time.time_ns()

    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            stored = pc.cast(batch.column("store_timestamp"), pa.int64()).to_pylist()
            start = 0
            while start < len(stored):
                due_ns = begin_ns + int((stored[start] - first_us) * 1000 / pace)
                time.sleep(max(0, due_ns - time.time_ns()) / 1e9)
                elapsed_us = (time.time_ns() - begin_ns) / 1000 * pace
                end = start + 1
                while end < len(stored) and stored[end] - first_us <= elapsed_us:
                    end += 1
                yield batch.slice(start, end - start)
                start = end

    return rows.mapInArrow(hold, rows.schema)
