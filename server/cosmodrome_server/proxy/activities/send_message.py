"""SendMessage: store messages of one topic, all or none."""

from collections.abc import Sequence
from functools import lru_cache

from cosmodrome_proto.sent_pb2 import SentMessages
from cosmodrome_server.errors import BadRequest
from cosmodrome_server.model.message import SendReceipt
from cosmodrome_server.proxy import convert, status
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.encoding import varint
from cosmodrome_server.proxy.front import Call

# Our SDK says so where its user chose a queue. The field `queue_id` cannot: official clients fill
# it in and expect the broker to choose again, and 0 and nothing look alike.
QUEUE_ID = "x-cosmodrome-queue-id"
_QUEUE_ID_DIGITS = 10


def send_message(context: Context, call: Call, request: SentMessages) -> bytes:
    """Store the messages; one entry per message, in their order.

    Raises:
        RequestError: The first rule a message breaks, in the order of protocol.md 1.3;
            nothing is stored.
        OverloadedError, StoreError
    """
    # A slice, because a protobuf list iterates through Python and forgets what it handed out.
    messages = request.messages[:]
    topic = convert.topic_of(messages, context.names)
    converted = convert.new_messages(
        messages, context.rules, context.names, context.clock.now_ms(), call.peer
    )
    if context.config.server.strict:
        # The reference chooses queues itself, and answers a batch with one entry.
        return _encoded(context.broker.send(topic, converted)[:1])
    chosen = call.headers.get(QUEUE_ID)
    if chosen is None:
        return _encoded(context.broker.send(topic, converted))
    return _encoded(context.broker.send(topic, converted, _queue_id(chosen)))


def _queue_id(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _QUEUE_ID_DIGITS):
        raise BadRequest(f"the header {QUEUE_ID} is a queue's number, not {text[:80]!r}")
    return int(text)


def _encoded(receipts: Sequence[SendReceipt]) -> bytes:
    """The response, hand-packed: this is every producer's path.

    SendMessageResponse {status = 1, entries = 2}, SendResultEntry {status = 1,
    message_id = 2, transaction_id = 3, offset = 4, recall_handle = 5}. The transaction id
    is the message id, for every message, as in the reference.
    """
    parts = [status.OK]
    id_bytes = rest_bytes = -1
    before = between = b""
    for receipt in receipts:
        message_id, offset = receipt.message_id.encode(), receipt.queue_offset
        rest = b"\x20" + varint(offset) if offset else b""
        if receipt.recall_handle:
            handle = receipt.recall_handle.encode()
            rest += b"\x2a" + varint(len(handle)) + handle
        if len(message_id) != id_bytes or len(rest) != rest_bytes:
            # Seldom: the messages of a batch are alike.
            id_bytes, rest_bytes = len(message_id), len(rest)
            before, between = _around(id_bytes, rest_bytes)
        parts += (before, message_id, between, message_id, rest)
    return b"".join(parts)


@lru_cache(maxsize=1024)
def _around(id_bytes: int, rest_bytes: int) -> tuple[bytes, bytes]:
    """What stands before each of the two ids of an entry."""
    length = varint(id_bytes)
    named, between = status.OK + b"\x12" + length, b"\x1a" + length
    entry_bytes = len(named) + len(between) + 2 * id_bytes + rest_bytes
    return b"\x12" + varint(entry_bytes) + named, between
