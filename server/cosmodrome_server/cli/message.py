"""`cosmodrome message`: send, find, show; `receive` and `tail` are in reading.py."""

import io
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, cast

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
_READ_BYTES = 1 << 20
Source = io.BufferedReader | io.BytesIO


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
    system.keys.extend(key or [])
    model.user_properties.update(map(_property, prop or []))
    for name, value in (("tag", tag), ("message_group", group), ("lite_topic", lite_topic)):
        if value:
            setattr(system, name, value)
    if priority is not None:
        system.priority = priority
    if delay and at:
        raise typer.BadParameter("give --delay or --at")
    send_them = partial(_sent, endpoint, model, delay_ms=milliseconds(delay) if delay else 0)
    if at:
        system.delivery_timestamp.FromMilliseconds(epoch_ms(at))
    # Any bytes may be given to a command; Python carries those that are no text as surrogates.
    given = io.BytesIO(os.fsencode(body))
    source = cast("io.BufferedReader", sys.stdin.buffer) if body == "-" else given
    if lines:
        _send_lines(send_them, source)
        return
    (entry,) = send_them([source.read()])
    if entry.recall_handle:
        typer.echo(f"message {entry.message_id} waits; recall handle {entry.recall_handle}")
    else:
        typer.echo(f"message {entry.message_id} at queue offset {entry.offset}")


def _property(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise typer.BadParameter(f"--property takes NAME=VALUE, not {text!r}")
    return name, value


def _send_lines(send_them: Callable[[list[bytes]], object], source: Source) -> None:
    """Send lines as they come: whoever writes them may never end."""
    count = 0
    for bodies in _batches(source):
        try:
            send_them(bodies)
        except SystemExit:
            if count:
                typer.echo(f"messages sent before that: {count}", err=True)
            raise
        count += len(bodies)
    typer.echo(f"messages sent: {count}")


def _batches(source: Source) -> Iterator[list[bytes]]:
    """The lines that are there, so many at a time, until there will be no more."""
    rest: list[bytes] = []
    while chunk := source.read1(_READ_BYTES):
        *whole, last = chunk.split(b"\n")
        if whole:
            whole[0] = b"".join((*rest, whole[0]))
            rest = []
            yield from _bounded(whole)
        rest.append(last)
    yield from _bounded([b"".join(rest)])


def _bounded(lines: list[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    held = 0
    for line in lines:
        body = line.removesuffix(b"\r")
        if batch and (len(batch) == _LINES_MAX or held + len(body) > _LINES_BYTES_MAX):
            yield batch
            batch, held = [], 0
        if body:
            batch.append(body)
            held += len(body)
    if batch:
        yield batch


def _sent(
    endpoint: str, model: definition_pb2.Message, bodies: list[bytes], *, delay_ms: int = 0
) -> list[service_pb2.SendResultEntry]:
    """Send what `model` says with each body, in one request, now or so much later."""
    system = model.system_properties
    system.born_timestamp.GetCurrentTime()
    if delay_ms:
        due_ms = system.born_timestamp.ToMilliseconds() + delay_ms
        system.delivery_timestamp.FromMilliseconds(due_ms)
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
