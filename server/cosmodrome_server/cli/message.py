"""`cosmodrome message`: send, find, show; `receive` and `tail` are in reading.py."""

import os
import sys
import uuid
from collections.abc import Iterable, Iterator
from typing import Annotated

import typer

from cosmodrome_proto import admin_pb2, definition_pb2, service_pb2
from cosmodrome_server.cli.connect import (
    ADMIN,
    DEFAULT_ENDPOINT,
    MESSAGING,
    AsJson,
    Endpoint,
    call,
    new_app,
    table,
)
from cosmodrome_server.cli.reading import receive, tail
from cosmodrome_server.cli.shown import show_messages
from cosmodrome_server.cli.units import INT32_MAX, epoch_ms, milliseconds, moment

app = new_app("Send, receive, watch, find, show messages.")
app.command()(receive)
app.command()(tail)
Topic = Annotated[str, typer.Argument(help="The topic")]
# What goes in one request, unless a line alone is larger; a broker takes 1,024 and 130 MiB.
_LINES_MAX = 100
_LINES_BYTES_MAX = 4 << 20


@app.command()
def send(  # noqa: PLR0913, PLR0917 - one option per property of a message
    topic: Topic,
    body: Annotated[str, typer.Argument(help="The body; - reads standard input")],
    tag: Annotated[str, typer.Option(help="Its tag")] = "",
    key: Annotated[list[str] | None, typer.Option(help="A message key; may be repeated")] = None,
    prop: Annotated[
        list[str] | None, typer.Option("--property", help="NAME=VALUE; may be repeated")
    ] = None,
    group: Annotated[str, typer.Option(help="Its message group (FIFO topics)")] = "",
    lite_topic: Annotated[str, typer.Option(help="Its lite topic (LITE topics)")] = "",
    priority: Annotated[
        int | None, typer.Option(min=0, max=INT32_MAX, help="0 or more (PRIORITY topics)")
    ] = None,
    delay: Annotated[str, typer.Option(help="Deliver it this much later: 10s, 5m, 2h")] = "",
    at: Annotated[str, typer.Option(help="Deliver it at this moment")] = "",
    lines: Annotated[bool, typer.Option("--lines", help="Each line is a message")] = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Send a message, or with --lines one for each line of the body."""
    model = definition_pb2.Message(topic=definition_pb2.Resource(name=topic))
    system = model.system_properties
    system.born_timestamp.GetCurrentTime()
    system.keys.extend(key or [])
    model.user_properties.update(map(_property, prop or []))
    for name, value in (("tag", tag), ("message_group", group), ("lite_topic", lite_topic)):
        if value:
            setattr(system, name, value)
    if priority is not None:
        system.priority = priority
    if delay or at:
        due_ms = _due_ms(system.born_timestamp.ToMilliseconds(), delay, at)
        system.delivery_timestamp.FromMilliseconds(due_ms)
    # Any bytes may be given to a command; Python carries those that are no text as surrogates.
    content = sys.stdin.buffer.read() if body == "-" else os.fsencode(body)
    if lines:
        _send_lines(endpoint, model, content)
        return
    (entry,) = _sent(endpoint, model, [content])
    if entry.recall_handle:
        typer.echo(f"message {entry.message_id} waits; recall handle {entry.recall_handle}")
    else:
        typer.echo(f"message {entry.message_id} at queue offset {entry.offset}")


def _property(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise typer.BadParameter(f"--property takes NAME=VALUE, not {text!r}")
    return name, value


def _due_ms(now_ms: int, delay: str, at: str) -> int:
    if delay and at:
        raise typer.BadParameter("give --delay or --at")
    return epoch_ms(at) if at else now_ms + milliseconds(delay)


def _send_lines(endpoint: str, model: definition_pb2.Message, content: bytes) -> None:
    count = 0
    for bodies in _batches(line for line in content.splitlines() if line):
        try:
            _sent(endpoint, model, bodies)
        except SystemExit:
            if count:
                typer.echo(f"messages sent before that: {count}", err=True)
            raise
        count += len(bodies)
    typer.echo(f"messages sent: {count}")


def _batches(bodies: Iterable[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    held = 0
    for body in bodies:
        if batch and (len(batch) == _LINES_MAX or held + len(body) > _LINES_BYTES_MAX):
            yield batch
            batch, held = [], 0
        batch.append(body)
        held += len(body)
    if batch:
        yield batch


def _sent(
    endpoint: str, model: definition_pb2.Message, bodies: list[bytes]
) -> list[service_pb2.SendResultEntry]:
    """Send what `model` says with each body, in one request."""
    request = service_pb2.SendMessageRequest()
    for body in bodies:
        message = request.messages.add()
        message.CopyFrom(model)
        message.body = body
        message.system_properties.message_id = uuid.uuid4().hex.upper()
    answer = call(endpoint, MESSAGING, "SendMessage", request)
    assert isinstance(answer, service_pb2.SendMessageResponse)
    return list(answer.entries)


@app.command()
def find(
    topic: Topic,
    message_id: Annotated[str, typer.Option("--id", help="A message id")] = "",
    key: Annotated[str, typer.Option(help="A message key")] = "",
    most: Annotated[int, typer.Option("--max", min=1, max=INT32_MAX, help="How many at most")] = 32,
    as_json: AsJson = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Find messages by id or key."""
    request = admin_pb2.ListMessageRequest(max_message_nums=most)
    if message_id:
        request.message_id = message_id
    elif key:
        request.message_key = key
    else:
        raise typer.BadParameter("give --id or --key")
    table(
        ("MESSAGE", "QUEUE", "OFFSET", "STORED", "TAG", "KEYS", "BYTES"),
        [
            (
                m.system_properties.message_id,
                m.system_properties.queue_id,
                m.system_properties.queue_offset,
                moment(m.system_properties.store_timestamp),
                m.system_properties.tag,
                " ".join(m.system_properties.keys),
                len(m.body),
            )
            for m in _query(endpoint, topic, request)
        ],
        as_json=as_json,
    )


@app.command()
def show(
    topic: Topic,
    message_id: Annotated[str, typer.Argument(help="A message id")],
    as_json: AsJson = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Show one message whole, with its properties and its body."""
    request = admin_pb2.ListMessageRequest(message_id=message_id, max_message_nums=1)
    show_messages(_query(endpoint, topic, request), as_json=as_json)


def _query(
    endpoint: str, topic: str, request: admin_pb2.ListMessageRequest
) -> list[definition_pb2.Message]:
    request.topic.name = topic
    answer = call(endpoint, ADMIN, "QueryMessage", request)
    assert isinstance(answer, admin_pb2.ListMessageResponse)
    return list(answer.messages)
