"""VerifyMessage: have one client consume one stored message, as a trial."""

from cosmodrome_proto import admin_pb2 as admin
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.errors import BadRequest, BrokerError, MessageNotFound
from cosmodrome_server.model.message import StoredMessage
from cosmodrome_server.model.queries import MessageSearch
from cosmodrome_server.proxy import status
from cosmodrome_server.proxy.activities.admin.clients import consumer
from cosmodrome_server.proxy.activities.admin.query_message import OF_ID_MAX, of_id
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.convert import to_message
from cosmodrome_server.proxy.front import Call

_RPC = "VerifyMessage"


def verify_message(context: Context, call: Call, request: admin.VerifyMessageRequest) -> None:
    """Relay the message over Telemetry; the status is what the client's listener made of it.

    The trial settles nothing: the message stays as it is for its group.

    Raises:
        BadRequest: A field is missing.
        NotFound: The client is not there.
        MessageNotFound: The topic has no such message.
        OverloadedError: Too many questions are open.
    """
    topic = context.names.topic(request.topic.name)
    group = context.names.group(request.group.name)
    if not request.message_id:
        raise BadRequest("the request names no message_id")
    session = consumer(context, request.client_id, group)
    search = MessageSearch(topic, request.message_id, 0, 0, OF_ID_MAX)

    def on_found(found: list[StoredMessage] | BrokerError) -> None:
        if not isinstance(found, BrokerError):
            found = of_id(found, request.message_id)
        _ask(context, call, session.client_id, found)

    context.broker.find(search, on_found)


def _ask(
    context: Context, call: Call, client_id: str, found: list[StoredMessage] | BrokerError
) -> None:
    """Show the message to the client, and its answer to the caller."""
    if isinstance(found, BrokerError) or not found:
        error = found or MessageNotFound("the topic has no message with this id")
        assert isinstance(error, BrokerError), "an empty list was replaced"
        context.reply_late(_RPC, call, error)
        return
    shown = to_message(found[0], context.store_host)

    def on_answer(answer: rpc.TelemetryCommand | BrokerError) -> None:
        if isinstance(answer, BrokerError):
            context.reply_late(_RPC, call, answer)
        else:
            told = answer.status if answer.HasField("status") else status.OK_STATUS
            shown = admin.VerifyMessageResponse(status=told).SerializeToString()
            context.reply_late(_RPC, call, shown, told.code)

    def command(nonce: str) -> rpc.TelemetryCommand:
        ask = rpc.VerifyMessageCommand(nonce=nonce, message=shown)
        return rpc.TelemetryCommand(verify_message_command=ask)

    try:
        context.sessions.ask(client_id, command, on_answer)
    except BrokerError as error:
        context.reply_late(_RPC, call, error)
