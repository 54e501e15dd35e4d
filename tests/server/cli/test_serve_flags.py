"""`cosmodrome config`: what flags and files come to, without starting anything."""

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
