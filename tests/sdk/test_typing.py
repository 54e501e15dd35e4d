"""What a type checker other than ours sees of the SDK.

pyright runs on Node; its first run fetches it, so these tests are slow ones.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYRIGHT = Path(sys.executable).with_name("pyright")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYRIGHT.exists(), reason="pyright is not installed"),
]


def pyright(*words: str, cwd: Path) -> str:
    # It asks the first python of the path where packages are; editable installs hide theirs.
    sources = os.pathsep.join(str(ROOT / part) for part in ("sdk", "proto", "server"))
    path = f"{PYRIGHT.parent}{os.pathsep}{os.environ['PATH']}"
    ended = subprocess.run(
        [str(PYRIGHT), *words],
        check=False,
        cwd=cwd,
        env={**os.environ, "PATH": path, "PYTHONPATH": sources},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return ended.stdout


def test_every_public_name_has_a_known_type(tmp_path: Path) -> None:
    said = pyright("--verifytypes", "cosmodrome", "--ignoreexternal", cwd=tmp_path)
    assert "Type completeness score: 100%" in said, said


MISTAKES = """
from cosmodrome import sync

sync.Producer("localhost:8081", topics=["orders"], max_attempts=3)
reveal_type(sync.SimpleConsumer("h:1", group="g", subscriptions={"t": "*"}).receive())
sync.Producer()  # 1
sync.Producer("localhost:8081", max_attempts="3")  # 2
sync.PushConsumer("localhost:8081", group="g", nonsense=1)  # 3
"""


def test_the_blocking_twins_take_what_their_async_clients_take(tmp_path: Path) -> None:
    (tmp_path / "use.py").write_text(MISTAKES)
    said = pyright("use.py", cwd=tmp_path)
    assert 'is "list[MessageView]"' in said, said
    assert "3 errors" in said, said
    lines = MISTAKES.splitlines()
    for number, line in enumerate(lines, start=1):
        assert (f"use.py:{number}:" in said) == ("#" in line or "reveal_type" in line), said
