"""Topics: created, changed, listed, deleted (CreateTopic, ListTopics, DeleteTopic)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from cosmodrome_proto import control_pb2 as wire
from cosmodrome_server.errors import BadRequest
from cosmodrome_server.model.topic import Permission, Topic, TopicType
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.convert import kept_duration_ms, to_duration, to_timestamp
from cosmodrome_server.proxy.front import Call
from cosmodrome_server.proxy.status import OK_STATUS
from cosmodrome_server.proxy.turns import answer_in_turns

QUEUES_MAX = 1024
# Some are numbers, which Python reads up to 4,300 digits.
ATTRIBUTE_CHARS = 1_024


def create_topic(
    context: Context, _call: Call, request: wire.CreateTopicRequest
) -> wire.CreateTopicResponse:
    """Create a topic, or change what the request names of one that exists.

    Raises:
        IllegalTopic: A name clients may not use.
        BadRequest: A type, permission or number of queues that does not exist, or a duration
            that is negative.
    """
    asked = request.topic
    context.names.topic(asked.name)
    if not 0 <= asked.queues <= QUEUES_MAX:
        raise BadRequest(f"a topic has 1 to {QUEUES_MAX} queues, not {asked.queues}")
    context.broker.create_topic(_wanted(context, asked))
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


def list_topics(context: Context, call: Call, request: wire.ListTopicsRequest) -> None:
    """List topics by name, with the offsets their queues hold."""
    response = wire.ListTopicsResponse(status=OK_STATUS)
    names = [one.name for one in context.broker.topics() if one.name.startswith(request.prefix)]
    answer_in_turns(context, "ListTopics", call, response, _list(context, names, response))


def _list(
    context: Context, names: Sequence[str], response: wire.ListTopicsResponse
) -> Iterator[int]:
    for name in names:
        if not context.broker.has_topic(name):
            continue  # deleted since
        topic = context.broker.topic(name)
        state = response.topics.add(topic=_to_wire(topic), redriven=context.broker.redriven(name))
        for queue_id in range(topic.queues):
            bounds = context.broker.bounds(name, queue_id)
            state.queues.add(
                queue_id=queue_id,
                min_offset=bounds.min_offset,
                max_offset=bounds.max_offset,
            )
        yield topic.queues


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


def _wanted(context: Context, asked: wire.Topic) -> Topic:
    # Looked for first: `broker.topic` makes one where it may.
    if context.broker.has_topic(asked.name):
        known = context.broker.topic(asked.name)
    else:
        known = Topic(asked.name, queues=context.config.topics.queues)
    kept_ms, lite_ms = known.retention_ms, known.lite_expiration_ms
    if asked.HasField("retention"):
        kept_ms = kept_duration_ms(asked.retention, "retention")
    if asked.HasField("lite_expiration"):
        lite_ms = kept_duration_ms(asked.lite_expiration, "lite_expiration")
    return Topic(
        name=asked.name,
        topic_type=_member(TopicType, asked.type or known.topic_type),
        queues=asked.queues or known.queues,
        permission=_member(Permission, asked.permission or known.permission),
        retention_ms=kept_ms,
        lite_expiration_ms=lite_ms,
        created_ms=context.clock.now_ms(),
        attributes=changed_attributes(known.attributes, asked.attributes),
    )


def changed_attributes(known: Mapping[str, str], asked: Mapping[str, str]) -> dict[str, str]:
    """What is known with what is asked over it; an empty value removes one.

    Raises:
        BadRequest: A name or a value is longer than any is.
    """
    for name, value in asked.items():
        if len(name) > ATTRIBUTE_CHARS or len(value) > ATTRIBUTE_CHARS:
            raise BadRequest(
                f"the attribute {name[:80]!r} or its value has more than {ATTRIBUTE_CHARS} "
                "characters"
            )
    return {name: value for name, value in {**known, **asked}.items() if value}


_Choice = TypeVar("_Choice", TopicType, Permission)


def _member(choices: type[_Choice], text: str) -> _Choice:
    try:
        return choices(text.upper())
    except ValueError:
        known = ", ".join(choices)
        raise BadRequest(f"{text!r} is none of {known}") from None
