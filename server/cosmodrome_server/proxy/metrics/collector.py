"""One snapshot of everything /metrics shows, gathered on the loop when somebody scrapes.

Counters that verbs keep (`Broker.statistics`) and gauges of the moment (lag, connections,
space) are read here, once per scrape; what only the proxy sees (answers, waits) is counted by
`Meters` as it happens. Nothing here is on the hot path.
"""

import asyncio
import os
import resource
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from time import perf_counter
from typing import Protocol

import msgspec

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_server import open_files
from cosmodrome_server.broker.interface import Broker
from cosmodrome_server.broker.statistics import (
    DELAY_BOUNDS_S,
    FINISH_BOUNDS_S,
    SIZE_BOUNDS,
    Spread,
    Statistics,
)
from cosmodrome_server.clock import Clock
from cosmodrome_server.config import Config
from cosmodrome_server.core.client_session import ClientSession, ClientType
from cosmodrome_server.errors import BrokerError
from cosmodrome_server.model.topic import DEAD_LETTER_PREFIX, LITE_PREFIX, RETRY_PREFIX
from cosmodrome_server.proxy.front import Call, Kind
from cosmodrome_server.proxy.metrics import catalogue as names
from cosmodrome_server.proxy.metrics.catalogue import Metric
from cosmodrome_server.proxy.metrics.fleet import Fleet
from cosmodrome_server.proxy.metrics.meters import Distribution, Labels, Meters, Snapshot
from cosmodrome_server.proxy.service import Rpc
from cosmodrome_server.proxy.sessions import Sessions
from cosmodrome_server.store.figures import StoreFigures

Values = dict[Metric, dict[Labels, float]]
DISK = ("local", "disk")
# Counter of the gate → why a connection was not taken, or cut off.
_REFUSALS = {
    "connections_refused": "limit",
    "handshakes_failed": "handshake",
    "connections_abusive": "abuse",
    "connections_dead": "silence",
}
# Class of calls → the reference's pool for them. Those of others are answered at once.
_PROCESSORS = {"producer": "send", "consumer": "ack", "transaction": "transaction"}
# How often the loop is asked how late it is.
LOOP_PROBE_S = 0.1
# Six of a group on a topic take some 20 µs.
_SAMPLES_PER_TURN = 1_024


class Measured(Broker, Protocol):
    """The broker, with its counts."""

    def statistics(self) -> Statistics:
        """What was counted so far."""

    def take_commit_seconds(self) -> list[float]:
        """How long each group commit took since the last call."""


class Collector:
    """Made once; snapshots are taken on the loop, `observe` after each answer.

    Attributes:
        connections: The front's counts; nothing where it keeps none.
        under_way: Calls of each class that wait for the disk.
    """

    def __init__(
        self,
        config: Config,
        clock: Clock,
        broker: Measured,
        sessions: Sessions,
        store: Callable[[], StoreFigures],
    ) -> None:
        self._config = config
        self._clock = clock
        self._broker = broker
        self._sessions = sessions
        self._store = store
        # As of the snapshot that is being taken.
        self._shown = StoreFigures()
        self.meters = Meters(config.metrics.series_max)
        self.fleet = Fleet(clock, config.metrics.series_max)
        self._code_names: dict[int, str] = {}
        self._left_out = 0
        self.connections: Callable[[], Mapping[str, int]] = dict
        self.under_way: Callable[[], Mapping[str, int]] = dict

    def observe(self, rpc: str, code: int) -> None:
        """Count one answer."""
        name = self._code_names.get(code)
        if name is None:
            known = code in pb.Code.values()
            name = pb.Code.Name(pb.Code.ValueType(code)) if known else str(code)
            self._code_names[code] = name
        self.meters.count(names.RESPONSES, (rpc, name))

    def bounded(self, setting: str) -> None:
        """Count a call that a bound refused."""
        self.meters.count(names.REFUSALS, (setting,))

    def waited(self, seconds: float) -> None:
        """A receive waited so long."""
        self.meters.observe(names.RECEIVE_WAIT, seconds)

    def timed(self, rpc: Rpc) -> Rpc:
        """The same RPC, with the time its handler takes observed."""
        if rpc.kind is Kind.BIDI:
            return rpc
        handler, observe, labels = rpc.handler, self.meters.observe, (rpc.path.rpartition("/")[2],)

        def handle(call: Call) -> None:
            began = perf_counter()
            handler(call)
            observe(names.RPC_SECONDS, perf_counter() - began, labels)

        return msgspec.structs.replace(rpc, handler=handle)

    async def probe_loop(self) -> None:
        """Measure how late the loop comes to a timer, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LOOP_PROBE_S
            await asyncio.sleep(LOOP_PROBE_S)
            self.meters.observe(names.LOOP_LAG, max(0.0, loop.time() - due))

    def snapshot(self) -> Snapshot:
        """Everything, copied at once."""
        *_, taken = self._parts()
        assert taken is not None, "the last part is all of it"
        return taken

    async def snapshot_in_turns(self) -> Snapshot:
        """The same, in turns of the loop: groups may read very many topics."""
        for taken in self._parts():
            if taken is not None:
                return taken
            await asyncio.sleep(0)
        raise AssertionError("the last part is all of it")

    def _parts(self) -> Iterator[Snapshot | None]:
        """None between the parts, and in the end all of it."""
        self.fleet.forget_idle()
        for seconds in self._broker.take_commit_seconds():
            self.meters.observe(names.FSYNC, seconds)
        values: Values = dict(self.meters.counters())
        distributions = dict(self.meters.histograms())
        room = self._config.metrics.series_max
        # What there is once comes before what there is of each topic and group.
        parts = (self._storage, self._connections, self._topics, self._counted, self._clients)
        for part in parts:
            room = self._add(values, part(), room)
        groups = self._groups()
        while some := list(islice(groups, _SAMPLES_PER_TURN)):
            left_out = self._left_out
            room = self._add(values, some, room)
            if self._left_out > left_out:
                break
            yield None
        for metric, series in self._sizes().items():
            distributions[metric] = dict(islice(series.items(), max(0, room)))
            room -= len(series)
            self._left_out += len(series) - len(distributions[metric])
        dropped = self._left_out + self.meters.dropped + self.fleet.dropped
        values[names.DROPPED_SERIES] = {(): dropped}
        yield Snapshot(
            cluster=self._config.server.cluster,
            node_id=self._config.server.name,
            extra=self._config.metrics.labels,
            values=values,
            distributions=distributions,
            fleet_values=self.fleet.gauges(),
            fleet_distributions=self.fleet.histograms(),
        )

    def _add(
        self, values: Values, samples: Iterable[tuple[Metric, Labels, float]], room: int
    ) -> int:
        """Add samples while there is room for their series; returns what room is left."""
        for metric, labels, value in samples:
            if labels and room <= 0:
                self._left_out += 1
                break
            values.setdefault(metric, {})[labels] = value
            room -= 1
        return room

    def _counted(self) -> Iterator[tuple[Metric, Labels, float]]:
        counted = self._broker.statistics()
        yield names.TOPICS, (), counted.topics
        yield names.GROUPS, (), counted.groups
        yield names.WAITING, (), counted.waiters
        yield names.PERMISSION, (), 6
        yield names.PROXY_UP, ("local",), 1
        for (topic, message_type), flow in counted.messages_in.items():
            labels: Labels = (topic, message_type.name.lower(), _is_system(topic))
            yield names.MESSAGES_IN, labels, flow.messages
            yield names.THROUGHPUT_IN, labels, flow.body_bytes
        for (topic, group, is_retry), flow in counted.messages_out.items():
            labels = (topic, group, str(is_retry).lower(), _is_system(topic))
            yield names.MESSAGES_OUT, labels, flow.messages
            yield names.THROUGHPUT_OUT, labels, flow.body_bytes
        for (topic, group), count in counted.dead_letters.items():
            yield names.DEAD_LETTERS, (group, topic, _is_system(topic)), count
        for topic, count in counted.commits.items():
            yield names.COMMITS, (topic,), count
        for topic, count in counted.rollbacks.items():
            yield names.ROLLBACKS, (topic,), count
        for (topic, group), count in counted.late_acks.items():
            yield names.LATE_ACKS, (group, topic), count
        for topic, count in counted.delayed.items():
            yield names.TIMER_IN, (topic,), count
        for topic, count in counted.fired.items():
            yield names.TIMER_OUT, (topic,), count

    def _sizes(self) -> dict[Metric, dict[Labels, Distribution]]:
        counted = self._broker.statistics()
        return {
            names.FINISH_LATENCY: _spreads(FINISH_BOUNDS_S, counted.finishes),
            names.DELAY_LATENCY: _spreads(DELAY_BOUNDS_S, counted.delays),
            names.MESSAGE_SIZE: {
                (topic, message_type.name.lower(), _is_system(topic)): Distribution(
                    SIZE_BOUNDS, sizes, counted.messages_in[topic, message_type].body_bytes
                )
                for (topic, message_type), sizes in counted.sizes.items()
            },
        }

    def _clients(self) -> Iterator[tuple[Metric, Labels, float]]:
        producers: Counter[Labels] = Counter()
        consumers: Counter[Labels] = Counter()
        for session in self._sessions.known:
            language, version = _agent(session)
            if session.client_type is ClientType.PRODUCER:
                producers[language, version, "grpc_v2"] += 1
            else:
                labels: Labels = (session.group, language, version, "pop", "grpc_v2", "false")
                consumers[labels] += 1
        for labels, count in producers.items():
            yield names.PRODUCERS, labels, count
        for labels, count in consumers.items():
            yield names.CONSUMERS, labels, count

    def _groups(self) -> Iterator[tuple[Metric, Labels, float]]:
        now_ms = self._clock.now_ms()
        topics = self._broker.topics_by_group()
        for group in self._broker.groups():
            for topic in topics.get(group.name, ()):
                try:
                    lag = self._broker.accumulation(group.name, topic)
                except BrokerError:
                    continue  # deleted since it was listed
                unconsumed_ms = _age(now_ms, lag.oldest_unconsumed_ms)
                # Before anything is told: then the topic may go.
                ratio = self._retention_ratio(topic, unconsumed_ms, lag.oldest_unconsumed_ms)
                labels = (group.name, topic, "false", _is_system(topic))
                yield names.LAG, labels, lag.ready + lag.inflight
                yield names.READY, labels, lag.ready
                yield names.INFLIGHT, labels, lag.inflight
                yield names.LAG_LATENCY, labels, unconsumed_ms
                yield names.QUEUEING_LATENCY, labels, _age(now_ms, lag.oldest_ready_ms)
                if ratio is not None:
                    yield names.LAG_RETENTION, (group.name, topic), ratio

    def _retention_ratio(self, topic: str, unconsumed_ms: int, stored_ms: int) -> float | None:
        """How near retention is to a group's first message: by age or by size, the nearer one.

        None where neither takes anything.
        """
        ratios = []
        retention_ms = self._config.store.retention_hours * 3_600_000
        if retention_ms:
            kept_ms = max(retention_ms, self._broker.topic(topic).retention_ms)
            ratios.append(unconsumed_ms / kept_ms)
        kept_bytes = self._config.store.retention_mib << 20
        if kept_bytes:
            bytes_since = self._shown.bytes_since(stored_ms) if stored_ms else 0
            ratios.append(bytes_since / kept_bytes)
        return max(ratios, default=None)

    def _topics(self) -> Iterator[tuple[Metric, Labels, float]]:
        waiting = self._broker.waiting()
        yield names.TIMER_LATENCY, (), waiting.overdue_ms
        yield names.TIMER_LAG, (), waiting.overdue
        yield names.TIMER_IN_LAG, (), waiting.uncopied
        for topic, count in waiting.delayed.items():
            yield names.TIMING, (topic,), count
        for topic, count in waiting.half.items():
            yield names.HALF_MESSAGES, (topic,), count
        for topic, count in waiting.parked.items():
            yield names.PARKED, (topic,), count

    def _connections(self) -> Iterator[tuple[Metric, Labels, float]]:
        under_way = self.under_way()
        for name, processor in _PROCESSORS.items():
            yield names.WATERMARK, (processor,), under_way.get(name, 0)
        counted = self.connections()
        if not counted:
            return
        yield names.CONNECTIONS, (), counted["connections"]
        yield names.CONNECTIONS_IN, (), counted["connections_accepted"]
        yield names.CALLS_OPEN, (), counted["calls"]
        for counter, reason in _REFUSALS.items():
            yield names.CONNECTIONS_OUT, (reason,), counted[counter]

    def _storage(self) -> Iterator[tuple[Metric, Labels, float]]:
        figures = self._shown = self._store()
        yield names.STORAGE_SIZE, DISK, figures.log_bytes
        yield names.FLUSH_BEHIND, DISK, figures.staged_bytes
        yield names.DISPATCH_BEHIND, DISK, 0
        yield names.RESERVE_TIME, DISK, _age(self._clock.now_ms(), figures.oldest_ms)
        yield names.STAGED, (), figures.staged_bytes
        yield names.FREE, (), figures.free_bytes
        yield names.FULL, (), figures.is_full
        yield names.CORRUPT, (), figures.corrupt_frames + self._broker.statistics().lost_messages
        yield names.MEMORY, (), _resident_bytes()
        yield names.OPEN_FILES_MAX, (), open_files.limit()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        yield names.CPU, (), usage.ru_utime + usage.ru_stime


def _spreads(
    bounds: tuple[float, ...], by_topic: Mapping[str, Spread]
) -> dict[Labels, Distribution]:
    return {
        (topic,): Distribution(bounds, spread.counts, spread.total)
        for topic, spread in by_topic.items()
    }


def _is_system(topic: str) -> str:
    return str(topic.startswith((DEAD_LETTER_PREFIX, RETRY_PREFIX, LITE_PREFIX))).lower()


def _age(now_ms: int, then_ms: int) -> int:
    return max(0, now_ms - then_ms) if then_ms else 0


def _agent(session: ClientSession) -> tuple[str, str]:
    agent = pb.Settings.FromString(session.settings).user_agent
    known = agent.language in pb.Language.values()
    language = pb.Language.Name(agent.language).lower() if known else str(agent.language)
    return language, agent.version


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:  # noqa: PTH123 - one read, of no path of ours
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
