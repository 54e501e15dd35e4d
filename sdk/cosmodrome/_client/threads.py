"""Threads for plain listeners, which no process waits for when it ends.

`ThreadPoolExecutor` joins its threads at exit, however it was shut down: a listener that is stuck
would keep a process from ending that has closed its consumers, each within its time.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Value = TypeVar("Value")
_Work = tuple["Future[Any]", Callable[[], Any]]


class DaemonThreads(Executor):
    """As many threads at most as asked for, each made when none is idle.

    Args:
        most: How many threads.
        name: What they are called.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._made = 0
        self._idle = threading.Semaphore(0)
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
                raise RuntimeError("the listener's threads were ended")
            self._work.put((future, partial(fn, *args, **kwargs)))
            if self._made < self._most and not self._idle.acquire(blocking=False):
                self._made += 1
                name = f"{self._name}_{self._made}"
                threading.Thread(target=self._serve, name=name, daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - Executor's
        """End the threads as they become idle; what they do is never waited for."""
        with self._lock:
            self._is_closed = True
            while cancel_futures and not self._work.empty():
                if (work := self._work.get_nowait()) is not None:
                    work[0].cancel()
            for _ in range(self._made):
                self._work.put(None)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            future, call = work
            if future.set_running_or_notify_cancel():
                _settle(future, call)
            del work, future, call  # an idle thread keeps no message alive
            self._idle.release()


def _settle(future: "Future[Any]", call: Callable[[], Any]) -> None:
    try:
        result = call()
    except SystemExit as error:
        # It would end the loop that hears of it; in a thread it ends nothing.
        ended = RuntimeError("the listener called sys.exit")
        ended.__cause__ = error
        future.set_exception(ended)
    except BaseException as error:  # who waits for it gets it, as from any executor
        future.set_exception(error)
    else:
        future.set_result(result)
