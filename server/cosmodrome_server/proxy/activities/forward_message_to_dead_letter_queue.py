"""ForwardMessageToDeadLetterQueue: give a message up now."""

from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.proxy import status
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.front import Call


def forward_message_to_dead_letter_queue(
    context: Context, _call: Call, request: rpc.ForwardMessageToDeadLetterQueueRequest
) -> bytes:
    """Move the message the handle names to the dead letters of its group, exactly once.

    Raises:
        IllegalTopic, IllegalConsumerGroup, InvalidReceiptHandle
    """
    topic = context.names.topic(request.topic.name)
    group = context.names.group(request.group.name)
    context.broker.forward_to_dead_letter_queue(group, topic, request.receipt_handle)
    return status.OK
