"""A message on its way in (`NewMessage`), in the log (`StoredMessage`) and out (`Delivery`).

Encoded parts. What never changes after a message is stored is kept as the protobuf
bytes it arrived in, and spliced into replies without being decoded again:

    system   the fields of `SystemProperties` that the producer decides: tag, keys,
             message_id, body_digest, body_encoding, message_type, born_timestamp,
             born_host, delivery_timestamp, message_group, trace_context,
             orphaned_transaction_recovery_duration, dead_letter_queue, lite_topic,
             priority. Bytes of fields, without the tag and length of the submessage.
    user     the `user_properties` of `Message`: entries of field 2, each with its tag
             and length. `model.wire.user_properties` reads them (for SQL filters).
    body     the body, as sent.

`model` knows no protobuf library; `model.wire` reads and writes the few fields needed.
"""

from enum import IntEnum

import msgspec

from cosmodrome_server.model.log import MessageRecord


class MessageType(IntEnum):
    """What a message needs of the broker; the numbers of the wire and of the log."""

    UNSPECIFIED = 0
    NORMAL = 1
    FIFO = 2
    DELAY = 3
    TRANSACTION = 4
    LITE = 5
    PRIORITY = 6


class NewMessage(msgspec.Struct, gc=False):
    """A validated message that is not stored yet. Not frozen: one is made per send.

    Attributes:
        message_id: The producer's id, not blank.
        message_type: Derived, see protocol.md 5.1.
        tag: "" for none.
        message_group: "" for none.
        delivery_timestamp_ms: 0 for "at once".
        transaction_check_ms: How long after sending a half message is first checked; 0
            for the broker's default.
        lite_topic: "" for none.
        priority: -1 for none.
        system: See the module.
        user: See the module.
        body: Not empty.
    """

    message_id: str
    message_type: MessageType
    tag: str
    message_group: str
    delivery_timestamp_ms: int
    transaction_check_ms: int
    lite_topic: str
    priority: int
    system: bytes
    user: bytes
    body: bytes


class StoredMessage(msgspec.Struct, gc=False):
    """A message as the log holds it.

    Attributes:
        topic: The topic it was sent to (for a dead letter: the dead letter topic).
        queue_id: Its message queue.
        queue_offset: Its place there.
        store_timestamp_ms: When it was stored; of a delayed or transactional message,
            when it became visible.
        system: See the module; memoryview or bytes.
        user: See the module.
        body: As sent.
    """

    topic: str
    queue_id: int
    queue_offset: int
    store_timestamp_ms: int
    system: bytes
    user: bytes
    body: bytes


class SendReceipt(msgspec.Struct, gc=False):
    """What became of one sent message.

    Attributes:
        message_id: The producer's id.
        queue_offset: Its place in its queue; 0 while delayed or half.
        recall_handle: "" unless the message waits for its delivery time.
    """

    message_id: str
    queue_offset: int
    recall_handle: str


class Delivery(msgspec.Struct, gc=False):
    """One message handed to one consumer.

    Attributes:
        topic: As its consumer says it; of a lite topic its parent.
        message: What was stored, at its place; shared with whoever else reads it.
        receipt_handle: Names this delivery in ack and the like.
        attempt: 1 for the first.
        invisible_ms: How long it stays hidden from others.
    """

    topic: str
    message: MessageRecord
    receipt_handle: str
    attempt: int
    invisible_ms: int
