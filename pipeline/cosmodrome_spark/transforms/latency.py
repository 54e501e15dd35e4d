"""How long messages take: born → stored → delivered → acked, by topic, group and minute.

Delivery events (topic cosmodrome_delivery_events) are messages whose body is a JSON array of
`{topic, queue_id, queue_offset, message_id, consumer_group, attempt, born_ms, stored_ms,
delivered_ms, settled_ms, outcome}`; outcome is acked, expired, dead or unknown.
"""

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EVENT = (
    "topic STRING, queue_id INT, queue_offset BIGINT, message_id STRING, consumer_group STRING, "
    "attempt INT, born_ms BIGINT, stored_ms BIGINT, delivered_ms BIGINT, settled_ms BIGINT, "
    "outcome STRING"
)
STAGES = {
    "store_ms": ("born_ms", "stored_ms"),
    "deliver_ms": ("stored_ms", "delivered_ms"),
    "settle_ms": ("delivered_ms", "settled_ms"),
    "total_ms": ("born_ms", "settled_ms"),
}


def events(messages: "DataFrame") -> "DataFrame":
    """Messages of the event topic (column body) as rows of `EVENT`; others are dropped."""
    schema = f"ARRAY<STRUCT<{EVENT}>>"
    parsed = messages.select(F.from_json(F.col("body").cast("string"), schema).alias("events"))
    return parsed.select(F.explode("events").alias("event")).select("event.*")


def stored_only(messages: "DataFrame") -> "DataFrame":
    """Messages of any topic as events that end when they are stored."""
    millis = {name: F.unix_millis(F.col(name)) for name in ("born_timestamp", "store_timestamp")}
    nothing = F.lit(None)
    return messages.select(
        "topic",
        "queue_id",
        "queue_offset",
        "message_id",
        F.lit("").alias("consumer_group"),
        F.lit(1).alias("attempt"),
        millis["born_timestamp"].alias("born_ms"),
        millis["store_timestamp"].alias("stored_ms"),
        nothing.cast("bigint").alias("delivered_ms"),
        nothing.cast("bigint").alias("settled_ms"),
        F.lit("stored").alias("outcome"),
    )


def durations(frame: "DataFrame") -> "DataFrame":
    """Add the stages' durations in milliseconds; a clock that is behind counts as 0.

    Null where one of the two moments is not known.
    """
    for name, (start, end) in STAGES.items():
        took = F.greatest(F.col(end) - F.col(start), F.lit(0))
        frame = frame.withColumn(name, F.when((F.col(start) > 0) & (F.col(end) > 0), took))
    return frame


def percentiles(frame: "DataFrame", *, window: str = "1 minute") -> "DataFrame":
    """p50, p95, p99 and max of each stage, attempts and outcomes.

    Returns:
        topic, consumer_group, minute, messages, retries, dead, and for each stage of
        `STAGES` an array `[p50, p95, p99, max]`; sorted by the first three.
    """
    moment = F.timestamp_millis(F.coalesce(F.col("settled_ms"), F.col("stored_ms")))
    stages = [
        F.concat(F.percentile_approx(name, [0.5, 0.95, 0.99], 1000), F.array(F.max(name))).alias(
            name
        )
        for name in STAGES
    ]
    return (
        durations(frame)
        .withColumn("minute", F.window(moment, window).start)
        .groupBy("topic", "consumer_group", "minute")
        .agg(
            F.count("*").alias("messages"),
            F.sum(F.when(F.col("attempt") > 1, 1).otherwise(0)).alias("retries"),
            F.sum(F.when(F.col("outcome") == "dead", 1).otherwise(0)).alias("dead"),
            *stages,
        )
        .orderBy("topic", "consumer_group", "minute")
    )
