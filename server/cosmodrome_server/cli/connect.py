"""How commands reach a broker: endpoint, credentials, TLS; one call, a response or an exit."""

import hashlib
import hmac
import os
import sys
from datetime import UTC, datetime
from typing import Annotated, NoReturn, TypeVar

import grpc
import typer
from google.protobuf.message import Message

from cosmodrome_proto import definition_pb2, methods

CONTROL = "cosmodrome.v1.Control"
ADMIN = "apache.rocketmq.v2.Admin"
MESSAGING = "apache.rocketmq.v2.MessagingService"
TIMEOUT_S = 10.0

Endpoint = Annotated[
    str,
    typer.Option(
        envvar="COSMODROME_ENDPOINT", help="HOST:PORT of the broker; https://HOST:PORT for TLS"
    ),
]
DEFAULT_ENDPOINT = "127.0.0.1:8081"

Response = TypeVar("Response", bound=Message)


def call(endpoint: str, service: str, name: str, request: Message) -> Message:
    """Make one unary call; print the broker's words and exit with 1 if it refuses."""
    method = next(m for m in methods(service) if m.name == name)
    try:
        with _channel(endpoint) as channel:
            response: Message = channel.unary_unary(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )(request, timeout=TIMEOUT_S, metadata=metadata())
    except grpc.RpcError as error:
        _refuse(f"no answer from {endpoint}: {error.code().name.lower()}: {error.details()}")
    status = getattr(response, "status", None)
    if status is not None and status.code != definition_pb2.OK:
        _refuse(f"{definition_pb2.Code.Name(status.code)}: {status.message}")
    return response


def control(endpoint: str, name: str, request: Message, expected: type[Response]) -> Response:
    """Call `cosmodrome.v1.Control`."""
    response = call(endpoint, CONTROL, name, request)
    assert isinstance(response, expected)
    return response


def metadata() -> tuple[tuple[str, str], ...]:
    """The headers of a call, signed when COSMODROME_ACCESS_KEY and _SECRET_KEY are set."""
    headers = [("x-mq-client-id", f"cosmodrome-cli@{os.getpid()}"), ("x-mq-language", "PYTHON")]
    access_key = os.environ.get("COSMODROME_ACCESS_KEY", "")
    secret_key = os.environ.get("COSMODROME_SECRET_KEY", "")
    if access_key:
        moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        signature = hmac.new(secret_key.encode(), moment.encode(), hashlib.sha1).hexdigest()
        signed = (
            f"MQv2-HMAC-SHA1 Credential={access_key}, "
            f"SignedHeaders=x-mq-date-time, Signature={signature.upper()}"
        )
        headers += [("x-mq-date-time", moment), ("authorization", signed)]
    return tuple(headers)


def table(header: tuple[str, ...], rows: list[tuple[object, ...]]) -> None:
    """Print rows under a header, in columns."""
    text = [tuple(map(str, row)) for row in (header, *rows)]
    widths = [max(len(row[column]) for row in text) for column in range(len(header))]
    for row in text:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())


def new_app(purpose: str) -> typer.Typer:
    """A group of commands that prints errors plainly."""
    return typer.Typer(help=purpose, no_args_is_help=True, pretty_exceptions_enable=False)


def _channel(endpoint: str) -> grpc.Channel:
    if endpoint.startswith("https://"):
        authority = os.environ.get("COSMODROME_CA")
        roots = None
        if authority:
            with open(authority, "rb") as file:  # noqa: PTH123 - one read of a file a user names
                roots = file.read()
        return grpc.secure_channel(endpoint[8:], grpc.ssl_channel_credentials(roots))
    return grpc.insecure_channel(endpoint.removeprefix("http://"))


def _refuse(words: str) -> NoReturn:
    typer.echo(f"cosmodrome: {words}", err=True)
    sys.exit(1)
