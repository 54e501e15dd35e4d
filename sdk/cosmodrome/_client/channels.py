"""Channels, shared by every client of one loop: one connection per (endpoints, TLS).

Counted, and closed when the last client gives it back. The child of a process that had channels
open when it forked is told so at its first one (`_forks`).
"""

import asyncio
import socket
import ssl
import weakref
from dataclasses import dataclass, field

import grpc
import grpc.aio
from grpc.experimental import ChannelOptions

from cosmodrome._client.stream_readers import StreamReaders
from cosmodrome._core.endpoints import Endpoints
from cosmodrome._forks import Forks
from cosmodrome.config import Tls
from cosmodrome.errors import ConfigurationError, ConnectionFailed

# As the reference pings: its brokers close connections that ping more often than every 5 minutes.
# Dead connections are found by heartbeats.
_Options = list[tuple[str, int | str]]
_OPTIONS: _Options = [
    ("grpc.keepalive_time_ms", 300_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.use_local_subchannel_pool", 1),
]
# A stream is read by the thread that asks for its messages, without another one between.
_SINGLE: _Options = [(ChannelOptions.SingleThreadedUnaryStream, 1)]
_PARTIAL_CHAIN = 0x80000


@dataclass(slots=True)
class Channel:
    """A connection and the callables made on it."""

    endpoints: Endpoints
    channel: grpc.aio.Channel
    readers: StreamReaders
    users: int = 0
    callables: dict[str, object] = field(default_factory=dict)


_Key = tuple[Endpoints, Tls | None]
_pools: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[_Key, Channel]]" = (
    weakref.WeakKeyDictionary()
)


_forks = Forks()


def check_fork() -> None:
    """See that clients work in this process.

    Raises:
        ClientError: It is the forked child of one that has channels open.
    """
    _forks.check()


async def borrow(endpoints: Endpoints, tls: Tls | None) -> Channel:
    """Take the channel to `endpoints`; make it if there is none.

    Raises:
        ClientError: In a forked child of a process that has channels open.
        ConfigurationError: A TLS file cannot be read.
        ConnectionFailed: Insecure TLS, and nobody there to show a certificate.
    """
    _forks.check()
    pool = _pools.setdefault(asyncio.get_running_loop(), {})
    key = (endpoints, tls)
    known = pool.get(key)
    if known is None:
        dial = await _dial(endpoints, tls)
        # Two may have asked at once; the second one's dial is not needed.
        known = pool.get(key)
        if known is None:
            known = pool[key] = Channel(endpoints, dial.channel(), StreamReaders(dial.blocking))
            _forks.opened(known)
    known.users += 1
    return known


async def give_back(channel: Channel, tls: Tls | None) -> None:
    """Return a channel; the last user closes it."""
    channel.users -= 1
    if channel.users == 0:
        retire(channel, tls)
        channel.readers.close()
        try:
            await channel.channel.close(None)
        finally:
            _forks.closed(channel)


def retire(channel: Channel, tls: Tls | None) -> None:
    """Let nobody borrow a channel any more: it hangs. Its users still give it back."""
    pool = _pools.get(asyncio.get_running_loop(), {})
    if pool.get((channel.endpoints, tls)) is channel:
        del pool[channel.endpoints, tls]


@dataclass(slots=True)
class _Dial:
    """How an endpoint is reached."""

    target: str
    credentials: grpc.ChannelCredentials | None
    options: _Options

    def channel(self) -> grpc.aio.Channel:
        """A channel for the loop."""
        if self.credentials is None:
            return grpc.aio.insecure_channel(self.target, options=self.options)
        return grpc.aio.secure_channel(self.target, self.credentials, options=self.options)

    def blocking(self) -> grpc.Channel:
        """A channel for threads."""
        options = self.options + _SINGLE
        if self.credentials is None:
            return grpc.insecure_channel(self.target, options=options)
        return grpc.secure_channel(self.target, self.credentials, options=options)


async def _dial(endpoints: Endpoints, tls: Tls | None) -> _Dial:
    options = list(_OPTIONS)
    if len(endpoints.addresses) > 1:
        options.append(("grpc.default_authority", endpoints.authority))
    if tls is None:
        return _Dial(endpoints.target, None, options)
    roots, server_name = _read(tls.ca), tls.server_name
    if tls.is_insecure:
        roots, server_name = await asyncio.to_thread(_shown_certificate, endpoints.addresses[0])
    if server_name:
        options.append(("grpc.ssl_target_name_override", server_name))
    credentials = grpc.ssl_channel_credentials(roots, _read(tls.key), _read(tls.certificate))
    return _Dial(endpoints.target, credentials, options)


def _read(path: object) -> bytes | None:
    if path is None:
        return None
    try:
        with open(str(path), "rb") as file:  # noqa: PTH123 - of any path-like
            content = file.read()
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    if b"-----BEGIN " not in content:
        raise ConfigurationError(f"{path} is not PEM, as files for TLS are")
    return content


def _shown_certificate(address: tuple[str, int]) -> tuple[bytes, str]:
    """The certificate a server shows, and a name on it: trusted as it is, once."""
    try:
        shown = ssl.get_server_certificate(address, timeout=5)
        context = ssl.create_default_context(cadata=shown)
        context.check_hostname = False
        context.verify_flags |= _PARTIAL_CHAIN
        with (
            socket.create_connection(address, timeout=5) as plain,
            context.wrap_socket(plain, server_hostname=address[0]) as secured,
        ):
            return shown.encode(), _name_on(secured.getpeercert() or {})
    except (OSError, ssl.SSLError) as error:
        raise ConnectionFailed(f"no certificate from {address[0]}:{address[1]}: {error}") from error


def _name_on(certificate: object) -> str:
    assert isinstance(certificate, dict)
    for kind, name in certificate.get("subjectAltName", ()):
        if kind == "DNS":
            return str(name).replace("*", "any")
    for part in certificate.get("subject", ()):
        for key, value in part:
            if key == "commonName":
                return str(value)
    return ""
