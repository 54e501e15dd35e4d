"""`cosmodrome acl`: which user may do what to which resource, and why."""

from typing import Annotated

import typer

from cosmodrome_proto import control_pb2 as wire
from cosmodrome_server.cli.connect import (
    DEFAULT_ENDPOINT,
    AsJson,
    Endpoint,
    control,
    new_app,
    table,
)

app = new_app("Say who may do what; explain decisions.")
User = Annotated[str, typer.Argument(help="The user")]
Resource = Annotated[str, typer.Argument(help="Topic:orders, Group:bill*, or *")]


def _change(
    decision: str, user: str, resource: str, actions: str, source: list[str]
) -> wire.Policy:
    return wire.Policy(
        user=user,
        resource=resource,
        actions=[action.strip() for action in actions.split(",")],
        sources=source,
        deny=decision == "deny",
    )


Actions = Annotated[str, typer.Argument(help="pub, sub, create, update, delete, get, list or all")]
Source = Annotated[list[str] | None, typer.Option(help="An address or network; may be repeated")]


@app.command()
def allow(
    user: User,
    actions: Actions,
    resource: Resource,
    source: Source = None,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Allow actions on a resource."""
    policy = _change("allow", user, resource, actions, source or [])
    control(endpoint, "PutPolicy", wire.PutPolicyRequest(policy=policy), wire.PutPolicyResponse)
    typer.echo(f"{user} may {actions} {resource}")


@app.command()
def deny(
    user: User,
    actions: Actions,
    resource: Resource,
    source: Source = None,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Deny actions on a resource; wins over an equal allow."""
    policy = _change("deny", user, resource, actions, source or [])
    control(endpoint, "PutPolicy", wire.PutPolicyRequest(policy=policy), wire.PutPolicyResponse)
    typer.echo(f"{user} may not {actions} {resource}")


@app.command("list")
def list_policies(
    user: Annotated[str, typer.Option(help="Only of this user")] = "",
    as_json: AsJson = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """List policies."""
    request = wire.ListPoliciesRequest(user=user)
    found = control(endpoint, "ListPolicies", request, wire.ListPoliciesResponse)
    table(
        ("USER", "DECISION", "ACTIONS", "RESOURCE", "FROM"),
        [
            (
                p.user,
                "deny" if p.deny else "allow",
                ",".join(p.actions),
                p.resource,
                ",".join(p.sources) or "anywhere",
            )
            for p in found.policies
        ],
        as_json=as_json,
    )


@app.command()
def delete(user: User, resource: Resource, endpoint: Endpoint = DEFAULT_ENDPOINT) -> None:
    """Delete the policies of a user on a resource."""
    request = wire.DeletePolicyRequest(user=user, resource=resource)
    control(endpoint, "DeletePolicy", request, wire.DeletePolicyResponse)
    typer.echo(f"{user} has no policy on {resource} any more")


@app.command()
def check(
    user: User,
    action: Annotated[str, typer.Argument(help="pub, sub, …")],
    resource: Resource,
    source: Annotated[str, typer.Option(help="The caller's address")] = "127.0.0.1",
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Explain which rule decides; exits with 1 when it is a no."""
    request = wire.CheckAccessRequest(user=user, action=action, resource=resource, source=source)
    answer = control(endpoint, "CheckAccess", request, wire.CheckAccessResponse)
    typer.echo(f"{'allowed' if answer.allowed else 'denied'}: {answer.reason}")
    if not answer.allowed:
        raise typer.Exit(1)
