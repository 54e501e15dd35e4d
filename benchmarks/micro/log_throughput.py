"""What the log costs on this disk: append, read, replay, restart.

    python -m benchmarks.micro.log_throughput [--data DIR] [--messages N] [--restart N]

Question: is storage ever the bottleneck? Budgets (issue 5, architecture.md 9): batches of 256 ×
1 KiB appended durably at 250k messages/s or more, replay at 1.25 µs a record or less, restart
<= 0.5 s after a clean stop and <= 1 s after a kill however much is stored. Wall times depend on
what else the machine does: the CPU column is the firmer one.
"""

import argparse
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.machine import described
from cosmodrome_server.clock import SystemClock
from cosmodrome_server.model.log import (
    MessageRecord,
    MessageState,
    RecordKind,
    ReplayedDeliveries,
    ReplayedRun,
)
from cosmodrome_server.store.commit_log import CommitLog
from cosmodrome_server.store.group_commit import Durability
from cosmodrome_server.store.opening import SHARD_NAME, open_log
from cosmodrome_server.store.platform import LogOptions

BODY = b"x" * 1_024
QUEUES = 8
Figures = dict[str, float]


class Loaded:
    """A log and where its queues end."""

    def __init__(self, data: Path, options: LogOptions) -> None:
        self.log = open_log(data, options, SystemClock())
        list(self.log.rows())
        self.replayed = 0
        for record in self.log.replay():
            if isinstance(record, ReplayedRun):
                self.log.index_run(*record[:4])
                self.replayed += len(record.entries)
            elif isinstance(record, ReplayedDeliveries):
                self.replayed += len(record.heads)
            else:
                self.replayed += 1
        self.log.set_snapshot(lambda: [(b"row", b"value")])
        self.ends = [self.log.max_offset(1, queue) for queue in range(QUEUES)]
        self._queue = 0
        self._idle = threading.Event()
        self.log.set_on_idle(self._idle.set)

    def send(self, count: int) -> None:
        """Stage messages of one send: a run of one queue, the next send of the next one."""
        self._queue = queue = (self._queue + 1) % QUEUES
        first = self.ends[queue]
        records = [_record(queue, offset) for offset in range(first, first + count)]
        positions = self.log.stage_messages(records)
        entries = [(position, 5, 1_790_000_000_000) for position in positions]
        self.log.index_run(1, queue, first, entries)
        self.ends[queue] = first + count

    def commit(self) -> None:
        """Commit, as soon as the writer is free."""
        self._idle.clear()
        while not self.log.commit(_nothing):
            self._idle.wait()
            self._idle.clear()

    def settle(self) -> None:
        """Wait for the disk."""
        while self.log.durable_lsn < self.log.open_lsn - 1:
            time.sleep(0.0002)


def _record(queue: int, offset: int) -> MessageRecord:
    stored_ms = 1_790_000_000_000
    return MessageRecord(
        MessageState.VISIBLE, 1, queue, offset, 5, stored_ms, 0, b"s" * 80, b"", BODY
    )


def _nothing() -> None:
    pass


def timed(work: Callable[[], None], count: int) -> Figures:
    """Items a second, and microseconds of CPU for one."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"per_second": round(count / wall), "cpu_us": round(cpu / count * 1e6, 2)}


def append(loaded: Loaded, messages: int, batch: int, *, wait: bool = False) -> Figures:
    """Messages in frames of `batch`; `wait` sends the next frame only when one is durable."""

    def work() -> None:
        for _ in range(messages // batch):
            loaded.send(batch)
            loaded.commit()
            if wait:
                loaded.settle()
        loaded.settle()

    return timed(work, messages // batch * batch)


def append_state(loaded: Loaded, records: int, batch: int) -> Figures:
    """State records of 24 bytes, as acknowledgements are."""

    def work() -> None:
        for _ in range(records // batch):
            for _ in range(batch):
                loaded.log.stage(RecordKind.ACK, b"x" * 24)
            loaded.commit()
        loaded.settle()

    return timed(work, records // batch * batch)


def read(log: CommitLog, first: int, last: int) -> Figures:
    """Messages of one queue, one after the other."""

    def work() -> None:
        for offset in range(first, last):
            log.read(1, 0, offset)

    return timed(work, last - first)


def restart(data: Path, options: LogOptions) -> tuple[Loaded, Figures]:
    """Open a log that is there; milliseconds until it serves."""
    began = time.perf_counter()
    loaded = Loaded(data, options)
    elapsed_ms = (time.perf_counter() - began) * 1e3
    figures = {"ms": round(elapsed_ms, 1), "records": float(loaded.replayed)}
    if loaded.replayed:
        figures["us_per_record"] = round(elapsed_ms * 1e3 / loaded.replayed, 2)
    return loaded, figures


def measure(data: Path, messages: int, stored: int) -> dict[str, Figures]:
    """All scenarios, in order, on one growing log."""
    options = LogOptions(retention_ms=0)
    loaded = Loaded(data, options)
    found = {
        "append, 1 at a time, waiting": append(loaded, messages // 40, 1, wait=True),
        "append, frames of 32": append(loaded, messages, 32),
        "append, frames of 256": append(loaded, 2 * messages, 256),
        "append state, frames of 256": append_state(loaded, 2 * messages, 256),
    }
    end = loaded.ends[0]
    found["read, just written"] = read(loaded.log, end - min(256, end), end)
    found["read, from the page cache"] = read(loaded.log, 0, end // 2)
    fill(loaded, stored)
    loaded.log.checkpoint([], loaded.log.open_lsn - 1)
    loaded.send(1_000)
    loaded.commit()
    loaded.settle()
    loaded.log.close()
    loaded, found[f"restart, {sum(loaded.ends)} stored, clean stop"] = restart(data, options)
    loaded.log.close()
    for path in [*(data / SHARD_NAME).glob("state.db*")]:
        path.unlink()
    loaded, found["restart without a checkpoint: one segment replayed"] = restart(data, options)
    found["read, sealed segments, after a restart"] = read(loaded.log, 0, loaded.ends[0] // 2)
    loaded.log.close()
    return found


def fill(loaded: Loaded, stored: int) -> None:
    """Bring the log to so many messages."""
    while sum(loaded.ends) < stored:
        loaded.send(1_024)
        loaded.commit()
    loaded.settle()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, help="a directory on the disk to measure")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--restart", type=int, default=500_000, help="messages stored by then")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    data = Path(tempfile.mkdtemp(prefix="log-bench-", dir=arguments.data))
    try:
        found = measure(data, arguments.messages, arguments.restart)
    finally:
        shutil.rmtree(data)
    for name, figures in found.items():
        print(f"{name:55} " + "  ".join(f"{key} {value:,}" for key, value in figures.items()))
    if arguments.json:
        report = {"machine": described(), "durability": str(Durability()), "figures": found}
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
