"""`cosmodrome topic`: create, list, show, delete topics of a running broker."""

from typing import Annotated

import typer

from cosmodrome_proto import control_pb2 as wire
from cosmodrome_server.cli.connect import (
    DEFAULT_ENDPOINT,
    AsJson,
    Endpoint,
    control,
    new_app,
    refuse,
    table,
)
from cosmodrome_server.cli.described import TopicDescription
from cosmodrome_server.cli.units import INT32_MAX, moment

app = new_app("Create, list, show, delete topics.")
Name = Annotated[str, typer.Argument(help="The topic")]


@app.command()
def create(
    name: Name,
    topic_type: Annotated[
        str,
        typer.Option("--type", help="normal, fifo, delay, transaction, mixed, lite or priority"),
    ] = "",
    queues: Annotated[
        int, typer.Option(min=0, max=INT32_MAX, help="Message queues; they may only grow")
    ] = 0,
    retention: Annotated[
        str, typer.Option(help="Keep messages this long at least: 12h, 7d; 0s for the broker's")
    ] = "",
    lite_expiration: Annotated[str, typer.Option(help="Idle lite topics live this long")] = "",
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Create a topic, or change what you name of one."""
    described = TopicDescription(
        name=name,
        type=topic_type,
        queues=queues,
        retention=retention,
        lite_expiration=lite_expiration,
    )
    request = wire.CreateTopicRequest(topic=described.to_wire())
    made = control(endpoint, "CreateTopic", request, wire.CreateTopicResponse).topic
    typer.echo(f"topic {made.name}: {made.type.lower()}, {made.queues} queues")


@app.command("list")
def list_topics(
    prefix: Annotated[str, typer.Option(help="Only names that begin so")] = "",
    as_json: AsJson = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """List topics with what they hold."""
    request = wire.ListTopicsRequest(prefix=prefix)
    found = control(endpoint, "ListTopics", request, wire.ListTopicsResponse)
    table(
        ("TOPIC", "TYPE", "QUEUES", "MESSAGES"),
        [
            (
                state.topic.name,
                state.topic.type.lower(),
                state.topic.queues,
                sum(queue.max_offset - queue.min_offset for queue in state.queues),
            )
            for state in found.topics
        ],
        as_json=as_json,
    )


@app.command()
def show(
    name: Name,
    as_json: AsJson = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Show one topic and the offsets of its queues."""
    request = wire.ListTopicsRequest(prefix=name)
    found = control(endpoint, "ListTopics", request, wire.ListTopicsResponse)
    state = next((s for s in found.topics if s.topic.name == name), None)
    if state is None:
        refuse(f"there is no topic {name}")
    if not as_json:
        typer.echo(f"{name}: {state.topic.type.lower()}, created {moment(state.topic.created)}")
        for key, value in sorted(state.topic.attributes.items()):
            typer.echo(f"  {key} = {value}")
    table(
        ("QUEUE", "FIRST", "NEXT", "MESSAGES"),
        [
            (q.queue_id, q.min_offset, q.max_offset, q.max_offset - q.min_offset)
            for q in state.queues
        ],
        as_json=as_json,
    )


@app.command()
def delete(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask")] = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Delete a topic, its messages and all progress on it."""
    if not yes:
        typer.confirm(f"delete topic {name} with all its messages?", abort=True)
    control(endpoint, "DeleteTopic", wire.DeleteTopicRequest(name=name), wire.DeleteTopicResponse)
    typer.echo(f"topic {name} is deleted")
