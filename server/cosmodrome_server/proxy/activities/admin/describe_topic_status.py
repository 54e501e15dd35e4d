"""DescribeTopicStatus: what kind of topic it is and how much it has."""

from cosmodrome_proto import admin_pb2 as admin
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_server.model.topic import TopicType
from cosmodrome_server.proxy import status
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.convert import to_timestamp
from cosmodrome_server.proxy.front import Call


def describe_topic_status(
    context: Context, _call: Call, request: admin.DescribeTopicStatusRequest
) -> admin.DescribeTopicStatusResponse:
    """Describe a topic; queues, permission and messages are among its tags.

    A MIXED topic has the unspecified type, which the wire has no name for.

    Raises:
        IllegalTopic, TopicNotFound
    """
    topic = context.known_topic(request.topic.name)
    is_mixed = topic.topic_type is TopicType.MIXED
    held = 0
    for queue_id in range(topic.queues):
        bounds = context.broker.bounds(topic.name, queue_id)
        held += bounds.max_offset - bounds.min_offset
    return admin.DescribeTopicStatusResponse(
        status=status.OK_STATUS,
        topic_message_type=pb.MESSAGE_TYPE_UNSPECIFIED
        if is_mixed
        else pb.MessageType.Value(topic.topic_type),
        create_timestamp=to_timestamp(topic.created_ms),
        tags={
            **topic.attributes,
            "queues": str(topic.queues),
            "permission": topic.permission,
            "type": topic.topic_type,
            "messages": str(held),
        },
    )
