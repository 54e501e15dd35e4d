"""The thread that reads and writes the buckets of delayed messages: one job at a time.

    loop    run(job, then) ─▶ thread: job() ─▶ loop: then(result)

A job that fails on the disk is logged and comes to nothing; whoever wanted it finds the
worker idle at its next turn and asks again. A failed write is the exception: after it
nobody knows what a second sync would report, so the worker takes no more of them and the
messages stay in the log, which retention then leaves alone. One that found no space (StoreFull)
was not done at all, and is asked for again.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from cosmodrome_server.errors import StoreError, StoreFull

_log = logging.getLogger(__name__)

Result = TypeVar("Result")


class BucketWorker:
    """Made on a running loop; `close` ends its thread.

    Attributes:
        is_busy: A job is under way.
        is_writable: No write has failed but for want of space.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="delayed")
        self.is_busy = False
        self.is_writable = True

    def run(
        self, job: Callable[[], Result], then: Callable[[Result], None], *, is_write: bool = False
    ) -> None:
        """Do a job in the thread and go on with its result on the loop; must be idle."""
        assert not self.is_busy, "one job at a time"
        self.is_busy = True
        done = self._loop.run_in_executor(self._executor, job)
        done.add_done_callback(partial(self._done, then, is_write=is_write))

    def _done(
        self, then: Callable[[Result], None], done: "asyncio.Future[Result]", *, is_write: bool
    ) -> None:
        self.is_busy = False
        error = done.exception()
        if error is None:
            then(done.result())
        elif isinstance(error, OSError | StoreError):
            if is_write and not isinstance(error, StoreFull):
                self.is_writable = False
            _log.error("delayed_store_failed write=%s error=%s", is_write, error)
        else:
            raise error

    def close(self) -> None:
        """Wait for the job under way."""
        self._executor.shutdown()
