"""What many clients cost that do nothing: connections without a call, and receives that wait.

    10,000 connections, 2,000 of them with a ReceiveMessage of an empty topic, made again as
    soon as it is answered     400 MB resident at most, 5 % of a core at most

The clients are bare sockets that speak just enough HTTP/2, all in this process, so that they
leave the server the machine. Each consumer has a connection, a group of `_PER_GROUP` and a
client id; processor time is that of the server alone, over `seconds` after all are connected.
"""

import contextlib
import resource
import selectors
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import hpack

from benchmarks.servers import Target, ours
from cosmodrome_proto import Duration
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc

Figures = dict[str, float]
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS, _PING = 0, 1, 4, 6
_ACK, _END_STREAM, _END_HEADERS = 1, 1, 4
_HEAD = 9
_PATH = "/apache.rocketmq.v2.MessagingService/ReceiveMessage"
_TOPIC, _PER_GROUP, _POLL_S = "empty", 100, 30


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">IBBI", len(payload), kind, flags, stream)[1:] + payload


@dataclass
class _Connection:
    """A client's connection; `number` ≥ 0 is a consumer that waits."""

    socket: socket.socket
    number: int
    stream: int = -1
    heard: bytearray = field(default_factory=bytearray)
    answered: int = 0

    def read(self) -> bool:
        """Take what arrived, answer settings and pings; False when the server closed."""
        part = self.socket.recv(1 << 14)
        self.heard += part
        while len(self.heard) >= _HEAD:
            length = int.from_bytes(self.heard[:3], "big")
            if len(self.heard) < _HEAD + length:
                break
            kind, flags = self.heard[3], self.heard[4]
            payload = bytes(self.heard[_HEAD : _HEAD + length])
            del self.heard[: _HEAD + length]
            self._take(kind, flags, payload)
        return bool(part)

    def _take(self, kind: int, flags: int, payload: bytes) -> None:
        if kind in {_SETTINGS, _PING} and not flags & _ACK:
            self.socket.sendall(_frame(kind, _ACK, 0, payload if kind == _PING else b""))
        elif kind == _HEADERS and flags & _END_STREAM:
            self.answered += 1
            self.receive()

    def receive(self) -> None:
        """Make the next waiting receive."""
        self.stream += 2
        group = f"waiters-{self.number // _PER_GROUP}"
        request = rpc.ReceiveMessageRequest(
            group=pb.Resource(name=group),
            message_queue=pb.MessageQueue(topic=pb.Resource(name=_TOPIC), id=-1),
            batch_size=32,
            invisible_duration=Duration(seconds=30),
            long_polling_timeout=Duration(seconds=_POLL_S),
        ).SerializeToString()
        message = struct.pack(">BI", 0, len(request)) + request
        self.socket.sendall(
            _frame(_HEADERS, _END_HEADERS, self.stream, _head(f"waiter-{self.number}"))
            + _frame(_DATA, _END_STREAM, self.stream, message)
        )


def _head(client_id: str) -> bytes:
    encoder = hpack.Encoder()
    encoder.header_table_size = 0  # each block stands alone
    fields = [
        *((":method", "POST"), (":scheme", "http"), (":path", _PATH), (":authority", "bench")),
        *(("content-type", "application/grpc"), ("te", "trailers")),
        *(("grpc-timeout", f"{_POLL_S + 5}S"), ("x-mq-client-id", client_id)),
        *(("x-mq-language", "JAVA"), ("x-mq-client-version", "5.1.2")),
    ]
    return encoder.encode(fields)


@contextlib.contextmanager
def _connected(server: Target, count: int, waiting: int) -> Iterator[list[_Connection]]:
    made: list[_Connection] = []
    try:
        for number in range(count):
            plain = socket.create_connection((server.host, server.port), 30)
            plain.sendall(_PREFACE + _frame(_SETTINGS, 0, 0))
            made.append(_Connection(plain, number if number < waiting else -1))
            if number < waiting:
                made[-1].receive()
        yield made
    finally:
        for one in made:
            one.socket.close()


def measured(
    front: str, connections: int, waiting: int, seconds: float, tls: str = "auto"
) -> Figures:
    """Resident memory and share of a core of a server with so many clients.

    Raises:
        OSError: More connections than open files are allowed.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, connections + 500)), hard))
    with ours("--front", front, "--tls", tls) as server:
        server.topic(_TOPIC)
        for group in range(-(-waiting // _PER_GROUP)):
            server.group(f"waiters-{group}")
        alone_mib = server.rss_mib()
        with _connected(server, connections, waiting) as made:
            _listen(made, 5)
            answered, cpu_s = sum(one.answered for one in made), server.cpu_s()
            began = time.monotonic()
            closed = _listen(made, seconds)
            passed = time.monotonic() - began
            return {
                "connections": connections - closed,
                "waiting": waiting,
                "seconds": round(passed, 1),
                "receives_answered": sum(one.answered for one in made) - answered,
                "rss_alone_mib": round(alone_mib, 1),
                "rss_mib": round(server.rss_mib(), 1),
                "percent_of_a_core": round(100 * (server.cpu_s() - cpu_s) / passed, 2),
            }


def _listen(made: list[_Connection], seconds: float) -> int:
    """Answer what arrives for so long; how many connections the server closed."""
    end, closed = time.monotonic() + seconds, 0
    with selectors.DefaultSelector() as selector:
        for one in made:
            selector.register(one.socket, selectors.EVENT_READ, one)
        while (left := end - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                if not key.data.read():
                    selector.unregister(key.fileobj)
                    closed += 1
    return closed
