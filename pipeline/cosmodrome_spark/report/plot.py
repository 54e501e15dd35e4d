"""Line and bar plots as SVG text: a few dozen lines instead of a plotting library."""

import html
from collections.abc import Mapping, Sequence

WIDTH, HEIGHT = 860, 260
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 14, 40
COLORS = ("#2f6fde", "#d9622b", "#2c9a63", "#a347ba", "#b58900", "#5b6b7b")
TICKS = 4


def lines(series: Mapping[str, Sequence[tuple[float, float]]], *, unit: str, x: str) -> str:
    """Lines over a common x axis that begins at its lowest value.

    Args:
        series: Name → (x, y) points, ascending in x.
        unit: Of y, written at the axis.
        x: What x is.
    """
    points = [point for each in series.values() for point in each]
    if not points:
        return "<p class=note>nothing to plot</p>"
    low, high = min(p[0] for p in points), max(p[0] for p in points)
    top = max(p[1] for p in points) or 1.0

    def place(point: tuple[float, float]) -> str:
        across = (point[0] - low) / ((high - low) or 1)
        return f"{_x(across):.1f},{_y(point[1] / top):.1f}"

    drawn = [
        f'<polyline fill="none" stroke="{COLORS[n % len(COLORS)]}" stroke-width="2" '
        f'points="{" ".join(map(place, each))}"/>'
        for n, each in enumerate(series.values())
    ]
    return _frame("".join(drawn), top, unit, x, list(series))


def bars(values: Mapping[str, float], *, unit: str) -> str:
    """One bar for each name, in the given order."""
    if not values:
        return "<p class=note>nothing to plot</p>"
    top = max(values.values()) or 1.0
    step = (WIDTH - LEFT - RIGHT) / len(values)
    drawn = []
    for n, (name, value) in enumerate(values.items()):
        begin, level = LEFT + n * step + step * 0.15, _y(value / top)
        drawn.append(
            f'<rect x="{begin:.1f}" y="{level:.1f}" width="{step * 0.7:.1f}" '
            f'height="{HEIGHT - BOTTOM - level:.1f}" fill="{COLORS[0]}">'
            f"<title>{html.escape(name)}: {value:,.0f} {html.escape(unit)}</title></rect>"
            f'<text x="{begin + step * 0.35:.1f}" y="{HEIGHT - BOTTOM + 16}" '
            f'text-anchor="middle">{html.escape(name[: max(4, int(step / 7))])}</text>'
        )
    return _frame("".join(drawn), top, unit, "", [])


def _frame(drawn: str, top: float, unit: str, x: str, names: list[str]) -> str:
    grid = []
    for tick in range(TICKS + 1):
        level = _y(tick / TICKS)
        grid.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{level:.1f}" y2="{level:.1f}" '
            f'stroke="#8886" stroke-width="1"/><text x="{LEFT - 8}" y="{level + 4:.1f}" '
            f'text-anchor="end">{_short(top * tick / TICKS)}</text>'
        )
    legend = "".join(
        f'<tspan fill="{COLORS[n % len(COLORS)]}" dx="14">{html.escape(name)}</tspan>'
        for n, name in enumerate(names)
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" font-size="11" fill="currentColor">'
        f'{"".join(grid)}{drawn}<text x="{LEFT}" y="{HEIGHT - 6}">{html.escape(unit)}'
        f"{legend}</text>"
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">{html.escape(x)}</text>'
        "</svg>"
    )


def _x(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _y(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _short(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"
