"""What a job tells: lines for machines, a bar for people, gauges for Prometheus."""

import io
import json
import urllib.request

from cosmodrome_spark.jobs.config import load
from cosmodrome_spark.jobs.progress import BAR_CELLS, BatchProgress, Teller
from cosmodrome_spark.jobs.run import context_for
from tests.support.ports import held_port


def batch(number: int, rows: int, lag: int) -> BatchProgress:
    return BatchProgress("archive", number, rows, 500, lag, {"orders/broker-a:0": lag})


def test_each_batch_with_rows_is_a_line_of_json() -> None:
    lines = io.StringIO()
    tell = Teller(lines)

    tell(batch(0, 1000, 3000))
    tell(batch(1, 0, 3000))

    (said,) = lines.getvalue().splitlines()
    assert json.loads(said) == {
        "job": "archive", "batch": 0, "rows": 1000, "batch_ms": 500, "lag": 3000,
        "lag_by_queue": {"orders/broker-a:0": 3000}, "watermark": "", "rows_per_second": 2000,
    }  # fmt: skip


def test_the_bar_fills_as_the_largest_backlog_seen_is_read() -> None:
    bar = io.StringIO()
    tell = Teller(io.StringIO(), bar)

    for number, lag in enumerate((4000, 2000, 0)):
        tell(batch(number, 1000, lag))

    drawn = bar.getvalue().split("\r")[1:]
    assert [each.count("█") for each in drawn] == [0, BAR_CELLS // 2, BAR_CELLS]
    assert [each.count("█") + each.count("░") for each in drawn] == [BAR_CELLS] * 3
    assert "  50%  batch 1  2,000 rows/s  lag 2,000" in drawn[1]
    assert "100%" in drawn[2]


def test_a_backlog_that_grows_or_is_unknown_leaves_a_bar_that_can_be_drawn() -> None:
    teller = Teller(io.StringIO())

    assert teller.bar(batch(0, 1, -1)).count("█") == BAR_CELLS
    assert teller.bar(batch(1, 1, 10)).count("█") == 0
    assert teller.bar(batch(2, 1, 1000)).count("█") == 0


def test_gauges_are_served_on_the_port_that_is_asked_for() -> None:
    with held_port() as port:
        context = context_for(load("archive", None, []), once=True, metrics_port=port)
        context.tell(batch(7, 1000, 30))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
            said = reply.read().decode().splitlines()

    assert 'cosmodrome_pipeline_batch{job="archive"} 7.0' in said
    assert 'cosmodrome_pipeline_batch_rows{job="archive"} 1000.0' in said
    assert 'cosmodrome_pipeline_batch_seconds{job="archive"} 0.5' in said
    lag = 'cosmodrome_pipeline_lag_offsets{job="archive",queue="orders/broker-a:0"} 30.0'
    assert lag in said
