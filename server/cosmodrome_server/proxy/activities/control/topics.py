"""Topics: created, changed, listed, deleted (CreateTopic, ListTopics, DeleteTopic)."""

from typing import TypeVar

from cosmodrome_proto import control_pb2 as wire
from cosmodrome_server.errors import BadRequest
from cosmodrome_server.model.topic import Permission, Topic, TopicType
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.convert import kept_duration_ms, to_duration, to_timestamp
from cosmodrome_server.proxy.front import Call
from cosmodrome_server.proxy.status import OK_STATUS

QUEUES_MAX = 1024


def create_topic(
    context: Context, _call: Call, request: wire.CreateTopicRequest
) -> wire.CreateTopicResponse:
    """Create a topic, or give an existing one more queues or other settings.

    Raises:
        IllegalTopic: A name clients may not use.
        BadRequest: A type, permission or number of queues that does not exist, or a duration
            that is negative.
    """
    asked = request.topic
    context.names.topic(asked.name)
    if not 0 <= asked.queues <= QUEUES_MAX:
        raise BadRequest(f"a topic has 1 to {QUEUES_MAX} queues, not {asked.queues}")
    topic = Topic(
        name=asked.name,
        topic_type=_member(TopicType, asked.type or TopicType.NORMAL),
        queues=asked.queues or context.config.topics.queues,
        permission=_member(Permission, asked.permission or Permission.READ_WRITE),
        retention_ms=kept_duration_ms(asked.retention, "retention"),
        lite_expiration_ms=kept_duration_ms(asked.lite_expiration, "lite_expiration"),
        created_ms=context.clock.now_ms(),
        attributes=dict(asked.attributes),
    )
    context.broker.create_topic(topic)
    made = context.broker.topic(asked.name)
    return wire.CreateTopicResponse(status=OK_STATUS, topic=_to_wire(made))


def delete_topic(
    context: Context, _call: Call, request: wire.DeleteTopicRequest
) -> wire.DeleteTopicResponse:
    """Delete a topic with its messages and all progress on it.

    Raises:
        TopicNotFound: There is none.
    """
    context.broker.delete_topic(request.name)
    return wire.DeleteTopicResponse(status=OK_STATUS)


def list_topics(
    context: Context, _call: Call, request: wire.ListTopicsRequest
) -> wire.ListTopicsResponse:
    """List topics by name, with the offsets their queues hold."""
    response = wire.ListTopicsResponse(status=OK_STATUS)
    for topic in context.broker.topics():
        if topic.name.startswith(request.prefix):
            state = response.topics.add(topic=_to_wire(topic))
            for queue_id in range(topic.queues):
                bounds = context.broker.bounds(topic.name, queue_id)
                state.queues.add(
                    queue_id=queue_id,
                    min_offset=bounds.min_offset,
                    max_offset=bounds.max_offset,
                )
    return response


def _to_wire(topic: Topic) -> wire.Topic:
    return wire.Topic(
        name=topic.name,
        type=topic.topic_type,
        queues=topic.queues,
        permission=topic.permission,
        retention=to_duration(topic.retention_ms),
        lite_expiration=to_duration(topic.lite_expiration_ms),
        created=to_timestamp(topic.created_ms),
        attributes=topic.attributes,
    )


_Choice = TypeVar("_Choice", TopicType, Permission)


def _member(choices: type[_Choice], text: str) -> _Choice:
    try:
        return choices(text.upper())
    except ValueError:
        known = ", ".join(choices)
        raise BadRequest(f"{text!r} is none of {known}") from None
