"""Of each key the latest row of a batch: what is merged into a table of current state."""

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def latest(rows: "DataFrame", key: str, order: tuple[str, ...]) -> "DataFrame":
    """One row for each key: the last by `order`; rows without a key are left out."""
    last_first = Window.partitionBy(key).orderBy(*(F.desc(name) for name in order))
    return (
        rows.where(F.col(key).isNotNull())
        .withColumn("_n", F.row_number().over(last_first))
        .where("_n = 1")
        .drop("_n")
    )
