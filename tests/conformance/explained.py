"""What docs/wire.md explains: the names of cases in its italics, as patterns.

A name that begins with a dot or a hyphen continues the one before it on the page, `*` stands
for anything: `*send.batch.3*, *.fifo-\\**` are send.batch.3 and whatever begins send.batch.fifo-.
"""

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parent.parent.parent / "docs" / "wire.md"
# Italics of a page that has no other use for them: a case has a dot or continues one that has.
_ITALIC = re.compile(r"(?<!\*)\*((?:[^*\s\\]|\\\*)+)\*(?!\*)")


@dataclass(frozen=True)
class Explanation:
    """A pattern of names and the section that explains them."""

    pattern: str
    section: str

    def covers(self, case: str) -> bool:
        """Whether a case is explained by it."""
        return fnmatch.fnmatchcase(case, self.pattern)


def explanations(page: str) -> list[Explanation]:
    """Every pattern of the page, in its order."""
    found: list[Explanation] = []
    section, last = "", ""
    for line in page.splitlines():
        if line.startswith("#"):
            section = line.lstrip("# ")
        for name in _ITALIC.findall(line):
            full = _full(name.replace("\\*", "*"), last)
            if full:
                found.append(Explanation(full, section))
                last = full
    return found


def _full(name: str, last: str) -> str:
    """A name as it would be written alone; "" for italics that name no case."""
    if name[0] in ".-":
        return last.rpartition(name[0])[0] + name
    return name if "." in name else ""


def section_of(case: str, known: Iterable[Explanation]) -> str:
    """The section that explains a case; "" for none."""
    return next((one.section for one in known if one.covers(case)), "")
