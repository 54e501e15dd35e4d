"""Runs a probe that others wrote, where it is there, against our server, and looks for surprises.

    python -m tests.conformance.probe FOLDER [--front gate|grpcio] [--slow] [--only REGEX]

FOLDER has probe.py, which prints a line per case (name | sent | gRPC status | code | text |
facts), and the reference's lines in a file apache-*.txt. A case whose status, code or facts are
not the reference's must be named in docs/wire.md (explained.py); the texts are always ours, and
times count as alike within `NEAR_S`. Prints what is unexplained and what docs/wire.md explains
in vain; the exit code is 1 for the former.
"""

import argparse
import asyncio
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.conformance.broker import OwnServer, server
from tests.conformance.explained import PAGE, explanations, section_of

NEAR_S = 0.6
_SECONDS = re.compile(r"(\d+\.\d) s\b")
_PORT = re.compile(r"\bport: \d+")
_COLUMNS = 6
_SLOW = "slow."


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the answers of a probe.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--front", choices=("gate", "grpcio"))
    parser.add_argument("--slow", action="store_true", help="also the cases that wait")
    parser.add_argument("--only", default="", help="cases whose names match")
    parser.add_argument("--out", type=Path, help="write our lines there")
    chosen = parser.parse_args()
    if not (chosen.folder / "probe.py").exists():
        print(f"{chosen.folder} has no probe.py: nothing is compared")
        return 0
    ours = asyncio.run(_asked(chosen))
    if chosen.out:
        chosen.out.write_text(ours)
    (reference,) = chosen.folder.glob("apache-*.txt")
    return report(lines(reference.read_text()), lines(ours))


async def _asked(chosen: argparse.Namespace) -> str:
    """What the probe prints of a server of ours."""
    flags = ("--dev", "--set", "topics.auto_create=false", "--set", "server.name=broker-a")
    front = ("--front", chosen.front) if chosen.front else ()
    async with server(*flags, *front) as ours:
        return await _probe(chosen, ours)


async def _probe(chosen: argparse.Namespace, ours: OwnServer) -> str:
    admin = f"{sys.executable} -m tests.conformance.probe_admin {ours.endpoint}"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(chosen.folder / "probe.py"), ours.endpoint, "--admin", admin),
        *(("--slow",) if chosen.slow else ()),
        *("--only", chosen.only),
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await process.communicate()
    if process.returncode:
        raise SystemExit(f"the probe ended with {process.returncode}")
    return said.decode()


def lines(text: str) -> dict[str, list[str]]:
    """The columns of each case. What was sent may have bars in it: the answer is the last four."""
    found = {}
    for line in text.splitlines():
        columns = line.split(" | ")
        if len(columns) >= _COLUMNS:
            found[columns[0]] = [_PORT.sub("port: <port>", column) for column in columns[-4:]]
    return found


def report(reference: Mapping[str, list[str]], ours: Mapping[str, list[str]]) -> int:
    """Print what is unexplained; 1 if anything is."""
    known = explanations(PAGE.read_text())
    different = [
        case for case in ours if case in reference and not alike(reference[case], ours[case])
    ]
    surprises = [case for case in different if not section_of(case, known)]
    for case in surprises:
        print(f"UNEXPLAINED {case}\n  reference {reference[case]}\n  ours      {ours[case]}")
    missing = [case for case in ours if case not in reference]
    for case in missing:
        print(f"NOT ASKED OF THE REFERENCE {case}")
    for one in known:
        covered = [case for case in ours if one.covers(case)]
        if not covered and not one.pattern.startswith(_SLOW):
            print(f"NO SUCH CASE {one.pattern} ({one.section})")
        elif covered and not any(case in different for case in covered):
            print(f"EXPLAINED BUT ALIKE {one.pattern} ({one.section})")
    print(
        f"{len(ours)} cases: {len(ours) - len(different)} alike,"
        f" {len(different) - len(surprises)} explained, {len(surprises)} unexplained"
    )
    return 1 if surprises else 0


def alike(theirs: list[str], ours: list[str]) -> bool:
    """Whether status, code and facts are the same, times within `NEAR_S`."""
    for column in (0, 1, 3):
        if _SECONDS.sub("<time>", theirs[column]) != _SECONDS.sub("<time>", ours[column]):
            return False
        times = zip(_SECONDS.findall(theirs[column]), _SECONDS.findall(ours[column]), strict=True)
        if any(abs(float(one) - float(other)) > NEAR_S for one, other in times):
            return False
    return True


if __name__ == "__main__":
    sys.exit(main())
