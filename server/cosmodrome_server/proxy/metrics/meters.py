"""Counting on the hot path: plain numbers in dicts, no locks, no label objects.

Counted on the loop's thread (fsync: by the writer thread, into a list the loop drains).
`Meters.samples` copies what the renderer needs; rendering happens in another thread.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping

import msgspec

from cosmodrome_server.proxy.metrics.catalogue import Kind, Metric

Labels = tuple[str, ...]
Pairs = tuple[tuple[str, str], ...]


class Distribution(msgspec.Struct, frozen=True):
    """A histogram's state: cumulative counts are made when it is rendered."""

    buckets: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


class Snapshot(msgspec.Struct, frozen=True):
    """All samples of one scrape, copied on the loop.

    Attributes:
        cluster, node_id: Values of the common labels.
        extra: Labels of the settings, on every series.
        values: Counters and gauges.
        distributions: Histograms.
        fleet_values, fleet_distributions: What clients pushed, by name and labels.
    """

    cluster: str
    node_id: str
    extra: Mapping[str, str]
    values: dict[Metric, dict[Labels, float]] = msgspec.field(default_factory=dict)
    distributions: dict[Metric, dict[Labels, Distribution]] = msgspec.field(default_factory=dict)
    fleet_values: dict[str, dict[Pairs, float]] = msgspec.field(default_factory=dict)
    fleet_distributions: dict[str, dict[Pairs, Distribution]] = msgspec.field(default_factory=dict)


class _Histogram:
    __slots__ = ("buckets", "counts", "total")

    def __init__(self, buckets: tuple[float, ...]) -> None:
        self.buckets = buckets
        self.counts = [0] * (len(buckets) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.buckets, value)] += 1
        self.total += value


class Meters:
    """Counters and histograms by metric and labels, at most `series_max` series in all.

    A client that invents names must not eat the memory: past the bound a new series is not
    counted, and how many were not is itself counted.
    """

    def __init__(self, series_max: int) -> None:
        self._series_max = series_max
        self._series = 0
        self._counters: dict[Metric, dict[Labels, float]] = {}
        self._histograms: dict[Metric, dict[Labels, _Histogram]] = {}
        self.dropped = 0

    def count(self, metric: Metric, labels: Labels = (), amount: float = 1) -> None:
        """Add to a counter."""
        series = self._counters.get(metric)
        if series is None:
            assert metric.kind is Kind.COUNTER
            series = self._counters[metric] = {}
        if labels in series:
            series[labels] += amount
        elif self._admits():
            series[labels] = amount

    def observe(self, metric: Metric, value: float, labels: Labels = ()) -> None:
        """Add a value to a histogram."""
        series = self._histograms.get(metric)
        if series is None:
            assert metric.kind is Kind.HISTOGRAM
            series = self._histograms[metric] = {}
        histogram = series.get(labels)
        if histogram is None:
            if not self._admits():
                return
            histogram = series[labels] = _Histogram(metric.buckets)
        histogram.observe(value)

    def counters(self) -> Iterator[tuple[Metric, dict[Labels, float]]]:
        """A copy of every counter."""
        for metric, series in self._counters.items():
            yield metric, dict(series)

    def histograms(self) -> Iterator[tuple[Metric, dict[Labels, Distribution]]]:
        """A copy of every histogram."""
        for metric, series in self._histograms.items():
            yield (
                metric,
                {
                    labels: Distribution(h.buckets, tuple(h.counts), h.total)
                    for labels, h in series.items()
                },
            )

    def _admits(self) -> bool:
        if self._series >= self._series_max:
            self.dropped += 1
            return False
        self._series += 1
        return True
