"""A Cosmodrome server in a process of its own, on a free port of the loopback."""

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

READY = re.compile(r"ready: .* at (\S+:\d+)")
START_S_MAX = 60.0


class CosmodromeProcess:
    """`cosmodrome serve --dev` over a folder; `with` stops it."""

    def __init__(self, data: Path, *settings: str, port: int = 0) -> None:
        self._command = [sys.executable, "-m", "cosmodrome_server", "serve", "--dev"]
        self._command += ["--data", str(data), "--port", str(port)]
        self._command += ["--set", "server.metrics_port=0"]
        for setting in settings:
            self._command += ["--set", setting]
        self._log = data.with_name(f"{data.name}.log")
        self._process: subprocess.Popen[bytes] | None = None
        self.endpoints = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_S_MAX
        while time.monotonic() < deadline:
            found = READY.search(self._log.read_text())
            if found:
                self.endpoints = found[1]
                return
            if self._process.poll() is not None:
                break
            time.sleep(0.05)
        raise RuntimeError(f"the server did not start: {self._log.read_text()[-2000:]}")

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
            self._process = None

    def kill(self) -> None:
        """End it as a power cut would, but for the disk."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
            self._process = None
