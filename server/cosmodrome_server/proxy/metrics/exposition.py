"""Samples as Prometheus text. Runs in the thread of the metrics port, on copies only."""

from collections.abc import Iterable, Mapping

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import (
    Metric as Family,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import CollectorRegistry

from cosmodrome_server.proxy.metrics.catalogue import Kind, Metric
from cosmodrome_server.proxy.metrics.meters import Distribution, Labels, Snapshot

COMMON = ("cluster", "node_type", "node_id")


def render(snapshot: Snapshot) -> bytes:
    """Write one snapshot in the Prometheus text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(snapshot))
    return generate_latest(registry)


class _Collector:
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterable[Family]:
        snapshot = self._snapshot
        for metric, series in snapshot.values.items():
            for name in filter(None, (metric.name, metric.alias)):
                yield self._plain(metric, name, series)
        for metric, histograms in snapshot.distributions.items():
            yield self._histogram(metric, histograms)
        yield from _fleet(snapshot)

    def _plain(self, metric: Metric, name: str, series: Mapping[Labels, float]) -> Family:
        kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
        family = kind(name, metric.meaning, labels=self._names(metric))
        for labels, value in series.items():
            family.add_metric(self._labels(metric, labels), value)
        return family

    def _histogram(self, metric: Metric, series: Mapping[Labels, Distribution]) -> Family:
        family = HistogramMetricFamily(metric.name, metric.meaning, labels=self._names(metric))
        for labels, distribution in series.items():
            buckets = _cumulative(distribution)
            family.add_metric(self._labels(metric, labels), buckets, distribution.total)
        return family

    def _names(self, metric: Metric) -> list[str]:
        return [*COMMON, *self._snapshot.extra, *metric.labels]

    def _labels(self, metric: Metric, labels: Labels) -> list[str]:
        snapshot = self._snapshot
        common = [snapshot.cluster, metric.node_type, snapshot.node_id]
        return [*common, *snapshot.extra.values(), *labels]


def _fleet(snapshot: Snapshot) -> Iterable[Family]:
    """Series of clients: label names differ from client to client, so each has its own set."""
    for name, series in snapshot.fleet_values.items():
        family = Family(name, "Pushed by clients.", "gauge")
        for pairs, value in series.items():
            family.add_sample(name, dict(pairs), value)
        yield family
    for name, histograms in snapshot.fleet_distributions.items():
        family = Family(name, "Pushed by clients.", "histogram")
        for pairs, distribution in histograms.items():
            labels = dict(pairs)
            buckets = _cumulative(distribution)
            for bound, count in buckets:
                family.add_sample(f"{name}_bucket", {**labels, "le": bound}, count)
            family.add_sample(f"{name}_count", labels, buckets[-1][1])
            family.add_sample(f"{name}_sum", labels, distribution.total)
        yield family


def _cumulative(distribution: Distribution) -> list[tuple[str, float]]:
    bounds = [*(str(float(bound)) for bound in distribution.buckets), "+Inf"]
    seen = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip(bounds, distribution.counts, strict=True):
        seen += count
        buckets.append((bound, seen))
    return buckets
