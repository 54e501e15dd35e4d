"""Runs chosen cells and prints each as it ends.

    python -m tests.conformance.run E-1 R- --client go

For looking into one difference at a time; the environment names the server as in broker.py. A
scenario is chosen by its number or the beginning of one, all short ones by `short`.
"""

import argparse
import asyncio
import os
import sys
from pathlib import Path

from tests.conformance import scenarios
from tests.conformance.bench import CATALOGUE, Scenario
from tests.conformance.laboratory import Cell, Laboratory, Outcome, Result
from tests.conformance.languages import LANGUAGES, Language
from tests.conformance.report import raw

assert scenarios.__all__  # importing it has filled the catalogue


def main() -> int:
    parser = argparse.ArgumentParser(description="Run cells of the catalogue.")
    parser.add_argument("scenarios", nargs="*", help="numbers or their beginnings, or short")
    parser.add_argument("--client", action="append", help="python, node, java, go, rust")
    parser.add_argument("--strict", action="store_true", help="against a server of ours that is")
    parser.add_argument("--out", type=Path, help="write the outcomes as JSON")
    chosen = parser.parse_args()
    cells = [
        (scenario, language)
        for scenario in CATALOGUE
        for language in LANGUAGES
        if scenario.needs <= language.features
        and (not chosen.client or language.name in chosen.client)
        and _is_chosen(scenario, chosen.scenarios)
    ]
    outcomes = asyncio.run(_run(cells, is_strict=chosen.strict))
    if chosen.out:
        chosen.out.write_text(raw(outcomes))
    failed = [cell for cell, outcome in outcomes.items() if outcome.result is Result.FAILED]
    print(f"{len(outcomes) - len(failed)} of {len(outcomes)} as they should be")
    return 1 if failed else 0


def _is_chosen(scenario: Scenario, wanted: list[str]) -> bool:
    beginnings = tuple(each for each in wanted if each != "short")
    return (
        not wanted
        or scenario.ident.startswith(beginnings)
        or (scenario.is_short and "short" in wanted)
    )


async def _run(cells: list[tuple[Scenario, Language]], *, is_strict: bool) -> dict[Cell, Outcome]:
    laboratory = Laboratory(cells, _say, is_strict=is_strict)
    await laboratory.run()
    return laboratory.outcomes()


def _say(cell: Cell, outcome: Outcome) -> None:
    ident, language = cell
    remark = outcome.remark if os.environ.get("VERBOSE") else outcome.remark[:600]
    print(f"{outcome.result.value:8} {ident:8} {language:7} {outcome.seconds:6.1f} s  {remark}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
