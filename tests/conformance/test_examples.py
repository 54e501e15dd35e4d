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
from tests.conformance.languages import GO, JAVA, NODE, OFFICIAL, Language

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "clients"
RUN_SECONDS_MAX = 300


@dataclass(frozen=True)
class Run:
    """How an example is started, with the packages that the driver of its client has.

    `test` starts a broker of its own; empty for a client whose users have none of ours to copy.
    """

    command: list[str]
    environment: dict[str, str]
    test: tuple[str, ...] = ()


def run_of(language: Language, folder: Path) -> Run:
    """`folder` holds what setup.py built for the driver of the same client."""
    packages = folder / "node_modules"
    java = ("java", "-cp", f"{folder / 'lib'}/*")
    runs = {
        "python": Run([sys.executable, "quick_start.py"], {}),
        "node": Run(["node", "quick_start.js"], {"NODE_PATH": str(packages)}, ("node", "--test")),
        "java": Run([*java, "QuickStart.java"], {}, (*java, "BrokerInATest.java")),
        "go": Run(["go", "run", "."], {}, ("go", "test", "./...")),
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
    run = prepared(language, tmp_path)

    done = finished([*run.command, endpoint], run.environment, tmp_path)

    assert done.returncode == 0, done.stderr[-3_000:]
    assert "sent " in done.stdout
    assert f"received hello from {language.title}" in done.stdout


@pytest.mark.parametrize("language", [NODE, JAVA, GO], ids=lambda language: language.name)
def test_a_test_of_another_language_starts_a_broker_of_its_own(
    language: Language, tmp_path: Path
) -> None:
    run = prepared(language, tmp_path)
    command = Path(sys.executable).with_name("cosmodrome")
    own = {"COSMODROME": str(command), "TMPDIR": str(tmp_path)}

    done = finished(list(run.test), {**run.environment, **own}, tmp_path)

    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-3_000:]
    assert list(tmp_path.glob("cosmodrome-*")) == []


def prepared(language: Language, folder: Path) -> Run:
    """Copy the examples of a language; skips without its tools."""
    try:
        program = setup.program(language)
    except setup.Unavailable as missing:
        if language.is_required:
            pytest.fail(str(missing))
        pytest.skip(str(missing))
    shutil.copytree(EXAMPLES / language.name, folder / "example")
    return run_of(language, program.folder)


def finished(
    command: list[str], environment: dict[str, str], folder: Path
) -> subprocess.CompletedProcess[str]:
    """Run it in the copied examples, to its end."""
    return subprocess.run(
        command,
        cwd=folder / "example",
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
