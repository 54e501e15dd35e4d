"""`cosmodrome client`: the consumers that are connected, one by one."""

from typing import Annotated

import typer

from cosmodrome_proto import admin_pb2, definition_pb2
from cosmodrome_proto import control_pb2 as wire
from cosmodrome_server.cli.connect import (
    ADMIN,
    CONTROL,
    DEFAULT_ENDPOINT,
    AsJson,
    Endpoint,
    call,
    control,
    new_app,
    print_json,
    printable,
    refuse,
    table,
)

app = new_app("Show who is connected, and what it is doing.")
ClientId = Annotated[str, typer.Argument(help="As client list shows it")]


@app.command("list")
def list_clients(
    group: Annotated[str, typer.Option(help="Only consumers of this group")] = "",
    as_json: AsJson = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """List the consumers of all groups; producers are counted by status."""
    names = [group]
    if not group:
        answer = control(endpoint, "ListGroups", wire.ListGroupsRequest(), wire.ListGroupsResponse)
        names = [state.group.name for state in answer.groups]
    rows = [
        (name, c.client_id, c.language.lower(), c.version, c.hostname, c.egress_ip)
        for name in names
        for c in _consumers(endpoint, name)
    ]
    if group and not rows:
        _check_exists(endpoint, group)
    table(("GROUP", "CLIENT", "LANGUAGE", "VERSION", "HOST", "ADDRESS"), rows, as_json=as_json)


def _check_exists(endpoint: str, group: str) -> None:
    """Exit with 1 where there is no such group; not for who may see this one, and not all."""
    request = wire.ListGroupsRequest(prefix=group)
    found = call(endpoint, CONTROL, "ListGroups", request, tolerated=definition_pb2.UNAUTHORIZED)
    assert isinstance(found, wire.ListGroupsResponse)
    is_told = found.status.code == definition_pb2.OK
    if is_told and all(state.group.name != group for state in found.groups):
        refuse(f"there is no consumer group {group}")


def _consumers(endpoint: str, group: str) -> list[admin_pb2.ClientInfo]:
    request = admin_pb2.ListConsumerConnectionRequest()
    request.group.name = group
    answer = call(endpoint, ADMIN, "ListConsumerConnection", request)
    assert isinstance(answer, admin_pb2.ListConsumerConnectionResponse)
    return list(answer.client_info)


@app.command()
def show(
    client_id: ClientId, as_json: AsJson = False, endpoint: Endpoint = DEFAULT_ENDPOINT
) -> None:
    """Show what a consumer said of itself, and what it subscribes to."""
    request = admin_pb2.GetConsumerRunningInfoRequest(client_id=client_id)
    answer = call(endpoint, ADMIN, "GetConsumerRunningInfo", request)
    assert isinstance(answer, admin_pb2.GetConsumerRunningInfoResponse)
    info = answer.consumer_running_info
    fields: dict[str, object] = {"client": client_id, **dict(sorted(info.properties.items()))}
    for topic, wanted in sorted(info.subscriptions.items()):
        kind = definition_pb2.FilterType.Name(wanted.type).lower()
        fields[f"subscription {topic}"] = f"{wanted.expression} ({kind})"
    if as_json:
        print_json([fields])
        return
    for name, value in fields.items():
        typer.echo(printable(f"{name:<20}{value}"))


@app.command()
def stacks(client_id: ClientId, endpoint: Endpoint = DEFAULT_ENDPOINT) -> None:
    """Print the stacks of a consumer's threads and tasks, as it answers."""
    request = admin_pb2.PrintThreadStackTraceRequest(client_id=client_id)
    answer = call(endpoint, ADMIN, "PrintThreadStackTrace", request)
    assert isinstance(answer, admin_pb2.PrintThreadStackTraceResponse)
    typer.echo(printable(answer.thread_stack_trace))
