"""AdminSendMessage: send one message by hand."""

import os

from cosmodrome_proto import admin_pb2 as admin
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto.sent_pb2 import SentMessage
from cosmodrome_server.errors import IllegalDeliveryTime
from cosmodrome_server.proxy import convert, status
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.front import Call


def admin_send_message(
    context: Context, call: Call, request: admin.AdminSendMessageRequest
) -> admin.AdminSendMessageResponse:
    """Send the message as a producer would; one without an id is given one.

    Raises:
        RequestError: As SendMessage; a delivery time that is past is refused here.
    """
    message = pb.Message(topic=request.topic, body=request.body)
    message.user_properties.update(request.user_properties)
    system = message.system_properties
    system.CopyFrom(request.system_properties)
    if request.HasField("tag"):
        system.tag = request.tag
    if request.HasField("key"):
        system.keys.append(request.key)
    if not system.message_id:
        system.message_id = "01" + os.urandom(16).hex().upper()
    now_ms = context.clock.now_ms()
    if system.HasField("delivery_timestamp"):
        due_ms = convert.timestamp_ms(system.delivery_timestamp)
        if due_ms <= now_ms:
            raise IllegalDeliveryTime(f"the delivery time is {now_ms - due_ms} ms past")
    if not system.HasField("born_timestamp"):
        system.born_timestamp.CopyFrom(convert.to_timestamp(now_ms))
    sent = SentMessage.FromString(message.SerializeToString())
    topic = convert.topic_of([sent], context.names)
    converted = convert.new_messages([sent], context.rules, context.names, now_ms, call.peer)
    receipts = context.broker.send(topic, converted)
    return admin.AdminSendMessageResponse(
        status=status.OK_STATUS, message_id=receipts[0].message_id
    )
