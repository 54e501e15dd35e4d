"""Calling a RocketMQ 5 server from synchronous code: metadata, signature, status.

Executors need few verbs, blocking, in a process that Spark forks: so grpcio's synchronous
channel over encoded bytes, and none of the SDK's background tasks.

Signature: HMAC-SHA1 over the value of x-mq-date-time with the secret key (protocol 2.2).
"""

import contextlib
import datetime as dt
import hmac
import os
import socket
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_spark.errors import (
    BrokerBusy,
    BrokerRefused,
    BrokerUnreachable,
    TopicNotFound,
    UnsupportedByServer,
)
from cosmodrome_spark.options import Connection
from cosmodrome_spark.read import patience
from cosmodrome_spark.read.patience import Patience

MESSAGING = "/apache.rocketmq.v2.MessagingService/"
RECEIVE_BYTES_MAX = 130 << 20
_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", RECEIVE_BYTES_MAX),
    ("grpc.max_send_message_length", RECEIVE_BYTES_MAX),
    # A forked worker must not share its parent's connection.
    ("grpc.use_local_subchannel_pool", 1),
    # A broker that is back is seen at once, not after grpcio's two minutes at most.
    ("grpc.initial_reconnect_backoff_ms", patience.FIRST_MS),
    ("grpc.max_reconnect_backoff_ms", patience.MOST_MS),
)
_VERSION = "0.1.0"


def client_id() -> str:
    """An id for one process, as other clients form theirs: host, process, chance."""
    return f"{socket.gethostname()}@{os.getpid()}@{uuid.uuid4().hex[:8]}"


def headers_for(connection: Connection, client: str) -> tuple[tuple[str, str], ...]:
    """Who calls, signed where there are credentials."""
    date = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%SZ")
    headers = [
        ("x-mq-client-id", client),
        ("x-mq-language", "PYTHON"),
        ("x-mq-client-version", _VERSION),
        ("x-mq-protocol", "v2"),
        ("x-mq-request-id", str(uuid.uuid4())),
        ("x-mq-date-time", date),
    ]
    key, secret = connection.access_key, connection.secret_key
    if key and secret:
        signature = hmac.new(secret.encode(), date.encode(), "sha1").hexdigest().upper()
        text = f"MQv2-HMAC-SHA1 Credential={key}, SignedHeaders=x-mq-date-time"
        headers.append(("authorization", f"{text}, Signature={signature}"))
    return tuple(headers)


@dataclass(slots=True)
class Started:
    """A call whose result is taken later, and what it takes to make it again."""

    path: str
    request: bytes
    patience: Patience
    tries: int = 0
    endpoint: int = 0
    future: Any = None  # grpc.Future of bytes; grpcio is untyped


class Wire:
    """One channel to a broker, or to the next of its endpoints where one does not answer.

    A broker that restarts is waited for, a request timeout at most: every verb of the pipeline
    may be asked twice, and a query that ends costs more than the wait. Not before the first
    answer: who mistypes an address is told at once.

    Args:
        connection: Where to, and as whom.
        is_known: Whether the broker has answered before, to another `Wire` of the query.
    """

    def __init__(self, connection: Connection, *, is_known: bool = False) -> None:
        self._connection = connection
        self._client_id = client_id()
        self._is_known = is_known
        self._endpoint = 0
        self._channels: dict[int, grpc.Channel] = {}

    @property
    def timeout_s(self) -> float:
        """How long one request may take, in seconds as grpcio wants them."""
        return self._connection.timeout_ms / 1000

    def close(self) -> None:
        """Let the connections go."""
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Who calls, signed where there are credentials."""
        return headers_for(self._connection, self._client_id)

    def unary(self, path: str, request: bytes) -> bytes:
        """Call a unary method.

        Raises:
            BrokerUnreachable, UnsupportedByServer: No answer, no such method.
        """
        return self.finish(self.start(path, request))

    def start(self, path: str, request: bytes) -> Started:
        """Begin a unary call whose result is taken later, with `finish`."""
        started = Started(path, request, Patience(self._connection.timeout_ms))
        with contextlib.suppress(OSError):  # `finish` tries again, or says so
            self._issue(started)
        return started

    def finish(self, started: Started) -> bytes:
        """Take the result of `start`; raises as `unary`."""
        while True:
            try:
                if started.future is None:
                    self._issue(started)
                answer: bytes = started.future.result()
            except (grpc.RpcError, OSError) as error:
                started.future = None
                if not self._tries_again(error, started):
                    raise translated(error, started.path) from error
            else:
                self._is_known = True
                return answer

    def _issue(self, started: Started) -> None:
        started.endpoint = self._endpoint
        call = self._channel(started.endpoint).unary_unary(started.path, None, None)
        started.future = call.future(
            started.request, timeout=self.timeout_s, metadata=self.metadata()
        )

    def _tries_again(self, error: Exception, started: Started) -> bool:
        """Turn to the next endpoint, wait where all had their turn; False if it is no use."""
        if isinstance(error, grpc.RpcError) and error.code() != grpc.StatusCode.UNAVAILABLE:
            return False
        endpoints = len(self._connection.endpoints)
        if self._endpoint == started.endpoint:
            self._endpoint = (self._endpoint + 1) % endpoints
        started.tries += 1
        if started.tries % endpoints:
            return True
        return self._is_known and started.patience.wait()

    def _channel(self, number: int) -> grpc.Channel:
        channel = self._channels.get(number)
        if channel is None:
            endpoint = self._connection.endpoints[number]
            if self._connection.tls:
                secure = _credentials(self._connection, endpoint)
                channel = grpc.secure_channel(endpoint, secure, _CHANNEL_OPTIONS)
            else:
                channel = grpc.insecure_channel(endpoint, _CHANNEL_OPTIONS)
            self._channels[number] = channel
        return channel


def translated(error: Exception, path: str) -> BrokerUnreachable | UnsupportedByServer:
    """Our error for grpcio's and for the socket's."""
    verb = path.rpartition("/")[2]
    if not isinstance(error, grpc.RpcError):
        return BrokerUnreachable(f"{verb}: {error}")
    if error.code() == grpc.StatusCode.UNIMPLEMENTED:
        return UnsupportedByServer(f"the server does not know {verb}")
    return BrokerUnreachable(f"{verb}: {error.code().name}: {error.details()}")


def check(status: pb.Status, what: str, *, good: Sequence[int] = ()) -> None:
    """Do nothing for a status that is well, or one of `good`.

    Raises:
        BrokerBusy, TopicNotFound, UnsupportedByServer, BrokerRefused: The broker said no.
    """
    if status.code < pb.BAD_REQUEST or status.code in good:
        return
    name = pb.Code.Name(status.code) if status.code in pb.Code.values() else str(status.code)
    message = f"{what}: {name}: {status.message}"
    if status.code == pb.NOT_IMPLEMENTED:
        raise UnsupportedByServer(message)
    if status.code == pb.TOO_MANY_REQUESTS:
        raise BrokerBusy(message, code=status.code)
    if status.code == pb.TOPIC_NOT_FOUND:
        raise TopicNotFound(message, code=status.code)
    raise BrokerRefused(message, code=status.code)


def _credentials(connection: Connection, endpoint: str) -> grpc.ChannelCredentials:
    if connection.ca_file:
        return grpc.ssl_channel_credentials(Path(connection.ca_file).read_bytes())
    # No CA is no verification, as the official clients do: trust what the server shows.
    import ssl  # noqa: PLC0415  # only here

    host, _, port = endpoint.rpartition(":")
    shown = ssl.get_server_certificate((host, int(port)), timeout=connection.timeout_ms / 1000)
    return grpc.ssl_channel_credentials(shown.encode())
