"""`cosmodrome config`: what flags and files come to, without starting anything."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cosmodrome_server.cli.serve import serve_from


def test_config_prints_a_file_that_config_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve_from(["--port", "0", "--set", "store.durability=os"], show_only=True) == 0
    printed = capsys.readouterr().out
    file = tmp_path / "again.toml"
    file.write_text(printed)
    assert serve_from(["--config", str(file)], show_only=True) == 0
    assert capsys.readouterr().out == printed
    assert 'durability = "os"' in printed


def test_secrets_are_masked(capsys: pytest.CaptureFixture[str]) -> None:
    serve_from(["--set", "security.admin_secret=hunter2"], show_only=True)
    printed = capsys.readouterr().out
    assert "hunter2" not in printed
    assert 'admin_secret = "***"' in printed


def test_a_wrong_setting_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve_from(["--set", "store.durabilty=os"], show_only=True) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "did you mean durability?" in said


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--front", "other"], "server.front: it is one of auto, gate, grpcio"),
        (["--tls", "maybe"], "tls.mode: it is one of"),
        (["--durability", "interval"], "store.durability: it is one of sync, os, interval:MILLI"),
        (["--port", "70000"], "server.port: Expected `int` <= 65535"),
    ],
)
def test_a_value_that_does_not_fit_names_the_setting_and_what_it_may_be(
    flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve_from(flags, show_only=True) == 2
    assert words in capsys.readouterr().err


def test_a_temporary_broker_leaves_nothing_behind(tmp_path: Path) -> None:
    flags = ["--dev", "--temporary", "--port", "0", "--metrics-port", "0"]
    with subprocess.Popen(
        [sys.executable, "-m", "cosmodrome_server", "serve", *flags],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as broker:
        assert broker.stdout is not None
        assert broker.stdout.readline().startswith("ready: ")
        assert [path.name[:11] for path in tmp_path.iterdir()] == ["cosmodrome-"]
        broker.terminate()
    assert broker.returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_data_and_temporary_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        serve_from(["--temporary", "--data", "here"])
    assert "not allowed with" in capsys.readouterr().err
