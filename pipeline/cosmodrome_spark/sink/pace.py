"""`rateLimit`: all tasks of a machine that write to one place take their turns by one clock.

    file  next free moment (ns, monotonic) ──lock──▶ mine; the next one's is later by n / rate

Spark does not tell a task how many others run, and workers are processes: so the clock they
share is a small file, locked for as long as it takes to move its moment on.
"""

import fcntl
import hashlib
import os
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from cosmodrome_spark.options import SinkOptions

_MOMENT = struct.Struct("<q")


class Pace:
    """The turns of one task.

    Args:
        options: The rate, and what is written to: writes to the same place share the rate.
        folder: Where the file is; the machine's own for temporary files by default.
        now_ns: The clock, the same for all processes.
        sleep: Waits so many seconds.
    """

    def __init__(
        self,
        options: SinkOptions,
        folder: Path | None = None,
        now_ns: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = options.rate_limit
        place = (options.job, options.topic, *options.connection.endpoints)
        name = hashlib.blake2s(repr(place).encode()).hexdigest()[:16]
        folder = folder or Path(tempfile.gettempdir())
        self._path = folder / f"cosmodrome-rate-{os.getuid()}-{name}"
        self._now_ns = now_ns
        self._sleep = sleep

    def wait(self, messages: int) -> None:
        """Return when so many messages may go."""
        if self._rate is None:
            return
        now_ns = self._now_ns()
        mine_ns = self._turn(now_ns, messages * 1_000_000_000 // self._rate)
        if mine_ns > now_ns:
            self._sleep((mine_ns - now_ns) / 1e9)

    def _turn(self, now_ns: int, takes_ns: int) -> int:
        """Take the next free moment, and leave the one after it to the others."""
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            kept = os.pread(file, _MOMENT.size, 0)
            free_ns = _MOMENT.unpack(kept)[0] if len(kept) == _MOMENT.size else now_ns
            # A moment far ahead is of before this machine was started anew.
            is_old = free_ns > now_ns + _FAR_NS
            mine_ns = now_ns if is_old else max(free_ns, now_ns)
            os.pwrite(file, _MOMENT.pack(mine_ns + takes_ns), 0)
        finally:
            os.close(file)
        return mine_ns


# No task waits longer for its turn: requests are of at most a second, and who waits holds one.
_FAR_NS = 3_600 * 1_000_000_000
