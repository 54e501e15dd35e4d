"""`cosmodrome message receive` and `tail`: read messages, as a consumer or as a bystander.

`receive` is one turn of a consumer group: what it prints is acknowledged, and nobody else of the
group gets it. `tail` only looks: it pulls by offset, and changes nothing for anybody.
"""

import contextlib
import heapq
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Annotated, NamedTuple

import typer

from cosmodrome_proto import control_pb2 as wire
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.cli.connect import (
    CONTROL,
    DEFAULT_ENDPOINT,
    MESSAGING,
    AsJson,
    Endpoint,
    call,
    json_of,
    read,
    refuse,
)
from cosmodrome_server.cli.shown import fields_of, line_of, show_messages
from cosmodrome_server.cli.units import INT32_MAX, epoch_ms, milliseconds
from cosmodrome_server.clock import Clock, SystemClock

Topic = Annotated[str, typer.Argument(help="The topic")]
# Nobody needs what is new sooner, and a look costs the broker next to nothing.
_LOOK_EVERY_S = 0.5
# What one receive asks to wait, of a longer --wait; a rest that is not worth another one.
_WAIT_MAX_MS = 20_000
_WAIT_MIN_MS = 1_000
_CLOCK = SystemClock()
# What one pull asks for; a body may have 4 MiB.
_PULL_MAX = 100


def receive(  # noqa: PLR0913, PLR0917 - one option per field of a receive
    topic: Topic,
    group: Annotated[str, typer.Option(help="The consumer group to receive for")],
    most: Annotated[int, typer.Option("--max", min=1, max=INT32_MAX, help="How many at most")] = 1,
    tags: Annotated[str, typer.Option(help="Only these: 'new || paid'")] = "*",
    sql: Annotated[str, typer.Option(help="Only these: 'amount > 100'")] = "",
    wait: Annotated[str, typer.Option(help="How long to wait for the first, 5s at least")] = "5s",
    keep: Annotated[
        str, typer.Option(help="Do not acknowledge: they come again after this long, 10s at least")
    ] = "",
    as_json: AsJson = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Receive messages for a group, print them, and acknowledge them."""
    request = rpc.ReceiveMessageRequest(batch_size=most)
    request.group.name, request.message_queue.topic.name = group, topic
    request.message_queue.id = -1
    request.filter_expression.type = pb.SQL if sql else pb.TAG
    request.filter_expression.expression = sql or tags
    request.invisible_duration.FromMilliseconds(milliseconds(keep or "1m"))
    messages = _first_of(endpoint, request, milliseconds(wait))
    if not messages:
        _refuse_lite(endpoint, topic, group)
    if not messages and not as_json:
        typer.echo(f"nothing came for {group} within {wait}")
        return
    show_messages(messages, as_json=as_json)
    if messages and not keep:
        _ack(endpoint, request, messages)


def _first_of(
    endpoint: str, request: rpc.ReceiveMessageRequest, wait_ms: int, clock: Clock = _CLOCK
) -> list[pb.Message]:
    """Receive until something comes or the time is over: a broker waits 20 s at most at a time."""
    until_ms = clock.monotonic_ms() + wait_ms
    while True:
        request.long_polling_timeout.FromMilliseconds(min(wait_ms, _WAIT_MAX_MS))
        messages, _ = read(endpoint, request, min(wait_ms, _WAIT_MAX_MS))
        wait_ms = until_ms - clock.monotonic_ms()
        if messages or wait_ms < _WAIT_MIN_MS:
            return messages


def _refuse_lite(endpoint: str, topic: str, group: str) -> None:
    """Say of a LITE topic why nothing came, and exit with 1; others may just be empty."""
    state, _ = _state(endpoint, topic)
    if state is not None and state.topic.type == "LITE":
        refuse(
            f"nothing came for {group}: {topic} is a LITE topic, whose messages lie in lite topics;"
            " consumers subscribe to these, this command does not"
        )


def _ack(endpoint: str, received: rpc.ReceiveMessageRequest, messages: list[pb.Message]) -> None:
    request = rpc.AckMessageRequest(group=received.group, topic=received.message_queue.topic)
    for message in messages:
        system = message.system_properties
        request.entries.add(message_id=system.message_id, receipt_handle=system.receipt_handle)
    call(endpoint, MESSAGING, "AckMessage", request)


def tail(  # noqa: PLR0913, PLR0917 - options
    topic: Topic,
    most: Annotated[
        int, typer.Option("--max", min=0, help="How many of the last to begin with")
    ] = 10,
    since: Annotated[
        str, typer.Option(help="Begin here instead: first, or 2026-11-21T04:00:00Z")
    ] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C")] = False,
    group: Annotated[
        str, typer.Option(help="A group this user may read for, where rules ask for one")
    ] = "cosmodrome-cli",
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object a line")] = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Look at the last messages of a topic; hides and moves nothing."""
    reader = _Reader(endpoint, topic, group)
    bounds = _bounds(reader)
    if since:
        at = {queue: _first_since(reader, queue, held, since) for queue, held in bounds.items()}
    else:
        at = {queue: max(held.first, held.end - most) for queue, held in bounds.items()}
    found = _between(reader, at, bounds)
    _print(found if since else deque(found, most), as_json=as_json)
    with contextlib.suppress(KeyboardInterrupt):
        while follow:
            time.sleep(_LOOK_EVERY_S)
            at = {queue: held.end for queue, held in bounds.items()}
            bounds = _bounds(reader)
            _print(_between(reader, at, bounds), as_json=as_json)


class _Reader(NamedTuple):
    """What every pull of a command says."""

    endpoint: str
    topic: str
    group: str

    def pull(self, queue: int, offset: int, most: int) -> tuple[list[pb.Message], int]:
        request = rpc.PullMessageRequest(offset=offset, batch_size=min(most, _PULL_MAX))
        request.group.name, request.message_queue.topic.name = self.group, self.topic
        request.message_queue.id = queue
        request.filter_expression.expression = "*"
        request.long_polling_timeout.seconds = 0
        return read(self.endpoint, request)


class _Bounds(NamedTuple):
    """What a queue holds: [first, end)."""

    first: int
    end: int


def _bounds(reader: _Reader) -> dict[int, _Bounds]:
    """What the queues of the topic hold.

    Exits with 1 where there is no such topic, or a LITE one.
    """
    state, may_list = _state(reader.endpoint, reader.topic)
    if not may_list:
        return _bounds_one_by_one(reader)
    if state is None:
        refuse(f"there is no topic {reader.topic}")
    if state.topic.type == "LITE":
        refuse(f"{reader.topic} is a LITE topic: its messages lie in lite topics, not in queues")
    return {q.queue_id: _Bounds(q.min_offset, q.max_offset) for q in state.queues}


def _state(endpoint: str, topic: str) -> tuple[wire.TopicState | None, bool]:
    """What there is of a topic, and whether this user may list topics at all."""
    request = wire.ListTopicsRequest(prefix=topic)
    found = call(endpoint, CONTROL, "ListTopics", request, tolerated=pb.UNAUTHORIZED)
    assert isinstance(found, wire.ListTopicsResponse)
    state = next((each for each in found.topics if each.topic.name == topic), None)
    return state, found.status.code != pb.UNAUTHORIZED


def _bounds_one_by_one(reader: _Reader) -> dict[int, _Bounds]:
    """The same for who may read this topic, and may not list all."""
    asked = rpc.QueryRouteRequest(topic=pb.Resource(name=reader.topic))
    route = call(reader.endpoint, MESSAGING, "QueryRoute", asked)
    assert isinstance(route, rpc.QueryRouteResponse)
    ends = (pb.BEGINNING, pb.END)
    asks = [rpc.QueryOffsetRequest(query_offset_policy=each) for each in ends]
    return {
        queue.id: _Bounds(*(_offset(reader, queue.id, ask) for ask in asks))
        for queue in route.message_queues
    }


def _first_since(reader: _Reader, queue: int, held: _Bounds, since: str) -> int:
    if since == "first":
        return held.first
    request = rpc.QueryOffsetRequest(query_offset_policy=pb.TIMESTAMP)
    request.timestamp.FromMilliseconds(epoch_ms(since))
    return max(held.first, _offset(reader, queue, request))


def _offset(reader: _Reader, queue: int, request: rpc.QueryOffsetRequest) -> int:
    request.message_queue.topic.name, request.message_queue.id = reader.topic, queue
    answer = call(reader.endpoint, MESSAGING, "QueryOffset", request)
    assert isinstance(answer, rpc.QueryOffsetResponse)
    return answer.offset


def _between(
    reader: _Reader, at: dict[int, int], bounds: dict[int, _Bounds]
) -> Iterator[pb.Message]:
    """What lies between offsets and the ends of queues, oldest first, read as it is taken."""
    parts = (
        _part(reader, queue, max(held.first, at.get(queue, held.first)), held.end)
        for queue, held in bounds.items()
    )
    return heapq.merge(*parts, key=_age)


def _part(reader: _Reader, queue: int, offset: int, end: int) -> Iterator[pb.Message]:
    while offset < end:
        messages, next_offset = reader.pull(queue, offset, end - offset)
        yield from messages
        if next_offset <= offset:
            return
        offset = next_offset


def _age(message: pb.Message) -> tuple[int, int, int]:
    system = message.system_properties
    stored = system.store_timestamp
    return stored.ToMilliseconds(), system.queue_id, system.queue_offset


def _print(messages: Iterable[pb.Message], *, as_json: bool) -> None:
    for message in messages:
        text = json_of(fields_of(message)) if as_json else line_of(message)
        typer.echo(text)
