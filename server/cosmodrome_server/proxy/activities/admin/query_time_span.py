"""QueryTimeSpan: from when to when a queue's messages are, and how far a group is."""

from collections.abc import Iterator

from cosmodrome_proto import admin_pb2 as admin
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_server.errors import BadRequest, OffsetNotFound
from cosmodrome_server.model.queries import PullQuery
from cosmodrome_server.proxy import status
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.front import Call
from cosmodrome_server.proxy.turns import answer_in_turns

# Three messages of a queue are read, which takes as long as the bounds of so many.
_COST = 32


def query_time_span(context: Context, call: Call, request: admin.QueryTimeSpanRequest) -> None:
    """Return the store times of the first, the last and the group's next message per queue.

    Raises:
        IllegalConsumerGroup, ConsumerGroupNotFound, IllegalTopic, TopicNotFound
        BadRequest: No topic.
    """
    group = context.known_group(request.group.name).name
    if not request.topics:
        raise BadRequest("the request names no topic")
    response = admin.QueryTimeSpanResponse(status=status.OK_STATUS)
    steps = _fill(context, request, group, response)
    answer_in_turns(context, "QueryTimeSpan", call, response, steps)


def _fill(
    context: Context,
    request: admin.QueryTimeSpanRequest,
    group: str,
    response: admin.QueryTimeSpanResponse,
) -> Iterator[int]:
    for resource in request.topics:
        topic = context.known_topic(resource.name)
        response.queue_time_span_list.extend(
            _span(context, group, topic.name, queue_id) for queue_id in range(topic.queues)
        )
        yield topic.queues * _COST


def _span(
    context: Context, group: str, topic: str, queue_id: int
) -> admin.QueryTimeSpanResponse.QueueTimeSpan:
    bounds = context.broker.bounds(topic, queue_id)
    first, last = bounds.min_offset, bounds.max_offset - 1
    try:
        following = context.broker.committed_offset(group, topic, queue_id)
    except OffsetNotFound:
        following = first
    newest_ms = _stored_ms(context, topic, queue_id, last) if last >= first else 0
    consumed_ms = (
        _stored_ms(context, topic, queue_id, max(following, first))
        if following <= last
        else newest_ms
    )
    return admin.QueryTimeSpanResponse.QueueTimeSpan(
        message_queue=pb.MessageQueue(
            topic=pb.Resource(name=topic),
            id=queue_id,
            broker=pb.Broker(name=context.config.server.name),
        ),
        min_timestamp=_stored_ms(context, topic, queue_id, first) if last >= first else 0,
        max_timestamp=newest_ms,
        consume_timestamp=consumed_ms,
        delay_time_ms=max(0, newest_ms - consumed_ms),
    )


def _stored_ms(context: Context, topic: str, queue_id: int, queue_offset: int) -> int:
    """When the message at an offset inside the queue was stored."""
    found = context.broker.pull(PullQuery("", topic, queue_id, queue_offset, 1)).messages
    return found[0].store_timestamp_ms if found else 0
