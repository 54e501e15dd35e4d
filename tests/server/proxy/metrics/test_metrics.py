"""Counting, the bound on series, and what a scrape says."""

import asyncio
import re
import shutil
import socket
import subprocess
import threading
import urllib.error
import urllib.request

import pytest

from cosmodrome_server.proxy.metrics import catalogue
from cosmodrome_server.proxy.metrics.catalogue import CATALOGUE, Kind
from cosmodrome_server.proxy.metrics.endpoint import MetricsEndpoint
from cosmodrome_server.proxy.metrics.exposition import render
from cosmodrome_server.proxy.metrics.meters import Meters, Snapshot


def snapshot(meters: Meters) -> Snapshot:
    return Snapshot(
        "DefaultCluster",
        "broker-1",
        {"zone": "a"},
        dict(meters.counters()),
        dict(meters.histograms()),
    )


async def empty() -> Snapshot:
    return snapshot(Meters(1))


def test_counters_and_gauges_carry_common_and_own_labels() -> None:
    meters = Meters(100)
    meters.count(catalogue.MESSAGES_IN, ("orders", "normal", "false"), 3)
    taken = snapshot(meters)
    taken.values[catalogue.LAG_LATENCY] = {("billing", "orders", "false", "false"): 1500}
    text = render(taken).decode()
    common = 'cluster="DefaultCluster",node_id="broker-1",node_type="broker"'
    lines = text.splitlines()

    def sample(name: str) -> str:
        (line,) = [line for line in lines if line.startswith(name + "{")]
        return line

    counted = sample("rocketmq_messages_in_total")
    assert counted.endswith(" 3.0")
    for label in (*common.split(","), 'zone="a"', 'topic="orders"', 'message_type="normal"'):
        assert label in counted
    assert sample("rocketmq_consumer_lag_latency_milliseconds").endswith(" 1500.0")
    assert sample("rocketmq_consumer_lag_latency").endswith(" 1500.0")


def test_a_value_on_a_bound_falls_into_that_bucket_and_counts_are_cumulative() -> None:
    meters = Meters(100)
    for value in (1024, 1025, 5_000_000):
        meters.observe(catalogue.MESSAGE_SIZE, value, ("t", "normal", "false"))
    text = render(snapshot(meters)).decode()
    found = dict(re.findall(r'rocketmq_message_size_bucket\{.*?le="([^"]+)".*?\} (\S+)', text))
    assert found == {
        "1024.0": "1.0",
        "4096.0": "2.0",
        "524288.0": "2.0",
        "1048576.0": "2.0",
        "2097152.0": "2.0",
        "4194304.0": "2.0",
        "+Inf": "3.0",
    }


def test_past_the_bound_new_series_are_dropped_and_known_ones_go_on() -> None:
    meters = Meters(2)
    for topic in ("a", "b", "c", "a"):
        meters.count(catalogue.COMMITS, (topic,))
    assert dict(meters.counters())[catalogue.COMMITS] == {("a",): 2, ("b",): 1}
    assert meters.dropped == 1


def test_names_are_unique_and_histograms_have_buckets() -> None:
    names = [name for m in CATALOGUE for name in (m.name, m.alias) if name]
    assert len(names) == len(set(names))
    for metric in CATALOGUE:
        assert bool(metric.buckets) is (metric.kind is Kind.HISTOGRAM)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is missing (prometheus)")
def test_promtool_finds_nothing_wrong_with_our_own_names() -> None:
    meters = Meters(1000)
    taken = snapshot(meters)
    for metric in CATALOGUE:
        labels = tuple("x" for _ in metric.labels)
        if metric.kind is Kind.COUNTER:
            meters.count(metric, labels)
        elif metric.kind is Kind.HISTOGRAM:
            meters.observe(metric, 1, labels)
        elif metric.name.startswith("cosmodrome_"):
            taken.values[metric] = {labels: 1}
    taken.values.update(meters.counters())
    taken.distributions.update(meters.histograms())
    said = subprocess.run(
        ["promtool", "check", "metrics"], input=render(taken), capture_output=True, check=False
    )
    # rocketmq_* names are the reference's and break promtool's taste; ours must not.
    complaints = [line for line in said.stderr.decode().splitlines() if "cosmodrome_" in line]
    assert complaints == []


async def test_the_port_answers_metrics_health_and_readiness() -> None:
    ready = False
    endpoint = MetricsEndpoint("127.0.0.1", 0, empty, lambda: ready)
    host, port = endpoint.address

    def get(path: str) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=5) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    try:
        assert (await asyncio.to_thread(get, "/healthz"))[0] == 200
        assert (await asyncio.to_thread(get, "/readyz"))[0] == 503
        ready = True
        assert (await asyncio.to_thread(get, "/readyz"))[0] == 200
        assert (await asyncio.to_thread(get, "/metrics"))[0] == 200
        assert (await asyncio.to_thread(get, "/"))[0] == 404
    finally:
        await endpoint.close()


async def test_a_port_nobody_came_to_has_no_thread_and_closes() -> None:
    endpoint = MetricsEndpoint("127.0.0.1", 0, empty, lambda: True)
    assert "metrics" not in {thread.name for thread in threading.enumerate()}
    address = endpoint.address
    await endpoint.close()
    await endpoint.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=5)
