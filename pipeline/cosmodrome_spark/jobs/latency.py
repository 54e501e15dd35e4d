"""latency: percentiles of born → stored → delivered → acked, by topic, group and minute.

From the delivery events of a server that keeps them (events.deliveries = true); from the
messages of any other topic, only up to stored.
"""

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cosmodrome_spark.jobs.read import read_batch
from cosmodrome_spark.jobs.run import JobContext
from cosmodrome_spark.report.page import Section, page, table, write
from cosmodrome_spark.report.plot import lines

if TYPE_CHECKING:
    from pyspark.sql import Row

EVENT_TOPIC = "cosmodrome_delivery_events"


@dataclass(frozen=True, slots=True)
class LatencyOptions:
    """Options of latency.

    Attributes:
        window: One row for each so long, like `1 minute`.
        html: Also write a page there.
    """

    window: str = "1 minute"
    html: str = ""


def run(context: JobContext) -> int:
    """Report; return the exit code."""
    from cosmodrome_spark.transforms import latency  # noqa: PLC0415  # needs Spark

    options = context.config.options(LatencyOptions)
    messages = read_batch(context)
    given = {name.lower(): value for name, value in context.config.source.items()}
    topics = given.get("subscribe", "").strip()
    made = latency.events(messages) if topics == EVENT_TOPIC else latency.stored_only(messages)
    rows = latency.percentiles(made, window=options.window).collect()
    for row in rows:
        sys.stdout.write(json.dumps(row.asDict(), default=str) + "\n")
    if options.html:
        write(options.html, report_page(rows))
    return 0


def report_page(rows: "list[Row]") -> str:
    """The page: p50, p95 and p99 of the whole way over time, and the figures."""
    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        stage = (
            row["total_ms"]
            if row["total_ms"] and row["total_ms"][0] is not None
            else row["store_ms"]
        )
        for place, name in enumerate(("p50", "p95", "p99")):
            if stage and stage[place] is not None:
                points = series.setdefault(f"{row['topic']} {name}", [])
                points.append((row["minute"].timestamp(), float(stage[place])))
    count = sum(row["messages"] for row in rows)
    return page(
        "Latency",
        f"{count:,} deliveries; times in milliseconds",
        [
            Section("Over time", "the longest stage known", lines(series, unit="ms", x="time")),
            Section(
                "Figures", "p50, p95, p99, max of each stage", table([r.asDict() for r in rows])
            ),
        ],
    )
