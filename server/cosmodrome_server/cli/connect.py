"""How commands reach a broker, and how they print: one call, a response or an exit with 1."""

import hashlib
import hmac
import json
import os
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, NoReturn, TypeVar

import grpc
import typer
from google.protobuf.message import Message

from cosmodrome_proto import definition_pb2, methods
from cosmodrome_server.cli import endpoint as endpoints
from cosmodrome_server.cli.endpoint import ACCESS_KEY, SECRET_KEY, EndpointError

CONTROL = "cosmodrome.v1.Control"
ADMIN = "apache.rocketmq.v2.Admin"
MESSAGING = "apache.rocketmq.v2.MessagingService"
TIMEOUT_S = 10.0

Endpoint = Annotated[
    str,
    typer.Option(
        envvar="COSMODROME_ENDPOINT",
        help="HOST:PORT of the broker; https://HOST:PORT, or COSMODROME_CA, for TLS",
    ),
]
DEFAULT_ENDPOINT = "127.0.0.1:8081"
AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON array, for scripts")]

# What gRPC says when there is no connection, and what that means to whoever typed the command.
_REASONS = {
    "Connection refused": "nobody listens there. Is the broker running? --endpoint or "
    "COSMODROME_ENDPOINT says where it is",
    "hostname lookup": "there is no such host",
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not trusted. COSMODROME_CA names the file "
    "of its authority; a broker that made its own keeps it in DATA/tls/development.crt",
    "Failed parsing HTTP/2": "what listens there does not speak gRPC. Is it the metrics port?",
    "requires TLS": "it takes TLS only: write https://HOST:PORT",
    "WRONG_VERSION_NUMBER": "it does not speak TLS: leave https:// out, or write http:// "
    "where COSMODROME_CA is set",
    "Handshake read failed": "it hung up on TLS: leave https:// out if it speaks none",
    "TSI_DATA_CORRUPTED": "it ended TLS. If it asks for certificates, COSMODROME_CERTIFICATE and "
    "COSMODROME_KEY name the files of ours",
    "security handshaker": "the files of COSMODROME_CA, _CERTIFICATE and _KEY do not fit together",
    "Socket closed": "it hung up. If it takes TLS only, write https://HOST:PORT",
}

# Control characters but newline and tab, and those that change the direction of writing.
_CONTROLS = {
    number: chr(number).encode("unicode_escape").decode()
    for span in ((0, 9), (11, 32), (127, 160), (0x202A, 0x202F), (0x2066, 0x206A))
    for number in range(*span)
}

# Said by a broker that answers a method of its own as the reference would.
_STRICT = "server.strict"

Response = TypeVar("Response", bound=Message)


def call(
    endpoint: str, service: str, name: str, request: Message, tolerated: int = definition_pb2.OK
) -> Message:
    """Make one unary call; print the broker's words and exit with 1 if it refuses.

    Args:
        endpoint: As the option says.
        service: Its full name.
        name: The RPC.
        request: Its message.
        tolerated: A code that the caller deals with.
    """
    method = next(m for m in methods(service) if m.name == name)
    broker = _parsed(endpoint)
    try:
        with broker.channel() as channel:
            response: Message = channel.unary_unary(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )(request, timeout=TIMEOUT_S, metadata=_metadata(broker))
    except grpc.RpcError as error:
        refuse(_told(broker, service, error))
    except EndpointError as error:
        refuse(str(error))
    status = getattr(response, "status", None)
    if status is not None and status.code != tolerated:
        _check(broker, status)
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
    broker = _parsed(endpoint)
    try:
        with broker.channel() as channel:
            answers = channel.unary_stream(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )(request, timeout=TIMEOUT_S + wait_ms / 1000, metadata=_metadata(broker))
            for answer in iter(answers):
                held = answer.WhichOneof("content")
                if held == "message":
                    messages.append(answer.message)
                elif held == "next_offset":
                    next_offset = answer.next_offset
                elif held == "status" and answer.status.code != definition_pb2.MESSAGE_NOT_FOUND:
                    _check(broker, answer.status)
    except grpc.RpcError as error:
        refuse(_told(broker, MESSAGING, error))
    except EndpointError as error:
        refuse(str(error))
    return messages, next_offset


def control(endpoint: str, name: str, request: Message, expected: type[Response]) -> Response:
    """Call `cosmodrome.v1.Control`."""
    response = call(endpoint, CONTROL, name, request)
    assert isinstance(response, expected)
    return response


def _parsed(endpoint: str) -> endpoints.Endpoint:
    try:
        return endpoints.parse(endpoint)
    except EndpointError as error:
        refuse(str(error))


def _metadata(broker: endpoints.Endpoint) -> tuple[tuple[str, str], ...]:
    """The headers of a call, signed where there is an access key."""
    headers = [("x-mq-client-id", f"cosmodrome-cli@{os.getpid()}"), ("x-mq-language", "PYTHON")]
    if broker.access_key:
        moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        secret = broker.secret_key.encode()
        signature = hmac.new(secret, moment.encode(), hashlib.sha1).hexdigest()
        signed = (
            f"MQv2-HMAC-SHA1 Credential={broker.access_key}, "
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
    text = [
        tuple("-" if cell is None else printable(str(cell)) for cell in row)
        for row in (header, *rows)
    ]
    widths = [max(len(row[column]) for row in text) for column in range(len(header))]
    for row in text:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())


def printable(text: str) -> str:
    """Text of others as a terminal may see it, control characters written as in Python.

    They could change what stands on the screen; --json has everything as it is.
    """
    return text.translate(_CONTROLS)


def print_json(values: list[dict[str, object]]) -> None:
    """Print a JSON array."""
    typer.echo(json_of(values, indent=2))


def json_of(value: object, indent: int | None = None) -> str:
    """JSON as it is read best, in the characters that standard output has."""
    is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    return json.dumps(value, indent=indent, ensure_ascii=not is_unicode)


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


def _check(broker: endpoints.Endpoint, status: definition_pb2.Status) -> None:
    if status.code != definition_pb2.OK:
        hint = ""
        if status.code == definition_pb2.UNAUTHORIZED and not (
            broker.access_key and broker.secret_key
        ):
            hint = f" ({ACCESS_KEY} and {SECRET_KEY} sign the call)"
        refuse(f"{definition_pb2.Code.Name(status.code)}: {status.message}{hint}")


def _told(endpoint: endpoints.Endpoint, service: str, error: "grpc.RpcError") -> str:
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.UNIMPLEMENTED:
        if _STRICT in details:
            return f"{endpoint} is strict ({_STRICT}): it does without what this command needs"
        return f"{endpoint} does not know {service}: is it a Cosmodrome broker?"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        hint = "" if endpoint.is_tls else "; if it takes TLS only, write https://"
        return f"{endpoint} did not answer within {TIMEOUT_S:.0f} s{hint}"
    for sign, meaning in _REASONS.items():
        if sign in details:
            return f"no answer from {endpoint}: {meaning}"
    return f"no answer from {endpoint}: {code.name.lower()}: {details}"
