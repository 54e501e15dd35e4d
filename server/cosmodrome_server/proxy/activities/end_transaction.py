"""EndTransaction: what became of a half message."""

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.errors import InvalidTransactionId
from cosmodrome_server.proxy import status
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.front import Call


def end_transaction(context: Context, _call: Call, request: rpc.EndTransactionRequest) -> bytes:
    """Commit the half message, or roll it back; any other resolution changes nothing.

    Raises:
        IllegalTopic
        InvalidTransactionId: Blank, unknown or expired.
        BadRequest: It was resolved the other way.
    """
    topic = context.names.topic(request.topic.name)
    if not request.transaction_id.strip():
        raise InvalidTransactionId("transaction id cannot be empty")
    if request.resolution in (pb.COMMIT, pb.ROLLBACK):
        context.broker.end_transaction(
            topic,
            request.transaction_id,
            commit=request.resolution == pb.COMMIT,
            from_check=request.source == pb.SOURCE_SERVER_CHECK,
        )
    return status.OK
