"""Jobs that are killed: how they are told, started, killed and finished, and what must be there."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from cosmodrome_spark.jobs.config import load
from cosmodrome_spark.offsets import Offsets, QueueRange
from cosmodrome_spark.options import Connection, ReadQuery
from cosmodrome_spark.read.cluster import WireCluster
from cosmodrome_spark.read.road import read_ranges
from tests.support.cosmodrome_process import CosmodromeProcess

COUNT = 6_000
FORMATS = ("parquet", "delta", "iceberg")
DRIVER = [sys.executable, "-m", "tests.support.job_driver"]
ATTEMPT_S_MAX = 240


def archive_told(
    server: CosmodromeProcess, folder: Path, table_format: str, *more: str
) -> dict[str, Any]:
    """archive of `orders` into a table, in three batches."""
    sets = [f"table.path={folder / 'table'}", f"table.format={table_format}"]
    return {"job": "archive", "sets": [*_source(server, folder), *sets, *more]}


def mirror_told(server: CosmodromeProcess, folder: Path, topic: str, *more: str) -> dict[str, Any]:
    """mirror of `orders` into another topic, exactly once, in three batches."""
    target = [f"target.endpoints={server.endpoints}", "target.dedup=transaction"]
    sets = [*target, f'job.map={{"orders": "{topic}"}}']
    return {"job": "mirror", "sets": [*_source(server, folder), *sets, *more]}


def _source(server: CosmodromeProcess, folder: Path) -> list[str]:
    return [
        f"source.endpoints={server.endpoints}",
        "source.subscribe=orders",
        "source.maxOffsetsPerTrigger=2000",
        f"stream.checkpoint={folder / 'checkpoint'}",
        "session.master=local[2]",
    ]


def drive(told: dict[str, Any], kill: str = "never", batch: int = -1) -> "subprocess.Popen[bytes]":
    """Start the job."""
    text = json.dumps({**told, "kill": kill, "batch": batch})
    return subprocess.Popen([*DRIVER, text], stderr=subprocess.DEVNULL)


def finish(told: dict[str, Any]) -> None:
    """Run the job to its end."""
    assert drive(told).wait(ATTEMPT_S_MAX) == 0


def kill_at(told: dict[str, Any], sign: Path) -> None:
    """Start the job and kill it, alive, from outside as soon as `sign` is there."""
    process = drive(told)
    deadline = time.monotonic() + ATTEMPT_S_MAX
    while not sign.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    was_alive = process.poll() is None
    if was_alive:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(20)
    assert was_alive, f"the job ended by itself, with {process.returncode}"
    assert sign.exists(), f"{sign} did not come in {ATTEMPT_S_MAX} s"


def places(told: dict[str, Any]) -> list[tuple[int, int]]:
    """Queue and offset of every row of the job's table."""
    table = load("x", None, told["sets"]).must_table().open()
    found = []
    for file in table.files():
        path = Path(table.layout.root) / file.path
        rows = pq.ParquetFile(path).read(["queue_id", "queue_offset"]).to_pylist()
        found += [(row["queue_id"], row["queue_offset"]) for row in rows]
    return sorted(found)


def ends(server: CosmodromeProcess, topic: str) -> Offsets:
    """Where the queues of a topic end."""
    with WireCluster(Connection((server.endpoints,))) as cluster:
        bounds = cluster.bounds(cluster.queues(topic))
    return {queue: each.max_offset for queue, each in bounds.items()}


def everything(server: CosmodromeProcess) -> list[tuple[int, int]]:
    """What a table must hold."""
    return sorted(
        (queue.queue_id, offset)
        for queue, end in ends(server, "orders").items()
        for offset in range(end)
    )


def message_ids(server: CosmodromeProcess, topic: str) -> list[str]:
    """The ids of all messages of a topic, sorted."""
    connection = Connection((server.endpoints,))
    spans = tuple(QueueRange(queue, 0, end) for queue, end in ends(server, topic).items())
    batches = read_ranges(connection, spans, ReadQuery(("message_id",)))
    return sorted(each for batch in batches for each in batch.column(0).to_pylist())


def all_message_ids() -> list[str]:
    """What a mirrored topic must hold."""
    return [f"orders-{number:012d}" for number in range(COUNT)]
