"""docs/sdk/rows.md names a test for every row, and the tests it names exist."""

import ast
import re
from pathlib import Path

from tests.conformance import scenarios
from tests.conformance.bench import CATALOGUE

assert scenarios.__all__  # importing it has filled the catalogue

TESTS = Path(__file__).parent.parent
PAGE = TESTS.parent / "docs" / "sdk" / "rows.md"
# The numbers of the study; gaps are its own.
BEHAVIOUR = [
    *(f"5-{n:02}" for n in range(1, 26)),
    *(f"4-{n:02}" for n in range(1, 14)),
    *(f"4-{n}" for n in range(20, 28)),
    *(f"4-{n}" for n in range(30, 41)),
    *(f"4-{n}" for n in range(50, 57)),
    *(f"4-{n}" for n in range(60, 69)),
    *(f"4-{n}" for n in range(70, 78)),
]
LAST = {
    "G": 1,
    "PC": 10,
    "SC": 12,
    "PR": 14,
    "M": 6,
    "B": 3,
    "K": 5,
    "T": 5,
    "U": 10,
    "S": 10,
    "N": 2,
    "D": 4,
    "O": 1,
    "X": 5,
    "C": 2,
    "R": 5,
    "F": 13,
    "Q": 7,
    "A": 18,
    "RO": 2,
}


def rows() -> dict[str, list[str]]:
    """Row → tests, as the page has them."""
    cells = [line.split("|")[1:-1] for line in PAGE.read_text().splitlines() if line[:2] == "| "]
    named = [(row[0].strip(), re.findall(r"`(test_\w+)`", row[-1])) for row in cells]
    return {row: tests for row, tests in named if row not in ("row", "what")}


def existing() -> set[str]:
    found: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        tree = ast.parse(path.read_text())
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        found |= {node.name for node in ast.walk(tree) if isinstance(node, functions)}
    return found


def scenarios_of_catalogue() -> set[str]:
    """Rows that are scenarios; one may stand for several, as "PC-7/8" does."""
    found: set[str] = set()
    for scenario in CATALOGUE:
        kind, _, numbers = scenario.ident.partition("-")
        found |= {f"{kind}-{number}" for number in numbers.split("/")}
    return found


def test_every_row_of_behaviour_is_on_the_page_in_order() -> None:
    assert [row for row in rows() if re.fullmatch(r"[45]-\d\d", row)] == sorted(
        BEHAVIOUR, key=lambda row: (-int(row[0]), row)
    )


def test_every_row_of_the_catalogue_is_a_scenario_or_on_the_page() -> None:
    wanted = {f"{kind}-{number}" for kind, last in LAST.items() for number in range(1, last + 1)}
    assert wanted <= scenarios_of_catalogue() | rows().keys()


def test_the_tests_that_the_page_names_exist() -> None:
    there = existing()
    for row, tests in rows().items():
        assert tests, f"{row} names no test"
        assert set(tests) <= there, row
