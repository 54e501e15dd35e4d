"""A thread that carries out jobs one after the other; one writes frames, one tidies up.

The seam `Worker` is what simulations and tests replace: they run each job at once, in the
caller's thread, so that a seed decides the order of everything.
"""

import contextlib
import logging
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Protocol

_log = logging.getLogger(__name__)

Job = Callable[[], None]


class Worker(Protocol):
    """Runs jobs in the order they were given."""

    def submit(self, job: Job) -> None:
        """Run `job` after those given earlier."""

    def every(self, interval_s: float, job: Job) -> None:
        """Also run `job` whenever nothing was given for `interval_s` seconds."""

    def close(self) -> None:
        """Run what was given, then end."""


class ThreadWorker:
    """A daemon thread, so that a stuck disk cannot keep a process alive that must end."""

    def __init__(self, name: str) -> None:
        # Bounded by its callers: one frame at a time; one checkpoint, seal and scrub at a time.
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._interval_s: float | None = None
        self._idle_job: Job = lambda: None
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """See `Worker`."""
        self._jobs.put(job)

    def every(self, interval_s: float, job: Job) -> None:
        """See `Worker`."""
        self._idle_job = job
        self._interval_s = interval_s
        self.submit(job)

    def close(self) -> None:
        """See `Worker`."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            job: Job | None = self._idle_job
            with contextlib.suppress(Empty):
                job = self._jobs.get(timeout=self._interval_s)
            if job is None:
                return
            try:
                job()
            except Exception:
                # The supervisor of this thread: a bug in one job must not stop the others.
                _log.exception("job_failed thread=%s", self._thread.name)
