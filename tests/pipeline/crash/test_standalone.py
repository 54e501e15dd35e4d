"""A standalone master and worker, started by the test; an executor is killed under way."""

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.pipeline.conftest import missing_for_spark
from tests.support.cosmodrome_process import CosmodromeProcess
from tests.support.killed_jobs import (
    COUNT,
    FORMATS,
    all_message_ids,
    archive_told,
    drive,
    everything,
    message_ids,
    mirror_told,
    places,
)
from tests.support.topic_filler import fill

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing_for_spark()), reason=missing_for_spark() or "-"),
]
WAIT_S = 240
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"


def started(folder: Path, name: str, *arguments: str) -> tuple["subprocess.Popen[bytes]", Path]:
    import pyspark

    home = Path(pyspark.__file__).parent
    log = folder / f"{name.rpartition('.')[2]}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [str(home / "bin" / "spark-class"), name, *arguments],
            stdout=file,
            stderr=file,
            env={**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"},
        )
    return process, log


def awaited(log: Path, pattern: str) -> str:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        found = re.search(pattern, log.read_text())
        if found:
            return found[1]
        time.sleep(0.2)
    raise TimeoutError(f"{pattern} is not in {log.read_text()[-2000:]}")


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    host = ("--host", "127.0.0.1")
    boss, log = started(tmp_path, MASTER, *host, "--port", "0", "--webui-port", "0")
    url = awaited(log, r"Starting Spark master at (spark://\S+)")
    options = ("--cores", "2", "--memory", "1500m", "--work-dir", str(tmp_path / "work"))
    worker, log = started(tmp_path, WORKER, *host, "--webui-port", "0", *options, url)
    awaited(log, r"(Successfully registered)")
    yield url
    for process in (worker, boss):
        process.terminate()
        process.wait(30)


@pytest.mark.parametrize("kind", [*FORMATS, "topic"])
def test_an_executor_that_is_killed_costs_time_and_no_message(
    master: str, tmp_path: Path, kind: str
) -> None:
    settings = (
        f"session.master={master}",
        "source.maxOffsetsPerTrigger=500",
        'session.conf={"spark.executor.memory": "1g", "spark.cores.max": "2"}',
    )
    with CosmodromeProcess(tmp_path / "data") as server:
        fill(server.endpoints, "orders", COUNT, body_bytes=200)
        if kind == "topic":
            told = mirror_told(server, tmp_path, "copy", *settings)
        else:
            told = archive_told(server, tmp_path, kind, *settings)
        process = drive(told)

        sign = tmp_path / "checkpoint" / "commits" / "1"
        deadline = time.monotonic() + WAIT_S
        while not sign.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        killed = kill_one_executor()
        was_alive = process.poll() is None
        code = process.wait(WAIT_S)

        assert killed
        assert was_alive
        assert code == 0
        if kind == "topic":
            assert message_ids(server, "copy") == all_message_ids()
        else:
            assert places(told) == everything(server)


def kill_one_executor() -> bool:
    """Kill an executor that a descendant of this process started."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # one that has just ended
            if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()):
                process.kill()
                return True
    return False
