"""dlq-report: what lies in a group's dead letters, and why."""

import json
import sys
from dataclasses import dataclass

from cosmodrome_spark.errors import InvalidJobConfig
from cosmodrome_spark.jobs.read import read_batch
from cosmodrome_spark.jobs.run import JobContext
from cosmodrome_spark.report.page import Section, page, table, write
from cosmodrome_spark.report.plot import bars


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """Options of dlq-report.

    Attributes:
        group: Whose dead letters.
        top: How many kinds to show.
        samples: How many message ids of each.
        html: Also write a page there.
        format: `table` for people, `json` for machines.
    """

    group: str
    top: int = 20
    samples: int = 3
    html: str = ""
    format: str = "table"


def run(context: JobContext) -> int:
    """Report; return the exit code."""
    from cosmodrome_spark.transforms import dead_letters  # noqa: PLC0415  # needs Spark

    options = context.config.options(ReportOptions)
    if options.format not in {"table", "json"}:
        raise InvalidJobConfig(f"job.format = {options.format!r}: expected table or json")
    letters = read_batch(context, subscribe=f"%DLQ%{options.group}")
    found = dead_letters.report(letters, samples=options.samples).limit(options.top)
    rows = [row.asDict() for row in found.collect()]
    sys.stdout.write(_json(rows) if options.format == "json" else _text(rows))
    if options.html:
        write(options.html, report_page(options.group, rows))
    return 0


def report_page(group: str, rows: list[dict[str, object]]) -> str:
    """The page: how many of which origin, and a table of reasons."""
    by_origin: dict[str, float] = {}
    for row in rows:
        name = str(row["origin"] or "unknown")
        by_origin[name] = by_origin.get(name, 0) + int(str(row["messages"]))
    return page(
        f"Dead letters of {group}",
        f"{sum(by_origin.values()):,.0f} messages of {len(by_origin)} topics",
        [
            Section(
                "By origin", "the topic a letter was sent to", bars(by_origin, unit="messages")
            ),
            Section("By reason", "the most frequent first", table(rows)),
        ],
    )


def _json(rows: list[dict[str, object]]) -> str:
    return "".join(json.dumps(row, default=str) + "\n" for row in rows)


def _text(rows: list[dict[str, object]]) -> str:
    if not rows:
        return "no dead letters\n"
    lines = [f"{'messages':>9}  {'origin':<24} {'reason':<40} samples"]
    for row in rows:
        samples = ", ".join(map(str, row["samples"]))  # type: ignore[call-overload]  # a list
        reason = str(row["reason"])[:40]
        lines.append(f"{row['messages']:>9}  {row['origin']!s:<24} {reason:<40} {samples}")
    return "\n".join(lines) + "\n"
