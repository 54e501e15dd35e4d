"""The front on the gate: HTTP/2 and TLS in native threads, calls and replies in batches.

    gate threads ──eventfd──▶ one turn: take all calls ─▶ handlers ─▶ one hand-over of replies
                 ◀──────────── reply_many, from the writer thread, a commit at once

A turn costs one wake-up however many calls it holds, and no task, future or context per
call. A reply given outside a turn leaves with all others of that pass of the loop.
"""

import asyncio
import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import cosmodrome_gate as gate

from cosmodrome_server import open_files
from cosmodrome_server.config import Config
from cosmodrome_server.proxy.front import GrpcStatus, Handler, Kind, Route
from cosmodrome_server.proxy.fronts.event_loop import EventLoop
from cosmodrome_server.proxy.tls import Certificates

_log = logging.getLogger(__name__)

# Calls handled before the loop looks at anything else: some 5 ms.
_TURN_EVENTS = 512
_WATCH_S = 1.0
# Beyond the grace of a drain: the gate cuts connections off then, and that takes a moment.
_CLOSING_S = 2.0
_KINDS = {Kind.UNARY: gate.UNARY, Kind.SERVER_STREAM: gate.SERVER_STREAM, Kind.BIDI: gate.BIDI}
_INTERNAL = "internal error; the server's log says more"

_Reply: TypeAlias = (
    tuple[int, bytes]
    | tuple[int, list[bytes]]
    | tuple[int, list[bytes], object]
    | tuple[int, int, str]
)


class GateFront:
    """A `Front` over the native gate."""

    def __init__(
        self, routes: Iterable[Route], config: Config, certificates: Certificates | None
    ) -> None:
        self._routes = list(routes)
        self._config = config
        self._certificates = certificates
        self._generation = certificates.generation if certificates is not None else 0
        self._address = (config.server.host, config.server.port)
        self._handlers: list[Handler] = [route.handler for route in self._routes]
        # Calls that must hear of their end: streams, and those with `on_cancel`.
        self._listening: dict[int, _GateCall] = {}
        self._replies: list[_Reply] = []
        self._is_in_turn = False
        self._server: gate.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._drained: asyncio.Event = asyncio.Event()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port it listens on."""
        return self._address

    def statistics(self) -> dict[str, int]:
        """The gate's counters; empty before `start`."""
        return self._server.statistics() if self._server is not None else {}

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: The address is taken.
        """
        self._loop = asyncio.get_running_loop()
        try:
            self._server = self._listen()
        except OSError as error:
            raise OSError(
                f"cannot listen on {error}; "
                "choose another server.port, server.host or server.unix_socket"
            ) from error
        self._address = (self._address[0], self._server.addresses[0][1])
        self._loop.add_reader(self._server.fileno(), self._turn)
        if isinstance(self._loop, EventLoop):
            self._loop.linger_by(self._server.linger)
        self._watch = self._loop.call_later(_WATCH_S, self._look_around)

    def _listen(self) -> gate.Server:
        config, tls = self._config, self._config.tls
        files = self._certificates.current() if self._certificates is not None else None
        return gate.Server(
            [(route.path, _KINDS[route.kind]) for route in self._routes],
            tcp=[self._address],
            unix=[config.server.unix_socket] if config.server.unix_socket else [],
            tls=tls.mode,
            certificate=files.chain if files else b"",
            key=files.key if files else b"",
            client_ca=files.client_ca if files else b"",
            client_certificate=tls.client_certificate,
            limits={
                "connections": open_files.connections(config.limits.connections, 1),
                "streams_per_connection": config.limits.streams_per_connection,
                "header_bytes": config.limits.metadata_bytes,
                "message_bytes": config.limits.request_mib << 20,
                "inbound_bytes": max(512, 4 * config.limits.request_mib) << 20,
                "inbound_bytes_per_connection": max(384, 3 * config.limits.request_mib) << 20,
                "handshake_ms": config.limits.handshake_s * 1000,
                "busy_poll_us": config.server.busy_poll_us,
            },
        )

    def _turn(self, most: int = _TURN_EVENTS) -> None:
        """Handle what waits, and hand over the replies it brought."""
        assert self._server is not None
        self._is_in_turn = True
        try:
            for kind, number, detail, message, with_it in self._server.take(most):
                if kind == gate.CALL:
                    self._handle(_GateCall(self, number, message, with_it), detail)
                else:
                    self._stream_event(kind, number, detail, message, with_it)
        finally:
            self._is_in_turn = False
            if self._replies:
                self._flush()

    def _handle(self, call: "_GateCall", method: int) -> None:
        """A handler's bug ends its call, not the turn."""
        try:
            self._handlers[method](call)
        except Exception:
            _log.exception("a handler failed path=%s", self._routes[method].path)
            call.finish(GrpcStatus.INTERNAL, _INTERNAL)

    def _stream_event(
        self,
        kind: int,
        number: int,
        detail: int,
        message: bytes,
        with_it: Any,  # noqa: ANN401 - as the gate gives it
    ) -> None:
        if kind == gate.OPEN:
            call = self._listening[number] = _GateCall(self, number, b"", with_it)
            self._handle(call, detail)
        elif kind == gate.DRAINED:
            self._drained.set()
        elif kind == gate.CANCEL:
            # A call that was answered is the token of its reply: that was not delivered.
            ended = with_it or self._listening.pop(number, None)
            if ended is not None:
                ended.gone()
        elif (stream := self._listening.get(number)) is not None:
            stream.arrived(message if kind == gate.MESSAGE else None)

    def listen_for_end(self, call: "_GateCall") -> None:
        """Keep a call until it is answered or gone."""
        self._listening[call.number] = call

    def answer(self, call: "_GateCall", reply: _Reply) -> None:
        """Send the last of a call: now in a turn, else with the next pass of the loop."""
        self._listening.pop(call.number, None)
        if not self._replies and not self._is_in_turn:
            assert self._loop is not None, "no reply before start"
            self._loop.call_soon(self._flush)
        self._replies.append(reply)

    def send(self, request: gate.Request, message: bytes) -> bool:
        """Send one message of a stream that goes on."""
        assert self._server is not None
        return self._server.send(request, message)

    def _flush(self) -> None:
        replies, self._replies = self._replies, []
        self._hand_over(replies)

    def _hand_over(self, replies: list[_Reply]) -> None:
        assert self._server is not None, "no reply before start"
        try:
            self._server.reply(replies)
        except (TypeError, ValueError, OverflowError):
            # None was sent. One handler's mistake must not cost the others theirs.
            for reply in replies:
                try:
                    self._server.reply([reply])
                except (TypeError, ValueError, OverflowError):
                    _log.exception("a reply that cannot be sent")
                    self._server.reply([(reply[0], GrpcStatus.INTERNAL, _INTERNAL)])

    def reply_many(self, replies: list[tuple[object, bytes]]) -> None:
        """End unary calls with their replies; callable from any thread."""
        outgoing: list[_Reply] = []
        listening = self._listening
        for call, message in replies:
            assert isinstance(call, _GateCall)
            if listening:
                listening.pop(call.number, None)
            outgoing.append((call.number, message))
        self._hand_over(outgoing)

    def _look_around(self) -> None:
        """Once a second: pass on notes, and a certificate that changed."""
        assert self._loop is not None
        assert self._server is not None
        for note in self._server.notes():
            _log.warning("gate: %s", note)
        certificates = self._certificates
        if certificates is not None and certificates.generation != self._generation:
            self._generation = certificates.generation
            files = certificates.current()
            try:
                self._server.reload_certificates(
                    files.chain, files.key, files.client_ca, self._config.tls.client_certificate
                )
            except ValueError as error:
                _log.error("certificate not reloaded: %s", error)
        self._watch = self._loop.call_later(_WATCH_S, self._look_around)

    async def drain(self, grace_s: float) -> None:
        """Take no new calls, let those under way finish, close."""
        if self._server is None:
            return
        assert self._loop is not None
        self._server.drain(int(grace_s * 1000))
        try:
            async with asyncio.timeout(grace_s + _CLOSING_S):
                await self._drained.wait()
        except TimeoutError:
            _log.warning("connections were still open after %s s", grace_s)
        if self._watch is not None:
            self._watch.cancel()
        self._loop.remove_reader(self._server.fileno())
        if isinstance(self._loop, EventLoop):
            self._loop.linger_by(None)
        await self._loop.run_in_executor(None, self._server.close)
        # What was cut off: who waits for the end of a call hears of it.
        self._turn(sys.maxsize)


class _GateCall:
    """A `Call` of the gate."""

    __slots__ = (
        "_front",
        "_on_cancel",
        "_on_message",
        "headers",
        "is_answered",
        "number",
        "payload",
    )

    def __init__(
        self, front: GateFront, number: int, payload: bytes, request: gate.Request
    ) -> None:
        self._front = front
        self.number = number
        self.payload = payload
        self.headers = request
        self.is_answered = False
        self._on_cancel: Callable[[], None] | None = None
        self._on_message: Callable[[bytes | None], None] | None = None

    @property
    def peer(self) -> str:
        """The client's `ip:port`, or `unix:`."""
        return self.headers.peer

    @property
    def deadline_ms(self) -> int | None:
        """What was left of the deadline when the call arrived."""
        return self.headers.deadline_ms

    @property
    def is_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.headers.is_tls

    @property
    def peer_subject(self) -> str:
        """The common name of the client certificate, "" for none."""
        certificate = self.headers.peer_certificate
        return _common_name(certificate) if certificate else ""

    def reply(self, message: bytes) -> None:
        """End with one message."""
        self._answer((self.number, message))

    def reply_stream(self, messages: Sequence[bytes]) -> None:
        """End with these messages."""
        if self._on_cancel is None:
            self._answer((self.number, list(messages)))
        else:
            self._answer((self.number, list(messages), self))

    def finish(self, status: GrpcStatus = GrpcStatus.OK, message: str = "") -> None:
        """End without a message."""
        self._answer((self.number, int(status), message))

    def _answer(self, reply: _Reply) -> None:
        if not self.is_answered:
            self.is_answered = True
            self._front.answer(self, reply)

    def send(self, message: bytes) -> bool:
        """Send one message; False when gone, ended, or the client is too slow."""
        return not self.is_answered and self._front.send(self.headers, message)

    def on_cancel(self, callback: Callable[[], None] | None) -> None:
        """The last callback given is called when the client goes away without its answer."""
        self._on_cancel = callback
        if not self.is_answered:
            self._front.listen_for_end(self)

    def on_message(self, callback: Callable[[bytes | None], None]) -> None:
        """Take each message as it arrives."""
        self._on_message = callback

    def arrived(self, message: bytes | None) -> None:
        """Pass a message on; a handler's bug ends this stream, not the server."""
        if self._on_message is None or self.is_answered:
            return
        try:
            self._on_message(message)
        except Exception:
            _log.exception("a stream's handler failed")
            self.finish(GrpcStatus.INTERNAL, _INTERNAL)

    def gone(self) -> None:
        """The client went away."""
        self.is_answered = True
        callback, self._on_cancel = self._on_cancel, None
        if callback is not None:
            try:
                callback()
            except Exception:
                _log.exception("what to do for a client that went away failed")


@lru_cache(maxsize=1024)
def _common_name(certificate: bytes) -> str:
    from cryptography import x509  # noqa: PLC0415 - 60 ms that only mutual TLS pays

    names = x509.load_der_x509_certificate(certificate).subject.get_attributes_for_oid(
        x509.NameOID.COMMON_NAME
    )
    return str(names[0].value) if names else ""
