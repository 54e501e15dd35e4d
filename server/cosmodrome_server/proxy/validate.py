"""What a sent message may hold (protocol.md 1.3 and 4), checked in the reference's order.

Texts of a message are checked together where one regular expression can do it; only
when something is wrong is the culprit looked for, so that the error can name it.
"""

import re
import zlib
from collections.abc import Mapping, Sequence

import msgspec

from cosmodrome_proto import Timestamp
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_server.config import Config
from cosmodrome_server.errors import (
    BadRequest,
    IllegalDeliveryTime,
    IllegalMessageGroup,
    IllegalMessageKey,
    IllegalMessagePropertyKey,
    IllegalMessageTag,
    MessageBodyEmpty,
    MessageBodyTooLarge,
    MessageCorrupted,
    MessagePropertiesTooLarge,
)
from cosmodrome_server.model.digests import md5, sha1

# The years 1 and 9999: protobuf's timestamps are within them.
FIRST_S, LAST_S = -62_135_596_800, 253_402_300_799

# Java's isISOControl; the reference refuses them everywhere in properties.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_find_control = _CONTROL.search

# Source: protocol.md 4, the reference's list of names it keeps for itself.
RESERVED_PROPERTIES = frozenset(
    {
        "TRACE_ON",
        "MSG_REGION",
        "KEYS",
        "TAGS",
        "WAIT",
        "DELAY",
        "RETRY_TOPIC",
        "REAL_TOPIC",
        "REAL_QID",
        "TRAN_MSG",
        "PGROUP",
        "MIN_OFFSET",
        "MAX_OFFSET",
        "BUYER_ID",
        "ORIGIN_MESSAGE_ID",
        "TRANSFER_FLAG",
        "CORRECTION_FLAG",
        "MQ2_FLAG",
        "RECONSUME_TIME",
        "UNIQ_KEY",
        "MAX_RECONSUME_TIMES",
        "CONSUME_START_TIME",
        "POP_CK",
        "POP_CK_OFFSET",
        "1ST_POP_TIME",
        "TRAN_PREPARED_QUEUE_OFFSET",
        "DUP_INFO",
        "EXTEND_UNIQ_INFO",
        "INSTANCE_ID",
        "CORRELATION_ID",
        "REPLY_TO_CLIENT",
        "TTL",
        "ARRIVE_TIME",
        "PUSH_REPLY_TIME",
        "CLUSTER",
        "MSG_TYPE",
        "INNER_MULTI_QUEUE_OFFSET",
        "TIMER_DELAY_MS",
        "TIMER_DELAY_SEC",
        "TIMER_DELIVER_MS",
        "TIMER_ENQUEUE_MS",
        "TIMER_DEQUEUE_MS",
        "TIMER_ROLL_TIMES",
        "TIMER_OUT_MS",
        "TIMER_DEL_UNIQKEY",
        "TIMER_DELAY_LEVEL",
        "__BORNHOST",
        "BORN_TIMESTAMP",
        "DLQ_ORIGIN_TOPIC",
        "DLQ_ORIGIN_MESSAGE_ID",
        "__CRC32#",
        "_SYS_MSG_PRIORITY_",
        "__LITE_TOPIC",
        "ORIGIN_GROUP",
    }
)


class MessageRules(msgspec.Struct, frozen=True):
    """The limits of one message as plain numbers, read once from the settings."""

    body_bytes: int
    user_properties: int
    properties_bytes: int
    stored_properties_bytes: int
    message_group_bytes: int
    delay_ms: int
    transaction_recovery_s: int

    @classmethod
    def of(cls, config: Config) -> "MessageRules":
        """The rules of these settings; strict ones have the reference's shorter delay."""
        limits = config.limits
        delay_s = limits.strict_delay_s if config.server.strict else limits.delay_s
        return cls(
            body_bytes=limits.body_bytes,
            user_properties=limits.user_properties,
            properties_bytes=limits.properties_bytes,
            stored_properties_bytes=limits.stored_properties_bytes,
            message_group_bytes=limits.message_group_bytes,
            delay_ms=delay_s * 1000,
            transaction_recovery_s=limits.transaction_recovery_s,
        )


def check_body(body: bytes, rules: MessageRules) -> None:
    """Check that there is a body and that it is not too large.

    Raises:
        MessageBodyEmpty, MessageBodyTooLarge
    """
    if not body:
        raise MessageBodyEmpty("the message has no body")
    if len(body) > rules.body_bytes:
        raise MessageBodyTooLarge(
            f"the body has {len(body)} bytes, limits.body_bytes allows {rules.body_bytes}"
        )


def check_properties(
    properties: Mapping[str, str], tag: str, keys: Sequence[str], rules: MessageRules
) -> None:
    """Check user properties, tag and keys, alone and together.

    Raises:
        MessagePropertiesTooLarge: Too many, or too many bytes.
        IllegalMessagePropertyKey: A reserved key, or a control character in key or value.
        IllegalMessageTag, IllegalMessageKey
    """
    text = _text_of(properties, rules) if properties else ""
    if tag:
        _check_tag(tag)
        text += tag
    if keys:
        for key in keys:
            if key and (key.isspace() or (not key.isprintable() and _find_control(key))):
                raise IllegalMessageKey(
                    f"the key {key[:80]!r} is blank or holds a control character"
                )
            text += key
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    if size > rules.properties_bytes:
        raise MessagePropertiesTooLarge(
            f"user properties, tag and keys have {size} bytes, limits.properties_bytes allows "
            f"{rules.properties_bytes}"
        )


def check_stored_properties(size: int, rules: MessageRules) -> None:
    """Check how large the properties of a message are as they are stored, those of the system too.

    Tag, keys and user properties have a bound of their own; this is for the message id, the trace
    context, and what nobody knows. A consumer that takes bodies of the largest size must be able
    to take every message.

    Raises:
        MessagePropertiesTooLarge
    """
    if size > rules.stored_properties_bytes:
        raise MessagePropertiesTooLarge(
            f"the properties have {size} bytes encoded, those of the system included, "
            f"limits.stored_properties_bytes allows {rules.stored_properties_bytes}"
        )


def is_plain(text: str, rules: MessageRules) -> bool:
    """Whether nothing can be wrong with a tag and keys of this text: so it is with most."""
    return (
        text.isascii()
        and text.isprintable()
        and " " not in text
        and "|" not in text
        and len(text) <= rules.properties_bytes
    )


def _text_of(properties: Mapping[str, str], rules: MessageRules) -> str:
    """All names and values of user properties, checked."""
    if len(properties) > rules.user_properties:
        raise MessagePropertiesTooLarge(
            f"the message has {len(properties)} user properties, limits.user_properties "
            f"allows {rules.user_properties}"
        )
    # Lists, because a protobuf map iterates through Python for values and items.
    names = list(properties)
    if not RESERVED_PROPERTIES.isdisjoint(names):
        reserved = sorted(RESERVED_PROPERTIES.intersection(names))
        raise IllegalMessagePropertyKey(f"the property key {reserved[0]} is reserved")
    text = "".join(names) + "".join([properties[name] for name in names])
    if not text.isprintable() and _find_control(text):
        raise IllegalMessagePropertyKey(
            f"the property {_culprit(properties)[:80]!r} holds a control character"
        )
    return text


def _check_tag(tag: str) -> None:
    if tag.isspace() or "|" in tag or (not tag.isprintable() and _find_control(tag)):
        raise IllegalMessageTag(f"the tag {tag[:80]!r} is blank or holds | or a control character")


def _culprit(properties: Mapping[str, str]) -> str:
    return next(k for k, v in properties.items() if _find_control(k) or _find_control(v))


def check_recovery_duration(seconds: int, rules: MessageRules) -> None:
    """Check how long a half message may stay unchecked.

    Raises:
        BadRequest
    """
    if seconds > rules.transaction_recovery_s:
        raise BadRequest(
            f"orphaned_transaction_recovery_duration is {seconds} s, "
            f"limits.transaction_recovery_s allows {rules.transaction_recovery_s}"
        )


def is_time(value: Timestamp) -> bool:
    """Whether protobuf calls it one: from year 1 to year 9999."""
    return FIRST_S <= value.seconds <= LAST_S and 0 <= value.nanos < 1_000_000_000


def check_is_delivery_time(value: Timestamp) -> None:
    """Check that a delivery time is a time: consumers are told it, and Java's fail on another.

    Raises:
        IllegalDeliveryTime
    """
    if not is_time(value):
        raise IllegalDeliveryTime(
            f"delivery_timestamp is {FIRST_S} to {LAST_S} seconds, with 0 to 999,999,999 nanos, "
            f"not {value.seconds} s and {value.nanos} ns"
        )


def check_delivery_time(delivery_ms: int, now_ms: int, rules: MessageRules) -> None:
    """Check that a delivery time is not too far off; one that is past means at once.

    Raises:
        IllegalDeliveryTime
    """
    if delivery_ms - now_ms > rules.delay_ms:
        raise IllegalDeliveryTime(
            f"the delivery time is {(delivery_ms - now_ms) // 1000} s off, this server allows "
            f"{rules.delay_ms // 1000} (limits.delay_s)"
        )


def check_message_group(message_group: str, rules: MessageRules) -> None:
    """Check a message group that is not empty.

    Raises:
        IllegalMessageGroup
    """
    if message_group.isspace() or _find_control(message_group):
        raise IllegalMessageGroup("the message group is blank or holds a control character")
    size = len(message_group.encode())
    if size > rules.message_group_bytes:
        raise IllegalMessageGroup(
            f"the message group has {size} bytes, limits.message_group_bytes allows "
            f"{rules.message_group_bytes}"
        )


def check_digest(digest: pb.Digest, body: bytes) -> None:
    """Compare a digest the producer sent with its body; none, and unknown kinds, pass.

    CRC32 is compared as a number, because clients do not pad it.

    Raises:
        MessageCorrupted
    """
    claimed = digest.checksum
    if not claimed:
        return
    if digest.type == pb.CRC32:
        try:
            fits = int(claimed, 16) == zlib.crc32(body)
        except ValueError:
            fits = False
    elif digest.type == pb.MD5:
        fits = md5(body, usedforsecurity=False).hexdigest() == claimed.lower()
    elif digest.type == pb.SHA1:
        fits = sha1(body, usedforsecurity=False).hexdigest() == claimed.lower()
    else:
        return
    if not fits:
        kind = pb.DigestType.Name(digest.type)
        raise MessageCorrupted(f"the body does not have the {kind} digest {claimed[:64]!r}")
