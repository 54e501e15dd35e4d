"""Every (queue, offset) exactly once, wherever the driver or its tasks are killed."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.conftest import missing_for_spark
from tests.support.cosmodrome_process import CosmodromeProcess
from tests.support.killed_jobs import (
    ATTEMPT_S_MAX,
    COUNT,
    FORMATS,
    all_message_ids,
    archive_told,
    drive,
    everything,
    finish,
    kill_at,
    message_ids,
    mirror_told,
    places,
)
from tests.support.topic_filler import fill

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing_for_spark()), reason=missing_for_spark() or "-"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CosmodromeProcess]:
    data = tmp_path_factory.mktemp("broker") / "data"
    with CosmodromeProcess(data) as running:
        fill(running.endpoints, "orders", COUNT, body_bytes=200)
        yield running


def signs_of_batch_1(folder: Path) -> tuple[bool, bool]:
    """Whether Spark's write-ahead log has it, and whether Spark knows that it is done."""
    checkpoint = folder / "checkpoint"
    return (checkpoint / "offsets" / "1").exists(), (checkpoint / "commits" / "1").exists()


@pytest.mark.parametrize("moment", ["before-log", "in-task", "before-commit", "after-commit"])
@pytest.mark.parametrize("table_format", FORMATS)
def test_an_archive_killed_at_a_moment_of_its_second_batch(
    server: CosmodromeProcess, tmp_path: Path, table_format: str, moment: str
) -> None:
    told = archive_told(server, tmp_path, table_format)

    killed = drive(told, moment, 1).wait(ATTEMPT_S_MAX)
    signs = signs_of_batch_1(tmp_path)
    before = places(told)
    finish(told)

    assert killed == -signal.SIGKILL
    assert signs == (moment != "before-log", False)
    assert (len(before) > COUNT // 2) == (moment == "after-commit")
    assert places(told) == everything(server)


@pytest.mark.parametrize("sign", ["checkpoint/offsets/0", "table/data"])
@pytest.mark.parametrize("table_format", FORMATS)
def test_a_driver_killed_from_outside_while_it_plans_or_while_tasks_write(
    server: CosmodromeProcess, tmp_path: Path, table_format: str, sign: str
) -> None:
    told = archive_told(server, tmp_path, table_format)

    kill_at(told, tmp_path / sign)
    finish(told)

    assert places(told) == everything(server)


def test_a_job_killed_again_and_again(server: CosmodromeProcess, tmp_path: Path) -> None:
    told = archive_told(server, tmp_path, "parquet", "source.maxOffsetsPerTrigger=500")
    for batch in (1, 4, 7):
        kill_at(told, tmp_path / "checkpoint" / "commits" / str(batch))

    finish(told)

    assert places(told) == everything(server)


@pytest.mark.parametrize("moment", ["before-log", "in-task", "after-publish"])
def test_a_topic_sink_killed_at_a_moment_of_its_second_batch(
    server: CosmodromeProcess, tmp_path: Path, moment: str
) -> None:
    topic = f"copy-{moment}"
    told = mirror_told(server, tmp_path, topic)

    killed = drive(told, moment, 1).wait(ATTEMPT_S_MAX)
    signs = signs_of_batch_1(tmp_path)
    before = message_ids(server, topic)
    finish(told)

    assert killed == -signal.SIGKILL
    assert signs == (moment != "before-log", False)
    assert (len(before) > COUNT // 2) == (moment == "after-publish")
    assert message_ids(server, topic) == all_message_ids()


def test_a_topic_sink_killed_from_outside_again_and_again(
    server: CosmodromeProcess, tmp_path: Path
) -> None:
    told = mirror_told(server, tmp_path, "copy-outside")
    for sign in ("offsets/0", "offsets/1", "commits/1"):
        kill_at(told, tmp_path / "checkpoint" / sign)

    finish(told)

    assert message_ids(server, "copy-outside") == all_message_ids()


def test_sigterm_lets_the_batch_under_way_end(server: CosmodromeProcess, tmp_path: Path) -> None:
    told = archive_told(server, tmp_path, "parquet", "source.maxOffsetsPerTrigger=300")
    command = [sys.executable, "-m", "cosmodrome_server", "pipeline", "archive"]
    for each in (*told["sets"], "stream.trigger=0s"):
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
    finish(told)
    assert places(told) == everything(server)
