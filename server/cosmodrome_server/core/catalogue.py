"""Topics, consumer groups and kept values: what is, and the numbers it goes by.

Topics and groups get a number when they are created, never used again; records and rows
hold numbers, so that a topic deleted and created anew shares nothing with the old one.

    TOPIC, GROUP                  at u64 · id u32 · JSON
    TOPIC_DELETED, GROUP_DELETED  at u64 · id u32
    KEEP                          at u64 · is there u8 · key length u16 · key · value

    row 'T' + id u32, 'G' + id u32 → JSON;  'K' + key → value;  'N' → next ids u32 u32

JSON because a topic is written once and read by people (`cosmodrome store dump`), and a
later release may add a field.
"""

import json
from array import array
from collections.abc import Iterator
from functools import cache
from struct import Struct
from typing import Any

import msgspec

from cosmodrome_server.core.machine import DirtyRow, Row
from cosmodrome_server.errors import BadRequest, ConsumerGroupNotFound, TopicNotFound
from cosmodrome_server.model.group import (
    Backoff,
    ConsumeFrom,
    CustomizedBackoff,
    ExponentialBackoff,
    Group,
)
from cosmodrome_server.model.log import QueueReader, RecordKind
from cosmodrome_server.model.topic import DEAD_LETTER_PREFIX, Permission, Topic, TopicType

_AT_ID = Struct("<QI")
_KEEP = Struct("<QBH")
_ROW_ID = Struct(">cI")
_NEXT_IDS = Struct("<II")
_NEXT_IDS_KEY = b"N"


class CatalogueRecord(msgspec.Struct):
    """A change of the catalogue, as it is staged."""

    kind: RecordKind
    payload: bytes


class TopicState:
    """A topic and the ends of its queues.

    Attributes:
        topic: As its creator asked for it.
        topic_id: Its number.
        next_offsets: Per queue, the offset the next message gets.
        visible_offsets: Per queue, one past the last durable message.
        last_queue: The queue of the last message, for the rotation of senders.
        is_readable: Whether its permission lets consumers receive.
        is_writable: Whether its permission lets producers send.
    """

    __slots__ = (
        "is_readable",
        "is_writable",
        "last_queue",
        "next_offsets",
        "topic",
        "topic_id",
        "visible_offsets",
    )

    def __init__(self, topic: Topic, topic_id: int) -> None:
        self.topic = topic
        self.topic_id = topic_id
        # Not lists: an offset above 256 in a list is an object of its own.
        self.next_offsets = array("Q", bytes(8 * topic.queues))
        self.visible_offsets = self.next_offsets[:]
        self.last_queue = -1
        self._permit(topic)

    def change(self, topic: Topic) -> None:
        """Take a new form; queues may have been added."""
        added = bytes(8 * (topic.queues - len(self.next_offsets)))
        self.next_offsets.frombytes(added)
        self.visible_offsets.frombytes(added)
        self.topic = topic
        self._permit(topic)

    def _permit(self, topic: Topic) -> None:
        self.is_readable = topic.permission.is_readable
        self.is_writable = topic.permission.is_writable


class GroupState:
    """A consumer group and its number."""

    __slots__ = ("group", "group_id")

    @property
    def is_ordered(self) -> bool:
        """Whether a message in flight may hold others back."""
        return self.group.is_fifo or bool(self.group.lite_bind_topic)

    def __init__(self, group: Group, group_id: int) -> None:
        self.group = group
        self.group_id = group_id


class Catalogue:
    """Everything that is looked up by name."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicState] = {}
        self.topics_by_id: dict[int, TopicState] = {}
        self.groups: dict[str, GroupState] = {}
        self.groups_by_id: dict[int, GroupState] = {}
        self.kept: dict[str, bytes] = {}
        # Topics that ask for their messages to be kept for a time of their own.
        self.retaining: dict[int, TopicState] = {}
        self._next_topic_id = 1
        self._next_group_id = 1
        self._dirty: dict[bytes, None] = {}

    @property
    def next_ids(self) -> tuple[int, int]:
        """What the next new topic and the next new group get."""
        return self._next_topic_id, self._next_group_id

    def topic(self, name: str) -> TopicState:
        """Look a topic up; raises TopicNotFound."""
        found = self.topics.get(name)
        if found is None:
            way = "create it or set topics.auto_create"
            if name.startswith(DEAD_LETTER_PREFIX):
                way = "the broker makes it with the group's first dead letter"
            raise TopicNotFound(f"topic {name} does not exist; {way}")
        return found

    def group(self, name: str) -> GroupState:
        """Look a group up; raises ConsumerGroupNotFound."""
        found = self.groups.get(name)
        if found is None:
            raise ConsumerGroupNotFound(
                f"consumer group {name} does not exist; create it or set topics.auto_create"
            )
        return found

    def plan_topic(self, topic: Topic, lease_ms: int) -> CatalogueRecord:
        """Create or change a topic.

        Raises:
            BadRequest: Another type, fewer queues than it has, or no queue.
        """
        if topic.queues < 1:
            raise BadRequest(f"topic {topic.name} needs at least one queue, not {topic.queues}")
        known = self.topics.get(topic.name)
        if known is None:
            topic_id = self._next_topic_id
        else:
            topic_id = known.topic_id
            _check_change(known.topic, topic)
            topic = msgspec.structs.replace(topic, created_ms=known.topic.created_ms)
        return CatalogueRecord(RecordKind.TOPIC, _AT_ID.pack(lease_ms, topic_id) + _to_json(topic))

    def plan_group(self, group: Group, lease_ms: int) -> CatalogueRecord:
        """Create or change a group.

        Raises:
            BadRequest: No attempt allowed.
        """
        if group.max_attempts < 1:
            raise BadRequest(
                f"consumer group {group.name} needs at least one attempt, not {group.max_attempts}"
            )
        known = self.groups.get(group.name)
        if known is None:
            group_id = self._next_group_id
        else:
            group_id = known.group_id
            group = msgspec.structs.replace(group, created_ms=known.group.created_ms)
        return CatalogueRecord(RecordKind.GROUP, _AT_ID.pack(lease_ms, group_id) + _to_json(group))

    def plan_topic_deletion(self, name: str, lease_ms: int) -> CatalogueRecord:
        """Delete a topic; raises TopicNotFound."""
        topic_id = self.topic(name).topic_id
        return CatalogueRecord(RecordKind.TOPIC_DELETED, _AT_ID.pack(lease_ms, topic_id))

    def plan_group_deletion(self, name: str, lease_ms: int) -> CatalogueRecord:
        """Delete a group; raises ConsumerGroupNotFound."""
        group_id = self.group(name).group_id
        return CatalogueRecord(RecordKind.GROUP_DELETED, _AT_ID.pack(lease_ms, group_id))

    def plan_keep(self, key: str, value: bytes | None, lease_ms: int) -> CatalogueRecord:
        """Remember a value; None forgets it."""
        name = key.encode()
        head = _KEEP.pack(lease_ms, value is not None, len(name))
        return CatalogueRecord(RecordKind.KEEP, head + name + (value or b""))

    def apply(self, kind: RecordKind, payload: bytes) -> int:
        """Apply a record of the catalogue; return the id it is about, 0 for KEEP."""
        if kind is RecordKind.KEEP:
            self._apply_keep(payload)
            return 0
        number = int(_AT_ID.unpack_from(payload)[1])
        if kind is RecordKind.TOPIC:
            self._put_topic(number, _topic_from(json.loads(payload[_AT_ID.size :])))
        elif kind is RecordKind.GROUP:
            self._put_group(number, _group_from(json.loads(payload[_AT_ID.size :])))
        elif kind is RecordKind.TOPIC_DELETED:
            self.retaining.pop(number, None)
            del self.topics[self.topics_by_id.pop(number).topic.name]
            self._dirty[_ROW_ID.pack(b"T", number)] = None
        else:
            del self.groups[self.groups_by_id.pop(number).group.name]
            self._dirty[_ROW_ID.pack(b"G", number)] = None
        return number

    def _put_topic(self, topic_id: int, topic: Topic) -> None:
        state = self.topics_by_id.get(topic_id)
        if state is None:
            state = self.topics_by_id[topic_id] = TopicState(topic, topic_id)
            self.topics[topic.name] = state
        else:
            state.change(topic)
        if topic.retention_ms:
            self.retaining[topic_id] = state
        else:
            self.retaining.pop(topic_id, None)
        self._next_topic_id = max(self._next_topic_id, topic_id + 1)
        self._dirty[_ROW_ID.pack(b"T", topic_id)] = None
        self._dirty[_NEXT_IDS_KEY] = None

    def skip_topic(self, topic_id: int) -> None:
        """In replay: there are messages of a topic whose frame was damaged; no other gets its id.

        Else an index that is made again from the messages would take both for one.
        """
        self._next_topic_id = max(self._next_topic_id, topic_id + 1)
        self._dirty[_NEXT_IDS_KEY] = None

    def mend_queues(self, topic_id: int, queue_id: int) -> None:
        """In replay: something is about a queue; the frame that added it may have been damaged.

        Raises:
            KeyError: The topic is as unknown.
        """
        topic = self.topics_by_id[topic_id].topic
        if queue_id >= topic.queues:
            self._put_topic(topic_id, msgspec.structs.replace(topic, queues=queue_id + 1))

    def _put_group(self, group_id: int, group: Group) -> None:
        state = self.groups_by_id.get(group_id)
        if state is None:
            state = self.groups_by_id[group_id] = GroupState(group, group_id)
            self.groups[group.name] = state
        else:
            state.group = group
        self._next_group_id = max(self._next_group_id, group_id + 1)
        self._dirty[_ROW_ID.pack(b"G", group_id)] = None
        self._dirty[_NEXT_IDS_KEY] = None

    def _apply_keep(self, payload: bytes) -> None:
        _, is_there, key_bytes = _KEEP.unpack_from(payload)
        end = _KEEP.size + key_bytes
        name = payload[_KEEP.size : end]
        if is_there:
            self.kept[name.decode()] = payload[end:]
        else:
            self.kept.pop(name.decode(), None)
        self._dirty[b"K" + name] = None

    def read_ends(self, log: QueueReader) -> None:
        """At start, after replay: all that is stored is durable and visible."""
        for state in self.topics_by_id.values():
            queues = range(state.topic.queues)
            ends = [log.max_offset(state.topic_id, queue_id) for queue_id in queues]
            state.next_offsets = array("Q", ends)
            state.visible_offsets = state.next_offsets[:]

    def rows(self) -> Iterator[Row]:
        """All of the catalogue."""
        yield _NEXT_IDS_KEY, self._value(_NEXT_IDS_KEY) or b""
        for topic_id, topic in self.topics_by_id.items():
            yield _ROW_ID.pack(b"T", topic_id), _to_json(topic.topic)
        for group_id, group in self.groups_by_id.items():
            yield _ROW_ID.pack(b"G", group_id), _to_json(group.group)
        for key, value in self.kept.items():
            yield b"K" + key.encode(), value

    def dirty_rows(self) -> Iterator[DirtyRow]:
        """What changed since the last call."""
        dirty, self._dirty = self._dirty, {}
        for key in dirty:
            yield key, self._value(key)

    def _value(self, key: bytes) -> bytes | None:
        if key == _NEXT_IDS_KEY:
            return _NEXT_IDS.pack(self._next_topic_id, self._next_group_id)
        if key[:1] == b"K":
            return self.kept.get(key[1:].decode())
        number = int(_ROW_ID.unpack(key)[1])
        if key[:1] == b"T":
            topic = self.topics_by_id.get(number)
            return None if topic is None else _to_json(topic.topic)
        group = self.groups_by_id.get(number)
        return None if group is None else _to_json(group.group)

    def restore(self, key: bytes, value: bytes) -> None:
        """Take back one row."""
        if key == _NEXT_IDS_KEY:
            topic_id, group_id = _NEXT_IDS.unpack(value)
            self._next_topic_id = max(self._next_topic_id, topic_id)
            self._next_group_id = max(self._next_group_id, group_id)
        elif key[:1] == b"K":
            self.kept[key[1:].decode()] = value
        elif key[:1] == b"T":
            self._put_topic(_ROW_ID.unpack(key)[1], _topic_from(json.loads(value)))
        else:
            self._put_group(_ROW_ID.unpack(key)[1], _group_from(json.loads(value)))
        self._dirty.clear()

    def take_up(self, key: bytes, value: bytes) -> None:
        """In replay, after damage: a row of a snapshot; the frame it comes from may be lost."""
        dirty = dict(self._dirty)
        self.restore(key, value)
        self._dirty = {**dirty, key: None}


def _check_change(known: Topic, wanted: Topic) -> None:
    if wanted.topic_type is not known.topic_type:
        raise BadRequest(
            f"topic {known.name} is {known.topic_type} and cannot become {wanted.topic_type}"
        )
    if wanted.queues < known.queues:
        raise BadRequest(
            f"topic {known.name} has {known.queues} queues and cannot shrink to {wanted.queues}"
        )


def _fields_of(value: Topic | Group | Backoff) -> dict[str, Any]:
    # Five times as quick as `to_builtins`, which copies; every snapshot has all topics.
    return {name: getattr(value, name) for name in value.__struct_fields__}


@cache
def _encoder() -> "json.JSONEncoder":
    return json.JSONEncoder(separators=(",", ":"), sort_keys=True, default=_fields_of)


def _to_json(value: Topic | Group) -> bytes:
    return _encoder().encode(value).encode()


def _topic_from(fields: dict[str, Any]) -> Topic:
    fields["topic_type"] = TopicType(fields["topic_type"])
    fields["permission"] = Permission(fields["permission"])
    return Topic(**fields)


def _group_from(fields: dict[str, Any]) -> Group:
    shape = fields["backoff"]
    backoff: Backoff
    if "next_ms" in shape:
        backoff = CustomizedBackoff(tuple(shape["next_ms"]))
    else:
        backoff = ExponentialBackoff(**shape)
    fields["backoff"] = backoff
    fields["consume_from"] = ConsumeFrom(fields["consume_from"])
    return Group(**fields)
