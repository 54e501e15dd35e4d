"""One asyncio loop on one daemon thread, on which every blocking client of a process runs.

Made when the first blocking client starts, again in a child after a fork. Cancelling the waiting
thread by KeyboardInterrupt cancels what it waited for.
"""

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from cosmodrome._client import channels
from cosmodrome.errors import NotRunning

_log = logging.getLogger("cosmodrome")
Result = TypeVar("Result")


class Portal:
    """A loop that lives in a thread."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="cosmodrome", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        while True:
            try:
                self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                # Of a listener or a hook: it ends their task, not the clients of everybody.
                _log.exception("something on the SDK's loop tried to end the process")

    @property
    def is_here(self) -> bool:
        """Whether this is the process that made it."""
        return self._pid == os.getpid()

    @property
    def is_ending(self) -> bool:
        """Whether the interpreter is; its thread has stopped where it was."""
        return sys.is_finalizing()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run `work` on the loop and wait for it.

        Raises:
            NotRunning: In a child process: the thread stayed in the parent. Or the interpreter is
                ending.
            RuntimeError: Called on the loop's own thread: a listener must not block it.
        """
        if not self.is_here:
            work.close()
            raise NotRunning("the client was made in a parent process; make one after the fork")
        if self.is_ending:
            work.close()
            raise NotRunning("the interpreter is ending, and the client's thread ended before it")
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a blocking call inside the SDK's loop; use the async client there")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


_lock = threading.Lock()
_portals: dict[int, Portal] = {}


def portal() -> Portal:
    """The portal of this process."""
    channels.check_fork()
    with _lock:
        known = _portals.get(os.getpid())
        if known is None:
            # The parent's stays here after a fork: freeing its loop would free calls of gRPC, which
            # does not survive that in a child.
            known = _portals[os.getpid()] = Portal()
        return known
