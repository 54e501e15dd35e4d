"""The release workflow: what it publishes, and that its steps can work."""

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.empty_environment import ROOT, Environment, linked

JOBS: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]


def command(step: str) -> str:
    """What the wheel's job runs that starts like this."""
    steps: list[dict[str, str]] = JOBS["gate"]["steps"]
    lines = [line.strip() for one in steps for line in one.get("run", "").splitlines()]
    (found,) = (line for line in lines if line.startswith(step))
    return found


def test_there_is_a_wheel_for_each_system_and_machine() -> None:
    built = {one["platform"] for one in JOBS["gate"]["strategy"]["matrix"]["include"]}
    assert built >= {"linux-x86_64", "linux-aarch64", "macos-x86_64", "macos-arm64"}


def test_one_wheel_serves_every_python_we_do() -> None:
    manifest = (ROOT / "gate/py/Cargo.toml").read_text()
    assert '"abi3-py311"' in manifest
    assert 'requires-python = ">=3.11"' in (ROOT / "gate/py/pyproject.toml").read_text()


def test_what_is_published_is_built_before() -> None:
    assert set(JOBS["publish"]["needs"]) == JOBS.keys() - {"publish"}
    assert JOBS["publish"]["if"] == "startsWith(github.ref, 'refs/tags/v')"


def test_the_wheel_is_tested_with_what_is_installed_for_it(tmp_path: Path) -> None:
    """Nothing is there but what the step installs: no development environment helps."""
    pytest.importorskip("cosmodrome_gate")
    words = shlex.split(command("python -m pip install"))
    needed = [word for word in words[4:] if not word.endswith(".whl")]
    ours = ["cosmodrome" + word.removeprefix(".") for word in needed if word.startswith(".")]
    others = [word for word in needed if not word.startswith(".")]
    environment = linked(tmp_path / "environment", "cosmodrome-gate", *ours, *others)
    ran = pytest_in(environment, "--collect-only")
    assert int(re.findall(r"(\d+) tests? collected", ran)[0]) > 50
    # What is served runs in a process of its own, with imports of its own.
    assert "1 passed" in pytest_in(environment, "-k", "a_unary_call_gets_its_reply_and_ok")


def pytest_in(environment: Environment, *options: str) -> str:
    """What the step's tests print there."""
    ran = subprocess.run(
        [
            environment.bin / "python",
            *command("python -m pytest").split()[1:],
            *("-p", "no:cacheprovider"),
            *options,
        ],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout
