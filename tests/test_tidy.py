"""Rules about the source that no linter knows (docs/contributing.md gives the reasons)."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("server/cosmodrome_server", "sdk/cosmodrome", "pipeline/cosmodrome_spark")
SOURCES = sorted(
    path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if path.is_file()
)
TESTS = sorted((ROOT / "tests").rglob("*.py"))
OTHERS = sorted(
    path for folder in ("benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")
)
FILE_LINES_MAX = 500
TEST_FILE_LINES_MAX = 800
FUNCTION_LINES_MAX = 60
PARAMETERS_MAX = 6
# What silences a linter: its codes, then a reason behind `#` or ` - `.
SILENCED = re.compile(r"# (?:noqa|type: ignore|pyright: ignore|pragma)\b")
SILENCED_WITH_REASON = re.compile(
    r"# (?:noqa: [A-Z0-9, ]+|(?:type|pyright): ignore\[[\w, -]+\])(?: +# ?| - )\w"
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST) -> Iterator[Function]:
    for node in ast.walk(tree):
        if isinstance(node, Function):
            yield node


def lines_of_logic(function: Function) -> int:
    """Lines from the first statement after the docstring to the end."""
    body = function.body
    if ast.get_docstring(function) is not None:
        body = body[1:]
    if not body:
        return 0
    last = body[-1].end_lineno
    assert last is not None
    return last - body[0].lineno + 1


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_source_file_is_small_and_says_what_it_is_for(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert text.count("\n") <= FILE_LINES_MAX
    assert [f.name for f in functions(tree) if lines_of_logic(f) > FUNCTION_LINES_MAX] == []
    if text.strip():
        assert ast.get_docstring(tree), "a module starts by saying what it is for"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_public_names_of_a_module_are_documented(path: Path) -> None:
    missing = [
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, Function | ast.ClassDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    ]
    assert missing == []


@pytest.mark.parametrize("path", TESTS, ids=name_of)
def test_a_test_file_is_small(path: Path) -> None:
    assert path.read_text().count("\n") <= TEST_FILE_LINES_MAX


@pytest.mark.parametrize("path", TESTS, ids=name_of)
def test_tests_use_no_mocks(path: Path) -> None:
    imported = {
        alias.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert not imported & {"mock", "unittest.mock", "MagicMock"}


@pytest.mark.parametrize("path", [*SOURCES, *TESTS, *OTHERS], ids=name_of)
def test_who_silences_a_linter_says_why(path: Path) -> None:
    lines = path.read_text().splitlines()
    silenced = [line for line in lines if SILENCED.search(line)]
    assert [line for line in silenced if not SILENCED_WITH_REASON.search(line)] == []


def is_sleep(node: ast.AST) -> bool:
    """A call of `sleep` that takes time; `sleep(0)` only lets others run."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    return node.func.attr == "sleep" and [ast.unparse(each) for each in node.args] != ["0"]


def is_search(node: ast.AST) -> bool:
    """A bounded loop that ends when it finds what it looks for."""
    if not isinstance(node, ast.For | ast.AsyncFor):
        return False
    return any(isinstance(each, ast.Return | ast.Break) for each in ast.walk(node))


@pytest.mark.parametrize("path", TESTS, ids=name_of)
def test_a_test_sleeps_only_while_it_looks_or_says_why(path: Path) -> None:
    text = path.read_text()
    tree, lines = ast.parse(text), text.splitlines()
    looking = {
        call
        for loop in ast.walk(tree)
        if isinstance(loop, ast.While) or is_search(loop)
        for call in ast.walk(loop)
        if is_sleep(call)
    }
    unexplained = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and is_sleep(node) and node not in looking
        if "  # " not in lines[node.lineno - 1]
        if not lines[node.lineno - 2].lstrip().startswith("#")
    ]
    assert unexplained == []
