"""The background tasks of one client: owned, named, ended together.

An exception that escapes a task is a bug: it is logged with its traceback, and the others go on.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from typing import Any

_log = logging.getLogger("cosmodrome")


class Tasks:
    """A task group whose members may fail alone."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, task: object) -> bool:
        return task in self._tasks

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None] | None":
        """Run `work` until it ends or the client closes; None when it is closed already."""
        if self._is_closed:
            work.close()
            return None
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("task %s failed", task.get_name(), exc_info=error)

    async def close(self, but: "asyncio.Task[Any] | None" = None) -> None:
        """Cancel every task and wait until all have ended; all but one that waits for this."""
        self._is_closed = True
        tasks = [task for task in self._tasks if task not in (asyncio.current_task(), but)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and see them end, so that none outlives its caller.

    A caller that leaves wants none of their errors: asyncio is not to log them as nobody's.
    """
    ending = list(tasks)
    for task in ending:
        task.cancel()
        task.add_done_callback(_ask)
    if unfinished := [task for task in ending if not task.done()]:
        await asyncio.wait(unfinished)


def _ask(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


async def first_success(works: Iterable[Coroutine[Any, Any, None]], timeout_s: float) -> None:
    """Do all of it until one succeeds, all have failed, or the time is over."""
    loop = asyncio.get_running_loop()
    pending = {loop.create_task(work) for work in works}
    try:
        async with asyncio.timeout(timeout_s):
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                # Each is asked: asyncio logs those that nobody asks.
                if None in [task.exception() for task in done]:
                    return
    except TimeoutError:
        return
    finally:
        for task in pending:
            task.cancel()


async def completed(work: Coroutine[Any, Any, None]) -> None:
    """Do `work` to its end however often the caller is cancelled, and only then say so.

    For what must not be left half done, and ends soon by itself.
    """
    task = asyncio.get_running_loop().create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled


def is_its_own(error: BaseException) -> bool:
    """Whether what a function of the user's raised is its failure, and nothing else is to end.

    Test runners and the like raise what is no Exception (pytest.fail); a CancelledError may be of
    something that the function waited for.
    """
    if isinstance(error, asyncio.CancelledError):
        return not is_cancelled()
    return not isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)


def is_cancelled() -> bool:
    """Whether somebody cancelled the running task.

    gRPC raises CancelledError for a call that was cancelled under the task, too.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
