"""Every scenario of the catalogue with every official client, each a test.

The short ones belong to the default suite; all of them run by `make conformance`, which also
writes docs/conformance.md.
"""

from typing import Any

import pytest

from tests.conformance import scenarios
from tests.conformance.bench import CATALOGUE, Scenario
from tests.conformance.laboratory import Result
from tests.conformance.languages import LANGUAGES, Language

assert scenarios.__all__  # importing it has filled the catalogue

CELLS = [
    pytest.param(
        scenario,
        language,
        id=f"{scenario.ident}-{language.name}",
        marks=() if scenario.is_short else pytest.mark.slow,
    )
    for scenario in CATALOGUE
    for language in LANGUAGES
    if scenario.needs <= language.features
]


@pytest.mark.parametrize(("scenario", "language"), CELLS)
def test_an_official_client_cannot_tell(
    scenario: Scenario, language: Language, laboratory: Any
) -> None:
    outcome = laboratory.outcome(scenario.ident, language.name)
    if outcome.result in {Result.MISSING, Result.INAPPLICABLE}:
        pytest.skip(outcome.remark)
    if outcome.result is Result.FAILED:
        pytest.fail(f"{scenario.ident} {scenario.title}, {language.title}:\n{outcome.remark}")
