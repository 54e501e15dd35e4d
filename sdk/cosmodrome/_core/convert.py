"""Between our values and the wire: messages out, views in."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

from cosmodrome._core import codec, digest
from cosmodrome.message import DelayLevel, Message, MessageType, MessageView, Receipt
from cosmodrome.receipt import SendReceipt
from cosmodrome_proto import Timestamp
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc

_KNOWN_TYPES = frozenset(int(kind) for kind in MessageType)
_TEMPLATES_MAX = 1024


@dataclass(slots=True)
class _Template:
    """What messages of one topic that are sent in one millisecond share."""

    wire: pb.Message
    born_ms: int = -1

    def date(self, born_ms: int) -> None:
        """Be born now."""
        self.born_ms = born_ms
        born = self.wire.system_properties.born_timestamp
        born.seconds = born_ms // 1000
        born.nanos = born_ms % 1000 * 1_000_000


class Encoder:
    """Makes one producer's messages what goes over the wire.

    Args:
        born_host: Where they are sent from.
        namespace: That of the client.
    """

    def __init__(self, born_host: str, namespace: str) -> None:
        self._born_host = born_host
        self._namespace = namespace
        self._templates: dict[str, _Template] = {}

    def wire(
        self, message: Message, message_id: str, born_ms: int, *, is_transaction: bool = False
    ) -> pb.Message:
        """A message as it is sent. `born_ms` also is what a delay counts from."""
        template = self._templates.get(message.topic) or self._template(message.topic)
        if template.born_ms != born_ms:
            template.date(born_ms)
        wire = pb.Message()
        wire.CopyFrom(template.wire)  # a fifth of what setting each field costs
        wire.body = message.body
        system = wire.system_properties
        system.message_id = message_id
        if message.properties:
            wire.user_properties.update(message.properties)
        if message.tag:
            system.tag = message.tag
        if message.keys:
            system.keys.extend(message.keys)
        if message.trace_context:
            system.trace_context = message.trace_context
        kind = MessageType.TRANSACTION if is_transaction else message.message_type
        if kind is not MessageType.NORMAL:
            system.message_type = pb.MessageType.ValueType(kind)
            _add_kind(system, message, born_ms)
        return wire

    def _template(self, topic: str) -> _Template:
        if len(self._templates) >= _TEMPLATES_MAX:
            self._templates.clear()
        made = _Template(
            pb.Message(
                topic=pb.Resource(name=topic, resource_namespace=self._namespace),
                system_properties=pb.SystemProperties(
                    message_type=pb.NORMAL, body_encoding=pb.IDENTITY, born_host=self._born_host
                ),
            )
        )
        self._templates[topic] = made
        return made


def _add_kind(system: pb.SystemProperties, message: Message, born_ms: int) -> None:
    if message.message_group:
        system.message_group = message.message_group
    if message.lite_topic:
        system.lite_topic = message.lite_topic
    if message.priority is not None:
        system.priority = message.priority
    due_ms = delivery_ms(message, born_ms)
    if due_ms is not None:
        system.delivery_timestamp.seconds = due_ms // 1000
        system.delivery_timestamp.nanos = due_ms % 1000 * 1_000_000
    if message.transaction_recovery is not None:
        system.orphaned_transaction_recovery_duration.FromTimedelta(message.transaction_recovery)


def compress(wire: pb.Message) -> None:
    """Gzip the body of a message about to be sent."""
    wire.body = codec.compressed(wire.body)
    wire.system_properties.body_encoding = pb.GZIP


def add_digest(wire: pb.Message) -> None:
    """Let the broker check the body on arrival."""
    system = wire.system_properties
    system.body_digest.type = pb.CRC32
    system.body_digest.checksum = digest.crc32(wire.body)


def delivery_ms(message: Message, now_ms: int) -> int | None:
    """When a message is due, in milliseconds since the epoch; None for at once."""
    if message.deliver_at is not None:
        return milliseconds(message.deliver_at)
    if message.delay is None:
        return None
    delay = message.delay.value if isinstance(message.delay, DelayLevel) else message.delay
    return now_ms + delay // timedelta(milliseconds=1)


def milliseconds(moment: datetime) -> int:
    """A moment in whole milliseconds since the epoch."""
    return (moment - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)


def receipt(entry: rpc.SendResultEntry, topic: str, message_id: str, endpoint: str) -> SendReceipt:
    """What a result entry says."""
    return SendReceipt(
        message_id, topic, entry.offset, entry.transaction_id, entry.recall_handle, endpoint
    )


def view(wire: pb.Message, endpoint: str) -> MessageView:
    """A received message: digest checked, body decompressed; damage is marked, not raised."""
    system = wire.system_properties
    body, is_corrupted = _opened(wire)
    kind = int(system.message_type)
    return MessageView(
        system.message_id,
        wire.topic.name,
        body,
        system.tag,
        tuple(system.keys),
        MappingProxyType(dict(wire.user_properties)),
        system.message_group,
        MessageType(kind) if kind in _KNOWN_TYPES else MessageType.UNSPECIFIED,
        system.delivery_attempt or 1,
        _moment(system.born_timestamp),
        system.born_host,
        _moment(system.store_timestamp),
        _moment(system.delivery_timestamp),
        system.queue_id,
        system.queue_offset,
        system.priority if system.HasField("priority") else None,
        system.lite_topic,
        system.dead_letter_queue.topic,
        system.dead_letter_queue.message_id,
        system.trace_context,
        is_corrupted,
        Receipt(system.receipt_handle, endpoint),
    )


def _opened(wire: pb.Message) -> tuple[bytes, bool]:
    system, body = wire.system_properties, wire.body
    if system.HasField("body_digest") and not digest.is_intact(system.body_digest, body):
        return body, True
    if system.body_encoding == pb.GZIP:
        try:
            return codec.decoded(body), False
        except codec.UndecodableBody:
            return body, True
    return body, False


def _moment(value: Timestamp) -> datetime | None:
    if not value.seconds:
        return None
    try:
        return datetime.fromtimestamp(value.seconds + value.nanos / 1e9, UTC)
    except (OverflowError, OSError, ValueError):
        return None  # a producer's mistake: no reason to lose the message, and all it came with
