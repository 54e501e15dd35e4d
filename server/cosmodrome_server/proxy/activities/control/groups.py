"""Consumer groups: created, changed, listed, deleted (CreateGroup, ListGroups, DeleteGroup)."""

from collections.abc import Iterator, Mapping, Sequence

from cosmodrome_proto import control_pb2 as wire
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_server.errors import BadRequest, ConsumerGroupNotFound, TopicNotFound
from cosmodrome_server.model.group import (
    Backoff,
    ConsumeFrom,
    CustomizedBackoff,
    ExponentialBackoff,
    Group,
)
from cosmodrome_server.model.topic import TopicType
from cosmodrome_server.proxy.activities.control.topics import changed_attributes
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.convert import (
    kept_duration_ms,
    kept_timestamp_ms,
    to_duration,
    to_timestamp,
)
from cosmodrome_server.proxy.front import Call
from cosmodrome_server.proxy.status import OK_STATUS
from cosmodrome_server.proxy.turns import answer_in_turns

ATTEMPTS_MAX = 1000
FACTOR_MAX = 100
MULTIPLIER_MAX = 1000
# A group takes as long as the bounds of so many queues, and so does how far it is on a topic.
_COST = 8


def create_group(
    context: Context, _call: Call, request: wire.CreateGroupRequest
) -> wire.CreateGroupResponse:
    """Create a group, or change what the request names of one; its clients learn it at once.

    Raises:
        IllegalConsumerGroup: A name clients may not use.
        BadRequest: A number out of its bounds, a retry policy that does not read, or a topic to
            bind to that is not LITE.
        TopicNotFound: There is no topic to bind to.
    """
    asked = request.group
    context.names.group(asked.name)
    if not 0 <= asked.max_attempts <= ATTEMPTS_MAX:
        raise BadRequest(f"max_attempts is 1 to {ATTEMPTS_MAX}, not {asked.max_attempts}")
    if not 0 <= asked.priority_factor <= FACTOR_MAX:
        raise BadRequest(f"priority_factor is 0 to {FACTOR_MAX}, not {asked.priority_factor}")
    context.broker.create_group(_wanted(context, asked))
    made = context.broker.group(asked.name)
    return wire.CreateGroupResponse(status=OK_STATUS, group=_to_wire(made))


def delete_group(
    context: Context, _call: Call, request: wire.DeleteGroupRequest
) -> wire.DeleteGroupResponse:
    """Delete a group with its progress; its dead letters stay.

    Raises:
        ConsumerGroupNotFound: There is none.
    """
    if not context.broker.has_group(request.name):
        raise ConsumerGroupNotFound(f"there is no consumer group {request.name}")
    context.broker.delete_group(request.name)
    return wire.DeleteGroupResponse(status=OK_STATUS)


def list_groups(context: Context, call: Call, request: wire.ListGroupsRequest) -> None:
    """List groups by name; with `lag`, how far behind they are on each topic they read."""
    response = wire.ListGroupsResponse(status=OK_STATUS)
    groups = [one for one in context.broker.groups() if one.name.startswith(request.prefix)]
    topics = context.broker.topics_by_group() if request.lag else {}
    steps = _list(context, groups, topics, response)
    answer_in_turns(context, "ListGroups", call, response, steps)


def _list(
    context: Context,
    groups: Sequence[Group],
    topics: Mapping[str, Sequence[str]],
    response: wire.ListGroupsResponse,
) -> Iterator[int]:
    for group in groups:
        state = response.groups.add(group=_to_wire(group))
        yield _COST
        for topic in topics.get(group.name, ()):
            try:
                lag = context.broker.accumulation(group.name, topic)
            except (TopicNotFound, ConsumerGroupNotFound):
                continue  # deleted since
            state.progress.add(
                topic=topic,
                ready=lag.ready,
                inflight=lag.inflight,
                oldest_unconsumed=to_timestamp(lag.oldest_unconsumed_ms),
            )
            yield _COST


def _wanted(context: Context, asked: wire.Group) -> Group:
    # Looked for first: `broker.group` makes one where it may.
    broker = context.broker
    known = broker.group(asked.name) if broker.has_group(asked.name) else Group(asked.name)
    begins_ms, factor = known.consume_timestamp_ms, known.priority_factor
    if asked.HasField("consume_timestamp"):
        begins_ms = kept_timestamp_ms(asked.consume_timestamp, "consume_timestamp")
    if asked.HasField("priority_factor"):
        factor = asked.priority_factor
    if asked.lite_bind_topic and asked.lite_bind_topic != known.lite_bind_topic:
        _check_is_lite(context, asked)
    return Group(
        name=asked.name,
        is_fifo=asked.fifo if asked.HasField("fifo") else known.is_fifo,
        max_attempts=asked.max_attempts or known.max_attempts,
        backoff=_backoff(asked.retry_policy, known.backoff),
        consume_from=_consume_from(asked.consume_from or known.consume_from),
        consume_timestamp_ms=begins_ms,
        is_consumable=not asked.paused if asked.HasField("paused") else known.is_consumable,
        lite_bind_topic=asked.lite_bind_topic or known.lite_bind_topic,
        priority_factor=factor,
        created_ms=context.clock.now_ms(),
        attributes=changed_attributes(known.attributes, asked.attributes),
    )


def _check_is_lite(context: Context, asked: wire.Group) -> None:
    """Not of a group that is bound already: its topic may be deleted, and made again later."""
    name = asked.lite_bind_topic
    if not context.broker.has_topic(name):
        raise TopicNotFound(
            f"group {asked.name} cannot read lite topics of {name}: there is no such topic, "
            "create it first, of the type LITE"
        )
    topic = context.broker.topic(name)
    if topic.topic_type is not TopicType.LITE:
        raise BadRequest(
            f"group {asked.name} cannot read lite topics of {name}: its type is "
            f"{topic.topic_type}, only a LITE topic has some"
        )


def _backoff(policy: pb.RetryPolicy, known: Backoff) -> Backoff:
    kind = policy.WhichOneof("strategy")
    if kind is None:
        return known
    if kind == "customized_backoff":
        rests = tuple(
            kept_duration_ms(rest, "each of customized_backoff")
            for rest in policy.customized_backoff.next
        )
        if not rests:
            raise BadRequest("customized_backoff needs at least one duration")
        return CustomizedBackoff(rests)
    asked = policy.exponential_backoff
    initial_ms = kept_duration_ms(asked.initial, "exponential_backoff.initial")
    max_ms = kept_duration_ms(asked.max, "exponential_backoff.max")
    if not (0 < initial_ms <= max_ms and 1 <= asked.multiplier <= MULTIPLIER_MAX):
        raise BadRequest(
            "exponential_backoff needs 0 < initial <= max and a multiplier of 1 to "
            f"{MULTIPLIER_MAX}, not {asked.multiplier}"
        )
    return ExponentialBackoff(initial_ms, max_ms, asked.multiplier)


def _consume_from(text: str) -> ConsumeFrom:
    try:
        return ConsumeFrom(text)
    except ValueError:
        raise BadRequest(f"consume_from {text!r} is none of {', '.join(ConsumeFrom)}") from None


def _to_wire(group: Group) -> wire.Group:
    policy = pb.RetryPolicy(max_attempts=group.max_attempts)
    match group.backoff:
        case CustomizedBackoff(next_ms=rests):
            policy.customized_backoff.next.extend(map(to_duration, rests))
        case ExponentialBackoff(initial_ms=initial_ms, max_ms=max_ms, multiplier=multiplier):
            policy.exponential_backoff.initial.CopyFrom(to_duration(initial_ms))
            policy.exponential_backoff.max.CopyFrom(to_duration(max_ms))
            policy.exponential_backoff.multiplier = multiplier
    return wire.Group(
        name=group.name,
        fifo=group.is_fifo,
        max_attempts=group.max_attempts,
        retry_policy=policy,
        consume_from=group.consume_from,
        consume_timestamp=to_timestamp(group.consume_timestamp_ms),
        paused=not group.is_consumable,
        lite_bind_topic=group.lite_bind_topic,
        priority_factor=group.priority_factor,
        created=to_timestamp(group.created_ms),
        attributes=group.attributes,
    )
