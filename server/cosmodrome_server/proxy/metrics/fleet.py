"""The metrics of official clients, pushed to the broker's port and shown on /metrics.

    settings.metric.on ──▶ client exports ──OTLP, unary──────────▶ Fleet.take_otlp
    every 60 s                            ──OpenCensus, stream───▶ Fleet.take_opencensus

Names are the clients' own (`rocketmq_send_cost_time`, …, protocol.md 16.6), labels too. Numbers
are kept as the client counts them (cumulative); deltas are added up. A series that was
not pushed for `IDLE_MS` is dropped, and there are at most `series_max` of them.
"""

import re
from collections.abc import Iterable

import msgspec
from google.protobuf.message import DecodeError

from cosmodrome_proto import fleet_pb2 as wire
from cosmodrome_server.clock import Clock
from cosmodrome_server.proxy.front import Call, GrpcStatus
from cosmodrome_server.proxy.metrics.meters import Distribution
from cosmodrome_server.proxy.metrics.meters import Pairs as Labels
from cosmodrome_server.proxy.open_streams import OpenStreams

OTLP_PATH = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
OPENCENSUS_PATH = "/opencensus.proto.agent.metrics.v1.MetricsService/Export"
# Clients export once a minute; five missed exports are a client that is gone.
IDLE_MS = 300_000
LABELS_MAX = 16
BUCKETS_MAX = 1_000
TEXT_CHARS = 1_000
ACCEPTED = wire.Accepted().SerializeToString()
_DELTA = 1
_NAME = re.compile(r"[^a-zA-Z0-9_]")


class _Series(msgspec.Struct):
    value: float | Distribution
    seen_ms: int


class Fleet:
    """What clients pushed last. Its handlers belong to no service of ours."""

    def __init__(self, clock: Clock, series_max: int) -> None:
        self._clock = clock
        self._series_max = series_max
        self._series: dict[tuple[str, Labels], _Series] = {}
        self._streams = OpenStreams()
        self.dropped = 0

    def take_otlp(self, payload: bytes) -> None:
        """Take one OTLP export.

        Raises:
            DecodeError: The bytes are no export.
        """
        for resource in wire.OtlpExport.FromString(payload).resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    self._take_otlp_metric(metric)

    def take_opencensus(self, payload: bytes) -> None:
        """Take one message of an OpenCensus stream; raises as `take_otlp`."""
        for metric in wire.OpenCensusExport.FromString(payload).metrics:
            keys = [key.key for key in metric.metric_descriptor.label_keys]
            for series in metric.timeseries:
                values = [value.value for value in series.label_values]
                labels = _labels(zip(keys, values, strict=False))
                for point in series.points[-1:]:
                    self._put(metric.metric_descriptor.name, labels, _point(point))

    def export_otlp(self, call: Call) -> None:
        """Answer one OTLP export."""
        try:
            self.take_otlp(call.payload)
        except DecodeError:
            call.finish(GrpcStatus.INVALID_ARGUMENT, "the bytes are no ExportMetricsServiceRequest")
        else:
            call.reply(ACCEPTED)

    def export_opencensus(self, call: Call) -> None:
        """Take the messages of one OpenCensus stream until the client ends it."""

        def take(payload: bytes | None) -> None:
            if payload is None:
                self._streams.forget(call)
                call.finish()
                return
            try:
                self.take_opencensus(payload)
            except DecodeError:
                self._streams.forget(call)
                call.finish(GrpcStatus.INVALID_ARGUMENT, "the bytes are no OpenCensus export")

        if self._streams.begin(call):
            call.on_message(take)

    def close(self) -> None:
        """End the streams, which clients keep open, and those that are opened from now on."""
        self._streams.close()

    def gauges(self) -> dict[str, dict[Labels, float]]:
        """The plain numbers, by name."""
        found: dict[str, dict[Labels, float]] = {}
        for (name, labels), series in self._series.items():
            if not isinstance(series.value, Distribution):
                found.setdefault(name, {})[labels] = series.value
        return found

    def histograms(self) -> dict[str, dict[Labels, Distribution]]:
        """The distributions, by name."""
        found: dict[str, dict[Labels, Distribution]] = {}
        for (name, labels), series in self._series.items():
            if isinstance(series.value, Distribution):
                found.setdefault(name, {})[labels] = series.value
        return found

    def forget_idle(self) -> None:
        """Drop what no client pushed lately."""
        oldest = self._clock.monotonic_ms() - IDLE_MS
        idle = [key for key, series in self._series.items() if series.seen_ms < oldest]
        for key in idle:
            del self._series[key]

    def _take_otlp_metric(self, metric: wire.OtlpMetric) -> None:
        kind = metric.WhichOneof("data")
        if kind == "histogram":
            is_delta = metric.histogram.aggregation_temporality == _DELTA
            for point in metric.histogram.data_points:
                distribution = Distribution(
                    tuple(point.explicit_bounds), tuple(point.bucket_counts), point.sum
                )
                labels = _attributes(point.attributes)
                self._put(metric.name, labels, distribution, is_delta=is_delta)
        elif kind is not None:
            numbers = metric.gauge if kind == "gauge" else metric.sum
            is_delta = kind == "sum" and numbers.aggregation_temporality == _DELTA
            for number in numbers.data_points:
                integral = number.WhichOneof("value") == "as_int"
                value = float(number.as_int) if integral else number.as_double
                self._put(metric.name, _attributes(number.attributes), value, is_delta=is_delta)

    def _put(
        self, name: str, labels: Labels, value: float | Distribution, *, is_delta: bool = False
    ) -> None:
        name = _NAME.sub("_", name[:TEXT_CHARS])
        if not name.startswith("rocketmq_"):
            return  # not a metric of a RocketMQ client; nobody asked for it
        if isinstance(value, Distribution) and not _is_whole(value):
            return
        key = (name, labels)
        known = self._series.get(key)
        if known is None:
            if len(self._series) >= self._series_max:
                self.dropped += 1
                return
            known = self._series[key] = _Series(value, 0)
        else:
            known.value = _added(known.value, value) if is_delta else value
        known.seen_ms = self._clock.monotonic_ms()


def _is_whole(distribution: Distribution) -> bool:
    """Whether there is a count for each bucket; a distribution may say nothing but its sum."""
    return len(distribution.counts) == len(distribution.buckets) + 1 <= BUCKETS_MAX


def _point(point: wire.OpenCensusPoint) -> float | Distribution:
    if point.WhichOneof("value") != "distribution_value":
        return float(point.int64_value or point.double_value)
    taken = point.distribution_value
    return Distribution(
        tuple(taken.bucket_options.explicit.bounds),
        tuple(bucket.count for bucket in taken.buckets),
        taken.sum,
    )


def _attributes(attributes: Iterable[wire.OtlpAttribute]) -> Labels:
    return _labels((a.key, _text(a.value)) for a in attributes)


def _labels(pairs: Iterable[tuple[str, str]]) -> Labels:
    named = ((_label_name(key), value[:TEXT_CHARS]) for key, value in pairs)
    return tuple(sorted(named)[:LABELS_MAX])


def _label_name(key: str) -> str:
    """A name Prometheus takes: one that it does not costs it all of a scrape."""
    name = _NAME.sub("_", key[:TEXT_CHARS])
    return f"_{name}" if not name or name[0].isdigit() else name


def _text(value: wire.OtlpValue) -> str:
    kind = value.WhichOneof("value")
    return "" if kind is None else str(getattr(value, kind))


def _added(old: float | Distribution, new: float | Distribution) -> float | Distribution:
    if isinstance(old, Distribution) and isinstance(new, Distribution):
        if old.buckets != new.buckets:
            return new
        counts = tuple(a + b for a, b in zip(old.counts, new.counts, strict=True))
        return Distribution(old.buckets, counts, old.total + new.total)
    if isinstance(old, Distribution) or isinstance(new, Distribution):
        return new
    return old + new
