"""The Rust side by its own tests and linters, where cargo is."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

GATE = Path(__file__).parents[2] / "gate"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cosmodrome"


def cargo(*arguments: str) -> str:
    """Run cargo on the crate that needs no Python."""
    if shutil.which("cargo") is None:
        pytest.skip("no cargo here")
    target = os.environ.get("CARGO_TARGET_DIR") or str(CACHE / "gate-target")
    ran = subprocess.run(
        ["cargo", *arguments],
        cwd=GATE,
        env={**os.environ, "CARGO_TARGET_DIR": target},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


def test_the_frame_reader_survives_a_hundred_thousand_cuts_and_forgeries() -> None:
    said = cargo("test", "--quiet", "--locked", "--package", "gate-core")
    assert "test result: ok" in said


def test_the_crate_is_formatted() -> None:
    cargo("fmt", "--check")


@pytest.mark.slow
def test_the_crate_has_no_lint() -> None:
    cargo("clippy", "--quiet", "--locked", "--all-targets", "--", "--deny", "warnings")


def test_crates_come_from_the_default_registry_alone() -> None:
    sources = set(re.findall(r'source = "(.*)"', (GATE / "Cargo.lock").read_text()))
    assert sources == {"registry+https://github.com/rust-lang/crates.io-index"}


def test_nothing_unsafe_is_written_by_hand() -> None:
    for source in GATE.rglob("src/**/*.rs"):
        code = re.sub(r"//.*", "", source.read_text())
        assert not re.search(r"\bunsafe\b(?!_code)", code), source
