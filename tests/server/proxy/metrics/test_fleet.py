"""Metrics pushed by official clients: OTLP by their own exporter's messages, OpenCensus by ours."""

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
)
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from cosmodrome_proto import fleet_pb2 as wire
from cosmodrome_server.proxy.front import GrpcStatus
from cosmodrome_server.proxy.metrics.exposition import render
from cosmodrome_server.proxy.metrics.fleet import BUCKETS_MAX, IDLE_MS, TEXT_CHARS, Fleet
from cosmodrome_server.proxy.metrics.meters import Distribution, Snapshot
from tests.support.proxy_world import FakeCall

TOPIC = (("topic", "orders"),)


class StoppedClock:
    """A clock that tests set."""

    ms = 0

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms


def exported(*metrics: Metric) -> bytes:
    resource = ResourceMetrics(scope_metrics=[ScopeMetrics(metrics=metrics)])
    return ExportMetricsServiceRequest(resource_metrics=[resource]).SerializeToString()


def labelled(topic: str = "orders") -> list[KeyValue]:
    return [KeyValue(key="topic", value=AnyValue(string_value=topic))]


def histogram(*counts: int, delta: bool = False) -> Metric:
    point = HistogramDataPoint(
        attributes=labelled(),
        count=sum(counts),
        sum=7.5,
        bucket_counts=counts,
        explicit_bounds=[1.0, 5.0],
    )
    temporality = (
        AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
        if delta
        else AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    )
    return Metric(
        name="rocketmq_send_cost_time",
        histogram=Histogram(data_points=[point], aggregation_temporality=temporality),
    )


def test_a_cumulative_histogram_replaces_what_was_there() -> None:
    fleet = Fleet(StoppedClock(), 10)
    fleet.take_otlp(exported(histogram(1, 2, 0)))
    fleet.take_otlp(exported(histogram(2, 2, 1)))
    assert fleet.histograms() == {
        "rocketmq_send_cost_time": {TOPIC: Distribution((1.0, 5.0), (2, 2, 1), 7.5)}
    }


def test_deltas_add_up() -> None:
    fleet = Fleet(StoppedClock(), 10)
    fleet.take_otlp(exported(histogram(1, 2, 0, delta=True)))
    fleet.take_otlp(exported(histogram(2, 2, 1, delta=True)))
    taken = fleet.histograms()["rocketmq_send_cost_time"][TOPIC]
    assert taken == Distribution((1.0, 5.0), (3, 4, 1), 15.0)


def test_gauges_are_numbers_and_foreign_names_are_left_out() -> None:
    fleet = Fleet(StoppedClock(), 10)
    point = NumberDataPoint(attributes=labelled(), as_int=42)
    fleet.take_otlp(
        exported(
            Metric(name="rocketmq.consumer.cached.messages", gauge=Gauge(data_points=[point])),
            Metric(name="jvm_memory", gauge=Gauge(data_points=[point])),
        )
    )
    assert fleet.gauges() == {"rocketmq_consumer_cached_messages": {TOPIC: 42.0}}


def distribution(counts: tuple[int, ...], label: str = "topic") -> bytes:
    """One OpenCensus message: a distribution over the buckets up to 1, up to 5 and beyond."""
    metric = wire.OpenCensusMetric(
        metric_descriptor=wire.OpenCensusDescriptor(
            name="rocketmq_process_time", label_keys=[wire.OpenCensusLabelKey(key=label)]
        ),
        timeseries=[
            wire.OpenCensusSeries(
                label_values=[wire.OpenCensusLabelValue(value="orders", has_value=True)],
                points=[
                    wire.OpenCensusPoint(
                        distribution_value=wire.OpenCensusDistribution(
                            count=3,
                            sum=9,
                            bucket_options=wire.OpenCensusBucketOptions(
                                explicit=wire.OpenCensusBounds(bounds=[1, 5])
                            ),
                            buckets=[wire.OpenCensusBucket(count=n) for n in counts],
                        )
                    )
                ],
            )
        ],
    )
    return wire.OpenCensusExport(metrics=[metric]).SerializeToString()


def test_opencensus_distributions_are_taken_too() -> None:
    fleet = Fleet(StoppedClock(), 10)
    fleet.take_opencensus(distribution((1, 2, 0)))
    taken = fleet.histograms()["rocketmq_process_time"][TOPIC]
    assert taken == Distribution((1.0, 5.0), (1, 2, 0), 9.0)


def shown(fleet: Fleet) -> list[Sample]:
    """What a scrape reads of it."""
    of_clients = {"fleet_values": fleet.gauges(), "fleet_distributions": fleet.histograms()}
    text = render(Snapshot("cluster", "node", {}, **of_clients)).decode()  # type: ignore[arg-type]  # both
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def test_at_the_end_streams_that_clients_keep_open_end() -> None:
    fleet = Fleet(StoppedClock(), 10)
    first, done, second, gone = (FakeCall() for _ in range(4))
    for call in (first, done, second, gone):
        fleet.export_opencensus(call)
    done.say(None)
    second.say(wire.OpenCensusExport(metrics=[]))
    gone.cancel()
    assert second.ended is None
    fleet.close()
    late = FakeCall()
    fleet.export_opencensus(late)
    for call in (first, done, second, late):
        assert call.ended == (GrpcStatus.OK, "")
    assert gone.ended is None


@pytest.mark.parametrize("counts", [(), (1,), (1, 2), (1, 2, 3, 4)])
def test_a_distribution_that_is_not_whole_does_not_cost_a_scrape(counts: tuple[int, ...]) -> None:
    fleet = Fleet(StoppedClock(), 10)
    fleet.take_opencensus(distribution(counts))
    fleet.take_otlp(exported(histogram(*counts)))
    fleet.take_otlp(exported(histogram(1, 2, 0)))
    assert {sample.name for sample in shown(fleet)} == {
        f"rocketmq_send_cost_time_{part}" for part in ("bucket", "count", "sum")
    }


@pytest.mark.parametrize(
    ("label", "read"), [("9 lives", "_9_lives"), ("", "_"), ("a.b", "a_b"), ("ü", "_")]
)
def test_any_label_is_one_that_can_be_scraped(label: str, read: str) -> None:
    fleet = Fleet(StoppedClock(), 10)
    fleet.take_opencensus(distribution((1, 2, 0), label))
    assert {sample.labels[read] for sample in shown(fleet)} == {"orders"}


def test_long_texts_and_many_buckets_of_clients_are_not_kept() -> None:
    fleet = Fleet(StoppedClock(), 10)
    fleet.take_opencensus(distribution((1, 2, 0), "x" * 1_000_000))
    ((labels, _),) = fleet.histograms()["rocketmq_process_time"].items()
    assert [len(name) for name, _ in labels] == [TEXT_CHARS]
    wide = HistogramDataPoint(explicit_bounds=range(BUCKETS_MAX), bucket_counts=[1] * BUCKETS_MAX)
    wide.bucket_counts.append(1)
    fleet.take_otlp(exported(Metric(name="rocketmq_x", histogram=Histogram(data_points=[wide]))))
    assert "rocketmq_x" not in fleet.histograms()


def test_series_are_bounded_and_those_of_a_client_that_left_are_dropped() -> None:
    clock = StoppedClock()
    fleet = Fleet(clock, 1)
    fleet.take_otlp(exported(histogram(1, 0, 0)))
    other = NumberDataPoint(attributes=labelled("bills"), as_int=1)
    more = exported(Metric(name="rocketmq_consumer_cached_bytes", gauge=Gauge(data_points=[other])))
    fleet.take_otlp(more)
    assert fleet.dropped == 1
    clock.ms = IDLE_MS + 1
    fleet.forget_idle()
    fleet.take_otlp(more)
    assert list(fleet.gauges()) == ["rocketmq_consumer_cached_bytes"]
