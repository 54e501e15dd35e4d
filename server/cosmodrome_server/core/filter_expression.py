"""Filters of consumers, compiled: tags, and SQL over the properties of a message.

    TAG   "a || b"       hashes for the scan of the queue's index, then the tag itself:
                         two tags may share a hash
    SQL   "price > 10"   one closure over the properties (`core.filter_expression_sql`)

SQL sees the user properties, and the system's under the names RocketMQ stores them by:
TAGS, KEYS (joined by spaces), UNIQ_KEY (the message id), __SHARDINGKEY (the message group),
BORN_TIMESTAMP, __BORNHOST, TIMER_DELIVER_MS, TRACE_CONTEXT, __LITE_TOPIC,
_SYS_MSG_PRIORITY_, DLQ_ORIGIN_TOPIC and DLQ_ORIGIN_MESSAGE_ID. Empty means absent.

Source: protocol.md 10.1 to 10.5.
"""

from collections.abc import Callable
from functools import lru_cache

from cosmodrome_server.core import filter_expression_sql as sql
from cosmodrome_server.core.hashing import java_hash
from cosmodrome_server.core.machine import Matcher
from cosmodrome_server.errors import IllegalFilterExpression
from cosmodrome_server.model import wire
from cosmodrome_server.model.filter import Filter, FilterType
from cosmodrome_server.model.log import MessageRecord

_SEPARATOR = "||"
# Four of the longest tags, or ten thousand.
TAGS_CHARS_MAX = 65_536


class Everything:
    """Matches every message."""

    is_everything = True
    tag_hashes: frozenset[int] | None = None

    def matches(self, record: MessageRecord) -> bool:
        """True."""
        del record
        return True


class AnyOfTags:
    """Matches messages with one of some tags."""

    is_everything = False

    def __init__(self, tags: frozenset[str]) -> None:
        self._tags = tags
        self.tag_hashes: frozenset[int] | None = frozenset(map(java_hash, tags))

    def matches(self, record: MessageRecord) -> bool:
        """Whether the tag itself is one of them; two tags may share a hash."""
        return wire.tag(record.system) in self._tags


class BySql:
    """Matches messages whose properties satisfy an SQL expression."""

    is_everything = False
    tag_hashes: frozenset[int] | None = None

    def __init__(self, compiled: "sql.SqlFilter") -> None:
        self._predicate = compiled.matches
        self._system = tuple(
            (name, _SYSTEM[name]) for name in sorted(compiled.names) if name in _SYSTEM
        )
        self._has_user = any(name not in _SYSTEM for name in compiled.names)

    def matches(self, record: MessageRecord) -> bool:
        """Whether the expression is TRUE for the message's properties."""
        properties = wire.user_properties(record.user) if self._has_user else {}
        for name, read in self._system:
            properties[name] = read(record.system)
        return self._predicate({name: value for name, value in properties.items() if value})


def compile_filter(wanted: Filter) -> Matcher:
    """Compile what a consumer asks for.

    Raises:
        IllegalFilterExpression: An SQL expression that is wrong (says where and why), a tag
            expression of separators only, or one of more characters than are allowed.
    """
    if wanted.filter_type is FilterType.SQL:
        return BySql(_compiled(wanted.expression))
    if len(wanted.expression) > TAGS_CHARS_MAX:
        raise IllegalFilterExpression(
            f"the tag filter has {len(wanted.expression)} characters, {TAGS_CHARS_MAX} are allowed"
        )
    text = wanted.expression.strip()
    if text in {"", "*"}:
        return Everything()
    tags = frozenset(part.strip() for part in text.split(_SEPARATOR)) - {""}
    if not tags:
        raise IllegalFilterExpression(f"the tag expression {text[:80]!r} names no tag")
    return AnyOfTags(tags)


@lru_cache(maxsize=256)
def _compiled(expression: str) -> "sql.SqlFilter":
    """A long one takes 100 ms, and stands in its client's settings, every five minutes, too."""
    return sql.compile_sql(expression)


def _keys(system: bytes | memoryview) -> str:
    return " ".join(wire.keys(system))


def _text(number: int) -> Callable[[bytes | memoryview], str]:
    return lambda system: wire.text_field(system, number)


def _priority(system: bytes | memoryview) -> str:
    value = wire.number_field(system, wire.PRIORITY)
    return "" if value is None else str(value)


def _milliseconds(number: int) -> Callable[[bytes | memoryview], str]:
    def read(system: bytes | memoryview) -> str:
        value = wire.timestamp_field(system, number)
        return "" if value is None else str(value)

    return read


def _origin(part: int) -> Callable[[bytes | memoryview], str]:
    def read(system: bytes | memoryview) -> str:
        origin = wire.dead_letter_origin(system)
        return "" if origin is None else origin[part]

    return read


_SYSTEM: dict[str, Callable[[bytes | memoryview], str]] = {
    "TAGS": wire.tag,
    "KEYS": _keys,
    "UNIQ_KEY": wire.message_id,
    "__SHARDINGKEY": wire.message_group,
    "BORN_TIMESTAMP": _milliseconds(wire.BORN_TIMESTAMP),
    "__BORNHOST": _text(wire.BORN_HOST),
    "TIMER_DELIVER_MS": _milliseconds(wire.DELIVERY_TIMESTAMP),
    "TRACE_CONTEXT": _text(wire.TRACE_CONTEXT),
    "__LITE_TOPIC": _text(wire.LITE_TOPIC),
    "_SYS_MSG_PRIORITY_": _priority,
    "DLQ_ORIGIN_TOPIC": _origin(0),
    "DLQ_ORIGIN_MESSAGE_ID": _origin(1),
}
