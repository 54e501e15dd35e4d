"""`cosmodrome dlq`: move dead letters back where they came from."""

from typing import Annotated

import typer

from cosmodrome_proto import control_pb2 as wire
from cosmodrome_server.cli.connect import DEFAULT_ENDPOINT, Endpoint, control, new_app, table

app = new_app("List and redrive dead letters.")
PREFIX = "%DLQ%"


@app.command("list")
def list_dead_letters(endpoint: Endpoint = DEFAULT_ENDPOINT) -> None:
    """List the groups that have dead letters, and how many."""
    request = wire.ListTopicsRequest(prefix=PREFIX)
    found = control(endpoint, "ListTopics", request, wire.ListTopicsResponse)
    table(
        ("GROUP", "DEAD LETTERS"),
        [
            (
                state.topic.name.removeprefix(PREFIX),
                sum(queue.max_offset - queue.min_offset for queue in state.queues),
            )
            for state in found.topics
        ],
    )


@app.command()
def redrive(
    group: Annotated[str, typer.Argument(help="The group whose dead letters go back")],
    topic: Annotated[str, typer.Option(help="Only those that came from this topic")] = "",
    most: Annotated[int, typer.Option("--max", help="How many at most; 0 for all")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count")] = False,  # noqa: FBT002
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Send dead letters back to their topics, each once."""
    request = wire.RedriveRequest(group=group, topic=topic, dry_run=dry_run)
    moved = 0
    while True:
        request.max_messages = most - moved if most else 0
        answer = control(endpoint, "Redrive", request, wire.RedriveResponse)
        moved += answer.moved
        request.from_offset = answer.next_offset
        if not answer.next_offset or (most and moved >= most):
            break
    word = "would go back" if dry_run else "went back"
    typer.echo(f"{moved} dead letters of {group} {word}, {answer.remaining} are left")
