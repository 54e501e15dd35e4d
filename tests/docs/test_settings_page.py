"""docs/settings.md has every setting, once, with the default it has."""

import re
from pathlib import Path

import msgspec

from cosmodrome_server.cli.toml import literal
from cosmodrome_server.config import AREAS

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
ROW = re.compile(r"^\| `([a-z_]+\.[a-z_]+)` \| (?:`(.+?)`|(unset)) \| (.+) \|$", re.MULTILINE)


def test_the_page_has_each_setting_with_its_default() -> None:
    told = [(name, value or unset) for name, value, unset, _ in ROW.findall(PAGE.read_text())]
    defaults = {
        f"{area}.{name}": "unset" if value is None else _as_told(value)
        for area, kind in AREAS.items()
        for name, value in msgspec.to_builtins(kind()).items()
    }
    assert dict(told) == defaults
    assert len(told) == len(defaults)


def _as_told(value: object) -> str:
    return "{}" if value == {} else literal(value)
