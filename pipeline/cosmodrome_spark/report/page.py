"""A page of sections; each a title, a sentence, and plots or tables. Plain strings of HTML."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;
color:#1c2733}
h1{font-size:1.6rem}h2{font-size:1.15rem;margin-top:2.2rem}p.note{color:#5b6b7b}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #e3e8ee}
td.n,th.n{text-align:right}svg{width:100%;height:auto}
@media(prefers-color-scheme:dark){body{background:#10161d;color:#dbe4ee}
th,td{border-color:#2a3644}p.note{color:#93a4b5}}
"""


@dataclass(frozen=True, slots=True)
class Section:
    """One part of a page; `content` is HTML."""

    title: str
    note: str
    content: str


def page(title: str, note: str, sections: Sequence[Section]) -> str:
    """The whole page."""
    parts = [
        f"<h2>{html.escape(each.title)}</h2><p class=note>{html.escape(each.note)}</p>"
        f"{each.content}"
        for each in sections
    ]
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width'>"
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style>"
        f"<h1>{html.escape(title)}</h1><p class=note>{html.escape(note)}</p>"
        f"{''.join(parts)}</html>"
    )


def table(rows: Sequence[Mapping[str, object]], columns: Sequence[str] | None = None) -> str:
    """Rows as a table; numbers to the right."""
    if not rows:
        return "<p class=note>nothing</p>"
    names = list(columns or rows[0])
    numeric = {name for name in names if isinstance(rows[0].get(name), int | float)}
    head = "".join(_cell("th", name, is_number=name in numeric) for name in names)
    body = "".join(
        "<tr>"
        + "".join(_cell("td", _text(row.get(name)), is_number=name in numeric) for name in names)
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def write(path: str, content: str) -> None:
    """Write a page, folders included."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(content)


def _cell(tag: str, text: str, *, is_number: bool) -> str:
    return f"<{tag}{' class=n' if is_number else ''}>{html.escape(text)}</{tag}>"


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return ", ".join(_text(each) for each in value)
    return "" if value is None else str(value)
