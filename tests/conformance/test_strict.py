"""The catalogue with our SDK against `cosmodrome serve --strict`: it needs nothing that is ours.

What strict mode does without is a table of docs/wire.md. Short scenarios belong to the default
suite; all of them run by `make conformance`.
"""

from typing import Any

import pytest

from tests.conformance import scenarios
from tests.conformance.bench import CATALOGUE, Scenario
from tests.conformance.laboratory import Result
from tests.conformance.languages import SDK

assert scenarios.__all__  # importing it has filled the catalogue

CELLS = [
    pytest.param(scenario, id=scenario.ident, marks=() if scenario.is_short else pytest.mark.slow)
    for scenario in CATALOGUE
    if scenario.needs <= SDK.features
]


@pytest.mark.parametrize("strict_scenario", CELLS)
def test_the_sdk_needs_nothing_that_is_ours(
    strict_scenario: Scenario, strict_laboratory: Any
) -> None:
    outcome = strict_laboratory.outcome(strict_scenario.ident, SDK.name)
    if outcome.result is Result.INAPPLICABLE:
        pytest.skip(outcome.remark)
    if outcome.result is Result.FAILED:
        pytest.fail(f"{strict_scenario.ident} {strict_scenario.title}:\n{outcome.remark}")
