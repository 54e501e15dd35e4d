"""`cosmodrome message`: send one, find some, show one whole."""

import sys
import uuid
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
from cosmodrome_server.cli.shown import show_messages
from cosmodrome_server.cli.units import milliseconds, moment

app = new_app("Send, find and show messages.")
Topic = Annotated[str, typer.Argument(help="The topic")]


@app.command()
def send(  # noqa: PLR0913, PLR0917 - one option per property of a message
    topic: Topic,
    body: Annotated[str, typer.Argument(help="The body; - reads standard input")],
    tag: Annotated[str, typer.Option(help="Its tag")] = "",
    key: Annotated[list[str] | None, typer.Option(help="A message key; may be repeated")] = None,
    group: Annotated[str, typer.Option(help="Its message group (FIFO topics)")] = "",
    delay: Annotated[str, typer.Option(help="Deliver it this much later: 10s, 5m, 2h")] = "",
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Send one message."""
    message = definition_pb2.Message(topic=definition_pb2.Resource(name=topic))
    message.body = sys.stdin.buffer.read() if body == "-" else body.encode()
    system = message.system_properties
    system.message_id = uuid.uuid4().hex.upper()
    system.born_timestamp.GetCurrentTime()
    system.keys.extend(key or [])
    if tag:
        system.tag = tag
    if group:
        system.message_group = group
    if delay:
        due_ms = system.born_timestamp.ToMilliseconds() + milliseconds(delay)
        system.delivery_timestamp.FromMilliseconds(due_ms)
    request = service_pb2.SendMessageRequest(messages=[message])
    answer = call(endpoint, MESSAGING, "SendMessage", request)
    assert isinstance(answer, service_pb2.SendMessageResponse)
    typer.echo(f"message {answer.entries[0].message_id} at queue offset {answer.entries[0].offset}")


@app.command()
def find(
    topic: Topic,
    message_id: Annotated[str, typer.Option("--id", help="A message id")] = "",
    key: Annotated[str, typer.Option(help="A message key")] = "",
    most: Annotated[int, typer.Option("--max", help="How many at most")] = 32,
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
