"""The composition root: makes every part, runs until a signal, stops in order.

    start   log ─▶ broker ─▶ sessions ─▶ front listens ─▶ "ready" on stdout
    stop    health says NOT_SERVING ─▶ clients are asked to connect anew ─▶ no new calls,
            calls under way finish (server.drain_s at most) ─▶ everything durable ─▶ closed

The only module that knows every concrete class.
"""

import asyncio
import contextlib
import gc
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from cosmodrome_server import __version__, greeting, logs, open_files
from cosmodrome_server.broker.local_broker import Attachments, LocalBroker
from cosmodrome_server.broker.operation_events import Observed, ObservedBroker
from cosmodrome_server.broker.settings import BrokerSettings
from cosmodrome_server.clock import Clock, SystemClock
from cosmodrome_server.config import Config, ConfigError
from cosmodrome_server.core.transaction import TransactionRules
from cosmodrome_server.errors import StateUnreadable, StoreError
from cosmodrome_server.model.log import Log
from cosmodrome_server.proxy import fronts, service
from cosmodrome_server.proxy.bulk.source import BulkSource
from cosmodrome_server.proxy.client_events import ClientEvents
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.development_certificate import Beforehand, development_certificate
from cosmodrome_server.proxy.front import Front, Kind
from cosmodrome_server.proxy.health import Health, Serving
from cosmodrome_server.proxy.metrics.collector import Collector
from cosmodrome_server.proxy.metrics.endpoint import MetricsEndpoint
from cosmodrome_server.proxy.metrics.fleet import OPENCENSUS_PATH, OTLP_PATH, Fleet
from cosmodrome_server.proxy.outgoing import StreamReplies
from cosmodrome_server.proxy.security.directory import Directory
from cosmodrome_server.proxy.security.guard import Guard
from cosmodrome_server.proxy.service import Rpc
from cosmodrome_server.proxy.sessions import Sessions
from cosmodrome_server.proxy.tls import Certificates
from cosmodrome_server.reload import on_hangup, remember_hangup
from cosmodrome_server.store import opening, origin, timer_bucket
from cosmodrome_server.store.commit_log import CommitLog
from cosmodrome_server.store.figures import StoreFigures, figures_of
from cosmodrome_server.store.files import OsFiles
from cosmodrome_server.store.group_commit import parse_durability
from cosmodrome_server.store.key_index import KeyIndex
from cosmodrome_server.store.platform import LogOptions
from cosmodrome_server.store.timer_bucket import TimerBuckets

_log = logging.getLogger(__name__)

Announce = Callable[[str], None]
Around = Callable[[Rpc], Rpc]
TICK_S = 1.0
SWITCH_S = 0.0005
GC_ALLOCATIONS = 10_000
# How long clients have to open their streams elsewhere before calls are cut off.
RECONNECT_S = 0.2


class App(msgspec.Struct):
    """A running server."""

    config: Config
    broker: LocalBroker
    context: Context
    front: Front
    health: Health
    certificates: Certificates | None
    failure: asyncio.Future[Exception]
    metrics: MetricsEndpoint | None
    collector: Collector
    _background: set[asyncio.Task[None]] = msgspec.field(default_factory=set)

    async def stop(self) -> None:
        """Drain and close; what was acknowledged is on disk, what was not is not lost."""
        self.health.set(Serving.NOT_SERVING)
        sessions = self.context.sessions
        sessions.reconnect_all()
        await asyncio.sleep(RECONNECT_S if sessions.has_streams else 0)
        sessions.close()
        self.health.close()
        self.collector.fleet.close()
        self.context.reflections.close()
        # A drain waits for calls under way; those that only wait must not hold it up.
        self.broker.end_waits()
        await self.front.drain(self.config.server.drain_s)
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        if self.context.bulk is not None:
            self.context.bulk.close()
        await self.broker.close()
        if self.metrics is not None:
            await self.metrics.close()

    def run_in_background(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start what runs by the clock: expiry of clients, certificates, the loop's own lag."""
        self._background.add(loop.create_task(self._tick()))
        self._background.add(loop.create_task(self.collector.probe_loop()))

    async def _tick(self) -> None:
        seconds = 0
        while True:
            await asyncio.sleep(TICK_S)
            seconds += 1
            try:
                self.context.sessions.tick()
                if self.certificates is not None and seconds % self.config.tls.reload_s == 0:
                    await asyncio.to_thread(self.certificates.refresh)
            except Exception:
                _log.exception("a background step failed; the next one is tried all the same")


async def start(config: Config, log: Log, clock: Clock, *, around: Around | None = None) -> App:
    """Make every part over an open log and listen.

    Args:
        config: All settings.
        log: Closed by the app.
        clock: The only source of time.
        around: Puts something in front of every handler; faults in tests.

    Raises:
        ConfigError: A setting that cannot work here.
        OSError: The address is taken.
    """
    loop = asyncio.get_running_loop()
    failure: asyncio.Future[Exception] = loop.create_future()

    def on_fatal(error: Exception) -> None:
        if not failure.done():
            failure.set_result(error)

    broker = _broker(config, log, clock, on_fatal)
    try:
        return await _assemble(broker, config, log, clock, failure, around)
    except BaseException:
        await broker.close()
        raise


async def _assemble(
    broker: LocalBroker,
    config: Config,
    log: Log,
    clock: Clock,
    failure: asyncio.Future[Exception],
    around: Around | None,
) -> App:
    """Make every other part around a broker, and listen."""
    loop = asyncio.get_running_loop()
    sessions = Sessions(broker, clock, config)
    if not config.server.strict:  # the reference's proxies forget their clients
        sessions.restore()
    certificates = Certificates(config) if config.tls.mode != "off" else None
    streams = StreamReplies(loop)
    context = Context(
        config=config,
        clock=clock,
        broker=broker,
        sessions=sessions,
        sink=streams,  # until the front is made
        streams=streams,
        endpoint=_advertised(config, config.server.port),
        access=Guard(Directory(broker, config.security), config.security, clock),
        bulk=_bulk(broker, log, config),
    )
    collector = Collector(config, clock, broker, sessions, _figures(log, config))
    context.observe, context.waited = collector.observe, collector.waited
    context.bounded = collector.bounded
    health = Health((service.MESSAGING_SERVICE, service.ADMIN_SERVICE, service.CONTROL_SERVICE))
    more = fleet_routes(collector.fleet)
    timed = collector.timed
    front = make_front(
        config,
        context,
        health,
        certificates,
        more,
        timed if around is None else lambda rpc: around(timed(rpc)),
    )
    context.sink, collector.connections = front, front.statistics
    context.front = _name_of(front)
    if context.flow is not None:
        collector.under_way = context.flow.under_way
    events = ClientEvents(context.waits)
    broker.listen(events)
    await front.start()
    context.advertise(_advertised(config, front.address[1]))
    events.connect(sessions, context.store_host)
    try:
        metrics = _metrics_port(config, collector, health)
    except ConfigError:
        await front.drain(0)
        raise
    app = App(config, broker, context, front, health, certificates, failure, metrics, collector)
    app.run_in_background(loop)
    health.set(Serving.SERVING)
    return app


def _broker(
    config: Config, log: Log, clock: Clock, on_fatal: Callable[[Exception], None]
) -> LocalBroker:
    """The broker, with operation events where the settings ask for them.

    Raises:
        StateUnreadable: Another version wrote the data directory.
    """
    parts = (log, clock, broker_settings(config), on_fatal, _attachments(config, log))
    try:
        if config.events.deliveries or config.events.lag_s:
            kept = Observed(config.events.deliveries, config.events.lag_s * 1000)
            broker: LocalBroker = ObservedBroker(*parts, kept)
        else:
            broker = LocalBroker(*parts)
    except StateUnreadable as error:
        raise StateUnreadable(
            f"{error}; {config.data} was written by {origin.written_by(config.data)}, this is "
            f"cosmodrome {__version__}: start it with that version, or choose another server.data"
        ) from error
    origin.sign(config.data)
    return broker


def _bulk(broker: LocalBroker, log: Log, config: Config) -> BulkSource | None:
    """Bulk reads of this log, where it is in files of ours."""
    if not isinstance(log, CommitLog):
        return None
    return BulkSource(broker, log.ranges, config.bulk.mib_per_s << 20)


def _metrics_port(config: Config, collector: Collector, health: Health) -> MetricsEndpoint | None:
    """Where /metrics is served, if it is.

    Raises:
        ConfigError: The address is taken, or is none of this machine.
    """
    if not config.metrics.enabled:
        return None
    host = config.server.metrics_host or config.server.host
    is_ready = lambda: health.is_serving  # noqa: E731 - a name for the argument
    port = config.server.metrics_port
    try:
        return MetricsEndpoint(host, port, collector.snapshot_in_turns, is_ready)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {greeting.joined(host, port)} for metrics: {error.strerror}; "
            "choose another server.metrics_port or server.metrics_host, or metrics.enabled = false"
        ) from error


def _figures(log: Log, config: Config) -> Callable[[], StoreFigures]:
    """What the log says of itself; nothing of one that is not in files of ours."""
    if isinstance(log, CommitLog):
        return lambda: figures_of(log, config.data)
    return StoreFigures


def fleet_routes(fleet: Fleet) -> list[Rpc]:
    """Where official clients push their metrics when their settings ask for it."""
    return [
        Rpc(OTLP_PATH, Kind.UNARY, fleet.export_otlp),
        Rpc(OPENCENSUS_PATH, Kind.BIDI, fleet.export_opencensus),
    ]


def make_front(
    config: Config,
    context: Context,
    health: Health,
    certificates: Certificates | None,
    more: list[Rpc],
    around: Around,
) -> Front:
    """The front of the settings; `auto` takes the gate where it is installed.

    Raises:
        ConfigError: The gate is asked for and not installed, or a setting needs it.
    """
    reflection = config.server.reflection
    table = service.routes(
        context, health, has_reflection=config.server.dev if reflection is None else reflection
    )
    table += more
    table = [around(rpc) for rpc in table]
    # Imported here: grpcio takes 100 ms and 20 MB that the gate does without.
    if fronts.chosen(config) == "gate":
        from cosmodrome_server.proxy.fronts.gate import GateFront  # noqa: PLC0415 - it may not be there

        return GateFront(table, config, certificates)
    from cosmodrome_server.proxy.fronts.grpcio import GrpcioFront  # noqa: PLC0415 - see above

    return GrpcioFront(table, config, certificates)


def _attachments(config: Config, log: Log) -> Attachments:
    """What stands beside a log in files of ours."""
    if not isinstance(log, CommitLog):
        return Attachments()
    files = OsFiles()
    directory = Path(config.data) / opening.SHARD_NAME
    return Attachments(
        TimerBuckets(files, directory / timer_bucket.DIRECTORY_NAME),
        KeyIndex(files, directory, log.segments).find,
    )


def broker_settings(config: Config) -> BrokerSettings:
    """What of the settings is the broker's."""
    return BrokerSettings(
        is_auto_create=config.auto_create,
        queues=config.topics.queues,
        topics_max=config.topics.topics_max,
        groups_max=config.topics.groups_max,
        waiters_max=config.delivery.waiters_max,
        waiters_per_group=config.delivery.waiters_per_group,
        inflight_per_group=config.delivery.inflight_per_group,
        renew_total_ms=config.delivery.renew_total_ms,
        transaction_first_check_ms=config.transactions.first_check_ms,
        transactions=TransactionRules(
            check_interval_ms=config.transactions.check_interval_ms,
            checks_max=config.transactions.checks_max,
            expire_ms=config.transactions.expire_hours * 3_600_000,
        ),
        transactions_max=config.transactions.open_max,
        delayed_max=config.delays.pending_max,
        is_recall_enabled=config.delays.recall,
        lite_topics_max=config.lite.topics_max,
        lite_subscriptions_max=config.lite.subscriptions_max,
        lite_subscriptions_per_client=config.lite.subscriptions_per_client,
        checkpoint_ms=config.store.checkpoint_s * 1000,
        checkpoint_bytes=config.store.checkpoint_mib << 20,
    )


def _advertised(config: Config, port: int) -> tuple[str, int]:
    """Host and port told to clients that name none."""
    server = config.server
    if server.advertised:
        host, _, named = server.advertised.rpartition(":")
        if not host or not named.isdigit():
            raise ConfigError(f"server.advertised is HOST:PORT, not {server.advertised!r}")
        return host.strip("[]"), int(named)
    return greeting.reachable(server.host), port


def open_log(config: Config, clock: Clock) -> Log:
    """Open the log of the data directory.

    Raises:
        StoreLocked: Another process owns it.
        StoreError: A newer version wrote it.
    """
    store = config.store
    options = LogOptions(
        durability=parse_durability(store.durability),
        segment_bytes=store.segment_mib << 20,
        reserve_bytes=store.reserve_mib << 20,
        staged_bytes_max=store.staged_mib << 20,
        retention_ms=store.retention_hours * 3_600_000,
        retention_bytes=store.retention_mib << 20,
        scrub_bytes_s=store.scrub_mib_s << 20,
        reads_around_bad_sectors=store.read_around_bad_sectors,
    )
    return opening.open_log(config.data, options, clock)


def tune_interpreter() -> None:
    """What the interpreter's defaults cost a broker, per commit and per message."""
    # The writer's thread asks for the interpreter once per frame; the default of 5 ms, with a
    # loop that never rests, would make each commit wait so long.
    sys.setswitchinterval(SWITCH_S)
    # Messages stay for some seconds and are in no cycles. By default they are looked at every
    # 700, several times each: a tenth of what sending one costs.
    gc.set_threshold(GC_ALLOCATIONS)


async def serve(
    config: Config,
    *,
    announce: Announce | None = None,
    read_again: Callable[[], Config] | None = None,
    certificate: Beforehand | None = None,
) -> int:
    """Run a server until SIGTERM or SIGINT; returns the exit code.

    Args:
        config: All settings.
        announce: Takes each line for the user; stdout unless given.
        read_again: Reads the settings where they came from, at SIGHUP.
        certificate: Being made for this data directory, where it has none.
    """
    say = announce or _to_stdout
    _set_up_logging(config)
    tune_interpreter()
    open_files.raise_limit(config.limits.connections)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, stop.set)
    hangup = remember_hangup(loop, read_again)
    try:
        clock = SystemClock()
        log = open_log(config, clock)
        if certificate is not None:
            development_certificate(config.data, certificate)
        app = await start(config, log, clock)
    except (ConfigError, OSError, StoreError) as error:
        words = str(error)
        if isinstance(error, OSError) and error.filename:
            words = f"cannot use {error.filename}: {error.strerror}"
        sys.stderr.write(f"cosmodrome: {words}\n")
        return 2
    on_hangup(loop, app.context, read_again, stop, hangup)
    metrics = None if app.metrics is None else app.metrics.address
    for line in greeting.lines(config, app.context.front, app.front.address, metrics):
        say(line)
    if not gc.isenabled():
        # What was made so far stays for ever: no collection has to look at it again.
        gc.freeze()
        gc.enable()
    app.failure.add_done_callback(lambda _: stop.set())
    await stop.wait()
    if app.failure.done():
        _log.critical("storage failed, stopping: %s", app.failure.result())
        return 1
    say("draining")
    await app.stop()
    say("stopped")
    return 0


def _name_of(front: Front) -> str:
    return type(front).__name__.removesuffix("Front").lower()


def _set_up_logging(config: Config) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logs.formatter(config.server.log_format))
    logging.basicConfig(level=config.server.log_level.upper(), handlers=[handler])


def _to_stdout(line: str) -> None:
    # Whoever read the first lines may have gone; that is no reason to fail.
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
