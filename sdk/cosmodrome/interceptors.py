"""Hooks around what a client does: public, in order, may look and may veto.

An interceptor is any object with the methods it wants of `Interceptor`; the others do nothing.
`before` sees the work before it starts (SEND: before the message is encoded, so that it can
be replaced); `after` sees how it ended. Exceptions of `before` fail the work; those of `after`
are logged. Both run on the client's loop and must not block it.

| point | messages | of |
|---|---|---|
| SEND | `Message`s; replaced ones are sent | every send, also half messages and lists |
| RECEIVE | `MessageView`s, in `after` | simple and push consumers |
| CONSUME | `MessageView`s | listeners |
| ACK, CHANGE_INVISIBLE_DURATION, FORWARD_TO_DEAD_LETTER_QUEUE | the one settled | consumers |
| COMMIT_TRANSACTION, ROLLBACK_TRANSACTION, RECALL | none | producers |
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from cosmodrome.errors import CosmodromeError, IllegalArgument

_log = logging.getLogger("cosmodrome")


class HookPoint(Enum):
    """What is going on."""

    SEND = "send"
    RECEIVE = "receive"
    CONSUME = "consume"
    ACK = "ack"
    CHANGE_INVISIBLE_DURATION = "change_invisible_duration"
    COMMIT_TRANSACTION = "commit_transaction"
    ROLLBACK_TRANSACTION = "rollback_transaction"
    FORWARD_TO_DEAD_LETTER_QUEUE = "forward_to_dead_letter_queue"
    RECALL = "recall"


class ConsumeReturnType(Enum):
    """How a listener's call ended, in RocketMQ 4's words."""

    SUCCESS = "success"
    TIME_OUT = "time_out"
    EXCEPTION = "exception"
    RETURNED_NULL = "returned_null"
    FAILED = "failed"


@dataclass(slots=True)
class HookContext:
    """One piece of work.

    Attributes:
        point: What it is.
        client_id: Whose.
        topic: Of which topic.
        group: The consumer group; "" for producers.
        messages: `Message`s of a send (may be replaced in `before`), else `MessageView`s.
        attributes: For interceptors, to carry something from `before` to `after`.
        error: How it failed; None for well. Set before `after`.
        result: What came of it: receipts of a send, what a listener returned.
        returned: How a listener's call ended; None elsewhere.
    """

    point: HookPoint
    client_id: str
    topic: str = ""
    group: str = ""
    messages: list[Any] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)
    error: BaseException | None = None
    result: Any = None
    returned: ConsumeReturnType | None = None


class Interceptor:
    """Base class whose methods do nothing."""

    def before(self, context: HookContext) -> None:
        """The work is about to start."""

    def after(self, context: HookContext) -> None:
        """The work ended."""


class Interceptors:
    """The interceptors of one client; free of cost when there are none."""

    def __init__(self, interceptors: Iterable[Interceptor] = ()) -> None:
        self._interceptors = tuple(interceptors)
        for each in self._interceptors:
            if isinstance(each, type) or not hasattr(each, "before") or not hasattr(each, "after"):
                raise IllegalArgument(f"an interceptor is an instance of Interceptor, not {each!r}")

    def __bool__(self) -> bool:
        return bool(self._interceptors)

    def before(self, context: HookContext) -> None:
        """Run every `before`, in order."""
        for interceptor in self._interceptors:
            interceptor.before(context)

    @contextmanager
    def around(self, context: HookContext) -> Iterator[HookContext]:
        """Run every `before`, the block, and every `after`, which sees what the block raised."""
        self.before(context)
        with self._until_after(context):
            yield context

    @contextmanager
    def around_ours(self, context: HookContext) -> Iterator[HookContext]:
        """As `around`, of work that a client does by itself and tries again.

        Raises:
            CosmodromeError: What a `before` raised, as an error of ours.
        """
        try:
            self.before(context)
        except Exception as error:
            raise refusal(error) from error
        with self._until_after(context):
            yield context

    @contextmanager
    def _until_after(self, context: HookContext) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            context.error = error
            raise
        finally:
            self.after(context)

    def after(self, context: HookContext) -> None:
        """Run every `after`, in reverse order; none can spoil the work."""
        for interceptor in reversed(self._interceptors):
            try:
                interceptor.after(context)
            except Exception:
                _log.exception("interceptor %r failed after %s", interceptor, context.point.value)


def refusal(error: Exception) -> CosmodromeError:
    """What an interceptor raised, as an error of ours."""
    if isinstance(error, CosmodromeError):
        return error
    refused = IllegalArgument(f"an interceptor refused: {error!r}")
    refused.__cause__ = error
    return refused
