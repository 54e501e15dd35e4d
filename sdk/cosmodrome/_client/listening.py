"""Calling a listener: sync or async, one message or a batch, with a bound on how long.

An async listener runs on the loop and is cancelled at its time-out. A plain one runs in a
thread of the consumer's pool and cannot be interrupted: at its time-out it is abandoned, the
message is given back, and what it returns later is ignored. Another thread takes its place, so that
one that hangs does not end the consumer; when as many again hang, no call begins until one returns.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from cosmodrome._client.pacer import Pacer
from cosmodrome._client.tasks import is_its_own
from cosmodrome._client.threads import called, is_async, threads_for
from cosmodrome.errors import IllegalArgument
from cosmodrome.interceptors import ConsumeReturnType, HookContext, HookPoint, Interceptors
from cosmodrome.message import MessageView
from cosmodrome.orderly import ConsumeOrderlyContext, ConsumeOrderlyStatus
from cosmodrome.results import SUSPEND_MIN, ConsumeResult, Result, Suspend

_log = logging.getLogger("cosmodrome")
_OUTCOMES = (ConsumeResult, Suspend)
_SUCCESS = (ConsumeResult.SUCCESS, ConsumeOrderlyStatus.SUCCESS, ConsumeOrderlyStatus.COMMIT)
EVERY_OTHER = ""  # the topic of the listener that takes what no other one does
# What a rate gives back when its consumer closes: an attempt that never was.
_NOT_STARTED = Suspend(SUSPEND_MIN)


class Kind(Enum):
    """What a listener takes."""

    MESSAGE = "message"
    BATCH = "batch"
    ORDERLY = "orderly"


@dataclass(frozen=True, slots=True)
class Listener:
    """A listener and what it takes.

    Attributes:
        call: The function.
        kind: What it takes.
        batch: Messages of one call at most.
    """

    call: Callable[..., Any]
    kind: Kind = Kind.MESSAGE
    batch: int = 1


@dataclass(frozen=True, slots=True)
class Caller:
    """On whose behalf a listener is called.

    Attributes:
        interceptors: CONSUME hooks.
        client_id, group: For their contexts.
        observe: Told of each call: its messages, how many of them succeeded, when it began.
        is_filtering: What an interceptor takes out of a call's messages counts as consumed.
    """

    interceptors: Interceptors
    client_id: str
    group: str
    observe: Callable[[Sequence[MessageView], int, float], None]
    is_filtering: bool = False


def common_listener(
    given: Mapping[Kind, Callable[..., Any] | None], batch: int | None
) -> dict[str, Listener]:
    """The one listener given to a constructor, under `EVERY_OTHER`.

    Raises:
        IllegalArgument: There are several.
    """
    found = [listener_of(kind, call, batch) for kind, call in given.items() if call is not None]
    if len(found) > 1:
        names = " and a ".join(f"{one.kind.value} listener" for one in found)
        raise IllegalArgument(f"a consumer takes one listener for all topics, not a {names}")
    return {EVERY_OTHER: found[0]} if found else {}


def listener_of(kind: Kind, call: Callable[..., Any], batch: int | None) -> Listener:
    """A listener with the batch of its kind, unless one is given.

    Raises:
        IllegalArgument: It cannot be called.
    """
    if not callable(call):
        raise IllegalArgument(f"a {kind.value} listener is a function, not {call!r}")
    most = {Kind.MESSAGE: 1, Kind.BATCH: batch or 32, Kind.ORDERLY: batch or 1}
    return Listener(call, kind, most[kind])


class ListenerCalls:
    """One listener and how it is called.

    Args:
        listener: What is called.
        caller: On whose behalf.
        threads: For a plain listener; not made for an async one.
        timeout_s: How long a call may take; None for ever.
        pacer: Holds calls back to a rate.
    """

    def __init__(
        self,
        listener: Listener,
        caller: Caller,
        *,
        threads: int,
        timeout_s: float | None,
        pacer: Pacer | None = None,
    ) -> None:
        self._listener = listener.call
        self._caller = caller
        self._is_alone = listener.kind is Kind.MESSAGE
        self._timeout_s = timeout_s
        self._pacer = pacer
        # Nothing between us and an async listener: called without the steps it does not need.
        self._is_direct = (
            self._is_alone
            and timeout_s is None
            and not caller.interceptors
            and is_async(listener.call)
        )
        self._pool = threads_for(listener.call, threads, "consume")

    def stop(self) -> None:
        """Begin no call any more that waits for its turn."""
        if self._pacer is not None:
            self._pacer.close()

    def close(self) -> None:
        """End the threads; those that are stuck in a listener are not waited for."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    async def call(self, messages: Sequence[MessageView]) -> list[Result]:
        """Consume; one outcome per message. Whatever goes wrong is FAILURE."""
        if self._pacer is not None and not await self._pacer.turn(len(messages)):
            return [_NOT_STARTED] * len(messages)
        started_s = _now_s()
        result = await self._consume(messages, ())
        outcomes = _outcomes(result, len(messages))
        self._caller.observe(messages, outcomes.count(ConsumeResult.SUCCESS), started_s)
        return outcomes

    async def call_orderly(
        self, messages: Sequence[MessageView], context: ConsumeOrderlyContext
    ) -> ConsumeOrderlyStatus | None:
        """Consume in order; None for an exception, a time-out or no status."""
        if self._pacer is not None and not await self._pacer.turn(len(messages)):
            return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        started_s = _now_s()
        result = await self._consume(messages, (context,))
        is_fine = result in _SUCCESS
        self._caller.observe(messages, len(messages) if is_fine else 0, started_s)
        if isinstance(result, ConsumeOrderlyStatus):
            return result
        return ConsumeOrderlyStatus.SUCCESS if is_fine else None

    async def _consume(self, messages: Sequence[MessageView], more: tuple[object, ...]) -> object:
        """What the listener returned; FAILURE for what it raised."""
        if self._caller.interceptors:
            return await self._consume_hooked(messages, more)
        try:
            if self._is_direct:
                return await self._listener(messages[0])
            return await self._bounded(messages, more)
        except BaseException as error:
            if not is_its_own(error):
                raise
            _log_failure(messages, error)
            return ConsumeResult.FAILURE

    async def _consume_hooked(
        self, messages: Sequence[MessageView], more: tuple[object, ...]
    ) -> object:
        caller = self._caller
        context = HookContext(
            HookPoint.CONSUME,
            caller.client_id,
            messages[0].topic,
            caller.group,
            messages=list(messages),
        )
        try:
            caller.interceptors.before(context)
            kept = context.messages if caller.is_filtering else messages
            context.result = await self._bounded(kept, more) if kept else ConsumeResult.SUCCESS
            context.returned = _returned(context.result)
            return _spread(context.result, messages, kept)
        except BaseException as error:
            context.error = error
            if not is_its_own(error):
                raise
            is_late = isinstance(error, _TookTooLong)
            context.returned = (
                ConsumeReturnType.TIME_OUT if is_late else ConsumeReturnType.EXCEPTION
            )
            _log_failure(messages, error)
            return ConsumeResult.FAILURE
        finally:
            caller.interceptors.after(context)

    async def _bounded(self, messages: Sequence[MessageView], more: tuple[object, ...]) -> object:
        given = messages[0] if self._is_alone else messages
        if self._timeout_s is None:
            return await called(self._pool, self._listener, given, *more)
        # The time of a plain listener begins when a thread is free for it: a message that none was
        # free for has not failed.
        bound = asyncio.timeout(self._timeout_s if self._pool is None else None)
        try:
            async with bound:
                return await called(self._pool, self._timed(bound), given, *more)
        except TimeoutError as error:
            if bound.expired():
                if self._pool is not None:
                    self._pool.abandon()
                raise _TookTooLong(f"the listener took over {self._timeout_s} s") from error
            raise

    def _timed(self, bound: asyncio.Timeout) -> Callable[..., Any]:
        """The listener; in a thread with the word that it begins."""
        if self._pool is None or self._timeout_s is None:
            return self._listener
        loop, timeout_s = asyncio.get_running_loop(), self._timeout_s

        def run(*given: object) -> object:
            loop.call_soon_threadsafe(_bind, bound, loop.time() + timeout_s)
            return self._listener(*given)

        return run


def _bind(bound: asyncio.Timeout, ends_s: float) -> None:
    with contextlib.suppress(RuntimeError):  # the call has ended already
        bound.reschedule(ends_s)


class _TookTooLong(TimeoutError):
    """The consume time-out is over."""


def _log_failure(messages: Sequence[MessageView], error: BaseException) -> None:
    _log.warning("the listener failed on %s", [m.message_id for m in messages], exc_info=error)


def _returned(result: object) -> ConsumeReturnType:
    """RocketMQ 4's word for what a listener returned."""
    if result is None:
        return ConsumeReturnType.RETURNED_NULL
    several = result if isinstance(result, Sequence) else (result,)
    if all(one in _SUCCESS for one in several):
        return ConsumeReturnType.SUCCESS
    return ConsumeReturnType.FAILED


def _spread(result: object, messages: Sequence[MessageView], kept: Sequence[MessageView]) -> object:
    """A result for the messages that were kept, as one for all; the others are consumed."""
    if len(kept) == len(messages) or isinstance(result, ConsumeOrderlyStatus):
        return result
    of_kept = dict(zip(map(id, kept), _outcomes(result, len(kept)), strict=True))
    return [of_kept.get(id(message), ConsumeResult.SUCCESS) for message in messages]


def _outcomes(given: object, messages: int) -> list[Result]:
    if isinstance(given, _OUTCOMES):
        return [given] * messages
    if isinstance(given, Sequence) and len(given) == messages:
        return [one if isinstance(one, _OUTCOMES) else ConsumeResult.FAILURE for one in given]
    _log.warning("the listener returned %r, which counts as FAILURE", given)
    return [ConsumeResult.FAILURE] * messages


def _now_s() -> float:
    return asyncio.get_running_loop().time()
