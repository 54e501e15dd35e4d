"""Servers to measure, ours and the peer, behind one face: start, topic, group, memory, stop.

Everything listens on loopback and ends with the `with` block. The peer is started by
scripts outside this repository (COSMODROME_PEER_SCRIPTS, `../shared/peer` unless set).
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.machine import users_environment
from benchmarks.requests import OK, send_one

ROOT = Path(__file__).parent.parent
COMMAND = Path(sys.executable).with_name("cosmodrome")
PEER_SCRIPTS = Path(os.environ.get("COSMODROME_PEER_SCRIPTS", ROOT.parent / "shared" / "peer"))
_TOPIC_TRIES = 10
READY = re.compile(r"^ready\b.*? at (?P<endpoint>\S+:\d+)")


@dataclass
class Target:
    """A running server.

    Attributes:
        name: How results call it.
        host, port: Where clients connect.
        pid: The process that serves, for its memory.
        ready_ms: From process start to the first line that says it serves.
    """

    name: str
    host: str
    port: int
    pid: int = 0
    ready_ms: float = 0.0
    is_ours: bool = True
    log: list[str] = field(default_factory=list)

    @property
    def endpoint(self) -> str:
        """`host:port`."""
        return f"{self.host}:{self.port}"

    def topic(self, name: str, topic_type: str = "NORMAL", queues: int = 8) -> None:
        """Create a topic; the peer's of type NORMAL has taken a message when this returns.

        Load generators count a refusal as an answer, and a quick one; and the peer's tool may say
        that it made a topic while the peer was still starting.

        Raises:
            RuntimeError: It takes none.
        """
        if self.is_ours:
            self._command("topic", "create", name, "--type", topic_type, "--queues", str(queues))
            return
        code = 0
        for _ in range(_TOPIC_TRIES):
            _script("admin.sh", "topic", name, topic_type, str(queues))
            if topic_type != "NORMAL" or (code := send_one(self.endpoint, name)) == OK:
                return
            time.sleep(1)
        raise RuntimeError(f"{self.name}: topic {name} takes no message: code {code}")

    def group(self, name: str) -> None:
        """Create a consumer group."""
        if self.is_ours:
            self._command("group", "create", name)
        else:
            _script("admin.sh", "group", name)

    def rss_mib(self) -> float:
        """Resident memory of the serving process now."""
        text = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+)", text)
        return int(found[1]) / 1024 if found else 0.0

    def cpu_s(self) -> float:
        """Processor time the serving process has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _command(self, *words: str) -> None:
        subprocess.run(
            [str(COMMAND), *words, "--endpoint", self.endpoint],
            check=True,
            stdout=subprocess.DEVNULL,
        )


@contextmanager
def ours(*arguments: str, data: Path | None = None, name: str = "cosmodrome") -> Iterator[Target]:
    """Run `cosmodrome serve` on a free port until the block ends; `data` outlives it if given."""
    with tempfile.TemporaryDirectory(prefix="cosmodrome-bench-") as scratch:
        command = [str(COMMAND), "serve", "--port", "0", "--metrics-port", "0"]
        command += ["--data", str(data or Path(scratch) / "data"), *arguments]
        environment = users_environment()
        started = time.perf_counter()
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        try:
            endpoint, lines = _wait_ready(server)
            ready_ms = (time.perf_counter() - started) * 1000
            host, _, port = endpoint.rpartition(":")
            yield Target(name, host, int(port), server.pid, ready_ms, log=lines)
        finally:
            server.terminate()
            server.wait(60)


def _wait_ready(server: "subprocess.Popen[str]") -> tuple[str, list[str]]:
    assert server.stdout is not None
    lines: list[str] = []
    for line in server.stdout:
        lines.append(line.rstrip())
        if found := READY.match(line):
            return found["endpoint"], lines
    raise RuntimeError("the server ended before it was ready:\n" + "\n".join(lines))


@contextmanager
def apache(flush: str) -> Iterator[Target]:
    """Run Apache RocketMQ, `flush` being "sync" (fsync before the answer) or "async"."""
    said = _script("up.sh", flush)
    home = Path(os.environ.get("PEER_HOME", Path.home() / ".cache" / "cosmodrome-peer"))
    try:
        ready = re.search(r"after (\d+) ms", said)
        pid = int((home / "run" / "proxy.pid").read_text())
        ready_ms = float(ready[1]) if ready else 0.0
        yield Target(f"apache-{flush}", "127.0.0.1", 8081, pid, ready_ms, is_ours=False)
    finally:
        _script("down.sh")


def java_client(*words: str, tls: bool = True, **environment: str) -> str:
    """Run the official Java client as a load; returns what it prints."""
    return _script("bench.sh", *words, SSL=str(tls).lower(), **environment)


def _script(name: str, *words: str, **environment: str) -> str:
    # A file, not a pipe: what up.sh leaves running would hold a pipe open.
    with tempfile.TemporaryFile("w+") as printed:
        subprocess.run(
            ["bash", str(PEER_SCRIPTS / name), *words],
            check=True,
            stdout=printed,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
        )
        printed.seek(0)
        return printed.read()
