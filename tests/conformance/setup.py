"""Builds the drivers of the official clients: `python -m tests.conformance.setup`.

    sources and lock files ──hash──▶ <cache>/conformance/<language>-<hash>/

The cache is XDG_CACHE_HOME/cosmodrome, outside the checkout, so that a fresh clone finds what was
built before; the packages themselves come from the ordinary caches of npm, maven, go and cargo.
A build happens in a folder beside and is moved into place whole, under a file lock: parallel test
runs build once, and a build that was cut short is never used.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tests.conformance.languages import LANGUAGES, Language

CLIENTS = Path(__file__).parent / "clients"
CACHE = (
    Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cosmodrome" / "conformance"
)
BUILD_SECONDS_MAX = 900


@dataclass(frozen=True)
class Program:
    """How a driver is started, and the folder with what it was built from."""

    command: tuple[str, ...]
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)


class Unavailable(Exception):
    """A client cannot be built here; the text is one line that says what is missing."""


def program(language: Language) -> Program:
    """Build the driver of one client if its sources changed.

    Raises:
        Unavailable: A tool or the client's package is missing, or the build failed.
    """
    missing = [tool for tool in language.tools if shutil.which(tool) is None]
    if missing:
        raise Unavailable(f"no {language.title} client here: {', '.join(missing)} not installed")
    if language.name == "sdk":
        return Program((sys.executable, str(CLIENTS / "sdk" / "driver.py")), CLIENTS)
    if language.name == "python":
        return _python()
    folder = CACHE / f"{language.name}-{_hash_of(CLIENTS / language.name)}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with _locked(CACHE / f"{language.name}.lock"):
        if not folder.exists():
            part = CACHE / f"{folder.name}.part"
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            BUILDS[language.name](part)
            part.rename(folder)
    return PROGRAMS[language.name](folder)


def _python() -> Program:
    try:
        version("rocketmq-python-client")
    except PackageNotFoundError:
        raise Unavailable("no Python client here: pip install rocketmq-python-client") from None
    return Program((sys.executable, str(CLIENTS / "python" / "driver.py")), CLIENTS)


def _build_node(folder: Path) -> None:
    for name in ("package.json", "package-lock.json", "driver.js"):
        shutil.copy(CLIENTS / "node" / name, folder)
    # Without install scripts: none of the packages needs one.
    _run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], folder)


def _build_java(folder: Path) -> None:
    sources = CLIENTS / "java"
    copy = ["dependency:copy-dependencies", f"-DoutputDirectory={folder / 'lib'}"]
    _run(["mvn", "-q", "-B", "-f", str(sources / "pom.xml"), *copy], folder)
    classpath = f"{folder / 'lib'}/*"
    _run(["javac", "-d", "classes", "-cp", classpath, str(sources / "src" / "Driver.java")], folder)


def _build_go(folder: Path) -> None:
    _run(["go", "build", "-o", str(folder / "driver"), "."], CLIENTS / "go")


def _build_rust(folder: Path) -> None:
    # One target folder for all versions of the driver: its dependencies are compiled once.
    target = CACHE / "rust-target"
    _run(
        ["cargo", "build", "--quiet", "--locked"],
        CLIENTS / "rust",
        {"CARGO_TARGET_DIR": str(target)},
    )
    shutil.copy(target / "debug" / "conformance-rust", folder / "driver")


def _java_program(folder: Path) -> Program:
    jar = next((folder / "lib").glob("rocketmq-client-java-*.jar"))
    client_version = jar.stem.removeprefix("rocketmq-client-java-")
    # Small heaps and the cheap collector and compiler: five clients and a server share two cores.
    frugal = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
    classpath = f"{folder / 'classes'}:{folder / 'lib'}/*"
    return Program(("java", *frugal, "-cp", classpath, "Driver", client_version), folder)


BUILDS: dict[str, Callable[[Path], None]] = {
    "node": _build_node,
    "java": _build_java,
    "go": _build_go,
    "rust": _build_rust,
}
PROGRAMS: dict[str, Callable[[Path], Program]] = {
    "node": lambda folder: Program(("node", str(folder / "driver.js")), folder),
    "java": _java_program,
    "go": lambda folder: Program((str(folder / "driver"),), folder),
    "rust": lambda folder: Program((str(folder / "driver"),), folder),
}


def _hash_of(folder: Path) -> str:
    digest = hashlib.sha256()
    skipped = {"node_modules", "target"}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not skipped & set(path.relative_to(folder).parts):
            digest.update(f"{path.relative_to(folder)}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _run(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BUILD_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{' '.join(command[:3])} took over {BUILD_SECONDS_MAX} s") from None
    if done.returncode:
        last = " | ".join(done.stdout.strip().splitlines()[-8:])
        raise Unavailable(f"{' '.join(command[:3])} failed: {last}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Build every driver and say what there is; fails if a required one is missing."""
    failed = 0
    for language in LANGUAGES:
        try:
            program(language)
        except Unavailable as error:
            print(error)
            failed += language.is_required
        else:
            print(f"{language.title}: {language.package} is ready")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
