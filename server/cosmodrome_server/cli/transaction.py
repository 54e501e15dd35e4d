"""`cosmodrome transaction`: half messages that nobody resolved, and how to end them."""

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

app = new_app("List and end half messages.")


@app.command("list")
def list_transactions(
    topic: Annotated[str, typer.Option(help="Only of this topic")] = "",
    most: Annotated[
        int, typer.Option("--max", min=1, max=INT32_MAX, help="How many at most")
    ] = 100,
    as_json: AsJson = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """List half messages, oldest first; parked ones are no longer checked."""
    request = wire.ListTransactionsRequest(topic=topic, max_messages=most)
    found = control(endpoint, "ListTransactions", request, wire.ListTransactionsResponse)
    table(
        ("STORED", "TOPIC", "TRANSACTION", "CHECKS", "STATE"),
        [
            (
                moment(t.stored),
                t.topic,
                t.transaction_id,
                t.checks,
                "parked" if t.parked else "open",
            )
            for t in found.transactions
        ],
        as_json=as_json,
    )


@app.command()
def commit(topic: str, transaction_id: str, endpoint: Endpoint = DEFAULT_ENDPOINT) -> None:
    """Make a half message visible to consumers."""
    _end(endpoint, topic, transaction_id, commits=True)
    typer.echo(f"transaction {transaction_id} is committed")


@app.command()
def rollback(topic: str, transaction_id: str, endpoint: Endpoint = DEFAULT_ENDPOINT) -> None:
    """Drop a half message."""
    _end(endpoint, topic, transaction_id, commits=False)
    typer.echo(f"transaction {transaction_id} is rolled back")


def _end(endpoint: str, topic: str, transaction_id: str, *, commits: bool) -> None:
    request = service_pb2.EndTransactionRequest(
        topic=definition_pb2.Resource(name=topic),
        message_id=transaction_id,
        transaction_id=transaction_id,
        resolution=definition_pb2.COMMIT if commits else definition_pb2.ROLLBACK,
        # An operator answers in the producer's place, so its recovery time does not bind.
        source=definition_pb2.SOURCE_SERVER_CHECK,
    )
    call(endpoint, MESSAGING, "EndTransaction", request)
