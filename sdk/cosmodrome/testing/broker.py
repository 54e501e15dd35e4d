"""`TestBroker`: the shipped server in a thread of this process, with a clock and faults to hand.

test ──▶ TestBroker ──(its loop, its thread)──▶ app.start(config, log, clock)
│ advance   moves the virtual clock and does what became due
│ fault     stands in front of the handlers
│ restart   closes and opens the same directory on the same port
└ leftovers says what nobody consumed
"""

import asyncio
import contextlib
import shutil
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Self, TypeVar

from cosmodrome._core import clock
from cosmodrome.testing.clock import VirtualClock
from cosmodrome.testing.faults import Fault, Faults, FaultySink
from cosmodrome_server import app as server
from cosmodrome_server.clock import SystemClock
from cosmodrome_server.config import Config, load
from cosmodrome_server.model.group import ConsumeFrom, CustomizedBackoff, Group
from cosmodrome_server.model.topic import DEAD_LETTER_PREFIX, Topic, TopicType

Value = TypeVar("Value")
# How far one step of a virtual day goes: everything due on the way happens in its order.
STEP_MS = 1_000
# For how long advancing keeps clients waiting at a time.
TURN_S = 0.005
# The broker's precision: what is due is delivered when the tenth of a second is over.
SLOT_MS = 100


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What is left in a broker: (group, topic) → messages.

    Attributes:
        ready: Not delivered, or given back.
        in_flight: Delivered and not acknowledged.
        dead: Group → dead letters.
    """

    ready: dict[tuple[str, str], int]
    in_flight: dict[tuple[str, str], int]
    dead: dict[str, int]

    def __bool__(self) -> bool:
        return bool(self.ready or self.in_flight or self.dead)


class TestBroker:
    """A broker for one test, one module or one session.

    Args:
        virtual_time: Time stands still but for `advance`.
        auto_create: Topics and groups are created on first use.
        settings: `area.key` → value, as for `cosmodrome serve --set`.
        data: Where to keep messages; a temporary directory unless given.
    """

    __test__ = False  # pytest: not a test class, whatever its name

    def __init__(
        self,
        *,
        virtual_time: bool = False,
        auto_create: bool = True,
        settings: dict[str, str] | None = None,
        data: Path | None = None,
    ) -> None:
        self._scratch = None if data else Path(tempfile.mkdtemp(prefix="cosmodrome-test-"))
        own = {
            "server.port": "0",
            "server.data": str(data or self._scratch),
            "metrics.enabled": "false",
            "tls.mode": "off",
            # A test outlives no power cut; what is written survives `restart`.
            "store.durability": "os",
            "store.segment_mib": "8",
            # Tests wait for nothing as briefly as they ask to.
            "delivery.polling_min_ms": "1",
            "topics.auto_create": str(auto_create).lower(),
        }
        try:
            self._config = load(environment={}, overrides={**own, **(settings or {})})
        except BaseException:
            self._clean()
            raise
        self._clock: VirtualClock | None = VirtualClock() if virtual_time else None
        self._faults = Faults()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="test broker", daemon=True)
        self._app: server.App
        self._port = 0

    # Life.

    def start(self) -> Self:
        """Serve; returns when clients can connect."""
        self._thread.start()
        try:
            self._run(self._open())
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Stop, and remove the temporary directory."""
        clock.forget(self.endpoint)
        if self._thread.is_alive():
            with contextlib.suppress(Exception):
                self._run(self._app.stop())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(30)
        self._loop.close()
        self._clean()

    def _clean(self) -> None:
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    @property
    def is_running(self) -> bool:
        """Whether it was started and not closed."""
        return self._thread.is_alive()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def endpoint(self) -> str:
        """`host:port` for any client."""
        return f"127.0.0.1:{self._port}"

    # What it has.

    def create_topic(self, name: str, topic_type: str = "NORMAL", queues: int = 8) -> None:
        """Create a topic: NORMAL, FIFO, DELAY, TRANSACTION, MIXED, LITE or PRIORITY."""
        topic = Topic(name, TopicType(topic_type.upper()), queues)
        self._on_loop(lambda: self._app.broker.create_topic(topic))

    def create_group(
        self,
        name: str,
        *,
        fifo: bool = False,
        max_attempts: int = 17,
        backoff: tuple[timedelta, ...] = (),
        lite_bind_topic: str = "",
        consume_from: str = "first",
    ) -> None:
        """Create a consumer group; it begins at the first message there is, or at the "last"."""
        rests = tuple(rest // timedelta(milliseconds=1) for rest in backoff)
        group = Group(
            name,
            is_fifo=fifo,
            max_attempts=max_attempts,
            backoff=CustomizedBackoff(rests) if rests else CustomizedBackoff(),
            lite_bind_topic=lite_bind_topic,
            consume_from=ConsumeFrom(consume_from),
        )
        self._on_loop(lambda: self._app.broker.create_group(group))

    def leftovers(self) -> Leftovers:
        """What no group consumed."""
        return self._on_loop(self._left)

    def client_metrics(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """What clients pushed: (name, labels) → count of a distribution, value of a gauge.

        Needs `settings={"metrics.collector": "proxy"}`; clients push once a minute and on closing.
        """
        return self._on_loop(self._pushed)

    # Time.

    def advance(self, duration: timedelta) -> None:
        """Let time pass: delays come due, invisible durations end, retries happen.

        A tenth of a second more passes, the precision of the broker: what is due by then is there.
        Times that other clients than this SDK say are by the real clock.

        Raises:
            RuntimeError: The broker runs on real time.
        """
        if self._clock is None:
            raise RuntimeError("advance needs TestBroker(virtual_time=True)")
        # However long it takes: a day of thousands of messages is the test's own affair.
        self._run(self._advance(duration // timedelta(milliseconds=1)), timeout_s=None)

    # Trouble.

    @contextmanager
    def fault(self, rpc: str = "*", **options: Any) -> Iterator[Fault]:  # noqa: ANN401 - of Fault
        """Do something to calls for as long as the block lasts; see `Fault`.

        Example:
            with broker.fault("SendMessage", code="TOO_MANY_REQUESTS", times=2):
                producer.send(message)     # the third try succeeds
        """
        fault = Fault(rpc, **options)
        self._on_loop(lambda: self._faults.active.append(fault))
        try:
            yield fault
        finally:
            self._on_loop(lambda: self._faults.active.remove(fault))

    @contextmanager
    def recording(self) -> Iterator[list[str]]:
        """The names of the RPCs that clients call while the block lasts, in order.

        Example:
            with broker.recording() as calls:
                producer.send(message)
            assert calls.count("SendMessage") == 1
        """
        calls: list[str] = []
        self._on_loop(lambda: self._faults.recordings.append(calls))
        try:
            yield calls
        finally:
            self._on_loop(lambda: self._faults.recordings.remove(calls))

    def restart(self, *, crash: bool = False) -> None:
        """Stop and start on the same port and data; `crash` cuts clients off in their calls."""
        self._run(self._close_for_restart(crash=crash))
        self._run(self._open())

    def lose_settings(self) -> None:
        """Forget what clients said of themselves, as a proxy that was replaced."""

        def forget() -> None:
            sessions = self._app.context.sessions
            for session in list(sessions.known):
                sessions.end(session.client_id)

        self._on_loop(forget)

    # On its loop.

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _run(self, work: Coroutine[Any, Any, Value], timeout_s: float | None = 60) -> Value:
        if not self.is_running:
            work.close()
            raise RuntimeError("the test broker is not running: use it inside its `with` block")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def _on_loop(self, function: Callable[[], Value]) -> Value:
        async def call() -> Value:
            return function()

        return self._run(call())

    async def _open(self) -> None:
        time = self._clock or SystemClock()
        config = self._config if not self._port else _on_port(self._config, self._port)
        log = server.open_log(config, time)
        self._app = await server.start(config, log, time, around=self._faults.around)
        self._app.context.sink = FaultySink(self._app.front)
        self._port = self._app.front.address[1]
        if self._clock is not None:
            clock.register(self.endpoint, self._clock.now_ms)

    async def _close_for_restart(self, *, crash: bool) -> None:
        if crash:
            await self._app.front.drain(0)
        await self._app.stop()

    async def _advance(self, milliseconds: int) -> None:
        assert self._clock is not None
        milliseconds += SLOT_MS
        turn_ends_s = self._loop.time() + TURN_S
        while milliseconds > 0:
            step = min(STEP_MS, milliseconds)
            self._clock.advance(step)
            milliseconds -= step
            self._app.broker.wake()
            self._app.context.sessions.tick()
            await self._app.broker.drain()
            if self._loop.time() > turn_ends_s:
                await asyncio.sleep(0)  # clients are served meanwhile
                turn_ends_s = self._loop.time() + TURN_S

    def _pushed(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        snapshot = self._app.collector.snapshot()
        found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for name, values in snapshot.fleet_values.items():
            found.update({(name, frozenset(labels)): value for labels, value in values.items()})
        for name, histograms in snapshot.fleet_distributions.items():
            found.update(
                {(name, frozenset(labels)): sum(one.counts) for labels, one in histograms.items()}
            )
        return found

    def _left(self) -> Leftovers:
        broker = self._app.broker
        ready: dict[tuple[str, str], int] = {}
        in_flight: dict[tuple[str, str], int] = {}
        for group in broker.groups():
            for topic in broker.topics_of(group.name):
                lag = broker.accumulation(group.name, topic)
                if lag.ready:
                    ready[group.name, topic] = lag.ready
                if lag.inflight:
                    in_flight[group.name, topic] = lag.inflight
        dead = {
            topic.name.removeprefix(DEAD_LETTER_PREFIX): bounds.max_offset - bounds.min_offset
            for topic in broker.topics()
            if topic.name.startswith(DEAD_LETTER_PREFIX)
            and (bounds := broker.bounds(topic.name, 0)).max_offset > bounds.min_offset
        }
        return Leftovers(ready, in_flight, dead)


def _on_port(config: Config, port: int) -> Config:
    import msgspec  # noqa: PLC0415 - of the server's packages

    return msgspec.structs.replace(config, server=msgspec.structs.replace(config.server, port=port))
