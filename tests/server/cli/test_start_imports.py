"""What a start must not import: a broker is ready sooner without what few of them ever use."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

NOT_AT_START = {
    "cosmodrome": "the SDK is for clients",
    "cryptography": "a certificate is made at the first start only",
    "grpc": "the gate speaks gRPC",
    "grpc_reflection": "the gate speaks gRPC",
    "difflib": "only who mistypes a setting needs it",
    "http.server": "the first scrape needs it",
    "importlib.metadata": "nothing asks for versions of packages",
    "lark": "the first SQL filter needs it",
    "prometheus_client": "the first scrape needs it",
    "pyarrow": "bulk reads need it",
    "shutil": "argparse asks it for a width that nobody sees",
    "tempfile": "only --temporary needs it",
}


def imported(report: str) -> set[str]:
    """The modules in a report of `-X importtime`."""
    lines = (line for line in report.splitlines() if line.startswith("import time:"))
    return {line.rpartition("|")[2].strip() for line in lines}


def test_a_start_with_the_gate_imports_nothing_that_only_some_brokers_need(tmp_path: Path) -> None:
    pytest.importorskip("cosmodrome_gate")
    command = [sys.executable, "-m", "cosmodrome_server", "serve", "--front", "gate"]
    flags = ["--data", str(tmp_path / "data"), "--port", "0", "--metrics-port", "0"]

    def start() -> set[str]:
        report = tmp_path / "imports"
        with (
            report.open("w") as stderr,
            subprocess.Popen(
                [*command, *flags],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1"},
            ) as broker,
        ):
            assert broker.stdout is not None
            assert broker.stdout.readline().startswith("ready")
            broker.terminate()
        return imported(report.read_text())

    start()  # makes the certificate, which later starts read
    modules = start()
    assert "cosmodrome_server.app" in modules
    assert sorted(NOT_AT_START.keys() & modules) == []
