"""mirror: topics into the topics of another cluster, under the same or other names.

Repeats are recognised by where a row came from, not by the task that wrote it: a batch that
is repeated may be cut into other tasks.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cosmodrome_spark.jobs.archive import read_stream
from cosmodrome_spark.jobs.run import JobContext, run_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

COLUMNS = (
    *("topic", "broker", "queue_id", "queue_offset", "body", "tag", "keys", "message_group"),
    *("properties", "priority", "delivery_timestamp", "message_id"),
)
ORIGIN = "cosmodrome_mirror_of"


@dataclass(frozen=True, slots=True)
class MirrorOptions:
    """Options of mirror.

    Attributes:
        map: Source topic → target topic; a topic it lacks keeps its name.
    """

    map: dict[str, str] = field(default_factory=dict)


def run(context: JobContext) -> int:
    """Mirror; return the exit code."""
    config = context.config
    options = config.options(MirrorOptions)

    def writer() -> "DataStreamWriter":
        rows = to_send(read_stream(context, COLUMNS), options.map)
        target = {"job": config.name, **config.target}
        if "dedupkey" in {name.lower() for name in target}:
            rows = rows.drop(ORIGIN)
        else:
            target["dedupKey"] = ORIGIN
        return rows.writeStream.format("rocketmq").options(**target)

    return run_query(context, writer)


def to_send(messages: "DataFrame", names: dict[str, str]) -> "DataFrame":
    """The rows of a write; each says in a property, and in a column, where it comes from."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  # Spark's own convention

    topic = F.col("topic")
    for source, target in names.items():
        topic = F.when(F.col("topic") == source, F.lit(target)).otherwise(topic)
    place = F.concat_ws(":", "topic", "broker", "queue_id", "queue_offset")
    # What is mirrored from a mirror has one already.
    others = F.map_filter("properties", lambda key, _: key != ORIGIN)
    properties = F.map_concat(others, F.create_map(F.lit(ORIGIN), place))
    return messages.select(
        topic.alias("topic"),
        *("body", "tag", "keys", "message_group", "priority", "delivery_timestamp", "message_id"),
        properties.alias("properties"),
        place.alias(ORIGIN),
    )
