"""From protobuf to the values of `model`, checked on the way; durations become milliseconds."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, TypeAlias

from cosmodrome_proto import Duration, Timestamp
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto.sent_pb2 import SentMessage, SentProperties
from cosmodrome_server.errors import (
    BadRequest,
    IllegalMessageId,
    MessageCorrupted,
    MessageTypeConflict,
)
from cosmodrome_server.model import wire
from cosmodrome_server.model.filter import EVERYTHING, Filter, FilterType
from cosmodrome_server.model.message import MessageType, NewMessage, StoredMessage
from cosmodrome_server.proxy import encoding, validate
from cosmodrome_server.proxy.names import Names
from cosmodrome_server.proxy.validate import FIRST_S, LAST_S, MessageRules

_NORMAL, _FIFO, _DELAY = MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY
_LITE, _PRIORITY, _TRANSACTION = MessageType.LITE, MessageType.PRIORITY, MessageType.TRANSACTION

# From 1970 to the end of 9999, where protobuf's timestamps end.
LONGEST_S = 253_402_300_799

# Topics encoded in more than this are not remembered: they come from outside and name nothing.
_REMEMBERED_BYTES = 1_024

# Fields of SystemProperties that only the server may fill.
_SERVER_FIELDS: tuple[
    Literal[
        "store_timestamp",
        "store_host",
        "receipt_handle",
        "queue_id",
        "queue_offset",
        "invisible_duration",
        "delivery_attempt",
        "dead_letter_queue",
    ],
    ...,
] = (
    "store_timestamp",
    "store_host",
    "receipt_handle",
    "queue_id",
    "queue_offset",
    "invisible_duration",
    "delivery_attempt",
    "dead_letter_queue",
)


AnyProperties: TypeAlias = SentProperties | pb.SystemProperties


def duration_ms(value: Duration) -> int:
    """A duration in milliseconds, rounded down."""
    return value.seconds * 1000 + value.nanos // 1_000_000


def timestamp_ms(value: Timestamp) -> int:
    """A time in milliseconds since the epoch, rounded down."""
    return value.seconds * 1000 + value.nanos // 1_000_000


def kept_duration_ms(value: Duration, what: str) -> int:
    """A duration that is kept and told again, so it must be one protobuf can say.

    Raises:
        BadRequest: It is negative or longer than `LONGEST_S`.
    """
    if not (0 <= value.seconds <= LONGEST_S and 0 <= value.nanos < 1_000_000_000):
        raise BadRequest(f"{what} must be 0 to {LONGEST_S} seconds, with 0 to 999,999,999 nanos")
    return duration_ms(value)


def kept_timestamp_ms(value: Timestamp, what: str) -> int:
    """A time that is kept and told again.

    Raises:
        BadRequest: It is before 1970 or more than `LONGEST_S` after.
    """
    if not (0 <= value.seconds <= LONGEST_S and 0 <= value.nanos < 1_000_000_000):
        raise BadRequest(f"{what} must be a time from 1970 to 9999, with 0 to 999,999,999 nanos")
    return timestamp_ms(value)


def to_duration(milliseconds: int) -> Duration:
    """Milliseconds as a protobuf duration."""
    return Duration(seconds=milliseconds // 1000, nanos=milliseconds % 1000 * 1_000_000)


def to_timestamp(milliseconds: int) -> Timestamp:
    """Milliseconds since the epoch as a protobuf timestamp."""
    return Timestamp(seconds=milliseconds // 1000, nanos=milliseconds % 1000 * 1_000_000)


def to_message(stored: StoredMessage, store_host: bytes) -> pb.Message:
    """A stored message as an object, where it goes into a larger one; the hot paths splice."""
    system = encoding.system_fields(stored, store_host)
    return pb.Message.FromString(encoding.message_fields(stored, system))


def filter_of(expression: pb.FilterExpression) -> Filter:
    """What a consumer wants; an empty tag expression wants everything.

    Raises:
        BadRequest: A kind of filter that does not exist.
    """
    text = expression.expression
    if expression.type == pb.SQL:
        return Filter(FilterType.SQL, text)
    if expression.type not in (pb.TAG, pb.FILTER_TYPE_UNSPECIFIED):
        raise BadRequest(f"there is no filter type {expression.type}")
    return EVERYTHING if text in ("", "*") else Filter(FilterType.TAG, text)


def new_messages(
    messages: Sequence[SentMessage], rules: MessageRules, names: Names, now_ms: int, peer: str
) -> list[NewMessage]:
    """Check and convert what was sent. The messages themselves are used up.

    Args:
        messages: At least one, all of one topic (`topic_of` has seen to that).
        rules: The limits of this server.
        names: Checks lite topics.
        now_ms: The time delivery times are measured from.
        peer: The sender's address, kept as born_host where it names none.

    Raises:
        RequestError: As protocol.md 1.3 says, the first failure in list order.
        DecodeError: System properties are not encoded as such.
    """
    # One for all of them, and its methods looked up once: to parse into an object costs a
    # third of making one, and a look for a method more than its call.
    sent = SentProperties()
    parse, has = sent.ParseFromString, sent.HasField
    most, most_stored = rules.body_bytes, rules.stored_properties_bytes
    converted = []
    for message in messages:
        body = message.body
        encoded = message.system_properties
        if not 0 < len(body) <= most or len(encoded) > most_stored:
            validate.check_body(body, rules)
            validate.check_stored_properties(len(encoded), rules)
        parse(encoded)
        born = sent.born_timestamp
        if not (FIRST_S <= born.seconds <= LAST_S and 0 <= born.nanos < 1_000_000_000):
            encoded = _born(encoded, now_ms)
            parse(encoded)
        properties, tag, keys = message.user_properties, sent.tag, sent.keys
        # A slice, because a protobuf list iterates through Python; one key is the quickest so.
        text = tag + (keys[0] if len(keys) == 1 else "".join(keys[:]))
        if properties or not validate.is_plain(text, rules):
            validate.check_properties(properties, tag, keys[:], rules)
        message_id = sent.message_id
        if not message_id or message_id.isspace():
            raise IllegalMessageId("the message has no message_id")
        new = NewMessage(message_id, _NORMAL, tag, "", 0, 0, "", -1, encoded, b"", body)
        message_type = sent.message_type
        if (
            has("unusual")
            or sent.message_group
            or has("delivery_timestamp")
            or has("body_digest")
            or message_type == _TRANSACTION
        ):
            _complete(new, sent, rules, names, now_ms, peer)
        elif (
            message_type != _NORMAL or not sent.body_encoding or not sent.born_host or sent.queue_id
        ):
            new.system = _completed(sent, _NORMAL, peer)
        if properties:
            new.user = _stored_user(message)
            validate.check_stored_properties(len(encoded) + len(new.user), rules)
        converted.append(new)
    return converted


def _born(encoded: bytes, now_ms: int) -> bytes:
    """System properties with this time of birth, where the one they have is none.

    Consumers in Java and Python fail on such a time, and lose all they received with it. The
    reference takes such a message too (observed on 5.5.0).
    """
    born = wire.encode_bytes(wire.BORN_TIMESTAMP, encoding.timestamp(now_ms))
    return wire.without_field(encoded, wire.BORN_TIMESTAMP) + born


def topic_of(messages: Sequence[SentMessage], names: Names) -> str:
    """The one topic of a send.

    Raises:
        MessageCorrupted: No message, or messages of several topics.
        IllegalTopic
        DecodeError: A topic is not encoded as such.
    """
    if not messages:
        raise MessageCorrupted("no message to send")
    first = messages[0].topic
    found = resource(first)
    topic = names.topic(found[0])
    if len(messages) > 1:
        # All encoded alike, or else perhaps the same nevertheless.
        for encoded in {message.topic for message in messages}:
            if encoded != first and resource(encoded) != found:
                raise MessageCorrupted("the messages of one request are of several topics")
    return topic


def resource(encoded: bytes) -> tuple[str, str]:
    """The name and the namespace of an encoded `Resource`; few are named again and again.

    Raises:
        DecodeError
    """
    return _remembered(encoded) if len(encoded) <= _REMEMBERED_BYTES else _resource(encoded)


def _resource(encoded: bytes) -> tuple[str, str]:
    decoded = pb.Resource.FromString(encoded)
    return decoded.name, decoded.resource_namespace


_remembered = lru_cache(maxsize=4096)(_resource)


def _complete(
    message: NewMessage,
    sent: SentProperties,
    rules: MessageRules,
    names: Names,
    now_ms: int,
    peer: str,
) -> None:
    """Check and fill in what makes a message more than a plain one."""
    is_unusual = sent.HasField("unusual")
    system: AnyProperties = _read_again(message.system) if is_unusual else sent
    message.message_group = sent.message_group
    is_half = system.message_type == _TRANSACTION
    if is_unusual or is_half or message.message_group or system.HasField("delivery_timestamp"):
        _type(message, system, rules, names, now_ms)
    if system.HasField("body_digest"):
        validate.check_digest(system.body_digest, message.body)
    if (
        is_unusual
        or system.message_type != message.message_type
        or not system.body_encoding
        or not system.born_host
        or system.queue_id
    ):
        message.system = _completed(system, message.message_type, peer)


def _read_again(encoded: bytes) -> pb.SystemProperties:
    """System properties by the protocol's own description, without what only the server may say."""
    system = pb.SystemProperties.FromString(encoded)
    for name in _SERVER_FIELDS:
        system.ClearField(name)
    return system


def _type(
    message: NewMessage, system: AnyProperties, rules: MessageRules, names: Names, now_ms: int
) -> None:
    """Fill in what makes a message special, and derive its type (protocol.md 5.1)."""
    is_half = system.message_type == pb.TRANSACTION
    if is_half and system.HasField("orphaned_transaction_recovery_duration"):
        recovery = system.orphaned_transaction_recovery_duration
        validate.check_recovery_duration(recovery.seconds, rules)
        # One that is negative is none: it would be before any time the log can hold.
        message.transaction_check_ms = max(0, duration_ms(recovery))
    is_delayed = system.HasField("delivery_timestamp")
    if is_delayed:
        # 1, not 0, for a time before the epoch: 0 means that there is none.
        validate.check_is_delivery_time(system.delivery_timestamp)
        message.delivery_timestamp_ms = max(1, timestamp_ms(system.delivery_timestamp))
        validate.check_delivery_time(message.delivery_timestamp_ms, now_ms, rules)
    if message.message_group:
        validate.check_message_group(message.message_group, rules)
    if system.HasField("priority"):
        if system.priority < 0:
            raise BadRequest(f"the priority is {system.priority}, it must not be negative")
        message.priority = system.priority
    if system.HasField("lite_topic"):
        message.lite_topic = names.lite_topic(system.lite_topic)
    if is_half and is_delayed:
        raise MessageTypeConflict("a message is transactional or delayed, not both")
    message.message_type = _derived(message, is_half=is_half, is_delayed=is_delayed)


def _derived(message: NewMessage, *, is_half: bool, is_delayed: bool) -> MessageType:
    if is_half:
        return _TRANSACTION
    if is_delayed:
        return _DELAY
    if message.message_group:
        return _FIFO
    if message.priority >= 0:
        return _PRIORITY
    return _LITE if message.lite_topic else _NORMAL


def _completed(system: AnyProperties, message_type: MessageType, peer: str) -> bytes:
    """The properties the producer decides, encoded; unknown fields go along.

    Java clients do send a queue_id, which the server decides.
    """
    if system.queue_id:
        system.queue_id = 0
    if system.message_type != message_type:
        system.message_type = pb.MessageType.ValueType(message_type)
    if not system.body_encoding:
        system.body_encoding = pb.IDENTITY  # Java clients log an error for none
    if not system.born_host:
        system.born_host = peer
    return system.SerializeToString()


def _stored_user(message: SentMessage) -> bytes:
    """The entries of user_properties as they stand in an encoded `Message`."""
    message.ClearField("topic")
    message.ClearField("system_properties")
    message.ClearField("body")
    return message.SerializeToString()
