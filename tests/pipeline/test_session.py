"""Which Python Spark starts for our code; everything else of a session is seen by its jobs."""

import sys
from pathlib import Path

import pytest

from cosmodrome_spark.session import build_session, foreign_python

VARIABLES = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The path's `python3` is another environment's."""
    python = tmp_path / "python3"
    python.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return str(python)


def test_without_a_variable_workers_run_what_the_path_says(
    other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert foreign_python("local[2]") == other
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert foreign_python("local[2]") is None


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_goes_before_the_path(
    name: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, sys.executable)
    assert foreign_python("local[2]") is None
    monkeypatch.setenv(name, "/nowhere/python3")
    assert foreign_python("local[2]") == "/nowhere/python3"


@pytest.mark.usefixtures("other")
def test_nothing_is_said_of_the_machines_of_a_cluster() -> None:
    assert foreign_python("spark://host:7077") is None


@pytest.mark.usefixtures("spark")  # which build_session then takes
def test_nothing_is_said_of_a_python_that_was_made_to_lead_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "/launchers/python")

    build_session(python="/launchers/python")
    with pytest.warns(RuntimeWarning, match="/launchers/python"):
        build_session()
