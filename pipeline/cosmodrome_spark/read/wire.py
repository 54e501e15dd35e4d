"""Calling a RocketMQ 5 server from synchronous code: metadata, signature, status.

Executors need few verbs, blocking, in a process that Spark forks: so grpcio's synchronous
channel over encoded bytes, and none of the SDK's background tasks.

Signature: HMAC-SHA1 over the value of x-mq-date-time with the secret key (protocol 2.2).
"""

import datetime as dt
import hmac
import os
import socket
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_spark.errors import (
    BrokerRefused,
    BrokerUnreachable,
    TopicNotFound,
    UnsupportedByServer,
)
from cosmodrome_spark.options import Connection

MESSAGING = "/apache.rocketmq.v2.MessagingService/"
RECEIVE_BYTES_MAX = 130 << 20
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


class Wire:
    """One channel to a broker."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._client_id = client_id()
        options = [
            ("grpc.max_receive_message_length", RECEIVE_BYTES_MAX),
            ("grpc.max_send_message_length", RECEIVE_BYTES_MAX),
            # A forked worker must not share its parent's connection.
            ("grpc.use_local_subchannel_pool", 1),
        ]
        target = _target(connection.endpoints)
        if connection.tls:
            self._channel = grpc.secure_channel(target, _credentials(connection), options)
        else:
            self._channel = grpc.insecure_channel(target, options)

    @property
    def timeout_s(self) -> float:
        """How long one request may take, in seconds as grpcio wants them."""
        return self._connection.timeout_ms / 1000

    def close(self) -> None:
        """Let the connection go."""
        self._channel.close()

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Who calls, signed where there are credentials."""
        return headers_for(self._connection, self._client_id)

    def unary(self, path: str, request: bytes) -> bytes:
        """Call a unary method.

        Raises:
            BrokerUnreachable, UnsupportedByServer: No answer, no such method.
        """
        call = self._channel.unary_unary(path, None, None)
        try:
            answer: bytes = call(request, timeout=self.timeout_s, metadata=self.metadata())
        except grpc.RpcError as error:
            raise translated(error, path) from error
        return answer

    def start(self, path: str, request: bytes) -> Any:  # noqa: ANN401 - grpc.Future of bytes
        """Begin a unary call whose result is taken later, with `finish`."""
        call = self._channel.unary_unary(path, None, None)
        return call.future(request, timeout=self.timeout_s, metadata=self.metadata())

    def finish(self, future: Any, path: str) -> bytes:  # noqa: ANN401 - as above
        """Take the result of `start`; raises as `unary`."""
        try:
            answer: bytes = future.result()
        except grpc.RpcError as error:
            raise translated(error, path) from error
        return answer

    def stream(self, path: str, request: bytes) -> Iterator[bytes]:
        """Call a server-streaming method.

        Raises:
            BrokerUnreachable, UnsupportedByServer: No answer, no such method.
        """
        call = self._channel.unary_stream(path, None, None)
        try:
            yield from call(request, timeout=self.timeout_s, metadata=self.metadata())
        except grpc.RpcError as error:
            raise translated(error, path) from error


def translated(error: grpc.RpcError, path: str) -> BrokerUnreachable | UnsupportedByServer:
    """Our error for grpcio's."""
    verb = path.rpartition("/")[2]
    if error.code() == grpc.StatusCode.UNIMPLEMENTED:
        return UnsupportedByServer(f"the server does not know {verb}")
    return BrokerUnreachable(f"{verb}: {error.code().name}: {error.details()}")


def check(status: pb.Status, what: str, *, good: Sequence[int] = ()) -> None:
    """Do nothing for a status that is well, or one of `good`.

    Raises:
        TopicNotFound, UnsupportedByServer, BrokerRefused: The broker said no.
    """
    if status.code < pb.BAD_REQUEST or status.code in good:
        return
    name = pb.Code.Name(status.code) if status.code in pb.Code.values() else str(status.code)
    message = f"{what}: {name}: {status.message}"
    if status.code == pb.NOT_IMPLEMENTED:
        raise UnsupportedByServer(message)
    if status.code == pb.TOPIC_NOT_FOUND:
        raise TopicNotFound(message, code=status.code)
    raise BrokerRefused(message, code=status.code)


def _target(endpoints: Sequence[str]) -> str:
    if len(endpoints) == 1:
        return endpoints[0]
    return "ipv4:" + ",".join(endpoints)


def _credentials(connection: Connection) -> grpc.ChannelCredentials:
    if connection.ca_file:
        return grpc.ssl_channel_credentials(Path(connection.ca_file).read_bytes())
    # No CA is no verification, as the official clients do: trust what the server shows.
    import ssl  # noqa: PLC0415  # only here

    host, _, port = connection.endpoints[0].rpartition(":")
    shown = ssl.get_server_certificate((host, int(port)), timeout=connection.timeout_ms / 1000)
    return grpc.ssl_channel_credentials(shown.encode())
