"""How a pull consumer reads: where it begins, where it goes on, how far ahead of `poll`."""

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Literal

from cosmodrome._client.pull_reader import Reader
from cosmodrome.errors import IllegalArgument


class StartFrom(Enum):
    """Where to begin on a queue without a stored offset."""

    FIRST = "first"
    LAST = "last"


class OffsetReset(Enum):
    """Where to go on when an offset does not exist, or not any more.

    NEAREST is the offset that is there and closest; ERROR makes `poll` raise OffsetNotFound.
    """

    NEAREST = "nearest"
    FIRST = "first"
    LAST = "last"
    ERROR = "error"


Beginning = StartFrom | Literal["first", "last"] | datetime
Reset = OffsetReset | Literal["nearest", "first", "last", "error"]


def start_of(given: Beginning) -> StartFrom | datetime:
    """Read where to begin, by name or not.

    Raises:
        IllegalArgument: Something else.
    """
    if isinstance(given, datetime):
        return given
    try:
        return StartFrom(given)
    except ValueError:
        raise IllegalArgument(
            f"start_from is StartFrom.FIRST, StartFrom.LAST or a datetime, not {given!r}"
        ) from None


def reset_of(given: Reset) -> OffsetReset:
    """Read where to go on, by name or not.

    Raises:
        IllegalArgument: Something else.
    """
    try:
        return OffsetReset(given)
    except ValueError:
        names = ", ".join(f"OffsetReset.{each.name}" for each in OffsetReset)
        raise IllegalArgument(f"offset_reset is one of {names}, not {given!r}") from None


@dataclass(frozen=True, slots=True)
class FlowControl:
    """How much is read ahead of `poll`.

    Attributes:
        messages, body_bytes: Per queue; RocketMQ 4's numbers.
        span: Largest offset read less smallest not polled, per queue; 0 for no bound.
        topic_messages, topic_bytes: Of each topic; shared among its queues they replace the bounds
            per queue; 0 for none.
        total_messages: Over all queues.
    """

    messages: int = 1000
    body_bytes: int = 100 << 20
    span: int = 2000
    topic_messages: int = 0
    topic_bytes: int = 0
    total_messages: int = 10_000

    def is_full(self, reader: Reader, queues: int) -> bool:
        """Whether a queue may not be read ahead now; its topic has so many queues here."""
        messages, size = self.messages, self.body_bytes
        if self.topic_messages:
            messages = max(1, self.topic_messages // queues)
        if self.topic_bytes:
            size = max(1, self.topic_bytes // queues)
        return (
            len(reader.cached) >= messages
            or reader.cached_bytes >= size
            or (
                bool(self.span)
                and bool(reader.cached)
                and reader.next_read - reader.polled >= self.span
            )
        )
