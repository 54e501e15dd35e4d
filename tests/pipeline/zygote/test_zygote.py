"""Launchers, the zygote and its children, as Spark drives them, without Spark."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from struct import Struct

import psutil
import pytest

from cosmodrome_spark.zygote import server
from cosmodrome_spark.zygote.start import WarmPython, warm_python

ANSWER_S_MAX = 60


@pytest.fixture(scope="module")
def warm() -> Iterator[WarmPython]:
    made = warm_python()
    assert made is not None
    yield made
    made.close()


def daemon(python: str, folder: Path, **more: str) -> "subprocess.Popen[bytes]":
    """What the JVM starts for tasks: it says where it takes requests, and always ends with 1."""
    said = {"PYTHON_UNIX_DOMAIN_ENABLED": "True", "PYTHON_WORKER_FACTORY_SOCK_DIR": str(folder)}
    return subprocess.Popen(
        [python, "-m", "pyspark.daemon", "pyspark.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **said, **more},
    )


def where(process: "subprocess.Popen[bytes]") -> str:
    assert process.stdout is not None
    size = int.from_bytes(process.stdout.read(4), "big")
    return process.stdout.read(size).decode()


def worker_of(path: str) -> tuple[socket.socket, psutil.Process]:
    """A worker of a daemon, and the connection that keeps it."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(ANSWER_S_MAX)
    connection.connect(path)
    return connection, psutil.Process(int.from_bytes(connection.recv(4), "big"))


def end(process: "subprocess.Popen[bytes]") -> int:
    assert process.stdin is not None
    process.stdin.close()
    return process.wait(ANSWER_S_MAX)


def tell_to_end(process: "subprocess.Popen[bytes]") -> int:
    """Spark's daemon forgets a signal that meets it in a callback of its fork: it is told again.

    The second signal finds no handler any more, so it ends by that.
    """
    for _ in range(ANSWER_S_MAX):
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(1)
    raise AssertionError(f"it was told {ANSWER_S_MAX} times")


def test_a_daemon_is_forked_from_the_zygote_where_spark_asked_and_ends_with_its_stdin(
    warm: WarmPython, tmp_path: Path
) -> None:
    with daemon(warm.executable, tmp_path) as process:
        connection, worker = worker_of(where(process))
        zygote = worker.parent().parent()

        assert "cosmodrome_spark.zygote.server" in zygote.cmdline()
        assert worker.parent().cwd() == psutil.Process(process.pid).cwd()
        connection.close()
        assert end(process) == 1
        assert list(tmp_path.iterdir()) == []


def test_a_launcher_that_is_told_to_end_passes_it_on(warm: WarmPython, tmp_path: Path) -> None:
    with daemon(warm.executable, tmp_path) as process:
        connection, worker = worker_of(where(process))
        forked = worker.parent()

        assert tell_to_end(process) in {1, 256 - signal.SIGTERM}
        connection.close()
        psutil.wait_procs([forked, worker], timeout=ANSWER_S_MAX)
        assert not forked.is_running()
        assert not worker.is_running()


def test_a_killed_launcher_takes_its_process_along(warm: WarmPython, tmp_path: Path) -> None:
    with daemon(warm.executable, tmp_path) as process:
        connection, worker = worker_of(where(process))
        forked = worker.parent()
        process.kill()
        process.wait()

        _, alive = psutil.wait_procs([forked], timeout=ANSWER_S_MAX)
        connection.close()
        assert alive == []


def test_text_hashes_alike_in_all_workers_or_the_process_is_a_plain_one(
    warm: WarmPython, tmp_path: Path
) -> None:
    with daemon(warm.executable, tmp_path, PYTHONHASHSEED="7") as process:
        connection, worker = worker_of(where(process))

        assert worker.parent().pid == process.pid
        connection.close()
        assert end(process) == 1


def test_what_is_no_module_of_spark_runs_as_plain_python(warm: WarmPython) -> None:
    code = "import sys, typer; print(sys.argv)"
    done = subprocess.run([warm.executable, "-c", code, "a"], capture_output=True, check=True)

    assert done.stdout == b"['-c', 'a']\n"


def test_a_process_that_fails_ends_its_launcher_with_its_code(warm: WarmPython) -> None:
    # No JVM to connect to.
    command = [warm.executable, "-m", "pyspark.sql.worker.lookup_data_sources"]
    done = subprocess.run(command, capture_output=True, check=False, timeout=ANSWER_S_MAX)
    plain = subprocess.run([sys.executable, *command[1:]], capture_output=True, check=False)

    assert done.returncode == plain.returncode != 0
    assert b"Traceback" in done.stderr


def test_without_a_zygote_workers_start_as_plain_pythons(tmp_path: Path) -> None:
    made = warm_python()
    assert made is not None
    zygote = psutil.Process(made.pid)
    zygote.send_signal(signal.SIGKILL)
    zygote.wait(ANSWER_S_MAX)
    with daemon(made.executable, tmp_path) as process:
        connection, worker = worker_of(where(process))

        assert worker.parent().pid == process.pid
        connection.close()
        assert end(process) == 1
        made.close()


def test_the_zygote_ends_with_its_job() -> None:
    made = warm_python()
    assert made is not None
    zygote = psutil.Process(made.pid)
    made.close()

    assert not zygote.is_running()
    assert not Path(made.executable).exists()


def test_nothing_that_the_zygote_imports_starts_a_thread() -> None:
    code = (
        "from cosmodrome_spark.zygote.server import warm_up; warm_up(); import os;"
        "print(len(os.listdir('/proc/self/task')))"
    )
    environment = {**os.environ, **server.THREADLESS}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env=environment, check=False
    )

    assert done.stdout == b"1\n", done.stderr


@pytest.mark.parametrize(
    "sent", [b"", b"\0", b"\xff\xff\xff\xff", b"\0\0\0\2[]"], ids=["nothing", "cut", "long", "list"]
)
def test_what_is_no_request_is_refused_and_harms_nobody(
    warm: WarmPython, tmp_path: Path, sent: bytes
) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(Path(warm.executable).parent / "zygote.sock"))
        if sent:
            socket.send_fds(connection, [sent], [0, 1, 2])
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(ANSWER_S_MAX)
        assert connection.recv(1) == b""

    with daemon(warm.executable, tmp_path) as process:
        assert where(process)
        assert end(process) == 1


@pytest.mark.parametrize("sent", [b"", b"\0\0\0\7{"], ids=["nothing", "cut"])
def test_a_launcher_that_goes_on_saying_nothing_is_given_up(sent: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, Struct("ll").pack(0, 1_000))
        if sent:
            socket.send_fds(theirs, [sent], [0, 1, 2])
        with pytest.raises(ValueError, match="not a launcher's request"):
            server.read_request(ours)
