"""A virtual environment as the Dockerfile makes it: our wheel, `[server]`, and nothing else.

    sources named by COPY ──hatchling──▶ wheel ──pip, no index──▶ environment ◀── [server]
                                                                                 linked or installed

`linked` takes the distributions that `[server]` asks for, and those they ask for, out of the
environment the tests run in, so that no network is needed; `installed` has pip fetch them, by the
command of the Dockerfile. Neither sees what only development needs.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent.parent
GATE = "cosmodrome-gate"


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment somewhere under a scratch directory."""

    home: Path

    @property
    def bin(self) -> Path:
        return self.home / "bin"

    def distributions(self) -> set[str]:
        """Names of what is installed."""
        return {
            found["name"].lower().replace("_", "-")
            for metadata in _packages(self.home).glob("*.dist-info/METADATA")
            if (found := re.search(r"^Name: (?P<name>.+)$", metadata.read_text(), re.MULTILINE))
        }


def made(scratch: Path, *, is_linked: bool) -> Environment:
    """Make one; `scratch` is empty."""
    sources = scratch / "source"
    copy_sources(sources)
    home = scratch / "environment"
    if is_linked:
        _run(sys.executable, "-m", "venv", "--without-pip", home)
        wheels = scratch / "wheels"
        _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", wheels, cwd=sources)
        (wheel,) = wheels.iterdir()
        pip = (sys.executable, "-m", "pip", "--python", home / "bin/python", "install")
        _run(*pip, "--quiet", "--no-index", "--no-deps", wheel)
        for needed in needed_by_server():
            _link(needed, _packages(home))
    else:
        for command in build_commands():
            words = [word.replace("/opt/cosmodrome", str(home)) for word in shlex.split(command)]
            _run(*words, cwd=sources)
    return Environment(home)


def copy_sources(into: Path) -> None:
    """What the build stage of the Dockerfile copies."""
    for line in instructions("COPY"):
        *names, target = line.split()
        if names[0].startswith("--"):
            continue
        for pattern in names:
            for found in ROOT.glob(pattern):
                place = into / target / found.name if target == "./" else into / target
                if found.is_dir():
                    shutil.copytree(found, place, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    place.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(found, place)


def instructions(keyword: str, text: str | None = None) -> list[str]:
    """The arguments of every such line of the Dockerfile, continuations joined."""
    joined = re.sub(r"\\\n", " ", text or (ROOT / "Dockerfile").read_text())
    return re.findall(rf"^{keyword}\s+(.*)$", joined, re.MULTILINE)


def build_commands() -> list[str]:
    """The commands of the build stage that make and fill the environment."""
    (run,) = (line for line in instructions("RUN") if "-m venv" in line)
    return [step.strip() for step in run.split("&&") if "for wheel" not in step]


def needed_by_server() -> Iterator[Distribution]:
    """Every distribution that `cosmodrome[server]` brings along, once, and the gate if built."""
    yield from needed_by("cosmodrome[server]")
    try:
        yield distribution(GATE)
    except ImportError:
        return


def needed_by(*requirements: str) -> Iterator[Distribution]:
    """Every distribution that these bring along, once, without themselves."""
    asked = [Requirement(text) for text in requirements]
    seen = {one.name.lower() for one in asked}
    while asked:
        one = asked.pop()
        found = distribution(one.name)
        for text in found.requires or []:
            more = Requirement(text)
            extras = one.extras or {""}
            applies = more.marker is None or any(more.marker.evaluate({"extra": e}) for e in extras)
            if applies and more.name.lower() not in seen:
                seen.add(more.name.lower())
                asked.append(more)
                yield distribution(more.name)


def linked(home: Path, *requirements: str) -> Environment:
    """An environment of these distributions, as they are here, and what they need; nothing else."""
    _run(sys.executable, "-m", "venv", "--without-pip", home)
    asked = (distribution(Requirement(text).name) for text in requirements)
    for one in [*asked, *needed_by(*requirements)]:
        _link(one, _packages(home))
    return Environment(home)


def _link(one: Distribution, packages: Path) -> None:
    for top in sorted({file.parts[0] for file in one.files or [] if file.parts[0] != ".."}):
        if top == "__pycache__":
            continue
        target = Path(str(one.locate_file(top)))
        if not (packages / top).exists():
            (packages / top).symlink_to(target)
        elif target.is_dir() and not (packages / top / "__init__.py").exists():
            _merge(target, packages / top)


def _merge(source: Path, into: Path) -> None:
    """Two distributions share a namespace package: links of what is inside."""
    if into.is_symlink():
        shared = into.resolve()
        into.unlink()
        into.mkdir()
        for part in shared.iterdir():
            (into / part.name).symlink_to(part)
    for part in source.iterdir():
        if not (into / part.name).exists():
            (into / part.name).symlink_to(part)


def _packages(home: Path) -> Path:
    return home / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def _run(*words: str | Path, cwd: Path | None = None) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(words, check=True, cwd=cwd, env=environment, stdout=subprocess.DEVNULL)
