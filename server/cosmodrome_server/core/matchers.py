"""Compiled filters, kept: clients send the same expression with every receive."""

from cosmodrome_server.core.hashing import java_hash
from cosmodrome_server.core.machine import Matcher
from cosmodrome_server.errors import IllegalFilterExpression
from cosmodrome_server.model import wire
from cosmodrome_server.model.filter import EVERYTHING, Filter, FilterType
from cosmodrome_server.model.log import MessageRecord

_COMPILED_MAX = 4_096


class Everything:
    """Matches every message."""

    is_everything = True
    tag_hashes = None

    def matches(self, record: MessageRecord) -> bool:
        """True."""
        del record
        return True


class AnyOfTags:
    """Matches messages with one of some tags."""

    is_everything = False

    def __init__(self, tags: frozenset[str]) -> None:
        self._tags = tags
        self.tag_hashes: frozenset[int] | None = frozenset(java_hash(tag) for tag in tags)

    def matches(self, record: MessageRecord) -> bool:
        """Whether the tag itself is one of them; two tags may share a hash."""
        return wire.tag(record.system) in self._tags


def compile_tags(expression: Filter) -> Matcher:
    """Compile a tag expression."""
    if expression.filter_type is not FilterType.TAG:
        raise IllegalFilterExpression("SQL filters are not there yet")
    text = expression.expression.strip()
    if text in {"", "*"}:
        return Everything()
    return AnyOfTags(frozenset(tag.strip() for tag in text.split("||") if tag.strip()))


class Matchers:
    """Filter → matcher, compiled once."""

    def __init__(self) -> None:
        self._compiled: dict[Filter, Matcher] = {EVERYTHING: Everything()}

    def of(self, expression: Filter) -> Matcher:
        """The matcher of a filter; raises IllegalFilterExpression."""
        matcher = self._compiled.get(expression)
        if matcher is None:
            if len(self._compiled) >= _COMPILED_MAX:
                self._compiled.clear()
            matcher = self._compiled[expression] = compile_tags(expression)
        return matcher
