"""Threads for plain listeners and checkers, which no process waits for when it ends.

`ThreadPoolExecutor` joins its threads at exit, however it was shut down: a listener that is stuck
would keep a process from ending that has closed its consumers, each within its time.
"""

import asyncio
import contextvars
import inspect
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Value = TypeVar("Value")
# Of calls in these threads, and of what blocking clients do for them.
IS_IN_THREAD: contextvars.ContextVar[bool] = contextvars.ContextVar("in_thread", default=False)
_Work = tuple["Future[Any]", Callable[[], Any]]


class DaemonThreads(Executor):
    """As many threads at most as asked for, each made when none is idle.

    Args:
        most: How many threads.
        name: What they are called.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._allowed = most
        self._name = name
        self._made = 0
        self._given = 0  # calls that have not ended
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_closed = False

    def submit(
        self, fn: Callable[Arguments, Value], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> "Future[Value]":
        """Call a function in a thread.

        Raises:
            RuntimeError: The threads were ended.
        """
        future: Future[Value] = Future()
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the client's threads were ended")
            self._work.put((future, partial(fn, *args, **kwargs)))
            self._given += 1
            self._make_as_needed()
        return future

    def abandon(self) -> None:
        """Nobody waits for a call any more that has begun: another thread may take its place.

        As many again as were asked for at most; who is stuck may be so for ever.
        """
        with self._lock:
            self._allowed = min(self._allowed + 1, 2 * self._most)
            self._make_as_needed()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - Executor's
        """End the threads as they become idle; what they do is never waited for."""
        with self._lock:
            self._is_closed = True
            while cancel_futures and not self._work.empty():
                if (work := self._work.get_nowait()) is not None:
                    work[0].cancel()
            for _ in range(self._made):
                self._work.put(None)

    def _make_as_needed(self) -> None:
        """Make a thread where a call waits for one."""
        if self._made < min(self._given, self._allowed):
            self._made += 1
            name = f"{self._name}_{self._made}"
            threading.Thread(target=self._serve, name=name, daemon=True).start()

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            future, call = work
            tell = _made(future, call) if future.set_running_or_notify_cancel() else None
            # Before it is told: who hears of it may submit the next call at once.
            with self._lock:
                self._given -= 1
            if tell is not None:
                tell()
            del work, future, call, tell  # an idle thread keeps no message alive


def _made(future: "Future[Any]", call: Callable[[], Any]) -> Callable[[], None]:
    """Make a call; what it returns tells the future how it went."""
    try:
        result = call()
    except BaseException as error:
        return partial(future.set_exception, _carried(error))
    return partial(future.set_result, result)


def _carried(error: BaseException) -> BaseException:
    """What who waits for a thread gets of what it raised.

    SystemExit and its like would end the loop that hears of them, and in a thread they end nothing;
    a StopIteration cannot be raised into a future of asyncio's, which would wait for ever.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    what = "called sys.exit" if isinstance(error, SystemExit) else f"raised {error!r}"
    ended = RuntimeError(f"a call in a thread {what}")
    ended.__cause__ = error
    return ended


def is_async(function: object) -> bool:
    """Whether calling it gives something to await, as far as can be said before the call."""
    call = getattr(function, "__call__", None)  # noqa: B004 - its signature is what is asked
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def threads_for(function: object, most: int, name: str) -> DaemonThreads | None:
    """Threads for a plain function; an async one needs none."""
    return None if is_async(function) else DaemonThreads(most, name)


async def called(
    threads: DaemonThreads | None, function: Callable[..., Any], *given: object
) -> Any:  # noqa: ANN401 - what the function returns
    """What a function of the user's returns: an async one called here, a plain one in a thread."""
    if threads is None:
        return await function(*given)
    loop = asyncio.get_running_loop()
    # With its context, so that what an interceptor put there is seen in the thread.
    context = contextvars.copy_context()
    context.run(IS_IN_THREAD.set, True)  # noqa: FBT003 - a variable's value
    result = await loop.run_in_executor(threads, context.run, function, *given)
    return await result if inspect.isawaitable(result) else result
