"""Modules that are loaded when they are used: nobody can tell them from others but by the time."""

import importlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from cosmodrome_server.later import missing, put_off

# Says that it runs, by a list that the test holds.
BODY = """
import later_log
later_log.runs.append(__name__)
value = 1
def answer(): return value
"""


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A package with modules to put off; the names of those that were run."""
    package = tmp_path / "later_package"
    package.mkdir()
    for path in (package / "__init__.py", package / "part.py", tmp_path / "later_one.py"):
        path.write_text(BODY)
    (tmp_path / "later_two.py").write_text(BODY + "import later_one\nseen = later_one.value\n")
    (tmp_path / "later_unlucky.py").write_text(BODY + "if len(later_log.runs) == 1: 1 / 0\n")
    log = ModuleType("later_log")
    found: list[str] = []
    log.runs = found  # type: ignore[attr-defined]  # a module of this test
    monkeypatch.setitem(sys.modules, "later_log", log)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield found
    for name in [name for name in sys.modules if name.startswith("later_")]:
        del sys.modules[name]


def test_a_module_is_run_at_its_first_use_and_once(runs: list[str]) -> None:
    put_off(["later_one"])
    first = importlib.import_module("later_one")
    again = importlib.import_module("later_one")
    assert runs == []
    assert first.answer() == 1
    assert again is first
    assert sys.modules["later_one"] is first
    assert (runs, type(first)) == (["later_one"], ModuleType)
    assert first.__spec__ is not None
    assert first.__loader__ is first.__spec__.loader
    importlib.reload(first)
    assert runs == ["later_one", "later_one"]


def test_what_is_set_and_what_is_missing_are_as_in_any_module(runs: list[str]) -> None:
    put_off(["later_one"])
    module = importlib.import_module("later_one")
    assert not hasattr(module, "absent")
    module.value = 2  # type: ignore[attr-defined]  # a module of this test
    assert module.answer() == 2
    assert runs == ["later_one"]


def test_a_value_set_before_the_first_use_stays(runs: list[str]) -> None:
    put_off(["later_one"])
    module = importlib.import_module("later_one")
    module.value = 2  # type: ignore[attr-defined]  # a module of this test
    assert module.answer() == 2
    assert runs == ["later_one"]


def test_a_part_of_a_package_is_put_off_alone(runs: list[str]) -> None:
    put_off(["later_package.part"])
    package = importlib.import_module("later_package")
    importlib.import_module("later_package.part")
    assert runs == ["later_package"]
    assert package.part.answer() == 1
    assert runs == ["later_package", "later_package.part"]


def test_one_that_is_put_off_uses_another_while_it_is_loaded(runs: list[str]) -> None:
    put_off(["later_one", "later_two"])
    assert importlib.import_module("later_two").seen == 1
    assert runs == ["later_two", "later_one"]


def test_others_are_imported_as_always(runs: list[str]) -> None:
    put_off(["later_two"])
    importlib.import_module("later_one")
    assert runs == ["later_one"]


def test_a_module_that_fails_is_run_again_at_the_next_use(runs: list[str]) -> None:
    put_off(["later_unlucky"])
    module = importlib.import_module("later_unlucky")
    with pytest.raises(ZeroDivisionError):
        module.answer()
    assert module.answer() == 1
    assert runs == ["later_unlucky", "later_unlucky"]


def test_threads_that_come_at_once_all_find_it_loaded(runs: list[str]) -> None:
    put_off(["later_one"])
    module = importlib.import_module("later_one")
    together = threading.Barrier(8)
    answers: list[int] = []

    def ask() -> None:
        together.wait()
        answers.append(module.answer())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (answers, runs) == ([1] * 8, ["later_one"])


def test_a_module_is_missing_for_as_long_as_said(runs: list[str]) -> None:
    with missing("later_one"), pytest.raises(ModuleNotFoundError):
        importlib.import_module("later_one")
    known = importlib.import_module("later_one")
    with missing("later_one"):
        assert importlib.import_module("later_one") is known, "it is in use already"
    assert runs == ["later_one"]
