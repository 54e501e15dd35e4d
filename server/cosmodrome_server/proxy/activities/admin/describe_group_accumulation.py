"""DescribeGroupAccumulation: how far behind a group is."""

from collections.abc import Iterator, Sequence

from cosmodrome_proto import admin_pb2 as admin
from cosmodrome_server.errors import TopicNotFound
from cosmodrome_server.model.queries import Accumulation
from cosmodrome_server.proxy import status
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.convert import to_duration
from cosmodrome_server.proxy.front import Call
from cosmodrome_server.proxy.turns import answer_in_turns

_Response = admin.DescribeGroupAccumulationResponse
# How far a group is on a topic takes as long as the bounds of so many queues.
_COST = 8


def describe_group_accumulation(
    context: Context, call: Call, request: admin.DescribeGroupAccumulationRequest
) -> None:
    """Describe the backlog per topic and in all; of no topic means of all it reads.

    Raises:
        IllegalConsumerGroup, ConsumerGroupNotFound, TopicNotFound
    """
    group = context.known_group(request.group.name).name
    topics = [topic.name for topic in request.topics]
    response = _Response(status=status.OK_STATUS)
    steps = _fill(context, group, topics, response)
    answer_in_turns(context, "DescribeGroupAccumulation", call, response, steps)


def _fill(
    context: Context, group: str, topics: Sequence[str], response: _Response
) -> Iterator[int]:
    now_ms = context.clock.now_ms()
    total = Accumulation(0, 0, 0, 0)
    for topic in topics or context.broker.topics_of(group):
        try:
            one = context.broker.accumulation(group, topic)
        except TopicNotFound:
            if topics:
                raise
            continue  # deleted since
        response.topic_accumulation[topic].CopyFrom(_to_wire(one, now_ms))
        total = _sum(total, one)
        yield _COST
    response.accumulation.CopyFrom(_to_wire(total, now_ms))


def _to_wire(one: Accumulation, now_ms: int) -> _Response.GroupAccumulation:
    oldest_ms = one.oldest_ready_ms
    return _Response.GroupAccumulation(
        inflight_messages=one.inflight,
        ready_messages=one.ready,
        accumulation=one.inflight + one.ready,
        deliver_delay_time=to_duration(max(0, now_ms - oldest_ms) if oldest_ms else 0),
        # Everything stored before it is consumed; all of it when nothing is left.
        last_consume_timestamp=one.oldest_unconsumed_ms or now_ms,
    )


def _sum(left: Accumulation, right: Accumulation) -> Accumulation:
    return Accumulation(
        left.ready + right.ready,
        left.inflight + right.inflight,
        _earlier(left.oldest_unconsumed_ms, right.oldest_unconsumed_ms),
        _earlier(left.oldest_ready_ms, right.oldest_ready_ms),
    )


def _earlier(left_ms: int, right_ms: int) -> int:
    """The earlier of two times, where 0 is none."""
    return min(left_ms, right_ms) if left_ms and right_ms else left_ms or right_ms
