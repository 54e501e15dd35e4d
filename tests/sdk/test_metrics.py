"""The six metrics of the official clients: as OTLP to our own broker, and for Prometheus."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client import CollectorRegistry, generate_latest

from cosmodrome import ConsumeResult, IllegalArgument, Message, Producer, PushConsumer, sync
from cosmodrome._client import meters
from cosmodrome._client.meters import Meters
from cosmodrome.prometheus import ClientCollector
from cosmodrome.testing import TestBroker
from tests.sdk.test_push_consumer import Seen, settled

CONSUMED = {
    meters.DELIVERY_LATENCY,
    meters.AWAIT_TIME,
    meters.PROCESS_TIME,
    meters.CACHED_MESSAGES,
    meters.CACHED_BYTES,
}


@pytest.fixture
def asking() -> Iterator[TestBroker]:
    """A broker that wants its clients' metrics."""
    with TestBroker(settings={"metrics.collector": "proxy"}) as running:
        yield running


def test_the_export_is_one_that_any_collector_reads() -> None:
    mine = Meters("me", "g", lambda: [(meters.CACHED_MESSAGES, "t", 3)])
    mine.take(meters.PROCESS_TIME, "t", 5.0, status="success")
    mine.take(meters.PROCESS_TIME, "t", 5.1, status="success", times=2)
    mine.take(meters.PROCESS_TIME, "t", 1e6, status="success")
    request = ExportMetricsServiceRequest.FromString(mine.export().SerializeToString())
    (scope,) = request.resource_metrics[0].scope_metrics
    assert scope.scope.name == "org.apache.rocketmq.message"
    process, cached = scope.metrics
    (point,) = process.histogram.data_points
    assert (process.name, process.unit) == ("rocketmq_process_time", "ms")
    assert list(point.explicit_bounds) == [1, 5, 10, 100, 1000, 10000, 60000]
    assert list(point.bucket_counts) == [0, 1, 2, 0, 0, 0, 0, 1]
    assert point.count == 4
    assert point.time_unix_nano >= point.start_time_unix_nano > 0
    assert {a.key: a.value.string_value for a in point.attributes} == {
        "topic": "t",
        "consumer_group": "g",
        "client_id": "me",
        "invocation_status": "success",
    }
    assert cached.gauge.data_points[0].as_double == 3


def test_what_is_measured_during_a_scrape_does_not_spoil_it() -> None:
    measured = Meters("client", "g", lambda: ())
    measured.take(meters.PROCESS_TIME, "first", 1.0)
    scrape = iter(measured.histograms())
    next(scrape)
    measured.take(meters.PROCESS_TIME, "second", 1.0)
    assert list(scrape) == []


async def test_metrics_go_to_the_broker_that_asks_for_them_at_the_latest_on_closing(
    asking: TestBroker,
) -> None:
    asking.create_group("g", backoff=(timedelta(minutes=1),))
    seen = Seen(lambda m: ConsumeResult.FAILURE if m.body == b"0" else ConsumeResult.SUCCESS)
    async with Producer(asking.endpoint, topics=["t"]) as producer:
        await asyncio.gather(*(producer.send(Message("t", str(n).encode())) for n in range(10)))
    async with PushConsumer(
        asking.endpoint, group="g", subscriptions={"t": "*"}, listener=seen
    ) as consumer:
        await seen.count(10)
        await settled(asking, lambda left: sum(left.in_flight.values()) <= 1)
    told = await asyncio.to_thread(asking.client_metrics)
    names = {name for name, _ in told}
    assert names == CONSUMED | {meters.SEND_COST_TIME}
    own = {"topic": "t", "client_id": producer.client_id, "invocation_status": "success"}
    assert told[meters.SEND_COST_TIME, frozenset(own.items())] == 10
    theirs = {"topic": "t", "client_id": consumer.client_id, "consumer_group": "g"}
    for status, count in (("success", 9), ("failure", 1)):
        labels = frozenset({**theirs, "invocation_status": status}.items())
        assert told[meters.PROCESS_TIME, labels] == count
    assert told[meters.AWAIT_TIME, frozenset(theirs.items())] == 10


async def test_a_broker_that_asks_for_nothing_gets_nothing_and_costs_nothing(
    own_broker: TestBroker,
) -> None:
    async with Producer(own_broker.endpoint) as producer:
        await producer.send(Message("t", b"x"))
        assert not list(producer.measure().histograms())  # and measures from now on
        await producer.send(Message("t", b"x"))
        assert [name for name, _, _ in producer.measure().histograms()] == [meters.SEND_COST_TIME]
    assert not await asyncio.to_thread(own_broker.client_metrics)


def test_prometheus_reads_clients_and_twins(own_broker: TestBroker) -> None:
    own_broker.create_topic("fifo", "FIFO")
    registry = CollectorRegistry()
    with sync.Producer(own_broker.endpoint) as producer:
        registry.register(ClientCollector(producer))
        producer.send(Message("t", b"x"))
        with pytest.raises(IllegalArgument):
            producer.send(Message("fifo", b"x"))
        text = generate_latest(registry).decode()
        client = producer.client_id
    labels = f'client_id="{client}",invocation_status="success"'
    # Whether it took less than that is the machine's affair.
    assert f'rocketmq_send_cost_time_bucket{{{labels},le="500.0",topic="t"}} ' in text
    assert f'rocketmq_send_cost_time_bucket{{{labels},le="+Inf",topic="t"}} 1.0' in text
    assert f'rocketmq_send_cost_time_count{{{labels},topic="t"}} 1.0' in text
    assert 'invocation_status="failure",topic="fifo"} 1.0' in text
