"""The six client metrics for Prometheus; needs `pip install 'cosmodrome[prometheus]'`.

    REGISTRY.register(ClientCollector(producer, consumer))

Async clients and blocking twins alike. A client measures from the moment a collector has it; it
costs a microsecond a message. The metrics keep the names, labels and milliseconds of the
official clients, without the unit and `_total` that Prometheus would like.
"""

from collections.abc import Iterable, Iterator
from typing import Protocol

try:
    from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.registry import Collector
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"cosmodrome.prometheus needs {error.name}: pip install 'cosmodrome[prometheus]'",
        name=error.name,
    ) from error

from cosmodrome._client.meters import HELP, Histogram, Labels, Meters


class Measured(Protocol):
    """A client, async or blocking."""

    def measure(self) -> Meters:
        """Measure from now on."""


class ClientCollector(Collector):
    """Collects the metrics of clients for a registry of prometheus_client."""

    def __init__(self, *clients: Measured) -> None:
        self._meters: list[Meters] = []
        for client in clients:
            self.add(client)

    def add(self, client: Measured) -> None:
        """Have another client, started or not."""
        self._meters.append(client.measure())

    def collect(self) -> Iterator[GaugeMetricFamily | HistogramMetricFamily]:
        """Every metric of every client."""
        histograms: dict[str, HistogramMetricFamily] = {}
        gauges: dict[str, GaugeMetricFamily] = {}
        for meters in self._meters:
            for name, labels, histogram in list(meters.histograms()):
                if name not in histograms:
                    histograms[name] = HistogramMetricFamily(name, HELP[name], labels=_keys(labels))
                histograms[name].add_metric(_values(labels), _buckets(histogram), histogram.total)
            for name, labels, value in list(meters.gauges()):
                if name not in gauges:
                    gauges[name] = GaugeMetricFamily(name, HELP[name], labels=_keys(labels))
                gauges[name].add_metric(_values(labels), value)
        yield from histograms.values()
        yield from gauges.values()


def _keys(labels: Labels) -> list[str]:
    return [key for key, _ in labels]


def _values(labels: Labels) -> list[str]:
    return [value for _, value in labels]


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    below = 0
    bounds: Iterable[str] = [*map(str, histogram.bounds), "+Inf"]
    for bound, count in zip(bounds, histogram.counts, strict=True):
        below += count
        found.append((bound, below))
    return found
