"""What dead letters say of themselves, and which of them go back.

A dead letter names the topic and the id it had. How often we sent it back stands in a
property of our own, because names beginning with DLQ_ are the protocol's.
"""

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

REDRIVES = "cosmodrome_redrives"
ORIGIN = "cosmodrome_origin"
LETTER = "letter"
REASONS = ("exception", "error", "reason")


def origin() -> "Column":
    """The topic a dead letter came from; null where it does not say."""
    return F.coalesce(F.col("dlq.topic"), F.col("properties")["REAL_TOPIC"])


def redrives() -> "Column":
    """How often a message was sent back already."""
    return F.coalesce(F.col("properties")[REDRIVES].cast("int"), F.lit(0))


def report(letters: "DataFrame", *, samples: int = 3) -> "DataFrame":
    """Dead letters by origin and reason.

    Returns:
        origin, reason, messages, first, last, keys (the most frequent one), redriven,
        samples (array of message ids); the most frequent first.
    """
    reason = F.coalesce(*(F.col("properties")[name] for name in REASONS), F.lit(""))
    return (
        letters.withColumn("origin", F.coalesce(origin(), F.lit("")))
        .withColumn("reason", reason)
        .groupBy("origin", "reason")
        .agg(
            F.count("*").alias("messages"),
            F.min("store_timestamp").alias("first"),
            F.max("store_timestamp").alias("last"),
            F.mode(F.get(F.col("keys"), F.lit(0))).alias("frequent_key"),
            F.sum(F.when(redrives() > 0, 1).otherwise(0)).alias("redriven"),
            F.slice(F.sort_array(F.collect_set("message_id")), 1, samples).alias("samples"),
        )
        .orderBy(F.desc("messages"), "origin", "reason")
    )


def to_send(letters: "DataFrame", *, redrives_max: int, quarantine: str) -> "DataFrame":
    """The rows of a write: each letter back to its origin, or to quarantine.

    Args:
        letters: Dead letters.
        redrives_max: A letter that went back so often goes to quarantine instead.
        quarantine: That topic.

    Returns:
        topic, body, tag, keys, message_group, properties, priority and delivery_timestamp (of
        those that go back, to topics that take no others), `letter` (its place among the dead
        letters, which names it), and `outcome` (redriven, quarantined) for the audit; letters
        without an origin are quarantined too.
    """
    may = _may_go_back(redrives_max)
    kept = F.map_filter("properties", lambda key, _: ~key.isin(REDRIVES, ORIGIN))
    counted = F.map_concat(
        kept,
        F.create_map(
            F.lit(REDRIVES),
            (redrives() + 1).cast("string"),
            F.lit(ORIGIN),
            F.coalesce(F.col("dlq.message_id"), F.col("message_id")),
        ),
    )
    return letters.select(
        F.when(may, origin()).otherwise(F.lit(quarantine)).alias("topic"),
        "body",
        "tag",
        "keys",
        "message_group",
        counted.alias("properties"),
        *(F.when(may, F.col(name)).alias(name) for name in ("priority", "delivery_timestamp")),
        F.concat_ws(":", "topic", "broker", "queue_id", "queue_offset").alias(LETTER),
        outcome(redrives_max).alias("outcome"),
    )


def outcome(redrives_max: int) -> "Column":
    """What becomes of a letter: redriven or quarantined."""
    return F.when(_may_go_back(redrives_max), F.lit("redriven")).otherwise(F.lit("quarantined"))


def _may_go_back(redrives_max: int) -> "Column":
    return (redrives() < redrives_max) & origin().isNotNull()


def first_of(letters: "DataFrame", count: int) -> "DataFrame":
    """The oldest letters, in the order of their queue."""
    order = Window.orderBy("store_timestamp", "broker", "queue_id", "queue_offset")
    return letters.withColumn("_n", F.row_number().over(order)).where(f"_n <= {count}").drop("_n")
