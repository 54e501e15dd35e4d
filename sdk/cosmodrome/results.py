"""What a listener makes of a message, and how listeners are held back."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

from cosmodrome.errors import IllegalArgument
from cosmodrome.message import MessageView

SUSPEND_MIN = timedelta(milliseconds=50)


class ConsumeResult(Enum):
    """The outcome of consuming one message.

    SUCCESS acknowledges it. FAILURE brings it again, later and later, until the group's maximum
    makes it a dead letter. An exception, and None, are FAILURE.
    """

    SUCCESS = "success"
    FAILURE = "failure"

    @staticmethod
    def suspend(duration: timedelta) -> "Suspend":
        """Bring it again after `duration`, without counting an attempt.

        Raises:
            IllegalArgument: Shorter than 50 ms.
        """
        return Suspend(duration)


@dataclass(frozen=True, slots=True)
class Suspend:
    """See `ConsumeResult.suspend`."""

    duration: timedelta

    def __post_init__(self) -> None:
        if self.duration < SUSPEND_MIN:
            raise IllegalArgument(f"suspend for at least {SUSPEND_MIN}, not {self.duration}")


Result = ConsumeResult | Suspend
MessageListener = Callable[[MessageView], "Result | Awaitable[Result | None] | None"]
BatchListener = Callable[
    [Sequence[MessageView]],
    "Result | Sequence[Result] | Awaitable[Result | Sequence[Result] | None] | None",
]


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """How fast one topic is consumed; what is None is not bounded beyond the consumer's own.

    Attributes:
        concurrency: Listener calls at a time, for this topic alone.
        rate: Messages a second that begin to be consumed, evenly spaced.

    Raises:
        IllegalArgument: Not positive.
    """

    concurrency: int | None = None
    rate: float | None = None

    def __post_init__(self) -> None:
        if self.concurrency is not None and self.concurrency < 1:
            raise IllegalArgument(f"concurrency is at least 1, not {self.concurrency}")
        if self.rate is not None and self.rate <= 0:
            raise IllegalArgument(f"rate is above 0 messages a second, not {self.rate}")
