"""What bulk reads stand on: the ranges of the log, one slow thread, and a budget of bytes.

    loop      plan: positions, pin ──▶ queue of the one reader thread
    thread    map, gather, encode      lower priority than the loop's
    loop      release the pin, answer  not before the budget allows it

One thread, at a low priority, and a bound on how many wait: a backfill takes what
producers and consumers leave, and never more than `bulk.mib_per_s`.
"""

import asyncio
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from cosmodrome_server.broker.interface import Broker
from cosmodrome_server.errors import BadRequest, BrokerError, OverloadedError, Unsupported
from cosmodrome_server.model.digests import blake2b
from cosmodrome_server.model.queries import QueueBounds
from cosmodrome_server.store.ranges import Ranges

Result = TypeVar("Result")
WAITING_MAX = 64
# An answer may wait so long for the budget: who asks waits for it half a minute, and an answer that
# comes later was read for nobody and spends the budget all the same.
AHEAD_S_MAX = 10.0
_NICE = 5
_SEAL_BYTES = 16
_PIN = re.compile(r"(?P<number>[0-9]{1,20})\.(?P<seal>[0-9a-f]{32})")


def _be_nice() -> None:
    """Lower the priority of this thread alone, where the system can."""
    try:
        import threading  # noqa: PLC0415  # needed for the thread's number only

        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
    except OSError:
        return


class BulkSource:
    """The bulk reads of one server.

    Args:
        broker: Knows topics and bounds.
        ranges: Where messages lie.
        bytes_per_s: The budget; 0 for none.
    """

    def __init__(self, broker: Broker, ranges: Ranges, bytes_per_s: int = 0) -> None:
        self.broker = broker
        self.ranges = ranges
        self.bytes_per_s = bytes_per_s
        self._waiting = 0
        self._free_at_s = 0.0
        # Pins are known by their seal: their numbers anybody could count to.
        self._key = os.urandom(_SEAL_BYTES)
        self._thread = ThreadPoolExecutor(1, "bulk", initializer=_be_nice)

    def place_of(self, topic: str, queue_id: int) -> tuple[int, QueueBounds]:
        """The number of a topic and the bounds of a queue; raises as `Broker.bounds`."""
        locate: Callable[[str, int], tuple[int, QueueBounds]] | None = getattr(
            self.broker, "place_of", None
        )
        if locate is None:
            raise Unsupported("this server's log is elsewhere: read by PullMessage")
        return locate(topic, queue_id)

    def pin(self, position: int, until_ms: int) -> str:
        """Keep everything from a position on until a time; only who has the text ends it sooner.

        Raises:
            OverloadedError: There are too many pins.
        """
        number = self.ranges.pin(position, until_ms)
        return f"{number}.{self._seal(number)}"

    def release(self, pin: str) -> None:
        """End a pin; again is fine, and so is one of before a restart, which is over.

        Raises:
            BadRequest: It is no pin.
        """
        found = _PIN.fullmatch(pin)
        if found is None:
            raise BadRequest(f"{pin[:80]!r} is no pin")
        number = int(found["number"])
        if found["seal"] == self._seal(number):
            self.ranges.release(number)

    def _seal(self, number: int) -> str:
        return str(blake2b(b"%d" % number, digest_size=_SEAL_BYTES, key=self._key).hexdigest())

    def run(
        self,
        work: Callable[[], Result],
        size_of: Callable[[Result], int],
        done: Callable[[Result | Exception], None],
    ) -> None:
        """Do `work` on the reader thread, then call `done` on the loop, within the budget.

        Raises:
            OverloadedError: Too many reads wait, or the budget is spent for long; `done` may
                hear of the latter, too.
        """
        loop = asyncio.get_running_loop()
        if self._waiting >= WAITING_MAX:
            raise OverloadedError(f"{self._waiting} bulk reads wait already; ask again later")
        self._check_budget(loop.time())
        self._waiting += 1

        def finish(result: Result | Exception) -> None:
            self._waiting -= 1
            done(result)

        def pace(result: Result | Exception) -> None:
            size = 0 if isinstance(result, Exception) else size_of(result)
            now_s = loop.time()
            try:
                self._check_budget(now_s)
            except OverloadedError as error:
                finish(error)
                return
            self._free_at_s = max(self._free_at_s, now_s)
            if self.bytes_per_s:
                self._free_at_s += size / self.bytes_per_s
            if self._free_at_s <= now_s:
                finish(result)
            else:
                loop.call_at(self._free_at_s, finish, result)

        def step() -> None:
            result: Result | Exception
            try:
                result = work()
            except (BrokerError, ValueError, OSError) as error:
                result = error
            loop.call_soon_threadsafe(pace, result)

        self._thread.submit(step)

    def _check_budget(self, now_s: float) -> None:
        ahead_s = self._free_at_s - now_s
        if ahead_s > AHEAD_S_MAX:
            raise OverloadedError(
                f"bulk.mib_per_s is spent for the next {ahead_s:.0f} s; ask again later"
            )

    def close(self) -> None:
        """End the thread; what it does now is given up."""
        self._thread.shutdown(wait=False, cancel_futures=True)
