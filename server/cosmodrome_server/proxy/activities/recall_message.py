"""RecallMessage: take back a message that waits for its delivery time."""

from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.errors import MessageTypeConflict, Unsupported
from cosmodrome_server.model.topic import TopicType
from cosmodrome_server.proxy import status
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.encoding import bytes_field
from cosmodrome_server.proxy.front import Call


def recall_message(context: Context, _call: Call, request: rpc.RecallMessageRequest) -> bytes:
    """Drop the message the handle names; the answer has its message id.

    Raises:
        IllegalTopic, TopicNotFound
        Unsupported: delays.recall is off.
        MessageTypeConflict: The topic takes no delayed messages.
        BadRequest: The handle is malformed or of another topic.
        MessageNotFound: Delivered or recalled already, or never there.
    """
    topic = context.broker.topic(context.names.topic(request.topic.name))
    if not context.config.delays.recall:
        raise Unsupported("recalling messages is switched off (delays.recall)")
    if topic.topic_type not in (TopicType.DELAY, TopicType.MIXED):
        raise MessageTypeConflict(
            f"topic {topic.name} is of type {topic.topic_type}: it holds no delayed messages"
        )
    message_id = context.broker.recall(topic.name, request.recall_handle)
    return status.OK + bytes_field(2, message_id.encode())
