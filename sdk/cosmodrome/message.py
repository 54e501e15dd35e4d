"""Messages: sent (`Message`), stored (`SendReceipt`), received (`MessageView`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Any

from cosmodrome.errors import IllegalArgument

_BODY_SHOWN_MAX = 128
_NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


def _no_properties() -> Mapping[str, str]:
    return _NO_PROPERTIES


class MessageType(IntEnum):
    """What a message needs of the broker; the numbers of the wire."""

    UNSPECIFIED = 0
    NORMAL = 1
    FIFO = 2
    DELAY = 3
    TRANSACTION = 4
    LITE = 5
    PRIORITY = 6


class DelayLevel(Enum):
    """The 18 delays of RocketMQ 4, by name.

    Example:
        >>> DelayLevel.LEVEL_3.value
        datetime.timedelta(seconds=10)
    """

    LEVEL_1 = timedelta(seconds=1)
    LEVEL_2 = timedelta(seconds=5)
    LEVEL_3 = timedelta(seconds=10)
    LEVEL_4 = timedelta(seconds=30)
    LEVEL_5 = timedelta(minutes=1)
    LEVEL_6 = timedelta(minutes=2)
    LEVEL_7 = timedelta(minutes=3)
    LEVEL_8 = timedelta(minutes=4)
    LEVEL_9 = timedelta(minutes=5)
    LEVEL_10 = timedelta(minutes=6)
    LEVEL_11 = timedelta(minutes=7)
    LEVEL_12 = timedelta(minutes=8)
    LEVEL_13 = timedelta(minutes=9)
    LEVEL_14 = timedelta(minutes=10)
    LEVEL_15 = timedelta(minutes=20)
    LEVEL_16 = timedelta(minutes=30)
    LEVEL_17 = timedelta(hours=1)
    LEVEL_18 = timedelta(hours=2)


@dataclass(frozen=True, slots=True, repr=False)
class Message:
    """A message to send.

    Args (keyword-only beyond the body):
        topic: Where to.
        body: Bytes, not empty. Text must be encoded by the caller.
        tag: What consumers filter by; no `|`.
        keys: What operators search by; a lone string is one key.
        properties: User properties; empty values are lost on some brokers and refused here.
        message_group: Messages of one group are delivered in order (FIFO topics).
        deliver_at: Not before this moment; a naive datetime is refused.
        delay: Not before this long from the send; a `DelayLevel` is fine too.
        priority: 0 or more, higher first (PRIORITY topics).
        lite_topic: The lite topic under a LITE topic.
        transaction_recovery: How long before the broker first asks about a half message.
        trace_context: Goes along for tracing; `cosmodrome.otel` fills it in.

    Raises:
        IllegalArgument: No topic, no body, or kinds that exclude each other.

    Example:
        >>> Message("orders", b"hello", tag="new", keys="42").keys
        ('42',)
    """

    topic: str
    body: bytes
    tag: str = field(default="", kw_only=True)
    keys: Sequence[str] | str = field(default=(), kw_only=True)
    properties: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    message_group: str = field(default="", kw_only=True)
    deliver_at: datetime | None = field(default=None, kw_only=True)
    delay: timedelta | DelayLevel | None = field(default=None, kw_only=True)
    priority: int | None = field(default=None, kw_only=True)
    lite_topic: str = field(default="", kw_only=True)
    transaction_recovery: timedelta | None = field(default=None, kw_only=True)
    trace_context: str = field(default="", kw_only=True)

    def __repr__(self) -> str:
        return _shown(self)

    def __post_init__(self) -> None:
        if not self.topic.strip():
            raise IllegalArgument("a message needs a topic")
        if not isinstance(self.body, bytes | bytearray | memoryview):
            raise IllegalArgument(
                f"a body is bytes, not {type(self.body).__name__}; encode text first"
            )
        if not self.body:
            raise IllegalArgument("a message needs a body; some clients drop empty ones")
        set_ = object.__setattr__  # frozen for users, normalised here
        if type(self.keys) is not tuple:
            set_(self, "keys", (self.keys,) if isinstance(self.keys, str) else tuple(self.keys))
        if type(self.body) is not bytes:
            set_(self, "body", bytes(self.body))
        if self.tag or self.keys or self.properties:
            self._check_texts()
        is_plain = self.deliver_at is None and self.delay is None and self.priority is None
        if not (is_plain and not self.message_group and not self.lite_topic):
            self._check_kinds()

    def _check_texts(self) -> None:
        if self.tag and (not self.tag.strip() or "|" in self.tag):
            raise IllegalArgument(f"tag {self.tag!r} is blank or holds |")
        for key in self.keys:
            if not isinstance(key, str):
                raise IllegalArgument(f"a message key is text, not {type(key).__name__}")
            if not key.strip():
                raise IllegalArgument("a message key is blank")
        for name, value in self.properties.items():
            if not isinstance(value, str):
                raise IllegalArgument(f"property {name!r} is text, not {type(value).__name__}")
            if not name or not value:
                raise IllegalArgument(f"property {name!r} needs a name and a value")

    def _check_kinds(self) -> None:
        if not isinstance(self.delay, timedelta | DelayLevel | None):
            given = type(self.delay).__name__
            raise IllegalArgument(f"a delay is a timedelta or a DelayLevel, not {given}")
        if self.deliver_at is not None and self.delay is not None:
            raise IllegalArgument("deliver_at and delay exclude each other")
        if self.deliver_at is not None and not isinstance(self.deliver_at, datetime):
            given = type(self.deliver_at).__name__
            raise IllegalArgument(f"deliver_at is a datetime with a time zone, not {given}")
        if self.deliver_at is not None and self.deliver_at.tzinfo is None:
            raise IllegalArgument("deliver_at needs a time zone: datetime.now(UTC) + …")
        if self.priority is not None and self.priority < 0:
            raise IllegalArgument(f"priority is 0 or more, not {self.priority}")
        chosen = {
            "message_group": bool(self.message_group),
            "deliver_at or delay": self.deliver_at is not None or self.delay is not None,
            "priority": self.priority is not None,
            "lite_topic": bool(self.lite_topic),
        }
        both = [name for name, is_set in chosen.items() if is_set]
        if len(both) > 1:
            raise IllegalArgument(f"{' and '.join(both)} exclude each other")

    @property
    def message_type(self) -> MessageType:
        """What it is, unless it is sent in a transaction."""
        if self.message_group:
            return MessageType.FIFO
        if self.deliver_at is not None or self.delay is not None:
            return MessageType.DELAY
        if self.priority is not None:
            return MessageType.PRIORITY
        return MessageType.LITE if self.lite_topic else MessageType.NORMAL

    @staticmethod
    def builder() -> "MessageBuilder":
        """Build step by step, as Java does."""
        return MessageBuilder()


class MessageBuilder:
    """Mirrors Java's `MessageBuilder`.

    Example:
        >>> Message.builder().topic("orders").body(b"x").keys("1", "2").build().keys
        ('1', '2')
    """

    def __init__(self) -> None:
        self._topic = ""
        self._body = b""
        self._tag = ""
        self._keys: tuple[str, ...] = ()
        self._properties: dict[str, str] = {}
        self._message_group = ""
        self._lite_topic = ""
        self._deliver_at: datetime | None = None
        self._priority: int | None = None

    def topic(self, topic: str) -> "MessageBuilder":
        """Set the topic."""
        self._topic = topic
        return self

    def body(self, body: bytes) -> "MessageBuilder":
        """Set the body."""
        self._body = body
        return self

    def tag(self, tag: str) -> "MessageBuilder":
        """Set the tag."""
        self._tag = tag
        return self

    def keys(self, *keys: str) -> "MessageBuilder":
        """Set the keys."""
        self._keys = keys
        return self

    def message_group(self, group: str) -> "MessageBuilder":
        """Set the message group."""
        self._message_group = group
        return self

    def lite_topic(self, lite_topic: str) -> "MessageBuilder":
        """Set the lite topic."""
        self._lite_topic = lite_topic
        return self

    def delivery_timestamp(self, moment: datetime | int) -> "MessageBuilder":
        """Set when to deliver; a number is milliseconds since the epoch, as in Java."""
        if isinstance(moment, int):
            moment = datetime.fromtimestamp(moment / 1000, UTC)
        self._deliver_at = moment
        return self

    def priority(self, priority: int) -> "MessageBuilder":
        """Set the priority."""
        self._priority = priority
        return self

    def add_property(self, key: str, value: str) -> "MessageBuilder":
        """Add a user property."""
        self._properties[key] = value
        return self

    def build(self) -> Message:
        """The message; raises IllegalArgument as its constructor does."""
        return Message(
            self._topic,
            self._body,
            tag=self._tag,
            keys=self._keys,
            properties=self._properties,
            message_group=self._message_group,
            deliver_at=self._deliver_at,
            priority=self._priority,
            lite_topic=self._lite_topic,
        )


@dataclass(frozen=True, slots=True, repr=False)
class MessageView:
    """A message that was received. Immutable; only the SDK looks into `receipt`.

    Attributes:
        message_id, topic, tag, keys, properties, message_group: As sent.
        body: Decompressed.
        message_type: What it is.
        delivery_attempt: 1 for the first.
        born_timestamp: The producer's clock.
        born_host: Where it was sent from.
        store_timestamp: When the broker stored it, or made it visible.
        deliver_at: The delivery time asked for; None for none.
        queue_id, queue_offset: Its place.
        priority, lite_topic: As sent.
        dead_letter_topic, dead_letter_message_id: Of a dead letter, where it came from.
        trace_context: As sent.
        is_corrupted: The body does not fit its digest, or does not decompress.
        receipt: Names this delivery to the broker.
    """

    message_id: str
    topic: str
    body: bytes
    tag: str = ""
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=_no_properties)
    message_group: str = ""
    message_type: MessageType = MessageType.UNSPECIFIED
    delivery_attempt: int = 1
    born_timestamp: datetime | None = None
    born_host: str = ""
    store_timestamp: datetime | None = None
    deliver_at: datetime | None = None
    queue_id: int = 0
    queue_offset: int = 0
    priority: int | None = None
    lite_topic: str = ""
    dead_letter_topic: str = ""
    dead_letter_message_id: str = ""
    trace_context: str = ""
    is_corrupted: bool = False
    receipt: "Receipt | None" = field(default=None, repr=False)

    def __repr__(self) -> str:
        return _shown(self)

    def __reduce__(self) -> tuple[object, ...]:
        """To other processes, too: a view of a dictionary, as properties may be, does not go."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return _view, ({**values, "properties": dict(self.properties)},)


def _shown(message: Message | MessageView) -> str:
    """As dataclasses are written; of a large body the beginning, for it ends up in logs."""
    values = {each.name: getattr(message, each.name) for each in fields(message) if each.repr}
    texts = {name: repr(value) for name, value in values.items()}
    if len(message.body) > _BODY_SHOWN_MAX:
        texts["body"] = f"{message.body[:_BODY_SHOWN_MAX]!r}… ({len(message.body)} bytes)"
    listed = ", ".join(f"{name}={text}" for name, text in texts.items())
    return f"{type(message).__name__}({listed})"


def _view(values: dict[str, Any]) -> MessageView:
    return MessageView(**values)


@dataclass(slots=True)
class Receipt:
    """What names a delivery: the newest handle, where to use it, and the wire message.

    Attributes:
        handle: Changes when the invisible duration is changed.
        endpoint: The broker that delivered it.
        arrived_s: When it arrived, by the loop's clock, where metrics are measured; else 0.
    """

    handle: str
    endpoint: str
    arrived_s: float = 0.0
