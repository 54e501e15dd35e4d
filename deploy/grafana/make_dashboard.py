"""Writes dashboards/cosmodrome.json: `python deploy/grafana/make_dashboard.py`.

A board by hand drifts; this one is a list of panels, and a test checks that every metric
it shows is one the broker exports.
"""

import json
from pathlib import Path

TARGET = Path(__file__).parent / "dashboards" / "cosmodrome.json"
SOURCE = {"type": "prometheus", "uid": "prometheus"}
RATE = "[$__rate_interval]"


def rate(metric: str, *labels: str) -> str:
    """Per second, summed over what is not named."""
    return f"sum by ({', '.join(labels)}) (rate({metric}{RATE}))"


def quantile(fraction: float, histogram: str, *labels: str) -> str:
    """A quantile of a histogram, over what is not named."""
    return f"histogram_quantile({fraction}, {rate(histogram + '_bucket', *labels, 'le')})"


# Per row of the board its panels: title, unit, and pairs of expression and legend.
ROWS: dict[str, list[tuple[str, str, list[tuple[str, str]]]]] = {
    "Traffic": [
        (
            "Messages in",
            "cps",
            [(rate("rocketmq_messages_in_total", "topic"), "{{topic}}")],
        ),
        (
            "Messages out",
            "cps",
            [
                (
                    rate("rocketmq_messages_out_total", "consumer_group"),
                    "{{consumer_group}}",
                )
            ],
        ),
        (
            "Bytes",
            "Bps",
            [
                ("sum(rate(rocketmq_throughput_in_total[$__rate_interval]))", "in"),
                ("sum(rate(rocketmq_throughput_out_total[$__rate_interval]))", "out"),
            ],
        ),
        (
            "Calls by code",
            "cps",
            [(rate("cosmodrome_responses_total", "code"), "{{code}}")],
        ),
    ],
    "Consumers": [
        (
            "Lag",
            "short",
            [
                (
                    "sum by (consumer_group, topic) (rocketmq_consumer_lag_messages)",
                    "{{consumer_group}} {{topic}}",
                )
            ],
        ),
        (
            "In flight",
            "short",
            [
                (
                    "sum by (consumer_group) (rocketmq_consumer_inflight_messages)",
                    "{{consumer_group}}",
                )
            ],
        ),
        (
            "Age of the oldest message not consumed",
            "ms",
            [
                (
                    "max by (consumer_group, topic) (rocketmq_consumer_lag_latency_milliseconds)",
                    "{{consumer_group}} {{topic}}",
                )
            ],
        ),
        (
            "Dead letters",
            "cps",
            [
                (
                    rate("rocketmq_send_to_dlq_messages_total", "consumer_group"),
                    "{{consumer_group}}",
                )
            ],
        ),
        (
            "Acks that came too late",
            "cps",
            [
                (
                    rate("cosmodrome_ack_after_expiry_total", "consumer_group"),
                    "{{consumer_group}}",
                )
            ],
        ),
        (
            "Lag against retention",
            "percentunit",
            [
                (
                    "max by (consumer_group, topic) (cosmodrome_lag_retention_ratio)",
                    "{{consumer_group}} {{topic}}",
                )
            ],
        ),
    ],
    "Latency": [
        (
            "Call, p99",
            "s",
            [
                (
                    quantile(0.99, "cosmodrome_rpc_seconds", "rpc"),
                    "{{rpc}}",
                )
            ],
        ),
        (
            "fsync",
            "s",
            [
                (
                    quantile(0.5, "cosmodrome_fsync_seconds"),
                    "p50",
                ),
                (
                    quantile(0.99, "cosmodrome_fsync_seconds"),
                    "p99",
                ),
            ],
        ),
        (
            "Event loop lag",
            "s",
            [
                (
                    quantile(0.99, "cosmodrome_event_loop_lag_seconds"),
                    "p99",
                )
            ],
        ),
        (
            "Receive wait",
            "s",
            [
                (
                    quantile(0.5, "cosmodrome_receive_wait_seconds"),
                    "p50",
                )
            ],
        ),
    ],
    "Waiting": [
        ("Delayed messages", "short", [("sum by (topic) (rocketmq_timing_messages)", "{{topic}}")]),
        (
            "Half messages",
            "short",
            [
                ("sum by (topic) (rocketmq_half_messages)", "{{topic}} open"),
                ("sum by (topic) (cosmodrome_parked_transactions)", "{{topic}} parked"),
            ],
        ),
        ("Waiting receives", "short", [("cosmodrome_waiting_receives", "{{instance}}")]),
        (
            "Clients",
            "short",
            [
                ("sum by (language) (rocketmq_producer_connections)", "producers {{language}}"),
                ("sum by (consumer_group) (rocketmq_consumer_connections)", "{{consumer_group}}"),
            ],
        ),
    ],
    "Storage": [
        (
            "Disk",
            "bytes",
            [("rocketmq_storage_size_bytes", "log"), ("cosmodrome_store_free_bytes", "free")],
        ),
        ("Bytes that wait to be written", "bytes", [("cosmodrome_staged_bytes", "{{instance}}")]),
        ("Resident memory", "bytes", [("process_resident_memory_bytes", "{{instance}}")]),
        ("Damaged frames", "short", [("cosmodrome_corrupt_frames_total", "{{instance}}")]),
    ],
}


def board() -> dict[str, object]:
    """The whole board."""
    panels: list[dict[str, object]] = []
    y = 0
    for title, row in ROWS.items():
        panels.append(_row(len(panels), title, y))
        y += 1
        for index, (name, unit, targets) in enumerate(row):
            x = index % 4 * 6
            panels.append(
                _panel(len(panels), name, unit, targets, {"x": x, "y": y + index // 4 * 8})
            )
        y += (len(row) + 3) // 4 * 8
    return {
        "uid": "cosmodrome",
        "title": "Cosmodrome",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "panels": panels,
    }


def _row(number: int, title: str, y: int) -> dict[str, object]:
    place = {"x": 0, "y": y, "w": 24, "h": 1}
    return {"id": number + 1, "type": "row", "title": title, "gridPos": place, "collapsed": False}


def _panel(
    number: int, title: str, unit: str, targets: list[tuple[str, str]], at: dict[str, int]
) -> dict[str, object]:
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": title,
        "datasource": SOURCE,
        "gridPos": {**at, "w": 6, "h": 8},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(65 + index),
                "datasource": SOURCE,
                "expr": expression,
                "legendFormat": legend,
            }
            for index, (expression, legend) in enumerate(targets)
        ],
    }


if __name__ == "__main__":
    TARGET.write_text(json.dumps(board(), indent=1) + "\n")
