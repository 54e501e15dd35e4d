"""The six metrics of the official clients, by their names, counted while somebody asks for them.

    settings.metric.on ─▶ every 60 s an OTLP export to the endpoints the broker names
    cosmodrome.prometheus.ClientCollector ─▶ read at each scrape

Off until then: nothing is measured. Names, labels and buckets are those of clients.md 2.12, so
that dashboards of the official clients fit.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from cosmodrome_proto import fleet_pb2 as wire

SCOPE = "org.apache.rocketmq.message"
SEND_COST_TIME = "rocketmq_send_cost_time"
DELIVERY_LATENCY = "rocketmq_delivery_latency"
AWAIT_TIME = "rocketmq_await_time"
PROCESS_TIME = "rocketmq_process_time"
CACHED_MESSAGES = "rocketmq_consumer_cached_messages"
CACHED_BYTES = "rocketmq_consumer_cached_bytes"
BUCKETS_MS: Mapping[str, tuple[float, ...]] = {
    SEND_COST_TIME: (1.0, 5.0, 10.0, 20.0, 50.0, 200.0, 500.0),
    DELIVERY_LATENCY: (1.0, 5.0, 10.0, 20.0, 50.0, 200.0, 500.0),
    AWAIT_TIME: (1.0, 5.0, 20.0, 100.0, 1000.0, 5000.0, 10000.0),
    PROCESS_TIME: (1.0, 5.0, 10.0, 100.0, 1000.0, 10000.0, 60000.0),
}
HELP = {
    SEND_COST_TIME: "How long sends take, in milliseconds",
    DELIVERY_LATENCY: "How long received messages are on their way, in milliseconds",
    AWAIT_TIME: "How long messages wait for their listener, in milliseconds",
    PROCESS_TIME: "How long listener calls take, in milliseconds",
    CACHED_MESSAGES: "Messages fetched and not settled",
    CACHED_BYTES: "Bytes of bodies fetched and not settled",
}
_CUMULATIVE = 2
Labels = tuple[tuple[str, str], ...]
Gauges = Callable[[], Iterable[tuple[str, str, float]]]


@dataclass(slots=True)
class Histogram:
    """One series of a distribution.

    Attributes:
        counts: Per bucket, not summed up; the last one is what lies above all bounds.
        total: The sum of what was measured.
    """

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def take(self, value: float, times: int) -> None:
        """Measure the same value so many times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


class Meters:
    """The metrics of one client.

    Args:
        client_id, group: Labels of every series; no group for producers.
        gauges: Tells (name, topic, value) of what is cached now.
    """

    def __init__(self, client_id: str, group: str, gauges: Gauges) -> None:
        self.is_on: bool = False
        self._own: Labels = (("client_id", client_id),)
        if group:
            self._own = (("consumer_group", group), *self._own)
        self._gauges = gauges
        self._histograms: dict[tuple[str, str, str], Histogram] = {}
        self._started_ns = time.time_ns()

    def turn_on(self) -> None:
        """Measure from now on."""
        if not self.is_on:
            self.is_on = True
            self._started_ns = time.time_ns()

    def take(
        self, name: str, topic: str, milliseconds: float, *, status: str = "", times: int = 1
    ) -> None:
        """Measure."""
        key = (name, topic, status)
        histogram = self._histograms.get(key)
        if histogram is None:
            histogram = self._histograms[key] = Histogram(BUCKETS_MS[name])
        histogram.take(milliseconds, times)

    def take_sends(self, topic: str, milliseconds: float, *, sent: int, failed: int) -> None:
        """Measure one request of a producer, once for each of its messages."""
        for status, times in (("success", sent), ("failure", failed)):
            if times:
                self.take(SEND_COST_TIME, topic, milliseconds, status=status, times=times)

    def histograms(self) -> Iterable[tuple[str, Labels, Histogram]]:
        """Every distribution: name, labels, values."""
        # A copy, made at once: scrapes come from other threads.
        for (name, topic, status), histogram in list(self._histograms.items()):
            labels: Labels = (("topic", topic), *self._own)
            if status:
                labels += (("invocation_status", status),)
            yield name, labels, histogram

    def gauges(self) -> Iterable[tuple[str, Labels, float]]:
        """Every plain number: name, labels, value."""
        for name, topic, value in self._gauges():
            yield name, (("topic", topic), *self._own), value

    def export(self) -> wire.OtlpExport:
        """All of it as an OTLP request."""
        now_ns = time.time_ns()
        metrics: dict[str, wire.OtlpMetric] = {}
        for name, labels, histogram in self.histograms():
            metric = metrics.setdefault(name, _metric(name, "ms"))
            metric.histogram.aggregation_temporality = _CUMULATIVE
            point = metric.histogram.data_points.add(
                start_time_unix_nano=self._started_ns,
                time_unix_nano=now_ns,
                count=sum(histogram.counts),
                sum=histogram.total,
                bucket_counts=histogram.counts,
                explicit_bounds=histogram.bounds,
            )
            point.attributes.extend(_attributes(labels))
        for name, labels, value in self.gauges():
            metric = metrics.setdefault(name, _metric(name, "1"))
            number = metric.gauge.data_points.add(time_unix_nano=now_ns, as_double=value)
            number.attributes.extend(_attributes(labels))
        scope = wire.OtlpScope(name=SCOPE)
        of_scope = wire.OtlpScopeMetrics(scope=scope, metrics=metrics.values())
        resource = wire.OtlpResourceMetrics(scope_metrics=[of_scope])
        return wire.OtlpExport(resource_metrics=[resource])


def _metric(name: str, unit: str) -> wire.OtlpMetric:
    return wire.OtlpMetric(name=name, description=HELP[name], unit=unit)


def _attributes(labels: Labels) -> list[wire.OtlpAttribute]:
    return [
        wire.OtlpAttribute(key=key, value=wire.OtlpValue(string_value=value))
        for key, value in labels
    ]
