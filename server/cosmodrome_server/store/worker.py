"""A thread that carries out jobs one after the other; one writes frames, one tidies up.

Waking a thread and being woken by it costs two CPUs some 50 µs, half of what a good disk needs
for a small write. So a job may be given as short: it runs where it is given as long as the one
before was short indeed. A slow disk holds its caller up once, and then the thread.

The seam `Worker` is what simulations and tests replace: they run each job at once, in the
caller's thread, so that a seed decides the order of everything.
"""

import contextlib
import logging
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Protocol

_log = logging.getLogger(__name__)

Job = Callable[[], None]

# What a job may take that runs where it is given.
_SHORT_S = 0.0005


class Worker(Protocol):
    """Runs jobs in the order they were given."""

    def submit(self, job: Job) -> None:
        """Run `job` after those given earlier."""

    def submit_short(self, job: Job) -> None:
        """Run `job`, which should be short, soon: perhaps at once and before others."""

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
        self._is_short = False
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """See `Worker`."""
        self._jobs.put(job)

    def submit_short(self, job: Job) -> None:
        """See `Worker`; in the caller's thread while the last one took at most 0.5 ms."""
        if self._is_short:
            self._supervise(lambda: self._time(job))
        else:
            self._jobs.put(lambda: self._time(job))

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
            self._supervise(job)

    def _time(self, job: Job) -> None:
        began_s = time.perf_counter()
        job()
        self._is_short = time.perf_counter() - began_s <= _SHORT_S

    def _supervise(self, job: Job) -> None:
        try:
            job()
        except Exception:
            # The supervisor of this thread: a bug in one job must not stop the others.
            _log.exception("job_failed thread=%s", self._thread.name)
