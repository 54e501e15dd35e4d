"""Topics and groups as people write them: options of a command, tables of a file.

    [[topic]]                     [[group]]
    name = "orders"               name = "billing"
    type = "fifo"                 fifo = true
    queues = 8                    max_attempts = 5
    retention = "7d"              backoff = ["1s", "5s", "1m"]

What is left out is left alone: the broker's default for a new one, as it is for one that exists.
"""

from typing import Annotated, TypeVar

import msgspec
import typer
from msgspec import Meta

from cosmodrome_proto import control_pb2 as wire
from cosmodrome_server.cli.units import INT32_MAX, duration, epoch_ms, exact_moment, milliseconds

_BEGINNINGS = {"auto", "first", "last"}
Name = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=0, le=INT32_MAX)]


class _Described(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A table of a file; a key that is not here is refused."""

    name: Name
    attributes: dict[str, str] = {}


class TopicDescription(_Described):
    """A topic."""

    type: str = ""
    queues: Count = 0
    permission: str = ""
    retention: str = ""
    lite_expiration: str = ""

    def to_wire(self) -> wire.Topic:
        """What CreateTopic takes.

        Raises:
            typer.BadParameter: A duration that does not read.
        """
        topic = wire.Topic(
            name=self.name,
            type=self.type.upper(),
            queues=self.queues,
            permission=self.permission.upper(),
            attributes=self.attributes,
        )
        if self.retention:
            topic.retention.FromMilliseconds(milliseconds(self.retention))
        if self.lite_expiration:
            topic.lite_expiration.FromMilliseconds(milliseconds(self.lite_expiration))
        return topic

    @classmethod
    def of(cls, topic: wire.Topic) -> "TopicDescription":
        """All that a broker says of one."""
        return cls(
            name=topic.name,
            type=topic.type.lower(),
            queues=topic.queues,
            permission=topic.permission.lower(),
            retention=_kept(topic.retention.ToMilliseconds()),
            lite_expiration=_kept(topic.lite_expiration.ToMilliseconds()),
            attributes=dict(topic.attributes),
        )


class Exponential(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Rests that grow: initial, initial × multiplier, … up to max."""

    initial: str
    max: str
    multiplier: float


class GroupDescription(_Described):
    """A consumer group; of `backoff` and `exponential_backoff` the first that is given counts."""

    fifo: bool | None = None
    max_attempts: Count = 0
    backoff: list[str] = []
    exponential_backoff: Exponential | None = None
    consume_from: str = ""
    paused: bool | None = None
    lite_topic_of: str = ""
    priority_factor: Count | None = None

    def to_wire(self) -> wire.Group:
        """What CreateGroup takes.

        Raises:
            typer.BadParameter: A duration or a moment that does not read.
        """
        group = wire.Group(
            name=self.name,
            fifo=self.fifo,
            max_attempts=self.max_attempts,
            paused=self.paused,
            lite_bind_topic=self.lite_topic_of,
            priority_factor=self.priority_factor,
            attributes=self.attributes,
        )
        for rest in self.backoff:
            rests = group.retry_policy.customized_backoff.next
            rests.add().FromMilliseconds(milliseconds(rest))
        if self.exponential_backoff is not None and not self.backoff:
            growing = group.retry_policy.exponential_backoff
            growing.initial.FromMilliseconds(milliseconds(self.exponential_backoff.initial))
            growing.max.FromMilliseconds(milliseconds(self.exponential_backoff.max))
            growing.multiplier = self.exponential_backoff.multiplier
        if not self.consume_from or self.consume_from in _BEGINNINGS:
            group.consume_from = self.consume_from
        else:
            group.consume_from = "timestamp"
            group.consume_timestamp.FromMilliseconds(epoch_ms(self.consume_from))
        return group

    @classmethod
    def of(cls, group: wire.Group) -> "GroupDescription":
        """All that a broker says of one."""
        policy, growing = group.retry_policy, None
        if policy.HasField("exponential_backoff"):
            asked = policy.exponential_backoff
            growing = Exponential(
                initial=duration(asked.initial.ToMilliseconds()),
                max=duration(asked.max.ToMilliseconds()),
                multiplier=asked.multiplier,
            )
        begins = group.consume_from
        if begins == "timestamp":
            begins = exact_moment(group.consume_timestamp)
        return cls(
            name=group.name,
            fifo=group.fifo,
            max_attempts=group.max_attempts,
            backoff=[duration(each.ToMilliseconds()) for each in policy.customized_backoff.next],
            exponential_backoff=growing,
            consume_from=begins,
            paused=group.paused,
            lite_topic_of=group.lite_bind_topic,
            priority_factor=group.priority_factor,
            attributes=dict(group.attributes),
        )


class Descriptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A file of them."""

    topic: list[TopicDescription] = []
    group: list[GroupDescription] = []


def read_descriptions(text: str, source: str) -> Descriptions:
    """Read a file of topics and groups.

    Raises:
        typer.BadParameter: It is not TOML, has a key or a value that does not belong there, or
            says twice what one is to be.
    """
    import tomllib  # noqa: PLC0415 - only who has a file pays

    try:
        read = msgspec.convert(tomllib.loads(text), Descriptions)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise typer.BadParameter(f"{source}: {error}") from error
    for kind, tables in (("topic", read.topic), ("group", read.group)):
        names: set[str] = set()
        for table in tables:
            if table.name in names:
                raise typer.BadParameter(f"{source}: {kind} {table.name} is there twice")
            names.add(table.name)
    return read


Described = TypeVar("Described", TopicDescription, GroupDescription)


def changes(wanted: Described, known: Described) -> list[str]:
    """What is wanted and is not so, as `queues 4 → 8`."""
    blank = type(wanted)(name=wanted.name)
    # Through the wire and back: 24h is 1d, and FIFO is fifo.
    made = _through_the_wire(wanted)
    found = []
    for name in wanted.__struct_fields__:
        new, old = getattr(made, name), getattr(known, name)
        if name == "attributes":
            new = {key: value for key, value in {**old, **new}.items() if value}
        if getattr(wanted, name) != getattr(blank, name) and new != old:
            found.append(f"{name} {_shown(old)} → {_shown(new)}")
    return found


def _through_the_wire(wanted: Described) -> Described:
    if isinstance(wanted, TopicDescription):
        return TopicDescription.of(wanted.to_wire())
    return GroupDescription.of(wanted.to_wire())


def _kept(duration_ms: int) -> str:
    return duration(duration_ms) if duration_ms else ""


def _shown(value: object) -> str:
    return str(msgspec.to_builtins(value)) if value not in ("", None, [], {}) else "-"
