"""Every (queue, offset) exactly once, wherever the driver or its tasks are killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cosmodrome_spark.jobs.config import load
from cosmodrome_spark.offsets import Offsets, QueueRange
from cosmodrome_spark.options import Connection, ReadQuery
from cosmodrome_spark.read.cluster import WireCluster
from cosmodrome_spark.read.road import read_ranges
from tests.pipeline.conftest import missing_for_spark
from tests.support.cosmodrome_process import CosmodromeProcess
from tests.support.topic_filler import fill

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing_for_spark()), reason=missing_for_spark() or "-"),
]
COUNT = 6_000
FORMATS = ("parquet", "delta", "iceberg")
DRIVER = [sys.executable, "-m", "tests.support.archive_driver"]
ATTEMPT_S_MAX = 180


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CosmodromeProcess]:
    data = tmp_path_factory.mktemp("broker") / "data"
    with CosmodromeProcess(data) as running:
        fill(running.endpoints, "orders", COUNT, body_bytes=200)
        yield running


def sets(server: CosmodromeProcess, folder: Path, table_format: str) -> list[str]:
    return [
        f"source.endpoints={server.endpoints}",
        "source.subscribe=orders",
        "source.maxOffsetsPerTrigger=2000",
        f"table.path={folder / 'table'}",
        f"table.format={table_format}",
        f"stream.checkpoint={folder / 'checkpoint'}",
        "session.master=local[2]",
    ]


def drive(told: dict[str, Any]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([*DRIVER, json.dumps(told)], stderr=subprocess.DEVNULL)


def finish(told: dict[str, Any]) -> None:
    process = drive({**told, "kill": "never", "batch": -1})
    assert process.wait(ATTEMPT_S_MAX) == 0


def places(told_sets: list[str]) -> list[tuple[int, int]]:
    table = load("x", None, told_sets).must_table().open()
    found = []
    for file in table.files():
        path = Path(table.layout.root) / file.path
        rows = pq.ParquetFile(path).read(["queue_id", "queue_offset"]).to_pylist()
        found += [(row["queue_id"], row["queue_offset"]) for row in rows]
    return sorted(found)


def ends(server: CosmodromeProcess, topic: str) -> Offsets:
    with WireCluster(Connection((server.endpoints,))) as cluster:
        bounds = cluster.bounds(cluster.queues(topic))
    return {queue: each.max_offset for queue, each in bounds.items()}


def everything(server: CosmodromeProcess) -> list[tuple[int, int]]:
    return sorted(
        (queue.queue_id, offset)
        for queue, end in ends(server, "orders").items()
        for offset in range(end)
    )


@pytest.mark.parametrize("moment", ["before-commit", "after-commit"])
@pytest.mark.parametrize("table_format", FORMATS)
def test_a_driver_killed_beside_its_commit(
    server: CosmodromeProcess, tmp_path: Path, table_format: str, moment: str
) -> None:
    told = {"sets": sets(server, tmp_path, table_format)}

    killed = drive({**told, "kill": moment, "batch": 1}).wait(ATTEMPT_S_MAX)
    finish(told)

    assert killed == -signal.SIGKILL
    assert places(told["sets"]) == everything(server)


@pytest.mark.parametrize("sign", ["checkpoint/offsets/0", "table/data"])
@pytest.mark.parametrize("table_format", FORMATS)
def test_a_driver_killed_from_outside_while_it_plans_or_while_tasks_write(
    server: CosmodromeProcess, tmp_path: Path, table_format: str, sign: str
) -> None:
    told = {"sets": sets(server, tmp_path, table_format)}

    process = drive({**told, "kill": "never", "batch": -1})
    deadline = time.monotonic() + ATTEMPT_S_MAX
    while not (tmp_path / sign).exists() and time.monotonic() < deadline:
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(20)
    finish(told)

    assert places(told["sets"]) == everything(server)


def test_a_job_killed_again_and_again(server: CosmodromeProcess, tmp_path: Path) -> None:
    told = {"sets": [*sets(server, tmp_path, "parquet"), "source.maxOffsetsPerTrigger=500"]}
    for pause_s in (9.0, 10.0, 11.0):
        process = drive({**told, "kill": "never", "batch": -1})
        time.sleep(pause_s)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)

    finish(told)

    assert places(told["sets"]) == everything(server)


@pytest.mark.parametrize("topic", ["copy-a"])
def test_a_topic_sink_that_publishes_once_survives_kills_and_a_broker_restart(
    server: CosmodromeProcess, tmp_path: Path, topic: str
) -> None:
    told = {
        "job": "mirror",
        "sets": [
            f"source.endpoints={server.endpoints}",
            "source.subscribe=orders",
            "source.maxOffsetsPerTrigger=2000",
            f"target.endpoints={server.endpoints}",
            "target.dedup=transaction",
            f'job.map={{"orders": "{topic}"}}',
            f"stream.checkpoint={tmp_path / 'checkpoint'}",
            "session.master=local[2]",
        ],
    }
    for sign in ("checkpoint/offsets/0", "checkpoint/offsets/1", "checkpoint/commits/1"):
        process = drive({**told, "kill": "never", "batch": -1})
        deadline = time.monotonic() + ATTEMPT_S_MAX
        while not (tmp_path / sign).exists() and time.monotonic() < deadline:
            time.sleep(0.002)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)

    finish(told)

    query = ReadQuery(("message_id",))
    found = [
        message_id
        for queue, end in ends(server, topic).items()
        for batch in read_ranges(
            Connection((server.endpoints,)), (QueueRange(queue, 0, end),), query
        )
        for message_id in batch.column(0).to_pylist()
    ]
    assert sorted(found) == [f"orders-{number:012d}" for number in range(COUNT)]


def test_sigterm_lets_the_batch_under_way_end(server: CosmodromeProcess, tmp_path: Path) -> None:
    told = [*sets(server, tmp_path, "parquet"), "source.maxOffsetsPerTrigger=300"]
    command = [sys.executable, "-m", "cosmodrome_server", "pipeline", "archive"]
    for each in (*told, "stream.trigger=0s"):
        command += ["--set", each]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + ATTEMPT_S_MAX
    while not (tmp_path / "checkpoint/commits/1").exists() and time.monotonic() < deadline:
        time.sleep(0.01)

    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=ATTEMPT_S_MAX)

    batches = [json.loads(line) for line in said.splitlines()]
    found = places(told)
    assert process.returncode == 0
    assert sum(each["rows"] for each in batches) == len(found) == len(set(found))
    finish({"sets": told})
    assert places(told) == everything(server)
