"""What every client does: start, routes, sessions, heartbeats, stop.

    start   route of every topic (max_startup_attempts) ─▶ a session with every broker ─▶
            settings of at least one ─▶ background jobs ─▶ running
    jobs    heartbeat 10 s (first 1 s) · routes 30 s (first 10 s) · settings 5 min
    stop    the client's own part ─▶ NotifyClientTermination ─▶ tasks ─▶ channels

A dead broker does not keep a client from starting while another one answers; a failed start
leaves no task and no channel behind.
"""

import asyncio
import itertools
import logging
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from enum import Enum
from typing import Self

from cosmodrome._client import channels, diagnostics
from cosmodrome._client.exporter import Exporter
from cosmodrome._client.meters import Meters
from cosmodrome._client.rpc import Rpc
from cosmodrome._client.session import Command, Session
from cosmodrome._client.tasks import Tasks, completed, end, first_success
from cosmodrome._client.threads import IS_IN_THREAD
from cosmodrome._core import endpoints as endpoint_text
from cosmodrome._core.endpoints import Endpoints
from cosmodrome._core.isolation import Isolation
from cosmodrome._core.route import Route, route_of
from cosmodrome.config import ClientConfiguration
from cosmodrome.errors import (
    ConnectionFailed,
    CosmodromeError,
    DeadlineExceeded,
    NotRunning,
    TransportError,
)
from cosmodrome.interceptors import Interceptor, Interceptors
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc

_log = logging.getLogger("cosmodrome")
HEARTBEAT_S, HEARTBEAT_FIRST_S = 10.0, 1.0
ROUTE_S, ROUTE_FIRST_S = 30.0, 10.0
FIRST_ROUTE_TRIES = 3
RESYNC_S = 300.0
SETTLE_S = 3.0
# Two heartbeats without an answer: the connection is half open, dial again.
DEAD_HEARTBEATS = 2
_counter = itertools.count(1)
Job = Callable[[], Awaitable[None]]
_BASE36 = "0123456789abcdefghijklmnopqrstuvwxyz"


class State(Enum):
    """Where in its life a client is."""

    CREATED = "created"
    STARTING = "starting"
    RUNNING = "running"
    CLOSING = "closing"
    CLOSED = "closed"


def new_client_id() -> str:
    """`host@pid@index@base36(nanoseconds)`, as the official clients write it."""
    number, digits = time.time_ns(), ""
    while number:
        number, digit = divmod(number, 36)
        digits = _BASE36[digit] + digits
    # Names of people's machines need not be ASCII; headers are.
    host = socket.gethostname().encode("ascii", "replace").decode()
    return f"{host}@{os.getpid()}@{next(_counter)}@{digits}"


class Client(ABC):
    """Base of producers and consumers."""

    def __init__(
        self,
        configuration: ClientConfiguration | str,
        *,
        interceptors: Iterable[Interceptor] = (),
        by_latency: bool = False,
    ) -> None:
        self._configuration = ClientConfiguration.of(configuration)
        self._client_id = new_client_id()
        self._pid = os.getpid()
        self._state = State.CREATED
        self._access_point = endpoint_text.parse(self._configuration.endpoints)
        self._interceptors = Interceptors(interceptors)
        self._isolation = Isolation(by_latency=by_latency)
        self._routes: dict[str, Route] = {}
        self._route_locks: dict[str, asyncio.Lock] = {}
        self._sessions: dict[Endpoints, Session] = {}
        self._session_tasks: dict[Endpoints, asyncio.Task[None]] = {}
        self._missed: dict[Endpoints, int] = {}
        self._is_over = asyncio.Event()
        self._rpc: Rpc
        self._loop: asyncio.AbstractEventLoop
        self._tasks: Tasks
        self._exporter: Exporter
        self._meters = Meters(self._client_id, self._metered_group(), self._gauges)

    def __repr__(self) -> str:
        what = f"{type(self).__name__} {self._client_id}"
        return f"<{what} at {self._access_point}, {self._state.value}>"

    @property
    def client_id(self) -> str:
        """The id brokers know this client by."""
        return self._client_id

    @property
    def is_running(self) -> bool:
        """Whether it was started and not closed."""
        return self._state is State.RUNNING

    def measure(self) -> Meters:
        """Measure the six client metrics from now on; `cosmodrome.prometheus` shows them."""
        self._meters.turn_on()
        return self._meters

    async def start(self) -> Self:
        """Connect; returns when the broker has answered the client's settings.

        Raises:
            NotRunning: It was started before.
            CosmodromeError: Why the start failed; nothing of it is left behind.
        """
        if self._state is not State.CREATED:
            raise NotRunning(f"the client was started before; it is {self._state.value}")
        channels.check_fork()
        self._state = State.STARTING
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        self._rpc = Rpc(self._configuration, self._client_id, self._lost_settings)
        self._exporter = Exporter(self._meters, self._rpc.headers, self._configuration.tls)
        try:
            await self._connect()
            await self._on_started()
            if self._state is not State.STARTING:
                raise NotRunning("the client was closed while it started")
        except BaseException:
            await completed(self._release(asyncio.current_task()))
            raise
        self._state = State.RUNNING
        return self

    async def close(self) -> None:
        """Stop; again is fine, and returns when it is closed, whoever closes it.

        Bounded by the request timeout beyond the client's own part. In the forked child of the
        process that made it there is nothing to stop.
        """
        if self._pid != os.getpid() or self._state is State.CREATED:
            self._state = State.CLOSED
            return
        if self._is_over.is_set():
            return
        if self._loop.is_closed():
            # It ended with its loop: every task was cancelled there.
            self._state = State.CLOSED
            return
        if self._state in (State.CLOSING, State.CLOSED):
            # A task or a listener of the client's own would wait for itself.
            if asyncio.current_task() not in self._tasks and not IS_IN_THREAD.get():
                await self._is_over.wait()
            return
        if self._state is State.STARTING:
            await completed(self._release(asyncio.current_task()))
            return
        self._state = State.CLOSING
        try:
            await self._on_closing()
            await self._exporter.export()
        finally:
            await completed(self._release(asyncio.current_task()))

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # What each kind of client says and does.

    @abstractmethod
    def _settings(self) -> pb.Settings:
        """What the client says of itself now."""

    @abstractmethod
    def _take_settings(self, settings: pb.Settings) -> None:
        """What the broker says."""

    @abstractmethod
    def _startup_topics(self) -> list[str]:
        """Topics whose routes the start needs."""

    def _gauges(self) -> Iterable[tuple[str, str, float]]:
        """Metrics of what it holds now: (name, topic, value)."""
        return ()

    def _metered_group(self) -> str:
        """The group its metrics are labelled with; none for producers."""
        return ""

    def _heartbeat_request(self) -> rpc.HeartbeatRequest:
        return rpc.HeartbeatRequest(client_type=self._settings().client_type)

    def _termination_request(self) -> rpc.NotifyClientTerminationRequest:
        return rpc.NotifyClientTerminationRequest()

    @abstractmethod
    async def _on_started(self) -> None:
        """Start what is the client's own."""

    @abstractmethod
    async def _on_closing(self) -> None:
        """End what is the client's own, while calls still work."""

    async def _on_command(self, command: Command, session: Session) -> None:
        """Answer what the broker asks; consumers and producers know more commands."""
        kind = command.WhichOneof("command")
        if kind == "print_thread_stack_trace_command":
            nonce = command.print_thread_stack_trace_command.nonce
            trace = rpc.ThreadStackTrace(nonce=nonce, thread_stack_trace=diagnostics.stacks())
            await session.send(Command(status=pb.Status(code=pb.OK), thread_stack_trace=trace))
        elif kind == "reconnect_endpoints_command":
            session.reopen()
        elif kind == "verify_message_command":
            result = rpc.VerifyMessageResult(nonce=command.verify_message_command.nonce)
            refused = pb.Status(code=pb.NOT_IMPLEMENTED, message="this client has no listener")
            await session.send(Command(status=refused, verify_message_result=result))

    # Routes.

    def _check_running(self) -> None:
        if self._state is State.RUNNING and self._pid == os.getpid():
            try:
                is_elsewhere = asyncio.get_running_loop() is not self._loop
            except RuntimeError:
                return  # what needs a loop says so itself
            if is_elsewhere:
                raise NotRunning(
                    "the client was started on another event loop: use it there, make one for this"
                    " loop, or take its twin of cosmodrome.sync, which any thread may use"
                )
            return
        if self._pid != os.getpid():
            raise NotRunning("the client was made in a parent process; make one after the fork")
        state = "not started yet" if self._state is State.CREATED else self._state.value
        raise NotRunning(f"the client is {state}: use it inside a `with` block")

    async def _route(self, topic: str, *, fresh: bool = False) -> Route:
        """The route of a topic, asked for once however many want it.

        Raises:
            CosmodromeError: The broker does not say, or cannot be reached.
        """
        known = self._routes.get(topic)
        if known is not None and not fresh:
            return known
        async with self._route_locks.setdefault(topic, asyncio.Lock()):
            known_now = self._routes.get(topic)
            if known_now is not None and known_now is not known:
                return known_now  # somebody else asked meanwhile
            if known is not None:
                return await self._fetch_route(topic)
            return await self._first_route(topic)

    async def _first_route(self, topic: str) -> Route:
        """Ask for a route that nobody has yet: worth waiting for a broker that is just starting."""
        for _ in range(FIRST_ROUTE_TRIES):
            try:
                return await self._fetch_route(topic, is_patient=True)
            except ConnectionFailed:
                continue  # a channel that missed heartbeats is made anew, under who waits for it
            except DeadlineExceeded:
                break
        # It waited in vain. A call that does not wait says why.
        return await self._fetch_route(topic)

    async def _fetch_route(self, topic: str, *, is_patient: bool = False) -> Route:
        request = rpc.QueryRouteRequest(
            topic=self._resource(topic), endpoints=self._access_point.to_wire()
        )
        answer = await self._rpc.call(
            self._access_point, "QueryRoute", request, is_patient=is_patient
        )
        route = route_of(topic, answer.check().message_queues)
        self._routes[topic] = route
        return route

    def _resource(self, name: str) -> pb.Resource:
        return pb.Resource(resource_namespace=self._configuration.namespace, name=name)

    # Sessions.

    async def _connect(self) -> None:
        wanted: dict[Endpoints, None] = {}
        for topic in self._startup_topics():
            for endpoints in (await self._startup_route(topic)).endpoints:
                wanted[endpoints] = None
        await self._open_sessions(wanted or {self._access_point: None})
        self._tasks.spawn(self._every(HEARTBEAT_FIRST_S, HEARTBEAT_S, self._beat), "heartbeat")
        self._tasks.spawn(self._every(ROUTE_FIRST_S, ROUTE_S, self._refresh), "routes")
        self._tasks.spawn(self._every(RESYNC_S, RESYNC_S, self._sync), "settings")
        self._tasks.spawn(self._exporter.run(), "metrics")

    async def _startup_route(self, topic: str) -> Route:
        attempts = self._configuration.max_startup_attempts
        for attempt in range(1, attempts + 1):
            try:
                return await self._route(topic)
            except CosmodromeError as error:
                if attempt == attempts or not error.is_retryable:
                    raise
        raise AssertionError("the loop returns or raises")

    async def _open_sessions(self, wanted: Iterable[Endpoints]) -> None:
        """Have a session with each; returns when one of the new ones is settled.

        Raises:
            CosmodromeError: Why none is, after `SETTLE_S` and a request timeout.
        """
        made = [self._open_session(e) for e in wanted if e not in self._sessions]
        if not made:
            return
        timeout_s = SETTLE_S + self._configuration.request_timeout_s
        await first_success((session.settled() for session in made), timeout_s)
        if not any(session.is_settled for session in self._sessions.values()):
            failures = [session.failure for session in made if session.failure is not None]
            if failures:
                raise failures[0]
            raise DeadlineExceeded(
                f"no settings from {made[0].endpoints} in {timeout_s} s",
                endpoint=str(made[0].endpoints),
            )

    def _open_session(self, endpoints: Endpoints) -> Session:
        session = Session(
            self._rpc,
            endpoints,
            settings=self._settings,
            on_settings=self._settled,
            on_command=self._on_command,
        )
        self._sessions[endpoints] = session
        task = self._tasks.spawn(session.run(), f"session {endpoints}")
        if task is not None:
            self._session_tasks[endpoints] = task
        return session

    def _settled(self, settings: pb.Settings) -> None:
        self._exporter.take_settings(settings.metric if settings.HasField("metric") else None)
        self._take_settings(settings)

    async def _close_session(self, endpoints: Endpoints) -> None:
        """Of a broker that no route names any more."""
        del self._sessions[endpoints]
        self._missed.pop(endpoints, None)
        self._isolation.forget(endpoints)
        task = self._session_tasks.pop(endpoints, None)
        if task is not None:
            await end([task])
        await self._rpc.forget(endpoints)

    def _lost_settings(self, endpoints: Endpoints) -> None:
        """A broker does not know this client (it was replaced, say): tell it again at once."""
        session = self._sessions.get(endpoints)
        if session is not None:
            self._tasks.spawn(session.sync(), f"settings to {endpoints}")

    async def _sync(self) -> None:
        for session in list(self._sessions.values()):
            await session.sync()

    # Background jobs.

    async def _every(
        self, first_s: float, period_s: float, job: Callable[[], Awaitable[None]]
    ) -> None:
        await asyncio.sleep(first_s)
        while True:
            try:
                await job()
            except CosmodromeError as error:
                _log.info("%s: %s", self._client_id, error)
            except Exception:  # of a user's offset store, say: the next time may be better
                _log.exception("a job of %s failed", self._client_id)
            await asyncio.sleep(period_s)

    async def _beat(self) -> None:
        await asyncio.gather(*(self._beat_one(endpoints) for endpoints in list(self._sessions)))

    async def _beat_one(self, endpoints: Endpoints) -> None:
        try:
            answer = await self._rpc.call(endpoints, "Heartbeat", self._heartbeat_request())
            answer.check()
        except TransportError as error:
            await self._missed_beat(endpoints, error)
            return
        except CosmodromeError as error:
            _log.info("heartbeat to %s: %s", endpoints, error)
        self._missed.pop(endpoints, None)
        self._isolation.alive(endpoints)

    async def _missed_beat(self, endpoints: Endpoints, error: TransportError) -> None:
        missed = self._missed[endpoints] = self._missed.get(endpoints, 0) + 1
        _log.info("heartbeat %d missed by %s: %s", missed, endpoints, error)
        if missed >= DEAD_HEARTBEATS:
            self._missed[endpoints] = 0
            await self._rpc.forget(endpoints)
            session = self._sessions.get(endpoints)
            if session is not None:
                session.reopen()

    async def _refresh(self) -> None:
        for topic in list(self._routes):
            try:
                route = await self._fetch_route(topic)
            except CosmodromeError as error:
                _log.info("route of %s stays as it was: %s", topic, error)
                continue
            for endpoints in route.endpoints:
                if endpoints not in self._sessions:
                    self._open_session(endpoints)
        named = {endpoints for route in self._routes.values() for endpoints in route.endpoints}
        if named:
            for endpoints in [one for one in self._sessions if one not in named]:
                await self._close_session(endpoints)

    # Stopping.

    async def _say_goodbye(self) -> None:
        """Whatever ended the client: a broker takes back what it holds only when it hears so."""
        settled = [where for where, session in self._sessions.items() if session.is_settled]
        self._sessions.clear()
        await asyncio.gather(*(self._say_goodbye_to(endpoints) for endpoints in settled))

    async def _say_goodbye_to(self, endpoints: Endpoints) -> None:
        try:
            request = self._termination_request()
            await self._rpc.call(endpoints, "NotifyClientTermination", request)
        except CosmodromeError as error:
            _log.debug("goodbye to %s: %s", endpoints, error)

    async def _release(self, caller: "asyncio.Task[object] | None") -> None:
        """Leave nothing behind; a task of ours may be the one that closes."""
        self._state = State.CLOSED
        try:
            await self._tasks.close(caller)
            await self._say_goodbye()
            # An ended task keeps the stack that cancelled it, and with it its stream and channel.
            self._session_tasks.clear()
            await self._rpc.close()
        finally:
            self._is_over.set()
