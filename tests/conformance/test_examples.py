"""examples/clients: the quick start of every official client, run as its readers would."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conformance import setup
from tests.conformance.broker import server
from tests.conformance.languages import OFFICIAL, Language

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "clients"
RUN_SECONDS_MAX = 300


@dataclass(frozen=True)
class Run:
    """How an example is started, with the packages that the driver of its client has."""

    command: list[str]
    environment: dict[str, str]


def run_of(language: Language, folder: Path) -> Run:
    """`folder` holds what setup.py built for the driver of the same client."""
    packages = folder / "node_modules"
    runs = {
        "python": Run([sys.executable, "quick_start.py"], {}),
        "node": Run(["node", "quick_start.js"], {"NODE_PATH": str(packages)}),
        "java": Run(["java", "-cp", f"{folder / 'lib'}/*", "QuickStart.java"], {}),
        "go": Run(["go", "run", "."], {}),
        "rust": Run(
            ["cargo", "run", "--quiet", "--locked", "--"],
            {"CARGO_TARGET_DIR": str(setup.CACHE / "rust-target")},
        ),
    }
    return runs[language.name]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    loop = asyncio.new_event_loop()
    stack = AsyncExitStack()
    try:
        ours = loop.run_until_complete(stack.enter_async_context(server("--dev")))
        yield ours.endpoint
        loop.run_until_complete(stack.aclose())
    finally:
        loop.close()


@pytest.mark.parametrize("language", OFFICIAL, ids=lambda language: language.name)
def test_the_quick_start_of_a_client_sends_receives_and_acks(
    language: Language, endpoint: str, tmp_path: Path
) -> None:
    try:
        program = setup.program(language)
    except setup.Unavailable as missing:
        if language.is_required:
            pytest.fail(str(missing))
        pytest.skip(str(missing))
    shutil.copytree(EXAMPLES / language.name, tmp_path / "example")
    run = run_of(language, program.folder)

    done = subprocess.run(
        [*run.command, endpoint],
        cwd=tmp_path / "example",
        env={**os.environ, **run.environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-3_000:]
    assert "sent " in done.stdout
    assert f"received hello from {language.title}" in done.stdout
