"""`cosmodrome status`: the broker at a glance, and a check for monitors.

cosmodrome status --ready-max 1000 --dead-max 0      exit code 1 where a group has more
"""

from typing import Annotated, NamedTuple

import typer

from cosmodrome_proto import admin_pb2
from cosmodrome_proto import control_pb2 as wire
from cosmodrome_server.cli.connect import (
    ADMIN,
    DEFAULT_ENDPOINT,
    Endpoint,
    call,
    control,
    new_app,
    print_json,
    table,
)
from cosmodrome_server.cli.dead_letters import dead_letters
from cosmodrome_server.cli.units import moment

app = new_app("Show the broker at a glance.")


class _Backlog(NamedTuple):
    """What a group has left."""

    group: str
    ready: int
    inflight: int
    dead: int


@app.command()
def status(
    ready_max: Annotated[int, typer.Option(help="Fail where a group has more ready; -1: no")] = -1,
    dead_max: Annotated[int, typer.Option(help="Fail above this many dead letters; -1: no")] = -1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts")] = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Show what the broker is, who is there, and which groups have something left."""
    facts = _facts(endpoint)
    backlogs = [each for each in _backlogs(endpoint) if any(each[1:])]
    if as_json:
        print_json([{**facts, "groups_behind": [each._asdict() for each in backlogs]}])
    else:
        for name, value in facts.items():
            typer.echo(f"{name:<12}{value}")
        typer.echo("")
        table(("GROUP", "READY", "IN FLIGHT", "DEAD LETTERS"), backlogs)
    passed = [
        f"{each.group} has {held} {what}, more than {most}"
        for each in backlogs
        for held, most, what in (
            (each.ready, ready_max, "ready messages"),
            (each.dead, dead_max, "dead letters"),
        )
        if 0 <= most < held
    ]
    for words in passed:
        typer.echo(f"cosmodrome: {words}", err=True)
    if passed:
        raise typer.Exit(1)


def _facts(endpoint: str) -> dict[str, object]:
    server = control(
        endpoint, "DescribeServer", wire.DescribeServerRequest(), wire.DescribeServerResponse
    )
    clients = call(endpoint, ADMIN, "GetProxyRuntimeStats", admin_pb2.GetProxyRuntimeStatsRequest())
    assert isinstance(clients, admin_pb2.GetProxyRuntimeStatsResponse)
    return {
        "broker": server.name,
        "version": server.version,
        "front": server.front,
        "durability": server.durability,
        "since": moment(server.started),
        **dict(sorted(server.figures.items())),
        "producers": clients.producers,
        "consumers": clients.consumers,
    }


def _backlogs(endpoint: str) -> list[_Backlog]:
    """Of all groups, those with most left first."""
    dead = dead_letters(endpoint)
    request = wire.ListGroupsRequest(lag=True)
    found = [
        _Backlog(
            state.group.name,
            sum(progress.ready for progress in state.progress),
            sum(progress.inflight for progress in state.progress),
            dead.pop(state.group.name, 0),
        )
        for state in control(endpoint, "ListGroups", request, wire.ListGroupsResponse).groups
    ]
    # A group's dead letters outlive it.
    found += [_Backlog(group, 0, 0, count) for group, count in dead.items()]
    return sorted(found, key=lambda each: (-each.dead, -each.ready, each.group))
