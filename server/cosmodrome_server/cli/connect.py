"""How commands reach a broker, and how they print: one call, a response or an exit with 1."""

import hashlib
import hmac
import json
import os
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NoReturn, TypeVar

import grpc
import typer
from google.protobuf.message import Message

from cosmodrome_proto import definition_pb2, methods

CONTROL = "cosmodrome.v1.Control"
ADMIN = "apache.rocketmq.v2.Admin"
MESSAGING = "apache.rocketmq.v2.MessagingService"
TIMEOUT_S = 10.0
ACCESS_KEY, SECRET_KEY = "COSMODROME_ACCESS_KEY", "COSMODROME_SECRET_KEY"

Endpoint = Annotated[
    str,
    typer.Option(
        envvar="COSMODROME_ENDPOINT", help="HOST:PORT of the broker; https://HOST:PORT for TLS"
    ),
]
DEFAULT_ENDPOINT = "127.0.0.1:8081"
# One answer may hold many messages, or a large one; gRPC would take 4 MiB.
_OPTIONS = [("grpc.max_receive_message_length", -1)]
AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON array, for scripts")]

# What gRPC says when there is no connection, and what that means to whoever typed the command.
_REASONS = {
    "Connection refused": "nobody listens there. Is the broker running? --endpoint or "
    "COSMODROME_ENDPOINT says where it is",
    "hostname lookup": "there is no such host",
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not trusted. COSMODROME_CA names the file "
    "of its authority; a broker that made its own keeps it in DATA/tls/development.crt",
    "Failed parsing HTTP/2": "what listens there does not speak gRPC. Is it the metrics port?",
    "WRONG_VERSION_NUMBER": "it does not speak TLS: leave https:// out",
    "Handshake read failed": "it hung up on TLS: leave https:// out if it speaks none",
    "Socket closed": "it hung up. If it takes TLS only, write https://HOST:PORT",
}

# Said by a broker that answers a method of its own as the reference would.
_STRICT = "server.strict"

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
        refuse(_told(endpoint, service, error))
    if (status := getattr(response, "status", None)) is not None:
        _check(status)
    return response


def read(
    endpoint: str, request: Message, wait_ms: int = 0
) -> tuple[list[definition_pb2.Message], int]:
    """Read messages by PullMessage or ReceiveMessage; exits like `call`.

    Args:
        endpoint: As for `call`.
        request: Says which of the two.
        wait_ms: How long the broker may wait for a first message, which counts on top.

    Returns:
        The messages, none where none came; the offset to go on from, 0 for a receive.
    """
    kind = request.DESCRIPTOR.name.removesuffix("Request")
    method = next(m for m in methods(MESSAGING) if m.name == kind)
    messages, next_offset = [], 0
    try:
        with _channel(endpoint) as channel:
            answers = channel.unary_stream(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )(request, timeout=TIMEOUT_S + wait_ms / 1000, metadata=metadata())
            for answer in iter(answers):
                held = answer.WhichOneof("content")
                if held == "message":
                    messages.append(answer.message)
                elif held == "next_offset":
                    next_offset = answer.next_offset
                elif held == "status" and answer.status.code != definition_pb2.MESSAGE_NOT_FOUND:
                    _check(answer.status)
    except grpc.RpcError as error:
        refuse(_told(endpoint, MESSAGING, error))
    return messages, next_offset


def control(endpoint: str, name: str, request: Message, expected: type[Response]) -> Response:
    """Call `cosmodrome.v1.Control`."""
    response = call(endpoint, CONTROL, name, request)
    assert isinstance(response, expected)
    return response


def metadata() -> tuple[tuple[str, str], ...]:
    """The headers of a call, signed when COSMODROME_ACCESS_KEY and _SECRET_KEY are set."""
    headers = [("x-mq-client-id", f"cosmodrome-cli@{os.getpid()}"), ("x-mq-language", "PYTHON")]
    access_key = os.environ.get(ACCESS_KEY, "")
    secret_key = os.environ.get(SECRET_KEY, "")
    if access_key:
        moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        signature = hmac.new(secret_key.encode(), moment.encode(), hashlib.sha1).hexdigest()
        signed = (
            f"MQv2-HMAC-SHA1 Credential={access_key}, "
            f"SignedHeaders=x-mq-date-time, Signature={signature.upper()}"
        )
        headers += [("x-mq-date-time", moment), ("authorization", signed)]
    return tuple(headers)


def table(
    header: tuple[str, ...], rows: Iterable[tuple[object, ...]], *, as_json: bool = False
) -> None:
    """Print rows under a header in columns, None as `-`; or as JSON objects."""
    if as_json:
        keys = [name.lower().replace(" ", "_") for name in header]
        print_json([dict(zip(keys, row, strict=True)) for row in rows])
        return
    text = [tuple("-" if cell is None else str(cell) for cell in row) for row in (header, *rows)]
    widths = [max(len(row[column]) for row in text) for column in range(len(header))]
    for row in text:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())


def print_json(values: list[dict[str, object]]) -> None:
    """Print a JSON array."""
    typer.echo(json.dumps(values, indent=2, ensure_ascii=False))


def new_app(purpose: str) -> typer.Typer:
    """A group of commands; help and errors are plain text, as those of `serve` are."""
    return typer.Typer(
        help=purpose,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )


def refuse(words: str) -> NoReturn:
    """Say why not on standard error, and exit with 1."""
    typer.echo(f"cosmodrome: {words}", err=True)
    sys.exit(1)


def _channel(endpoint: str) -> "grpc.Channel":
    if endpoint.startswith("https://"):
        authority = os.environ.get("COSMODROME_CA")
        roots = None
        if authority:
            try:
                roots = Path(authority).read_bytes()
            except OSError as error:
                refuse(f"cannot read COSMODROME_CA={authority}: {error.strerror}")
        return grpc.secure_channel(endpoint[8:], grpc.ssl_channel_credentials(roots), _OPTIONS)
    return grpc.insecure_channel(endpoint.removeprefix("http://"), _OPTIONS)


def _check(status: definition_pb2.Status) -> None:
    if status.code != definition_pb2.OK:
        hint = ""
        if status.code == definition_pb2.UNAUTHORIZED and not os.environ.get(ACCESS_KEY):
            hint = f" ({ACCESS_KEY} and {SECRET_KEY} sign the call)"
        refuse(f"{definition_pb2.Code.Name(status.code)}: {status.message}{hint}")


def _told(endpoint: str, service: str, error: "grpc.RpcError") -> str:
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.UNIMPLEMENTED:
        if _STRICT in details:
            return f"{endpoint} is strict ({_STRICT}): it does without what this command needs"
        return f"{endpoint} does not know {service}: is it a Cosmodrome broker?"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        hint = "" if endpoint.startswith("https://") else "; if it takes TLS only, write https://"
        return f"{endpoint} did not answer within {TIMEOUT_S:.0f} s{hint}"
    for sign, meaning in _REASONS.items():
        if sign in details:
            return f"no answer from {endpoint}: {meaning}"
    return f"no answer from {endpoint}: {code.name.lower()}: {details}"
