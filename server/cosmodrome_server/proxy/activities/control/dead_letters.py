"""Redrive: dead letters back where they came from."""

from cosmodrome_proto import control_pb2 as wire
from cosmodrome_server.errors import BadRequest
from cosmodrome_server.model.queries import RedriveQuery
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.front import Call
from cosmodrome_server.proxy.status import OK_STATUS

# One call is one frame of the log: this many messages keep it and the loop's turn short.
REDRIVE_MAX = 256


def redrive(context: Context, _call: Call, request: wire.RedriveRequest) -> wire.RedriveResponse:
    """Send up to `REDRIVE_MAX` dead letters back; callers go on from `next_offset`.

    Raises:
        ConsumerGroupNotFound: Nobody's.
        TopicNotFound: None of those that are left has a topic to go back to.
        BadRequest: A negative number.
    """
    if request.max_messages < 0:
        raise BadRequest(f"max_messages is {request.max_messages}; 0 asks for the server's bound")
    context.names.group(request.group)
    query = RedriveQuery(
        request.group,
        request.topic,
        tuple(request.offsets),
        request.from_offset,
        min(request.max_messages or REDRIVE_MAX, REDRIVE_MAX),
        request.dry_run,
    )
    done = context.broker.redrive(query)
    return wire.RedriveResponse(
        status=OK_STATUS,
        moved=done.moved,
        remaining=done.remaining,
        next_offset=done.next_offset,
    )
