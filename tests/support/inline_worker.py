"""A `Worker` without a thread: each job runs where it is given, so that a test decides all."""

from cosmodrome_server.store.worker import Job


class InlineWorker:
    """Runs jobs at once; `tick` runs the idle job.

    Attributes:
        holding: Jobs are kept until `release`.
        interval_s: How often the idle job is due; 0 for never.
    """

    def __init__(self) -> None:
        self.holding = False
        self.interval_s = 0.0
        self._held: list[Job] = []
        self._idle_job: Job = lambda: None

    def submit(self, job: Job) -> None:
        """See `Worker`."""
        if self.holding:
            self._held.append(job)
        else:
            job()

    def submit_short(self, job: Job) -> None:
        """See `Worker`."""
        self.submit(job)

    def every(self, interval_s: float, job: Job) -> None:
        """See `Worker`."""
        assert interval_s > 0
        self.interval_s = interval_s
        self._idle_job = job

    def tick(self) -> None:
        """The interval has passed."""
        self.submit(self._idle_job)

    def release(self) -> None:
        """Run what was held, and what comes from now on."""
        self.holding = False
        held, self._held = self._held, []
        for job in held:
            job()

    def close(self) -> None:
        """See `Worker`."""
        self.release()
