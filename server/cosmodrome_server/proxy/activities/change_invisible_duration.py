"""ChangeInvisibleDuration: hide a delivered message for longer, or shorter."""

from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.errors import IllegalInvisibleTime
from cosmodrome_server.proxy import status
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.convert import duration_ms
from cosmodrome_server.proxy.encoding import bytes_field
from cosmodrome_server.proxy.front import Call


def change_invisible_duration(
    context: Context, _call: Call, request: rpc.ChangeInvisibleDurationRequest
) -> bytes:
    """Hide the message for the duration from now; the answer has its new handle.

    Raises:
        IllegalTopic, IllegalConsumerGroup
        IllegalInvisibleTime: Negative, or too long.
        InvalidReceiptHandle
    """
    topic = context.names.topic(request.topic.name)
    group = context.names.group(request.group.name)
    invisible_ms = duration_ms(request.invisible_duration)
    longest = context.config.delivery.invisible_max_ms
    if not 0 <= invisible_ms <= longest:
        raise IllegalInvisibleTime(
            f"the invisible duration is {invisible_ms} ms, it must be 0 to {longest} "
            "(delivery.invisible_max_ms)"
        )
    handle = context.broker.change_invisible_duration(
        group, topic, request.receipt_handle, invisible_ms, suspend=request.suspend
    )
    return status.OK + bytes_field(2, handle.encode())
