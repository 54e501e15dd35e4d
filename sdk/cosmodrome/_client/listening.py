"""Calling a listener: sync or async, one message or a batch, with a bound on how long.

An async listener runs on the loop and is cancelled at its time-out. A plain one runs in a
thread of the consumer's pool and cannot be interrupted: at its time-out it is abandoned, the
message is given back, and what it returns later is ignored.
"""

import asyncio
import inspect
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from cosmodrome.interceptors import HookContext, HookPoint, Interceptors
from cosmodrome.message import MessageView
from cosmodrome.results import ConsumeResult, Result, Suspend

_log = logging.getLogger("cosmodrome")
_OUTCOMES = (ConsumeResult, Suspend)


@dataclass(frozen=True, slots=True)
class Caller:
    """On whose behalf a listener is called.

    Attributes:
        interceptors: CONSUME hooks.
        client_id, group: For their contexts.
        count: Told each outcome.
    """

    interceptors: Interceptors
    client_id: str
    group: str
    count: Callable[[Result], None]


class ListenerCalls:
    """One listener and how it is called.

    Args:
        listener: Takes a message, or with `is_batch` a sequence of them.
        caller: On whose behalf.
        is_batch: See `listener`.
        threads: For a plain listener; not made for an async one.
        timeout_s: How long a call may take; None for ever.
    """

    def __init__(
        self,
        listener: Callable[[Any], Any],
        caller: Caller,
        *,
        is_batch: bool,
        threads: int,
        timeout_s: float | None,
    ) -> None:
        self._listener = listener
        self._caller = caller
        self._is_batch = is_batch
        self._timeout_s = timeout_s
        self._pool = (
            None
            if _is_async(listener)
            else ThreadPoolExecutor(threads, thread_name_prefix="consume")
        )

    def close(self) -> None:
        """End the threads; those that are stuck in a listener are not waited for."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    async def call(self, messages: Sequence[MessageView]) -> list[Result]:
        """Consume; one outcome per message. Whatever goes wrong is FAILURE."""
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
            given = messages if self._is_batch else messages[0]
            context.result = await self._bounded(given)
            outcomes = _outcomes(context.result, len(messages))
        except asyncio.CancelledError as error:
            context.error = error
            raise
        except Exception as error:
            context.error = error
            _log.warning(
                "the listener failed on %s", [m.message_id for m in messages], exc_info=error
            )
            outcomes = [ConsumeResult.FAILURE] * len(messages)
        finally:
            caller.interceptors.after(context)
        for outcome in outcomes:
            caller.count(outcome)
        return outcomes

    async def _bounded(self, given: object) -> object:
        if self._timeout_s is None:
            return await self._called(given)
        async with asyncio.timeout(self._timeout_s):
            return await self._called(given)

    async def _called(self, given: object) -> object:
        if self._pool is None:
            return await self._listener(given)
        loop = asyncio.get_running_loop()
        result = await loop.run_in_executor(self._pool, self._listener, given)
        return await result if inspect.isawaitable(result) else result


def _is_async(listener: object) -> bool:
    call = getattr(listener, "__call__", None)  # noqa: B004 - its signature is what is asked
    return inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(call)


def _outcomes(given: object, messages: int) -> list[Result]:
    if isinstance(given, _OUTCOMES):
        return [given] * messages
    if isinstance(given, Sequence) and len(given) == messages:
        return [one if isinstance(one, _OUTCOMES) else ConsumeResult.FAILURE for one in given]
    _log.warning("the listener returned %r, which counts as FAILURE", given)
    return [ConsumeResult.FAILURE] * messages
