"""gate/build.sh: built once and kept; where there is no Rust one line says so and all goes on."""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDED = ("bash", "cat", "cksum", "dirname", "find", "mkdir", "mktemp", "mv", "rm", "sort", "tr")
# Stands for a Python with maturin and pip: writes down what it is asked for.
PYTHON = """#!/usr/bin/env bash
here=$(dirname "$0")
case "$*" in
    *sysconfig*) echo "$here" ;;
    "-c import cosmodrome_gate") [[ -f $here/installed ]] ;;
    "-m maturin --version") ;;
    "-m maturin build"*)
        echo build >>"$here/asked"
        [[ ! -f $here/broken ]] || { echo "error: it does not compile"; exit 1; }
        echo wheel >"${@: -1}/gate.whl" ;;
    "-m pip install"*) echo install >>"$here/asked"; touch "$here/installed" ;;
    *) echo "unexpected: $*" >&2; exit 9 ;;
esac
"""


@dataclass(frozen=True)
class Machine:
    """A machine's gate sources, commands and cache, and a Python to install into."""

    home: Path

    @property
    def sources(self) -> Path:
        return self.home / "gate"

    @property
    def cache(self) -> Path:
        return self.home / ".cache/cosmodrome"

    def python(self, name: str) -> Path:
        """A new environment's Python."""
        path = self.home / name / "python"
        path.parent.mkdir()
        path.write_text(PYTHON)
        path.chmod(0o755)
        return path

    def build(
        self, python: str | Path = sys.executable, **environment: str
    ) -> "subprocess.CompletedProcess[str]":
        """Run it."""
        return subprocess.run(
            ["bash", str(self.sources / "build.sh"), str(python)],
            env={"PATH": str(self.home / "bin"), "HOME": str(self.home), **environment},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """With the commands the script needs, no cargo, and sources that nobody has built yet."""
    made = Machine(tmp_path)
    shutil.copytree(ROOT / "gate", made.sources, ignore=shutil.ignore_patterns("target"))
    (made.sources / "core/src/new.rs").write_text("// never built\n")
    (tmp_path / "bin").mkdir()
    for name in (*NEEDED, "env", "touch", "xargs"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or pytest.skip(f"no {name} here"))
    return made


@pytest.fixture
def with_cargo(machine: Machine) -> Machine:
    cargo = machine.home / "bin/cargo"
    cargo.write_text("#!/bin/sh\n")
    cargo.chmod(0o755)
    return machine


def asked(python: Path) -> list[str]:
    return (python.parent / "asked").read_text().split()


def test_without_cargo_one_line_says_what_is_missing(machine: Machine) -> None:
    ran = machine.build()
    assert (ran.returncode, ran.stderr) == (0, "")
    (line,) = ran.stdout.splitlines()
    assert "no cargo" in line
    assert "grpcio" in line


def test_where_the_gate_is_required_that_is_an_error(machine: Machine) -> None:
    assert machine.build(GATE_REQUIRED="1").returncode == 1


def test_it_is_built_once_and_installed_where_it_is_not(with_cargo: Machine) -> None:
    first, second = with_cargo.python("first"), with_cargo.python("second")
    ran = with_cargo.build(first)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == "gate: building (a minute or two the first time)\n"
    for python in (first, second, second):
        ran = with_cargo.build(python)
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    assert (asked(first), asked(second)) == (["build", "install"], ["install"])
    (first.parent / "installed").unlink()  # it cannot be imported any more
    with_cargo.build(first)
    assert asked(first) == ["build", "install", "install"]


def test_changed_sources_are_built_again(with_cargo: Machine) -> None:
    python = with_cargo.python("python")
    with_cargo.build(python)
    (with_cargo.sources / "core/src/new.rs").write_text("// changed\n")
    with_cargo.build(python)
    assert asked(python) == ["build", "install"] * 2


def test_a_build_that_fails_leaves_the_broker_without_the_gate_and_says_where_to_look(
    with_cargo: Machine,
) -> None:
    python = with_cargo.python("python")
    (python.parent / "broken").touch()
    ran = with_cargo.build(python)
    assert (ran.returncode, ran.stderr) == (0, "")
    log = with_cargo.cache / "gate-build.log"
    assert ran.stdout.splitlines()[1].startswith(f"gate: not built, see {log}; ")
    assert "does not compile" in log.read_text()
    assert list((with_cargo.cache / "gate-wheels").iterdir()) == [], "no half wheel is left"
    (python.parent / "broken").unlink()
    with_cargo.build(python)
    assert asked(python) == ["build", "build", "install"]


@pytest.mark.parametrize("target", ["run", "test"])
def test_running_and_testing_build_it(target: str) -> None:
    planned = subprocess.run(
        ["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "bash gate/build.sh .venv/bin/python" in planned.stdout
