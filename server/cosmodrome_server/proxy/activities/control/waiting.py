"""What waits: delayed messages and half messages (ListScheduled, ListTransactions)."""

from cosmodrome_proto import control_pb2 as wire
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.convert import to_timestamp
from cosmodrome_server.proxy.front import Call
from cosmodrome_server.proxy.status import OK_STATUS

LISTED_DEFAULT, LISTED_MAX = 100, 10_000


def list_scheduled(
    context: Context, _call: Call, request: wire.ListScheduledRequest
) -> wire.ListScheduledResponse:
    """List delayed messages, soonest first."""
    response = wire.ListScheduledResponse(status=OK_STATUS)
    for message in context.broker.scheduled(request.topic, _bounded(request.max_messages)):
        response.messages.add(
            topic=message.topic,
            message_id=message.message_id,
            delivery=to_timestamp(message.due_ms),
            recall_handle=message.recall_handle,
        )
    return response


def list_transactions(
    context: Context, _call: Call, request: wire.ListTransactionsRequest
) -> wire.ListTransactionsResponse:
    """List half messages, oldest first."""
    response = wire.ListTransactionsResponse(status=OK_STATUS)
    for half in context.broker.transactions(request.topic, _bounded(request.max_messages)):
        response.transactions.add(
            topic=half.topic,
            transaction_id=half.transaction_id,
            stored=to_timestamp(half.stored_ms),
            checks=half.checks,
            parked=half.is_parked,
        )
    return response


def _bounded(asked: int) -> int:
    return min(asked, LISTED_MAX) if asked > 0 else LISTED_DEFAULT
