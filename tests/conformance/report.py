"""Writes docs/conformance.md: the catalogue, numbered, with what each official client saw.

The tables are those of the gate; a run with COSMODROME_TEST_FRONT=grpcio writes its line of the
section on fronts alone, and a run on the gate keeps that line as it is.
"""

import json
import os
from pathlib import Path

from tests.conformance.bench import CATALOGUE, Scenario
from tests.conformance.laboratory import Laboratory, Outcome, Result
from tests.conformance.languages import ABSENT, LANGUAGES, Language

ROOT = Path(__file__).parent.parent.parent
GATE = "gate"
FRONTS_HEAD = "## Fronts"
PAGE = ROOT / "docs" / "conformance.md"
SECTIONS = {
    "startup": "Client start-up (6.1)",
    "limits": "Message limits (6.2)",
    "delivery": "Delivery (6.3)",
    "ordered": "Delivery in order (6.3)",
    "failures": "Failures and dead letters (6.3, 6.5)",
    "filters": "Filters (6.4)",
    "simple": "Simple consumer (6.5)",
    "extras": "Beyond the catalogue",
    "operations": "Operations: TLS, credentials, restart, drain",
}
MARKS = {
    Result.PASSED: "✔",
    Result.LACKING: "–",
    Result.INAPPLICABLE: "–",
    Result.EXCUSED: "(✔)",
    Result.MISSING: "?",
    Result.FAILED: "✘",
}
Outcomes = dict[tuple[str, str], Outcome]


def write_if_complete(laboratory: Laboratory) -> None:
    """Write the page when all of the catalogue ran, and the raw outcomes in any case.

    COSMODROME_CONFORMANCE_OUT names the file for the raw outcomes, for comparing two servers.
    """
    outcomes = laboratory.outcomes()
    out = os.environ.get("COSMODROME_CONFORMANCE_OUT")
    if out:
        Path(out).write_text(raw(outcomes))
    wanted = {
        (scenario.ident, language.name)
        for scenario in CATALOGUE
        for language in LANGUAGES
        if scenario.needs <= language.features
    }
    if wanted <= outcomes.keys() and "COSMODROME_TEST_ENDPOINT" not in os.environ:
        write(os.environ.get("COSMODROME_TEST_FRONT", GATE), outcomes, laboratory.versions)


def write(front: str, outcomes: Outcomes, versions: dict[str, str]) -> None:
    """Write what a whole run on a front says."""
    known = _front_lines(PAGE.read_text()) if PAGE.exists() else {}
    known[front] = front_line(front, outcomes)
    if front == GATE:
        PAGE.write_text(page(outcomes, versions, known))
    else:
        PAGE.write_text(with_fronts(PAGE.read_text(), known))


def front_line(front: str, outcomes: Outcomes) -> str:
    """The row of a front: how many cells of each client came out how."""
    cells = []
    for language in LANGUAGES:
        results = [_outcome(outcomes, scenario, language).result for scenario in CATALOGUE]
        marks = [MARKS[result] for result in results]
        told = [f"{mark} {marks.count(mark)}" for mark in ("✔", "(✔)", "✘", "?") if mark in marks]
        cells.append(" · ".join(told))
    return f"| {front} | {' | '.join(cells)} |"


def _front_lines(text: str) -> dict[str, str]:
    section = text.partition(FRONTS_HEAD)[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    return {row.split(" | ")[0].removeprefix("| "): row for row in rows}


def _fronts_section(lines: dict[str, str]) -> str:
    head = " | ".join(language.title for language in LANGUAGES)
    rows = [f"| front | {head} |", "|---|" + "---|" * len(LANGUAGES)]
    rows += [lines[front] for front in sorted(lines)]
    told = "The catalogue on both fronts; the tables below are the gate's."
    return "\n".join((FRONTS_HEAD, "", told, "", *rows))


def with_fronts(text: str, lines: dict[str, str]) -> str:
    """The page with these rows in its section on fronts."""
    before, _, rest = text.partition(FRONTS_HEAD)
    if not rest:
        before, _, rest = text.partition("\n## ")
        before, rest = before + "\n", "\n## " + rest
    after = rest.partition("\n## ")[2]
    return f"{before}{_fronts_section(lines)}\n\n## {after}"


def raw(outcomes: Outcomes) -> str:
    """The outcomes as JSON: scenario, client, [result, remark, seconds]."""
    told: dict[str, dict[str, list[object]]] = {}
    for (ident, language), outcome in sorted(outcomes.items()):
        cell: list[object] = [outcome.result.value, outcome.remark, round(outcome.seconds, 1)]
        told.setdefault(ident, {})[language] = cell
    return json.dumps(told, indent=1, ensure_ascii=False) + "\n"


def page(outcomes: Outcomes, versions: dict[str, str], fronts: dict[str, str]) -> str:
    """The page as text. Remarks that every run would word otherwise (seconds) are left out."""
    lines = [
        "# Conformance",
        "",
        "Written by `make conformance`; not by hand. Every official client runs in a process of its"
        " own, with its",
        "default settings, against one `cosmodrome serve`. The numbers are those of the end-to-end"
        " suite of the Java client",
        "where it has the case; E-n are ours. The SDK runs all of it again, against a server in",
        "strict mode (wire.md): the same cells pass.",
        "",
        "| client | package | version |",
        "|---|---|---|",
    ]
    for language in LANGUAGES:
        version = versions.get(language.name, "not run")
        lines.append(f"| {language.title} | {language.package} | {version} |")
    lines += [f"| {name} | – | {reason} |" for name, reason in ABSENT.items()]
    lines += ["", *_summary(outcomes), "", _fronts_section(fronts), ""]
    for section, title in SECTIONS.items():
        lines += _table(title, [s for s in CATALOGUE if s.section == section], outcomes)
    lines += _reasons(outcomes)
    return "\n".join(lines) + "\n"


def _summary(outcomes: Outcomes) -> list[str]:
    counts = dict.fromkeys(("✔", "(✔)", "–", "✘", "?"), 0)
    for scenario in CATALOGUE:
        for language in LANGUAGES:
            counts[MARKS[_outcome(outcomes, scenario, language).result]] += 1
    return [
        f"✔ {counts['✔']} as it should be · (✔) {counts['(✔)']} the client's own difference,"
        f" explained below · – {counts['–']} not in this client",
        f"· ✘ {counts['✘']} failed · ? {counts['?']} not run, its tools are missing",
    ]


def _outcome(outcomes: Outcomes, scenario: Scenario, language: Language) -> Outcome:
    if not scenario.needs <= language.features:
        return Outcome(Result.LACKING)
    return outcomes[scenario.ident, language.name]


def _table(title: str, scenarios: list[Scenario], outcomes: Outcomes) -> list[str]:
    head = " | ".join(language.title for language in LANGUAGES)
    lines = [f"## {title}", "", f"| # | case | {head} |", "|---|---|" + "---|" * len(LANGUAGES)]
    for scenario in scenarios:
        cells = [MARKS[_outcome(outcomes, scenario, each).result] for each in LANGUAGES]
        case = scenario.title.replace("|", "\\|")
        lines.append(f"| {scenario.ident} | {case} | {' | '.join(cells)} |")
    return [*lines, ""]


def _reasons(outcomes: Outcomes) -> list[str]:
    told = [
        (scenario, language, _outcome(outcomes, scenario, language))
        for scenario in CATALOGUE
        for language in LANGUAGES
    ]
    shown = {Result.EXCUSED, Result.FAILED, Result.INAPPLICABLE, Result.MISSING}
    lines = [
        f"- {scenario.ident}, {language.title} {MARKS[outcome.result]}: "
        + outcome.remark.split("\n")[0]
        for scenario, language, outcome in told
        if outcome.result in shown
    ]
    return ["## Reasons", "", *lines] if lines else []
