"""The front on grpcio: always there, on every platform; TLS on the same port by the splitter.

    client ─▶ splitter (tls = auto) ─▶ plaintext listener on loopback ┐
                                    └▶ TLS listener on loopback       ┴▶ one grpc.aio server
    client ─▶ grpc.aio server directly (tls = off or required)

grpc.aio makes a task for each call; that is its price. Handlers are plain functions all
the same, so a call that is answered at once never waits on a future.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import grpc
import grpc.aio

from cosmodrome_server.config import Config, ConfigError
from cosmodrome_server.proxy.front import GrpcStatus, Handler, Kind, Route
from cosmodrome_server.proxy.fronts import unix_socket
from cosmodrome_server.proxy.fronts.splitter import Splitter
from cosmodrome_server.proxy.tls import Certificates

_log = logging.getLogger(__name__)

_CODES = {code.value[0]: code for code in grpc.StatusCode}
# What a stream may have waiting to be written; then the client is too slow.
_STREAM_BUFFER_MESSAGES = 1024
_END = object()
_GRPC_LOG = "grpc._cython.cygrpc"
_INTERNAL = "internal error; the server's log says more"
# What grpc logs, with a traceback, of a client that went away while grpc itself wrote to it: a
# unary reply, or the status of a call. Which of the two depends on when it hears of it.
_GONE = (grpc.aio.InternalError, asyncio.CancelledError)


class GrpcioFront:
    """A `Front` over grpc.aio.

    Raises:
        ConfigError: Client certificates are to be optional, which grpcio cannot do.
    """

    def __init__(
        self, routes: Iterable[Route], config: Config, certificates: Certificates | None
    ) -> None:
        _refuse_optional(config)
        self._routes = {route.path: route for route in routes}
        self._config = config
        self._certificates = certificates
        self._address = (config.server.host, config.server.port)
        self._splitter: Splitter | None = None
        self._server: grpc.aio.Server | None = None
        self._waiting: set[_GrpcioCall] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port it listens on."""
        return self._address

    def statistics(self) -> dict[str, int]:
        """Nothing: grpcio does not say."""
        return {}

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: The address is taken.
        """
        self._loop = asyncio.get_running_loop()
        logging.getLogger(_GRPC_LOG).addFilter(_is_news)
        self._server = grpc.aio.server(options=_options(self._config))
        handlers = _Handlers(self._routes, self._peer_of, self._waiting)
        self._server.add_generic_rpc_handlers((handlers,))
        try:
            await self._open(self._server)
        except OSError:
            await self._server.stop(None)
            raise

    async def _open(self, server: grpc.aio.Server) -> None:
        if self._config.server.unix_socket:
            self._listen_unix(self._config.server.unix_socket)
        mode = self._config.tls.mode
        host, port = self._address
        if mode == "auto":
            plain = self._listen("127.0.0.1", 0, tls=False)
            tls = self._listen("127.0.0.1", 0, tls=True)
            await server.start()
            self._splitter = Splitter(plain_port=plain, tls_port=tls, limits=self._config.limits)
            self._address = (host, await self._splitter.start(host, port))
        else:
            self._address = (host, self._listen(host, port, tls=mode == "required"))
            await server.start()

    def _listen(self, host: str, port: int, *, tls: bool) -> int:
        assert self._server is not None
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if not tls:
                return self._server.add_insecure_port(where)
            assert self._certificates is not None, "tls needs certificates"
            return self._server.add_secure_port(where, _credentials(self._certificates))
        except RuntimeError as error:
            raise OSError(
                f"cannot listen on {where}: is another server there? "
                "choose another server.port or server.host"
            ) from error

    def _listen_unix(self, path: str) -> None:
        assert self._server is not None
        try:
            if unix_socket.is_taken(path):  # grpc would take its place
                raise OSError("another server is there")
            self._server.add_insecure_port(f"unix:{path}")
        except (OSError, RuntimeError) as error:
            raise OSError(
                f"cannot listen on {path}: {error}; choose another server.unix_socket"
            ) from error

    def _peer_of(self, address: str) -> str:
        """The client's own address, also when it came through the splitter."""
        if self._splitter is None:
            return address
        return self._splitter.peer_of(address)

    def reply_many(self, replies: list[tuple[object, bytes]]) -> None:
        """End unary calls with their replies; callable from any thread."""
        assert self._loop is not None, "no reply before start"
        self._loop.call_soon_threadsafe(_answer_all, replies)

    async def drain(self, grace_s: float) -> None:
        """Take no new calls, let those under way finish, close."""
        if self._splitter is not None:
            self._splitter.stop_accepting()
        if self._server is not None:
            await self._server.stop(grace_s)
        # grpc has cancelled their tasks, which run some turns of the loop later: what follows a
        # drain must find them gone.
        for call in list(self._waiting):
            call.gone()
        if self._splitter is not None:
            self._splitter.close()


def _answer_all(replies: list[tuple[object, bytes]]) -> None:
    for call, message in replies:
        assert isinstance(call, _GrpcioCall)
        call.reply(message)


def _options(config: Config) -> list[tuple[str, int]]:
    limits = config.limits
    return [
        ("grpc.max_receive_message_length", limits.request_mib << 20),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", limits.metadata_bytes),
        ("grpc.absolute_max_metadata_size", limits.metadata_bytes),
        ("grpc.max_concurrent_streams", limits.streams_per_connection),
        ("grpc.server_handshake_timeout_ms", limits.handshake_s * 1000),
        # C++ clients ping every 60 s, Java every 300 s, without a call; the reference's
        # GOAWAY for it is one of its defects.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.so_reuseport", 0),
    ]


def _refuse_optional(config: Config) -> None:
    """Refuse what would silently be `none`: grpcio asks for a certificate only to require it."""
    tls = config.tls
    if tls.mode != "off" and tls.client_certificate == "optional":
        raise ConfigError(
            "tls.client_certificate is optional, but the grpcio front can only require client "
            "certificates or not ask for them: set it to required or none, or take the gate "
            "(server.front = gate)"
        )


def _credentials(certificates: Certificates) -> grpc.ServerCredentials:
    """Credentials that follow the certificate files when they change."""

    def configuration() -> grpc.ServerCertificateConfiguration:
        pair = certificates.current()
        return grpc.ssl_server_certificate_configuration(
            [(pair.key, pair.chain)], root_certificates=pair.client_ca or None
        )

    generation = certificates.generation

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        nonlocal generation
        if certificates.generation == generation:
            return None  # keep what is there
        generation = certificates.generation
        return configuration()

    return grpc.dynamic_ssl_server_credentials(
        configuration(),
        fetch,  # type: ignore[arg-type] # None means "as before"; the stubs do not know
        require_client_authentication=certificates.requires_client,
    )


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[type-arg] # generic in the stubs alone
    """Finds the route of a path; `…/*` takes what its service does not know."""

    def __init__(
        self,
        routes: Mapping[str, Route],
        peer_of: Callable[[str], str],
        waiting: "set[_GrpcioCall]",
    ) -> None:
        self._peer_of = peer_of
        self._waiting = waiting
        self._made = {path: self._adapt(route) for path, route in routes.items()}

    def service(self, handler_call_details: Any) -> "grpc.RpcMethodHandler[Any, Any] | None":  # noqa: ANN401 - grpc's
        path: str = handler_call_details.method
        found = self._made.get(path)
        return found if found is not None else self._made.get(path.rpartition("/")[0] + "/*")

    def _adapt(self, route: Route) -> "grpc.RpcMethodHandler[Any, Any]":
        if route.kind is Kind.UNARY:
            return grpc.unary_unary_rpc_method_handler(self._unary(route.handler))
        if route.kind is Kind.SERVER_STREAM:
            return grpc.unary_stream_rpc_method_handler(self._server_stream(route.handler))
        return grpc.stream_stream_rpc_method_handler(self._bidi(route.handler))

    def _unary(self, handler: Handler) -> Callable[..., Any]:
        async def serve(request: bytes, context: Any) -> bytes:  # noqa: ANN401 - grpc's
            call = _GrpcioCall(request, context, self._peer_of)
            _guarded(call, handler)
            if not call.is_answered:
                with _among(self._waiting, call):
                    await call.answered()
            if call.status is not GrpcStatus.OK:
                await context.abort(_CODES[call.status], call.details)
            return call.messages[0] if call.messages else b""

        return serve

    def _server_stream(self, handler: Handler) -> Callable[..., Any]:
        async def serve(request: bytes, context: Any) -> None:  # noqa: ANN401 - grpc's
            call = _GrpcioCall(request, context, self._peer_of)
            _guarded(call, handler)
            with _among(self._waiting, call):
                await call.answered()
                try:
                    for message in call.messages:
                        await _send(context, message)
                except BaseException:
                    call.gone()
                    raise
            if call.status is not GrpcStatus.OK:
                await context.abort(_CODES[call.status], call.details)

        return serve

    def _bidi(self, handler: Handler) -> Callable[..., Any]:
        async def serve(requests: AsyncIterator[bytes], context: Any) -> None:  # noqa: ANN401 - grpc's
            call = _GrpcioStream(context, self._peer_of)
            _guarded(call, handler)
            try:
                with _among(self._waiting, call):
                    async with asyncio.TaskGroup() as group:
                        reader = group.create_task(_read(requests, call))
                        await _write(context, call)
                        reader.cancel()
            except BaseException:
                call.gone()
                raise
            if call.status is not GrpcStatus.OK:
                await context.abort(_CODES[call.status], call.details)

        return serve


@contextlib.contextmanager
def _among(calls: "set[_GrpcioCall]", call: "_GrpcioCall") -> Iterator[None]:
    calls.add(call)
    try:
        yield
    finally:
        calls.discard(call)


def _guarded(call: "_GrpcioCall", handler: Handler) -> None:
    """A handler's bug ends its call, without details."""
    try:
        handler(call)
    except Exception:
        _log.exception("a handler failed")
        call.finish(GrpcStatus.INTERNAL, _INTERNAL)


async def _read(requests: AsyncIterator[bytes], call: "_GrpcioStream") -> None:
    async for message in requests:
        call.arrived(message)
    call.arrived(None)


async def _write(context: Any, call: "_GrpcioStream") -> None:  # noqa: ANN401 - grpc's
    while (message := await call.outgoing.get()) is not _END:
        assert isinstance(message, bytes)
        await _send(context, message)


async def _send(context: Any, message: bytes) -> None:  # noqa: ANN401 - grpc's
    """Write one message; a write fails only where the client is gone, as if it had cancelled."""
    try:
        await context.write(message)
    except grpc.aio.InternalError:
        # Anything else would come with a traceback in the log.
        raise asyncio.CancelledError from None


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a line of grpc says more than that a client went away while it was answered."""
    return record.exc_info is None or not isinstance(record.exc_info[1], _GONE)


class _GrpcioCall:
    """A `Call`, unary or server stream."""

    __slots__ = (
        "_context",
        "_headers",
        "_is_gone",
        "_on_cancel",
        "_peer_of",
        "_waiting",
        "deadline_ms",
        "details",
        "is_answered",
        "messages",
        "payload",
        "status",
    )

    def __init__(self, payload: bytes, context: Any, peer_of: Callable[[str], str]) -> None:  # noqa: ANN401 - grpc's
        self.payload = payload
        self.messages: Sequence[bytes] = ()
        self.status = GrpcStatus.OK
        self.details = ""
        self.is_answered = False
        left_s = context.time_remaining()
        self.deadline_ms: int | None = None if left_s is None else int(left_s * 1000)
        self._context = context
        self._headers: dict[str, str] | None = None
        self._peer_of = peer_of
        self._on_cancel: Callable[[], None] | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._is_gone = False

    @property
    def headers(self) -> Mapping[str, str]:
        """Metadata; binary values are left out."""
        if self._headers is None:
            self._headers = {
                key: value
                for key, value in self._context.invocation_metadata() or ()
                if isinstance(value, str)
            }
        return self._headers

    @property
    def peer(self) -> str:
        """The client's `ip:port`, or `unix:`."""
        # grpc writes ipv4:1.2.3.4:5, ipv6:%5B::1%5D:5 and unix:.
        family, _, address = self._context.peer().partition(":")
        if family == "unix":
            return "unix:"
        return self._peer_of(address.replace("%5B", "[").replace("%5D", "]"))

    @property
    def is_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return b"ssl" in self._context.auth_context().get("transport_security_type", ())

    @property
    def peer_subject(self) -> str:
        """The common name of the client certificate, "" for none."""
        names = self._context.auth_context().get("x509_common_name", ())
        return names[0].decode("utf-8", "replace") if names else ""

    def reply(self, message: bytes) -> None:
        """End with one message."""
        self._answer((message,))

    def reply_stream(self, messages: Sequence[bytes]) -> None:
        """End with these messages."""
        self._answer(messages)

    def _answer(self, messages: Sequence[bytes]) -> None:
        if self.is_answered or self._is_gone:
            return
        self.messages = messages
        self.is_answered = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def send(self, message: bytes) -> bool:  # noqa: ARG002 - the seam's
        """Not for calls with one answer."""
        raise TypeError("only a BIDI call sends messages one by one")

    def finish(self, status: GrpcStatus = GrpcStatus.OK, message: str = "") -> None:
        """End without a message."""
        self.status, self.details = status, message
        self._answer(())

    def on_cancel(self, callback: Callable[[], None] | None) -> None:
        """The last callback given is called when the client goes away unanswered."""
        self._on_cancel = callback

    def on_message(self, callback: Callable[[bytes | None], None]) -> None:  # noqa: ARG002 - the seam's
        """Not for calls with one request."""
        raise TypeError("only a BIDI call takes messages one by one")

    async def answered(self) -> None:
        """Wait until the handler answered."""
        if self.is_answered:
            return
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            await self._waiting
        except asyncio.CancelledError:
            self.gone()
            raise

    def gone(self) -> None:
        """The client went away."""
        if not self._is_gone:
            self._is_gone = True
            callback, self._on_cancel = self._on_cancel, None
            if callback is not None:
                try:
                    callback()
                except Exception:
                    # One that fails must not keep others from hearing, in a drain, that they end.
                    _log.exception("a handler failed as its client went away")


class _GrpcioStream(_GrpcioCall):
    """A `Call` whose messages flow both ways."""

    __slots__ = ("_on_message", "outgoing")

    def __init__(self, context: Any, peer_of: Callable[[str], str]) -> None:  # noqa: ANN401 - grpc's
        super().__init__(b"", context, peer_of)
        # One more than messages may wait, so that the end always finds room.
        self.outgoing: asyncio.Queue[object] = asyncio.Queue(_STREAM_BUFFER_MESSAGES + 1)
        self._on_message: Callable[[bytes | None], None] | None = None

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

    def send(self, message: bytes) -> bool:
        """Queue one message; False when gone, ended, or the client is too slow."""
        if self.is_answered or self._is_gone or self.outgoing.qsize() >= _STREAM_BUFFER_MESSAGES:
            return False
        self.outgoing.put_nowait(message)
        return True

    def _answer(self, messages: Sequence[bytes]) -> None:
        if self.is_answered or self._is_gone:
            return
        for message in messages:
            self.send(message)
        self.is_answered = True
        self.outgoing.put_nowait(_END)
