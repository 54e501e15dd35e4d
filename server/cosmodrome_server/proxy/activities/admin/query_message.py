"""QueryMessage: look a message up by its id or one of its keys."""

from cosmodrome_proto import admin_pb2 as admin
from cosmodrome_server.errors import BadRequest, BrokerError, MessageNotFound
from cosmodrome_server.model import wire
from cosmodrome_server.model.message import StoredMessage
from cosmodrome_server.model.queries import MessageSearch
from cosmodrome_server.proxy import status
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.convert import timestamp_ms, to_message
from cosmodrome_server.proxy.front import Call

_RPC = "QueryMessage"
MESSAGES_DEFAULT = 32
MESSAGES_MAX = 1_000
# Looked at for an id, newest first: what names it in its keys is newer than itself.
OF_ID_MAX = 256


def query_message(context: Context, call: Call, request: admin.ListMessageRequest) -> None:
    """List the messages with the id or the key, newest first.

    Raises:
        IllegalTopic, TopicNotFound
        BadRequest: Neither an id nor a key.
        OverloadedError: Too many searches wait.
    """
    topic = context.known_topic(request.topic.name).name
    key = request.message_id or request.message_key
    if not key:
        raise BadRequest("messages are looked up by message_id or message_key, give one")
    most = request.max_message_nums
    most = min(most, MESSAGES_MAX) if most > 0 else MESSAGES_DEFAULT
    search = MessageSearch(
        topic=topic,
        key=key,
        begin_ms=timestamp_ms(request.begin_timestamp),
        end_ms=timestamp_ms(request.end_timestamp),
        max_messages=max(most, OF_ID_MAX) if request.message_id else most,
    )

    def on_found(found: list[StoredMessage] | BrokerError) -> None:
        if isinstance(found, BrokerError):
            context.reply_late(_RPC, call, found)
            return
        if request.message_id:
            found = of_id(found, request.message_id)[:most]
        if found:
            context.reply_late(_RPC, call, _listed(context, found).SerializeToString())
        else:
            missing = MessageNotFound(f"topic {topic} has no message with the id or key {key}")
            context.reply_late(_RPC, call, missing)

    context.broker.find(search, on_found)


def of_id(found: list[StoredMessage], message_id: str) -> list[StoredMessage]:
    """Those with this id: a search also finds it among the keys, as of messages that answer it."""
    return [one for one in found if wire.message_id(one.system) == message_id]


def _listed(context: Context, found: list[StoredMessage]) -> admin.ListMessageResponse:
    return admin.ListMessageResponse(
        status=status.OK_STATUS,
        messages=[to_message(one, context.store_host) for one in found],
    )
