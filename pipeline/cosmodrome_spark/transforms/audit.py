"""Is every offset there exactly once?"""

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUEUE = ("topic", "broker", "queue_id")


def by_queue(rows: "DataFrame") -> "DataFrame":
    """One row a queue: first, last, rows, distinct, missing, repeated; sorted."""
    return (
        rows.groupBy(*QUEUE)
        .agg(
            F.min("queue_offset").alias("first"),
            F.max("queue_offset").alias("last"),
            F.count("*").alias("rows"),
            F.count_distinct("queue_offset").alias("distinct"),
        )
        .withColumn("missing", F.expr("last - first + 1 - distinct"))
        .withColumn("repeated", F.expr("rows - distinct"))
        .orderBy(*QUEUE)
    )


def gaps(rows: "DataFrame") -> "DataFrame":
    """The ranges [start, end) that are missing between the first and the last of a queue."""
    order = Window.partitionBy(*QUEUE).orderBy("queue_offset")
    return (
        rows.select(*QUEUE, "queue_offset")
        .distinct()
        .withColumn("before", F.lag("queue_offset").over(order))
        .where("queue_offset - before > 1")
        .selectExpr(*QUEUE, "before + 1 AS start", "queue_offset AS end")
        .orderBy(*QUEUE, "start")
    )
