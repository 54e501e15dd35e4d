"""`cosmodrome dlq`: look at dead letters, and move them back where they came from."""

import time
from typing import Annotated

import typer

from cosmodrome_proto import control_pb2 as wire
from cosmodrome_proto import definition_pb2, service_pb2
from cosmodrome_server.cli.connect import (
    DEFAULT_ENDPOINT,
    AsJson,
    Endpoint,
    control,
    new_app,
    read,
    table,
)
from cosmodrome_server.cli.shown import show_messages
from cosmodrome_server.cli.units import INT32_MAX

app = new_app("List, show, redrive dead letters.")
PREFIX = "%DLQ%"


@app.command("list")
def list_dead_letters(
    as_json: AsJson = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """List the groups that have dead letters, and how many did not go back."""
    table(("GROUP", "DEAD LETTERS"), dead_letters(endpoint).items(), as_json=as_json)


def dead_letters(endpoint: str) -> dict[str, int]:
    """Group → dead letters that did not go back, where there are some."""
    request = wire.ListTopicsRequest(prefix=PREFIX)
    found = control(endpoint, "ListTopics", request, wire.ListTopicsResponse)
    held = {
        state.topic.name.removeprefix(PREFIX): sum(
            queue.max_offset - queue.min_offset for queue in state.queues
        )
        - state.redriven
        for state in found.topics
    }
    return {group: count for group, count in held.items() if count}


@app.command()
def show(
    group: Annotated[str, typer.Argument(help="The group whose dead letters to show")],
    most: Annotated[int, typer.Option("--max", min=1, max=INT32_MAX, help="How many at most")] = 10,
    as_json: AsJson = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Show dead letters whole, oldest first, also those that went back; changes nothing."""
    request = wire.ListTopicsRequest(prefix=PREFIX + group)
    found = control(endpoint, "ListTopics", request, wire.ListTopicsResponse)
    letters: list[definition_pb2.Message] = []
    for state in found.topics:
        for queue in state.queues if state.topic.name == PREFIX + group else ():
            held = min(most - len(letters), queue.max_offset - queue.min_offset)
            letters += _pulled(endpoint, group, queue, held) if held > 0 else []
    if not letters and not as_json:
        typer.echo(f"{group} has no dead letters")
        return
    show_messages(letters, as_json=as_json)


def _pulled(
    endpoint: str, group: str, queue: wire.QueueState, most: int
) -> list[definition_pb2.Message]:
    request = service_pb2.PullMessageRequest(offset=queue.min_offset, batch_size=most)
    request.group.name = group
    request.message_queue.topic.name, request.message_queue.id = PREFIX + group, queue.queue_id
    request.filter_expression.expression = "*"
    request.long_polling_timeout.seconds = 0
    return read(endpoint, request)[0]


@app.command()
def redrive(
    group: Annotated[str, typer.Argument(help="The group whose dead letters go back")],
    topic: Annotated[str, typer.Option(help="Only those that came from this topic")] = "",
    most: Annotated[
        int, typer.Option("--max", min=0, max=INT32_MAX, help="How many at most; 0 for all")
    ] = 0,
    rate: Annotated[
        int, typer.Option(min=0, max=INT32_MAX, help="How many a second; 0 for no bound")
    ] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count")] = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Send dead letters back to their topics, each once."""
    request = wire.RedriveRequest(group=group, topic=topic, dry_run=dry_run)
    word = "would go back" if dry_run else "went back"
    moved = 0
    while True:
        request.max_messages = min(filter(None, (most and most - moved, rate)), default=0)
        try:
            answer = control(endpoint, "Redrive", request, wire.RedriveResponse)
        except SystemExit:
            if moved:
                typer.echo(f"{moved} dead letters of {group} {word} before that", err=True)
            raise
        moved += answer.moved
        request.from_offset = answer.next_offset
        if not answer.next_offset or (most and moved >= most):
            break
        if rate and not dry_run:
            time.sleep(answer.moved / rate)
    typer.echo(f"{moved} dead letters of {group} {word}, {answer.remaining} are left")
