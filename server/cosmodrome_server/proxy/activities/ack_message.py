"""AckMessage: end deliveries for good."""

from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.errors import BadRequest
from cosmodrome_server.proxy import status
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.encoding import varint
from cosmodrome_server.proxy.front import Call

# One takes some 5 µs.
ENTRIES_MAX = 4_096


def ack_message(context: Context, _call: Call, request: rpc.AckMessageRequest) -> bytes:
    """Acknowledge every entry and report one status per entry, in the request's order.

    The response as a whole is the status all entries share, or MULTIPLE_RESULTS when
    they differ.

    Raises:
        IllegalTopic, IllegalConsumerGroup
        BadRequest: No entry, or too many.
    """
    topic = context.names.topic(request.topic.name)
    group = context.names.group(request.group.name)
    if len(request.entries) > ENTRIES_MAX:
        raise BadRequest(
            f"the request acknowledges {len(request.entries)} messages, {ENTRIES_MAX} at once "
            "are allowed"
        )
    # A slice, because a protobuf list iterates through Python and forgets what it handed out.
    entries = request.entries[:]
    if not entries:
        raise BadRequest("the request acknowledges nothing: it has no entries")
    handles = [entry.receipt_handle for entry in entries]
    parts = [b""]
    statuses = set()
    refused = context.broker.ack_many(group, topic, handles)
    for entry, handle, error in zip(entries, handles, refused, strict=True):
        result = status.OK if error is None else status.error_field(error)
        statuses.add(result)
        parts.append(_entry(entry.message_id.encode(), handle.encode(), result))
    parts[0] = status.overall(statuses)
    return b"".join(parts)


def _entry(message_id: bytes, handle: bytes, result: bytes) -> bytes:
    """AckMessageResultEntry {message_id = 1, receipt_handle = 2, status = 3} as field 2."""
    entry = b"".join(
        (
            b"\x0a",
            varint(len(message_id)),
            message_id,
            b"\x12",
            varint(len(handle)),
            handle,
            b"\x1a",
            result[1:],  # the same submessage under another number
        )
    )
    return b"\x12" + varint(len(entry)) + entry
