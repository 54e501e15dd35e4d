"""A broker on a real log in this process, and what it weighs."""

import ctypes
import gc
import os
import time
import tracemalloc
from pathlib import Path

import msgspec

from cosmodrome_server.broker.local_broker import Attachments, LocalBroker
from cosmodrome_server.broker.settings import BrokerSettings
from cosmodrome_server.clock import SystemClock
from cosmodrome_server.model.message import MessageType, NewMessage
from cosmodrome_server.model.queries import ANY_QUEUE, ReceiveQuery
from cosmodrome_server.model.wire import encode_bytes
from cosmodrome_server.store.checkpoint import FILE_NAME, SqliteCheckpoints
from cosmodrome_server.store.commit_log import CommitLog
from cosmodrome_server.store.files import Files, OsFiles
from cosmodrome_server.store.group_commit import Durability
from cosmodrome_server.store.opening import SHARD_NAME
from cosmodrome_server.store.platform import LogOptions, Platform
from cosmodrome_server.store.timer_bucket import TimerBuckets
from cosmodrome_server.store.worker import ThreadWorker

OS = Durability(is_synced=False)
SYNC = Durability()
# Filling gives the scrubber nothing to be measured for.
_OPTIONS = LogOptions(scrub_bytes_s=0)


def opened(data: Path, durability: Durability = SYNC, files: Files | None = None) -> LocalBroker:
    """Start a broker on a directory, as `cosmodrome serve` does; on a running loop."""
    disk, clock, directory = files or OsFiles(), SystemClock(), data / SHARD_NAME
    disk.make_directory(directory)
    platform = Platform(
        disk,
        clock,
        SqliteCheckpoints(directory / FILE_NAME),
        ThreadWorker("log-writer"),
        ThreadWorker("log-background"),
        os.urandom,
    )
    log = CommitLog(directory, msgspec.structs.replace(_OPTIONS, durability=durability), platform)
    buckets = TimerBuckets(disk, directory / "timer")
    return LocalBroker(log, clock, BrokerSettings(), _fatal, Attachments(buckets))


def _fatal(error: Exception) -> None:
    raise SystemExit(f"the broker failed: {error}")


def messages(
    first: int, count: int, body: bytes, message_type: MessageType = MessageType.NORMAL
) -> list[NewMessage]:
    """New messages with ids of the usual length."""
    found = []
    for number in range(first, first + count):
        name = f"01{number:032X}"
        system = encode_bytes(3, name.encode())
        found.append(NewMessage(name, message_type, "", "", 0, 0, "", -1, system, b"", body))
    return found


def wanted(topic: str, group: str, count: int = 32, invisible_ms: int = 600_000) -> ReceiveQuery:
    """A receive from all queues."""
    return ReceiveQuery(group, topic, ANY_QUEUE, "bench", count, invisible_ms)


def held_bytes() -> int:
    """Anonymous memory of this process, without what malloc keeps in reserve.

    Of Python's objects alone, by their sizes, where they are traced.
    """
    gc.collect()
    if tracemalloc.is_tracing():
        return tracemalloc.get_traced_memory()[0]
    ctypes.CDLL(None).malloc_trim(0)
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no RssAnon")


class Stopwatch:
    """Wall and processor time since it was made, all threads."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    @property
    def wall_ms(self) -> float:
        """Milliseconds that passed."""
        return (time.perf_counter() - self._wall) * 1e3

    @property
    def cpu_us(self) -> float:
        """Microseconds that the processors worked."""
        return (time.process_time() - self._cpu) * 1e6
