"""One port for TLS and plaintext: the first byte of a connection decides.

    client ──▶ Splitter ──0x16 (a TLS handshake)──▶ 127.0.0.1:tls_port
                        └─anything else───────────▶ 127.0.0.1:plain_port

grpcio cannot look before it chooses, so it listens twice on loopback and this passes
bytes through, with back-pressure both ways. Connections that say nothing are closed
after `limits.handshake_s`; there are at most `limits.connections`.
"""

import asyncio
from typing import cast

from cosmodrome_server import open_files
from cosmodrome_server.config import Limits

_TLS_HANDSHAKE = 0x16
_BACKLOG = 1024


class Splitter:
    """Accepts connections and passes them on to one of two inner ports."""

    def __init__(self, *, plain_port: int, tls_port: int, limits: Limits) -> None:
        self._plain_port = plain_port
        self._tls_port = tls_port
        self._limits = limits
        self._connections = open_files.connections(
            limits.connections, open_files.FILES_PER_CONNECTION
        )
        self._server: asyncio.Server | None = None
        self._open: set[_Outer] = set()
        # Inner local address -> the client's, so that handlers see who calls.
        self._peers: dict[str, str] = {}

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port.

        Raises:
            OSError: The address is taken.
        """
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Outer(self), host, port, backlog=_BACKLOG, reuse_address=True
        )
        return cast("int", self._server.sockets[0].getsockname()[1])

    def peer_of(self, inner: str) -> str:
        """The client behind an inner connection; itself if it is none of ours."""
        return self._peers.get(inner, inner)

    def stop_accepting(self) -> None:
        """Take no new connections."""
        if self._server is not None:
            self._server.close()

    def close(self) -> None:
        """Close every connection."""
        self.stop_accepting()
        for outer in list(self._open):
            outer.close()

    # What a connection asks of its splitter.

    def admits(self) -> bool:
        """Whether one more connection may stay."""
        return len(self._open) < self._connections

    @property
    def handshake_s(self) -> int:
        """How long a connection may say nothing."""
        return self._limits.handshake_s

    def opened(self, outer: "_Outer") -> None:
        """Count a connection."""
        self._open.add(outer)

    def joined(self, inner: str, peer: str) -> None:
        """Remember who is behind an inner connection."""
        self._peers[inner] = peer

    def closed(self, outer: "_Outer", inner: str) -> None:
        """Forget a connection."""
        self._open.discard(outer)
        self._peers.pop(inner, None)

    def port_for(self, first_byte: int) -> int:
        """Which inner port takes a connection that begins so."""
        return self._tls_port if first_byte == _TLS_HANDSHAKE else self._plain_port


class _Pipe(asyncio.Protocol):
    """One side of a connection; what it reads, the other side writes."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: _Pipe | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        if self.other is not None:
            self.other.close()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()


class _Outer(_Pipe):
    """The client's side: looks at the first byte, then dials the inner port."""

    def __init__(self, splitter: Splitter) -> None:
        super().__init__()
        self._splitter = splitter
        self._inner_address = ""
        self._dial: asyncio.Task[None] | None = None
        self._silence: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self._splitter.admits():
            transport.close()
            return
        self._splitter.opened(self)
        loop = asyncio.get_running_loop()
        self._silence = loop.call_later(self._splitter.handshake_s, self.close)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            super().data_received(data)
            return
        assert self.transport is not None
        if self._silence is not None:
            self._silence.cancel()
        self.transport.pause_reading()
        # A callback cannot await, and a TaskGroup would outlive the connection; the task is
        # kept here and cancelled with the connection.
        loop = asyncio.get_running_loop()
        self._dial = loop.create_task(self._join(data))

    async def _join(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, inner = await loop.create_connection(
                _Pipe, "127.0.0.1", self._splitter.port_for(data[0])
            )
        except OSError:
            self.close()
            return
        assert self.transport is not None
        assert inner.transport is not None
        inner.other, self.other = self, inner
        self._inner_address = _address(inner.transport.get_extra_info("sockname"))
        self._splitter.joined(
            self._inner_address, _address(self.transport.get_extra_info("peername"))
        )
        inner.transport.write(data)
        self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._silence is not None:
            self._silence.cancel()
        if self._dial is not None:
            self._dial.cancel()
        self._splitter.closed(self, self._inner_address)
        super().connection_lost(exc)


def _address(name: tuple[str, int] | None) -> str:
    if not name:
        return ""
    host, port = name[0], name[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
