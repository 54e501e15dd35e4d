"""`cosmodrome scheduled`: what waits for its delivery time."""

from typing import Annotated

import typer

from cosmodrome_proto import control_pb2 as wire
from cosmodrome_proto import definition_pb2, service_pb2
from cosmodrome_server.cli.connect import (
    DEFAULT_ENDPOINT,
    MESSAGING,
    AsJson,
    Endpoint,
    call,
    control,
    new_app,
    table,
)
from cosmodrome_server.cli.units import INT32_MAX, moment

app = new_app("List and recall delayed messages.")


@app.command("list")
def list_scheduled(
    topic: Annotated[str, typer.Option(help="Only of this topic")] = "",
    most: Annotated[
        int, typer.Option("--max", min=1, max=INT32_MAX, help="How many at most")
    ] = 100,
    as_json: AsJson = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """List delayed messages, soonest first."""
    request = wire.ListScheduledRequest(topic=topic, max_messages=most)
    found = control(endpoint, "ListScheduled", request, wire.ListScheduledResponse)
    table(
        ("DUE", "TOPIC", "MESSAGE", "RECALL HANDLE"),
        [(moment(m.delivery), m.topic, m.message_id, m.recall_handle) for m in found.messages],
        as_json=as_json,
    )


@app.command()
def recall(
    topic: Annotated[str, typer.Argument(help="The topic it was sent to")],
    recall_handle: Annotated[str, typer.Argument(help="As given by send or list")],
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Take a delayed message back before it is delivered."""
    request = service_pb2.RecallMessageRequest(
        topic=definition_pb2.Resource(name=topic), recall_handle=recall_handle
    )
    answer = call(endpoint, MESSAGING, "RecallMessage", request)
    assert isinstance(answer, service_pb2.RecallMessageResponse)
    typer.echo(f"message {answer.message_id} is recalled")
