"""`cosmodrome offset`: move a group on a topic."""

from typing import Annotated

import typer

from cosmodrome_proto import control_pb2 as wire
from cosmodrome_proto import definition_pb2
from cosmodrome_server.cli.connect import DEFAULT_ENDPOINT, Endpoint, control, new_app, table
from cosmodrome_server.cli.units import INT32_MAX, INT64_MAX, epoch_ms

app = new_app("Move a group on a topic.")


@app.callback()
def offsets() -> None:
    """Move a group on a topic."""


@app.command()
def reset(
    group: Annotated[str, typer.Argument(help="The consumer group")],
    topic: Annotated[str, typer.Argument(help="The topic")],
    to: Annotated[
        str, typer.Option(help="first, last, or a moment such as 2026-11-21T04:00:00Z")
    ] = "",
    queue: Annotated[int, typer.Option(max=INT32_MAX, help="One queue; -1 for all")] = -1,
    offset: Annotated[
        int, typer.Option(max=INT64_MAX, help="An offset of that queue, instead of --to")
    ] = -1,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Reset where the group goes on; what it has in flight there is forgotten."""
    if bool(to) == (offset >= 0):
        raise typer.BadParameter("give --to, or --queue and --offset")
    if offset >= 0 > queue:
        raise typer.BadParameter("--offset is one of one queue: give --queue, too")
    request = wire.ResetOffsetRequest(group=group, topic=topic)
    if queue >= 0:
        request.queue_id = queue
    if offset >= 0:
        request.offset = offset
    elif to in {"first", "last"}:
        request.policy = definition_pb2.BEGINNING if to == "first" else definition_pb2.END
    else:
        request.timestamp.FromMilliseconds(epoch_ms(to))
    moved = control(endpoint, "ResetOffset", request, wire.ResetOffsetResponse)
    table(("QUEUE", "OFFSET"), [(o.queue_id, o.offset) for o in moved.offsets])
