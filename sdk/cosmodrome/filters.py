"""What a consumer wants of a topic: tags or a SQL92 condition over properties."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from cosmodrome.errors import IllegalArgument
from cosmodrome_proto import definition_pb2 as pb


class FilterType(IntEnum):
    """How an expression is read."""

    TAG = 1
    SQL = 2


@dataclass(frozen=True, slots=True)
class Filter:
    """An expression: `a || b`, `*`, or with `Filter.sql` a condition.

    Example:
        >>> Filter("new || paid")
        Filter(expression='new || paid', filter_type=<FilterType.TAG: 1>)
    """

    expression: str = "*"
    filter_type: FilterType = FilterType.TAG

    def __post_init__(self) -> None:
        if not isinstance(self.filter_type, FilterType):
            raise IllegalArgument(
                f"a filter's type is FilterType.TAG or FilterType.SQL, not {self.filter_type!r};"
                " Filter.sql('a > 1') makes one of SQL"
            )

    @classmethod
    def sql(cls, condition: str) -> "Filter":
        """A SQL92 condition such as `region = 'eu' AND amount > 100`."""
        if not condition.strip():
            raise IllegalArgument("a SQL filter needs a condition")
        return cls(condition, FilterType.SQL)

    @property
    def takes_all_tags(self) -> bool:
        """Whether there is nothing to check; SQL is for the broker alone."""
        return self.filter_type is FilterType.SQL or self.expression in ("", "*")

    def takes_tag(self, tag: str) -> bool:
        """Whether a tag fits; True for SQL, which only the broker evaluates.

        Brokers select tags by hash; a check by text costs little and makes up for those
        that do not compare the text themselves.
        """
        if self.takes_all_tags:
            return True
        return tag in {part.strip() for part in self.expression.split("||")}

    def to_wire(self) -> pb.FilterExpression:
        """As a protobuf message."""
        kind = pb.SQL if self.filter_type is FilterType.SQL else pb.TAG
        return pb.FilterExpression(type=kind, expression=self.expression or "*")


EVERYTHING = Filter()
Subscriptions = Mapping[str, Filter | str]


def topics_of(topics: Iterable[str]) -> dict[str, None]:
    """Read names of topics, each once and in their order.

    Raises:
        IllegalArgument: A lone name, or something that is none.
    """
    names = [topics] if isinstance(topics, str) else list(topics)
    if isinstance(topics, str) or not all(isinstance(name, str) for name in names):
        raise IllegalArgument(f'topics are names of topics: ["orders"], not {topics!r}')
    return dict.fromkeys(names)


def filters_of(subscriptions: Subscriptions) -> dict[str, Filter]:
    """Read a mapping of topics to filters, where a plain string is a tag expression.

    Raises:
        IllegalArgument: It is no mapping, or something else stands for a filter.
    """
    if not isinstance(subscriptions, Mapping):
        raise IllegalArgument(
            'subscriptions say what is wanted of each topic: {"orders": "*"}, not'
            f" {subscriptions!r}"
        )
    for topic, wanted in subscriptions.items():
        if not isinstance(wanted, Filter | str):
            raise IllegalArgument(
                f"topic {topic} is filtered by a Filter or a tag expression, not {wanted!r}"
            )
    return {
        topic: wanted if isinstance(wanted, Filter) else Filter(wanted)
        for topic, wanted in subscriptions.items()
    }
