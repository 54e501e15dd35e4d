"""QuerySegments: which sealed files hold a range, kept from retention while they are read."""

import socket

from cosmodrome_proto import bulk_pb2 as rpc
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_server.errors import BadRequest, Unsupported
from cosmodrome_server.model.queries import QueueBounds
from cosmodrome_server.proxy.bulk.source import BulkSource
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.front import Call
from cosmodrome_server.store.segment import OFFSET_BITS

PIN_S_MAX = 600


def query_segments(
    context: Context, call: Call, request: rpc.QuerySegmentsRequest
) -> rpc.QuerySegmentsResponse:
    """Name the sealed segments of a range and pin them.

    Raises:
        IllegalTopic, TopicNotFound, BadRequest: No such topic or queue; a range that is none.
        OverloadedError: Too many readers hold segments.
        Unsupported: The log is elsewhere.
    """
    del call
    source = _source(context)
    if request.end < request.start:
        raise BadRequest(f"[{request.start}, {request.end}) is no range")
    topic_id, bounds = place_of(context, source, request.topic, request.queue_id)
    start = max(request.start, bounds.min_offset)
    parts = source.ranges.sealed(topic_id, request.queue_id, start, request.end)
    if request.pin:
        source.release(request.pin)
    pin = ""
    if parts and request.pin_seconds > 0:
        until_ms = context.clock.now_ms() + 1000 * min(request.pin_seconds, PIN_S_MAX)
        pin = source.pin(parts[0].number << OFFSET_BITS, until_ms)
    return rpc.QuerySegmentsResponse(
        status=pb.Status(code=pb.OK, message="OK"),
        segments=[
            rpc.Segment(
                number=part.number,
                salt=part.salt,
                start=part.start,
                end=part.end,
                bytes=part.bytes,
            )
            for part in parts
        ],
        pin=pin,
        sealed_end=parts[-1].end if parts else start,
        host=socket.gethostname(),
        directory=str(source.ranges.directory.resolve()),
        queue_key=source.ranges.key_of(topic_id, request.queue_id),
    )


def release_segments(
    context: Context, call: Call, request: rpc.ReleaseSegmentsRequest
) -> rpc.ReleaseSegmentsResponse:
    """End a pin; again is fine. No access rule: only who was given it has it.

    Raises:
        BadRequest: It is no pin.
        Unsupported: The log is elsewhere.
    """
    del call
    _source(context).release(request.pin)
    return rpc.ReleaseSegmentsResponse(status=pb.Status(code=pb.OK, message="OK"))


def place_of(
    context: Context, source: BulkSource, topic: str, queue_id: int
) -> tuple[int, QueueBounds]:
    """The number of a topic and the bounds of a queue.

    Topics of the system that are there may be read, operation events for one; none is created.

    Raises:
        IllegalTopic, TopicNotFound, BadRequest: No such topic or queue.
    """
    if not context.broker.has_topic(topic):
        context.known_topic(topic)
    return source.place_of(topic, queue_id)


def _source(context: Context) -> BulkSource:
    if context.bulk is None:
        raise Unsupported("this server's log is elsewhere: read by PullMessage")
    return context.bulk
