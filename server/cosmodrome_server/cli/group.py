"""`cosmodrome group`: create, list, show, delete consumer groups of a running broker."""

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
from cosmodrome_server.cli.described import GroupDescription
from cosmodrome_server.cli.units import INT32_MAX, moment

app = new_app("Create, list, show, delete consumer groups.")
Name = Annotated[str, typer.Argument(help="The consumer group")]


@app.command()
def create(  # noqa: PLR0913, PLR0917 - one option per property of a group
    name: Name,
    fifo: Annotated[bool | None, typer.Option(help="Deliver in order")] = None,
    max_attempts: Annotated[
        int, typer.Option(min=0, max=INT32_MAX, help="Deliveries before the dead letters")
    ] = 0,
    backoff: Annotated[str, typer.Option(help="Rests after failures: 1s,5s,10s,1m")] = "",
    consume_from: Annotated[str, typer.Option(help="auto, first, last or a moment")] = "",
    lite_topic_of: Annotated[str, typer.Option(help="The LITE topic a lite group reads")] = "",
    paused: Annotated[bool | None, typer.Option(help="Refuse receives")] = None,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Create a group, or change what you name of one."""
    described = GroupDescription(
        name=name,
        fifo=fifo,
        max_attempts=max_attempts,
        backoff=[rest for rest in backoff.split(",") if rest],
        consume_from=consume_from,
        lite_topic_of=lite_topic_of,
        paused=paused,
    )
    request = wire.CreateGroupRequest(group=described.to_wire())
    made = control(endpoint, "CreateGroup", request, wire.CreateGroupResponse).group
    order = "fifo" if made.fifo else "standard"
    typer.echo(f"group {made.name}: {order}, {made.max_attempts} attempts")


@app.command("list")
def list_groups(
    prefix: Annotated[str, typer.Option(help="Only names that begin so")] = "",
    as_json: AsJson = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """List groups with how far behind they are."""
    request = wire.ListGroupsRequest(prefix=prefix, lag=True)
    found = control(endpoint, "ListGroups", request, wire.ListGroupsResponse)
    table(
        ("GROUP", "ORDER", "ATTEMPTS", "TOPICS", "READY", "IN FLIGHT"),
        [
            (
                state.group.name,
                "fifo" if state.group.fifo else "standard",
                state.group.max_attempts,
                len(state.progress),
                sum(p.ready for p in state.progress),
                sum(p.inflight for p in state.progress),
            )
            for state in found.groups
        ],
        as_json=as_json,
    )


@app.command()
def show(
    name: Name,
    as_json: AsJson = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Show one group and its progress, topic by topic."""
    request = wire.ListGroupsRequest(prefix=name, lag=True)
    found = control(endpoint, "ListGroups", request, wire.ListGroupsResponse)
    state = next((s for s in found.groups if s.group.name == name), None)
    if state is None:
        refuse(f"there is no consumer group {name}")
    if not as_json:
        order = "fifo" if state.group.fifo else "standard"
        paused = ", paused" if state.group.paused else ""
        typer.echo(f"{name}: {order}, {state.group.max_attempts} attempts{paused}")
    table(
        ("TOPIC", "READY", "IN FLIGHT", "OLDEST"),
        [(p.topic, p.ready, p.inflight, moment(p.oldest_unconsumed)) for p in state.progress],
        as_json=as_json,
    )


@app.command()
def delete(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask")] = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Delete a group and its progress; its dead letters stay."""
    if not yes:
        typer.confirm(f"delete group {name} with its progress?", abort=True)
    control(endpoint, "DeleteGroup", wire.DeleteGroupRequest(name=name), wire.DeleteGroupResponse)
    typer.echo(f"group {name} is deleted")
