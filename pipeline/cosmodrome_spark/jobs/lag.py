"""lag: sample how far groups are behind, keep the history, say when each has caught up."""

import datetime as dt
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from cosmodrome_spark.jobs.run import JobContext
from cosmodrome_spark.lake.base import LakeTable, Origin
from cosmodrome_spark.lake.files import write_files
from cosmodrome_spark.option_values import duration_ms
from cosmodrome_spark.options import source_options
from cosmodrome_spark.read.base import Cluster
from cosmodrome_spark.read.road import open_cluster
from cosmodrome_spark.report.page import Section, page, table, write
from cosmodrome_spark.report.plot import lines
from cosmodrome_spark.source.resolve import choose_queues

SCHEMA = pa.schema(
    [
        pa.field("sampled_at", pa.timestamp("us", tz="UTC")),
        pa.field("consumer_group", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("broker", pa.string()),
        pa.field("queue_id", pa.int32()),
        pa.field("end_offset", pa.int64()),
        pa.field("committed_offset", pa.int64()),
        pa.field("lag", pa.int64()),
        pa.field("date", pa.date32()),
    ]
)


@dataclass(frozen=True, slots=True)
class LagOptions:
    """Options of lag.

    Attributes:
        groups: Whose lag, separated by commas.
        interval: How often a sample is taken.
        samples: How many; 0 until stopped, with --once one.
        html: Also write a page of this run's samples there.
    """

    groups: str
    interval: str = "10s"
    samples: int = 0
    html: str = ""


def run(context: JobContext) -> int:
    """Sample; return the exit code."""
    config = context.config
    options = config.options(LagOptions)
    groups = [name.strip() for name in options.groups.split(",") if name.strip()]
    wanted = 1 if context.once else options.samples
    history: LakeTable | None = config.table.open() if config.table else None
    if history is not None:
        history.create(SCHEMA)
    source = source_options(config.source, streaming=False)
    cluster = open_cluster(source.connection)
    seen: list[list[dict[str, Any]]] = []
    try:
        while not context.stopping.is_set():
            rows = [row for group in groups for row in sample(cluster, source.topics, group)]
            seen = [*seen[-1000:], rows]
            _keep(history, config.name, rows)
            for line in summary(seen):
                sys.stdout.write(json.dumps(line, default=str) + "\n")
            if options.html:
                write(options.html, report_page(seen))
            wanted -= 1
            if wanted == 0:
                break
            context.stopping.wait(duration_ms(options.interval) / 1000)
    finally:
        cluster.close()
    return 0


def sample(cluster: Cluster, topics: Any, group: str) -> list[dict[str, Any]]:  # noqa: ANN401  # of any kind
    """One row for each queue; a queue without a committed offset lags from its beginning."""
    queues = choose_queues(cluster, topics)
    bounds = cluster.bounds(queues)
    committed = cluster.committed(group, queues)
    now = dt.datetime.fromtimestamp(time.time_ns() / 1e9, dt.UTC)
    rows = []
    for queue, each in sorted(bounds.items()):
        at = committed.get(queue, each.min_offset)
        rows.append(
            {
                "sampled_at": now,
                "consumer_group": group,
                "topic": queue.topic,
                "broker": queue.broker,
                "queue_id": queue.queue_id,
                "end_offset": each.max_offset,
                "committed_offset": at,
                "lag": max(0, each.max_offset - at),
                "date": now.date(),
            }
        )
    return rows


def summary(seen: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Lag by group and topic, the speed since its first sample, and what follows from it.

    Returns:
        consumer_group, topic, lag, consumed_per_s, produced_per_s, eta_s (-1: never at this
        speed), stuck (queues with a lag on which nothing moved); sorted.
    """
    keys = sorted({(row["consumer_group"], row["topic"]) for row in seen[-1]})
    found = []
    for group, topic in keys:
        # A topic that came later has its first sample later.
        before = next(rows for each in seen if (rows := _rows_of(each, group, topic)))
        after = _rows_of(seen[-1], group, topic)
        passed_s = (after[0]["sampled_at"] - before[0]["sampled_at"]).total_seconds()
        seconds = max(1e-9, passed_s)
        consumed, produced = (
            (sum(r[name] for r in after) - sum(r[name] for r in before)) / seconds
            for name in ("committed_offset", "end_offset")
        )
        lag = sum(row["lag"] for row in after)
        gain = consumed - produced
        earlier = {(row["broker"], row["queue_id"]): row["committed_offset"] for row in before}
        found.append(
            {
                "consumer_group": group,
                "topic": topic,
                "lag": lag,
                "consumed_per_s": round(consumed, 1),
                "produced_per_s": round(produced, 1),
                "eta_s": 0 if lag == 0 else round(lag / gain) if gain > 0 else -1,
                "stuck": [
                    row["queue_id"]
                    for row in after
                    if passed_s > 0
                    and row["lag"]
                    and earlier.get((row["broker"], row["queue_id"])) == row["committed_offset"]
                ],
            }
        )
    return found


def _rows_of(rows: Sequence[dict[str, Any]], group: str, topic: str) -> list[dict[str, Any]]:
    return [row for row in rows if (row["consumer_group"], row["topic"]) == (group, topic)]


def report_page(seen: Sequence[Sequence[dict[str, Any]]]) -> str:
    """The page: lag over time, and where each group stands."""
    series: dict[str, list[tuple[float, float]]] = {}
    for rows in seen:
        totals: dict[str, float] = {}
        for row in rows:
            name = f"{row['consumer_group']} on {row['topic']}"
            totals[name] = totals.get(name, 0) + row["lag"]
        for name, lag in totals.items():
            series.setdefault(name, []).append((rows[0]["sampled_at"].timestamp(), lag))
    return page(
        "Consumer lag",
        f"{len(seen)} samples",
        [
            Section("Over time", "offsets behind", lines(series, unit="offsets", x="time")),
            Section("Now", "at the speed since the first sample", table(summary(seen))),
        ],
    )


def _keep(history: LakeTable | None, job: str, rows: list[dict[str, Any]]) -> None:
    if history is None or not rows:
        return
    files, _ = write_files(history.layout, [pa.RecordBatch.from_pylist(rows, SCHEMA)])
    progress = history.progress(job)
    history.commit(files, Origin(job, "samples", progress.batch + 1 if progress else 0))
