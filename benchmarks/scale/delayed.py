"""A million delayed messages due over an hour, while others flow: how late they are.

    before     all are sent, due evenly over the hour that begins when sending ends
    flow       2,000 messages a second sent, received and acknowledged beside them
    measured   lateness (received - due) of each delayed message, and how long the event loop
               kept a sleeper waiting (every 5 ms), both for the first `seconds` of the hour

Three lags, because a machine that is shared has one of its own:

    lag        of the loop that the broker, its clients and the sleeper share
    work       the part of each that the loop's own thread spent on a processor
    idle       of a loop with nothing but a sleeper, in another process at the same time

`fsync_ms` delays every sync of the log and the buckets by so much, as a slow disk does.
"""

import asyncio
import gc
import multiprocessing
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import cast

from benchmarks.scale.world import messages, opened, wanted
from cosmodrome_server.app import tune_interpreter
from cosmodrome_server.broker.local_broker import LocalBroker
from cosmodrome_server.model.group import ConsumeFrom, Group
from cosmodrome_server.model.message import Delivery, MessageType
from cosmodrome_server.model.topic import Topic, TopicType
from cosmodrome_server.store.files import File, OsFile, OsFiles

_HOUR_MS = 3_600_000
_BODY = b"x" * 200
_BATCH = 500
_FLOW_PER_S, _FLOW_EVERY_S = 2_000, 0.01
_POLL_EVERY_S = 0.02
_SLEEP_S = 0.005
_Received = tuple[str, list[Delivery]]


class SlowFile:
    """An `OsFile` whose syncs take longer."""

    def __init__(self, file: OsFile, delay_s: float) -> None:
        self._file = file
        self._delay_s = delay_s
        self.read = file.read
        self.write = file.write
        self.allocate = file.allocate
        self.size = file.size
        self.close = file.close

    def write_through(self, position: int, parts: Sequence[bytes]) -> None:
        """See `File`."""
        time.sleep(self._delay_s)
        self._file.write_through(position, parts)

    def sync(self) -> None:
        """See `File`."""
        time.sleep(self._delay_s)
        self._file.sync()


class SlowFiles(OsFiles):
    """The disk of this machine, slower."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s

    def open(self, path: Path, *, create: bool = False) -> File:
        """See `Files`."""
        file = super().open(path, create=create)
        assert isinstance(file, OsFile)
        return SlowFile(file, self._delay_s)


class Lags:
    """How long a sleeper on this loop waits for more than it asked for.

    Attributes:
        lag_ms: Each time.
        work_ms: What the loop's thread worked meanwhile, up to that.
    """

    def __init__(self) -> None:
        self.lag_ms: list[float] = []
        self.work_ms: list[float] = []

    async def watch(self, until: float) -> None:
        """Sleep again and again until a time of the monotonic clock."""
        while (now := time.monotonic()) < until:
            worked = time.thread_time()
            await asyncio.sleep(_SLEEP_S)
            lag_ms = (time.monotonic() - now - _SLEEP_S) * 1e3
            self.lag_ms.append(lag_ms)
            self.work_ms.append(min(lag_ms, (time.thread_time() - worked) * 1e3))


def idle_lag_ms(seconds: int) -> dict[str, float]:
    """The lag of a loop with nothing to do."""
    lags = Lags()
    asyncio.run(lags.watch(time.monotonic() + seconds))
    return spread(lags.lag_ms)


class Hour:
    """One run; `figures` says what it found."""

    def __init__(self, broker: LocalBroker) -> None:
        self._broker = broker
        self._late_ms: list[float] = []
        self._lags = Lags()
        self._flowed = 0
        self._due_ms: dict[str, int] = {}
        # The log's thread puts what is durable here.
        self._received: deque[_Received] = deque()

    async def schedule(self, count: int) -> int:
        """Send the delayed messages; return when the first is due."""
        # Time enough to send them all: the window begins when they are in.
        first_ms = int(time.time() * 1e3) + 1_000 + count // 25
        for first in range(0, count, _BATCH):
            batch = messages(first, _BATCH, _BODY, MessageType.DELAY)
            for number, message in enumerate(batch, first):
                message.delivery_timestamp_ms = first_ms + number * _HOUR_MS // count
                self._due_ms[message.message_id] = message.delivery_timestamp_ms
            self._broker.send("later", batch)
            if first % (16 * _BATCH) == 0:
                await self._broker.drain()
        await self._broker.drain()
        return first_ms

    async def pass_time(self, first_ms: int, seconds: int) -> None:
        """Let the hour begin, and measure so many seconds of it."""
        await asyncio.sleep(max(0, first_ms / 1e3 - time.time()))
        until = time.monotonic() + seconds
        await asyncio.gather(self._flow(until), self._consume(until), self._lags.watch(until))

    async def _flow(self, until: float) -> None:
        next_at = time.monotonic()
        while time.monotonic() < until:
            self._broker.send("orders", messages(0, int(_FLOW_PER_S * _FLOW_EVERY_S), _BODY))
            next_at += _FLOW_EVERY_S
            await asyncio.sleep(max(0, next_at - time.monotonic()))

    async def _consume(self, until: float) -> None:
        while time.monotonic() < until:
            self._take("orders")
            self._take("later")
            while self._received:
                topic, deliveries = self._received.popleft()
                for delivery in deliveries:
                    self._broker.ack("billing", topic, delivery.receipt_handle)
            await asyncio.sleep(_POLL_EVERY_S)

    def _take(self, topic: str) -> None:
        for _ in range(8):
            deliveries = self._broker.receive(wanted(topic, "billing"))
            if not deliveries:
                return
            self._broker.reply_when_durable(self, (topic, deliveries), b"")

    def reply_many(self, replies: list[tuple[object, bytes]]) -> None:
        """The broker's `ReplySink`: what was received is durable, its client has it now."""
        now_ms = time.time() * 1e3
        for token, _ in replies:
            topic, deliveries = cast("_Received", token)
            self._received.append((topic, deliveries))
            if topic == "orders":
                self._flowed += len(deliveries)
                continue
            for delivery in deliveries:
                # Field 3 of the system properties, the only one that was set.
                name = bytes(delivery.message.system[2:]).decode()
                self._late_ms.append(now_ms - self._due_ms.pop(name))

    def figures(self, first_ms: int) -> dict[str, object]:
        """What was measured."""
        passed_ms = time.time() * 1e3 - first_ms
        missing = [due for due in list(self._due_ms.values()) if due < first_ms + passed_ms - 1_000]
        return {
            "fired": len(self._late_ms),
            "overdue": len(missing),
            "flowed": self._flowed,
            "early": sum(late < 0 for late in self._late_ms),
            "late_ms": spread(self._late_ms),
            "lag_ms": spread(self._lags.lag_ms),
            "work_ms": spread(self._lags.work_ms),
        }


def spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    shares = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
    found = {name: round(ordered[int(share * len(ordered))], 1) for name, share in shares.items()}
    return found | {"max": round(ordered[-1], 1)}


def _in_another_process(
    pool: ProcessPoolExecutor, seconds: int
) -> "asyncio.Future[dict[str, float]]":
    return asyncio.get_running_loop().run_in_executor(pool, idle_lag_ms, seconds)


async def _measured(data: Path, scheduled: int, seconds: int, fsync_ms: int) -> dict[str, object]:
    broker = opened(data, files=SlowFiles(fsync_ms / 1e3) if fsync_ms else None)
    broker.create_topic(Topic("later", TopicType.DELAY, queues=8))
    broker.create_topic(Topic("orders", queues=8))
    broker.create_group(Group("billing", consume_from=ConsumeFrom.FIRST))
    await broker.drain()
    hour = Hour(broker)
    first_ms = await hour.schedule(scheduled)
    # As `cosmodrome serve` does after its start.
    gc.collect()
    gc.freeze()
    tune_interpreter()
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        idle = _in_another_process(pool, seconds)
        await hour.pass_time(first_ms, seconds)
        found = hour.figures(first_ms) | {"idle_lag_ms": await idle}
    await broker.close()
    return found


def in_directory(
    directory: Path | None, scheduled: int, seconds: int, fsync_ms: int
) -> dict[str, object]:
    """Measure on a new directory that is removed afterwards."""
    with tempfile.TemporaryDirectory(dir=directory) as data:
        found = asyncio.run(_measured(Path(data), scheduled, seconds, fsync_ms))
    return {"scheduled": scheduled, "seconds": seconds, "fsync_ms": fsync_ms, **found}
