"""kill -9 of a process that writes to a real log on a real disk."""

import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from cosmodrome_server.store import check
from cosmodrome_server.store.opening import SHARD_NAME
from tests.crash.log_writer import body_of, open_counting

ROOT = Path(__file__).parent.parent.parent


def run_and_kill(data: Path, random: Random) -> tuple[int, int]:
    """Let the writer acknowledge some frames, kill it, and return the last offset and count."""
    command = [sys.executable, "-m", "tests.crash.log_writer", str(data)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as process:
        assert process.stdout is not None
        _, start, count = process.stdout.readline().split()
        acked = (int(start) - 1, int(count))
        frames = random.randint(1, 1_500)
        for _ in range(frames):
            offset, done = process.stdout.readline().split()
            acked = (int(offset), int(done))
        process.kill()
        # What was acknowledged before the kill is on its way through the pipe still.
        for line in process.stdout:
            if line.endswith("\n"):
                acked = (int(line.split()[0]), int(line.split()[1]))
    return acked


def kill_and_check(data: Path, seed: int) -> None:
    random = Random(seed)
    last, count = run_and_kill(data, random)
    if random.random() < 0.3:
        for path in [*(data / SHARD_NAME).glob("*.idx"), *(data / SHARD_NAME).glob("state.db*")]:
            path.unlink()

    assert check.check(data).is_whole
    log, counted = open_counting(data)
    try:
        assert log.damages == []
        assert log.max_offset(1, 0) > last, "an acknowledged message is lost"
        assert counted >= count, "an acknowledged record is lost"
        for offset in range(max(0, last - 300), log.max_offset(1, 0)):
            assert log.read(1, 0, offset).body == body_of(offset)
    finally:
        log.close()


def test_a_killed_writer_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    for seed in range(4):
        kill_and_check(tmp_path, seed)


@pytest.mark.slow
def test_two_hundred_kills_lose_nothing(tmp_path: Path) -> None:
    for seed in range(200):
        if seed % 25 == 0:
            shutil.rmtree(tmp_path / "data", ignore_errors=True)
        kill_and_check(tmp_path / "data", 1_000 + seed)


@pytest.mark.slow
def test_a_small_file_system_that_fills_up_and_is_freed(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)], check=False
    )
    if mounted.returncode:
        pytest.skip("only root may mount a tmpfs")
    try:
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(18 << 20))
        command = [sys.executable, "-m", "tests.crash.log_writer", str(disk / "data")]
        full = subprocess.run(command, capture_output=True, cwd=ROOT, text=True, check=False)
        acked = [line for line in full.stdout.splitlines() if line[0].isdigit()]
        assert "StoreFull: the disk is full" in full.stderr
        last = int(acked[-1].split()[0])
        ballast.unlink()
        log, count = open_counting(disk / "data")
        assert count >= len(acked)
        assert log.max_offset(1, 0) > last
        log.close()
        kill_and_check(disk / "data", 5)
    finally:
        subprocess.run(["umount", str(disk)], check=True)
