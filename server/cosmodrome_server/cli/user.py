"""`cosmodrome user`: who may speak to the broker."""

import sys
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

app = new_app("Create, list, delete users.")
Name = Annotated[str, typer.Argument(help="The user; the access key of clients")]


@app.command()
def create(
    name: Name,
    secret: Annotated[
        str, typer.Option(help="Asked for unless given", envvar="COSMODROME_NEW_SECRET")
    ] = "",
    is_super: Annotated[bool, typer.Option("--super", help="May do everything")] = False,
    disabled: Annotated[bool, typer.Option("--disabled", help="May do nothing")] = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Create a user, or change one."""
    if not secret and not sys.stdin.isatty():
        raise typer.BadParameter(
            "nobody is there to type it: set COSMODROME_NEW_SECRET or --secret"
        )
    secret = secret or typer.prompt("Secret", hide_input=True)
    user = wire.User(name=name, secret=secret, super=is_super, disabled=disabled)
    control(endpoint, "PutUser", wire.PutUserRequest(user=user), wire.PutUserResponse)
    typer.echo(f"user {name} is set")


@app.command("list")
def list_users(
    as_json: AsJson = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """List users; secrets are never shown."""
    found = control(endpoint, "ListUsers", wire.ListUsersRequest(), wire.ListUsersResponse)
    table(
        ("USER", "TYPE", "STATE"),
        [
            (u.name, "super" if u.super else "normal", "disabled" if u.disabled else "enabled")
            for u in found.users
        ],
        as_json=as_json,
    )


@app.command()
def delete(name: Name, endpoint: Endpoint = DEFAULT_ENDPOINT) -> None:
    """Delete a user and its policies."""
    control(endpoint, "DeleteUser", wire.DeleteUserRequest(name=name), wire.DeleteUserResponse)
    typer.echo(f"user {name} is deleted")
