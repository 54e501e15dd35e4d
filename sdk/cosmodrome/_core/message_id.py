"""Message ids, version 1: 17 bytes as 34 upper-case hex digits.

    01 │ mac (6) │ pid (2) │ seconds since 2021-01-01 UTC (4) │ counter (4)

The id is what de-duplication and search go by; no broker interprets it. A process that was
forked must not go on counting where its parent was: `MessageIds` is made anew when the
process id changed.
"""

import os
import uuid
from itertools import count

EPOCH_S = 1_609_459_200


class MessageIds:
    """Makes ids for one process."""

    def __init__(self, *, mac: int, pid: int, start_s: int) -> None:
        prefix = b"\x01" + mac.to_bytes(6, "big") + (pid & 0xFFFF).to_bytes(2, "big")
        seconds = (start_s - EPOCH_S) & 0xFFFFFFFF
        self._prefix = (prefix + seconds.to_bytes(4, "big")).hex().upper()
        self._counter = count()

    def next(self) -> str:
        """The next id.

        The counter is 32 bits: unique for the first four billion messages of a process start,
        as for every official client.
        """
        return f"{self._prefix}{next(self._counter) & 0xFFFFFFFF:08X}"


class ForkSafeIds:
    """Ids that stay unique in the children of a forked process."""

    def __init__(self, now_s: "NowSeconds") -> None:
        self._now_s = now_s
        self._pid = -1
        self._ids: MessageIds

    def next(self) -> str:
        """The next id of this process."""
        pid = os.getpid()
        if pid != self._pid:
            self._pid = pid
            self._ids = MessageIds(mac=uuid.getnode(), pid=pid, start_s=self._now_s())
        return self._ids.next()


class NowSeconds:
    """Reads the wall clock in seconds; a class so that tests hand in their own."""

    def __call__(self) -> int:
        """Seconds since the epoch."""
        import time  # noqa: PLC0415 - the one place of this package that needs it

        return time.time_ns() // 1_000_000_000
