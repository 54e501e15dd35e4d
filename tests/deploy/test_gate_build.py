"""gate/build.sh where there is no Rust: one line says so, and everything else goes on."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDED = ("bash", "cat", "cksum", "dirname", "find", "mkdir", "rm", "sort", "tr", "xargs")


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """The sources of a gate that nobody has built yet."""
    there = tmp_path / "gate"
    shutil.copytree(ROOT / "gate", there, ignore=shutil.ignore_patterns("target"))
    (there / "core/src/new.rs").write_text("// never built\n")
    return there


def build(gate: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run it with the commands it needs and no cargo, and a cache of its own."""
    commands = gate.parent / "bin"
    commands.mkdir()
    for name in NEEDED:
        (commands / name).symlink_to(shutil.which(name) or pytest.skip(f"no {name} here"))
    return subprocess.run(
        ["bash", str(gate / "build.sh"), sys.executable],
        env={"PATH": str(commands), "HOME": str(gate.parent), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_cargo_one_line_says_what_is_missing(gate: Path) -> None:
    ran = build(gate)
    assert (ran.returncode, ran.stderr) == (0, "")
    (line,) = ran.stdout.splitlines()
    assert "no cargo" in line
    assert "grpcio" in line


def test_where_the_gate_is_required_that_is_an_error(gate: Path) -> None:
    assert build(gate, GATE_REQUIRED="1").returncode == 1
