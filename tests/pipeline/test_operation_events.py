"""What the broker keeps of deliveries and lag, read back as topics."""

import json
import time
from pathlib import Path
from typing import Any

import cosmodrome
from cosmodrome_spark.offsets import QueueRange
from cosmodrome_spark.options import Connection, ReadQuery
from cosmodrome_spark.read.cluster import WireCluster
from cosmodrome_spark.read.road import read_ranges
from tests.support.cosmodrome_process import CosmodromeProcess
from tests.support.topic_filler import fill

WAIT_S = 60.0


def events(endpoints: str, topic: str) -> list[dict[str, Any]]:
    connection = Connection((endpoints,))
    with WireCluster(connection) as cluster:
        if topic not in cluster.topics():
            return []
        bounds = cluster.bounds(cluster.queues(topic))
    spans = tuple(QueueRange(queue, 0, each.max_offset) for queue, each in bounds.items())
    batches = read_ranges(connection, spans, ReadQuery(("body",)))
    bodies = [body for batch in batches for body in batch.column(0).to_pylist()]
    return [event for body in bodies for event in json.loads(body)]


def test_every_delivery_is_told_with_its_times_and_its_end(tmp_path: Path) -> None:
    settings = ("events.deliveries=true", "events.lag_s=1")
    with CosmodromeProcess(tmp_path / "data", *settings) as server:
        fill(server.endpoints, "orders", 20)
        with cosmodrome.sync.SimpleConsumer(
            server.endpoints, group="billing", subscriptions={"orders": "*"}, await_duration=5
        ) as consumer:
            acked = 0
            while acked < 20:
                for message in consumer.receive(16, 30):
                    consumer.ack(message)
                    acked += 1
        deadline = time.monotonic() + WAIT_S
        told: list[dict[str, Any]] = []
        lags: list[dict[str, Any]] = []
        while (len(told) < 20 or not lags) and time.monotonic() < deadline:
            time.sleep(0.1)
            told = events(server.endpoints, "cosmodrome_delivery_events")
            lags = events(server.endpoints, "cosmodrome_lag_samples")

    assert sorted(event["message_id"] for event in told) == [
        f"orders-{number:012d}" for number in range(20)
    ]
    for event in told:
        assert (event["consumer_group"], event["attempt"], event["outcome"]) == (
            "billing", 1, "acked",
        )  # fmt: skip
        assert 0 < event["stored_ms"] <= event["delivered_ms"] <= event["settled_ms"]
    assert {(lag["consumer_group"], lag["topic"]) for lag in lags} == {("billing", "orders")}
