"""Bar charts with whiskers as SVG, small enough to review as text; any browser draws them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from benchmarks.figures import Spread
from benchmarks.table import number

WIDTH, LABELS, NUMBERS = 760, 200, 70
ROW, TOP, BOTTOM = 26, 34, 30
_INK, _SOFT, _GRID = "#24292f", "#57606a", "#d8dee4"
_OURS, _OTHERS = "#bf5b04", "#8c959f"


@dataclass(frozen=True, slots=True)
class Bar:
    """The bar of one arm."""

    label: str
    spread: Spread
    is_ours: bool


def chart(title: str, unit: str, bars: Sequence[Bar]) -> str:
    """Return the SVG: a bar for each summary, a whisker from least to most, then the number."""
    height = TOP + ROW * len(bars) + BOTTOM
    most = max((bar.spread.most for bar in bars), default=0.0)
    end = most or 1.0
    body = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(12, 20, f"{title}, {unit}", bold=True),
        *_axis(end, height),
    ]
    for index, bar in enumerate(bars):
        body += _bar(bar, TOP + ROW * index, end)
    return "\n".join([*body, "</svg>", ""])


def scale(most: float) -> float:
    """Return the distance of the axis's ticks: 1, 2 or 5 times a power of ten, at most five."""
    if most <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(most / 5))
    return next(power * digit for digit in (1, 2, 5, 10) if most <= 5 * power * digit)


def _axis(end: float, height: int) -> Iterator[str]:
    step = scale(end)
    for tick in range(math.floor(end / step + 1e-9) + 1):
        x, low = _x(tick * step, end), height - BOTTOM
        yield f'<line x1="{x:.1f}" y1="{TOP - 4}" x2="{x:.1f}" y2="{low}" stroke="{_GRID}"/>'
        yield _text(x, low + 16, f"{tick * step:g}", anchor="middle", ink=_SOFT)


def _bar(bar: Bar, top: float, end: float) -> Iterator[str]:
    middle, left = top + ROW / 2 - 2, _x(0, end)
    value, least, most = (
        _x(max(0.0, one), end) for one in (bar.spread.summary, bar.spread.least, bar.spread.most)
    )
    fill = _OURS if bar.is_ours else _OTHERS
    yield _text(LABELS - 8, middle + 4, bar.label, anchor="end", bold=bar.is_ours)
    yield (
        f'<rect x="{left:.1f}" y="{middle - 8:.1f}" width="{max(1.0, value - left):.1f}" '
        f'height="16" fill="{fill}" fill-opacity="0.85"/>'
    )
    for x1, x2, half in ((least, most, 0.0), (least, least, 4.0), (most, most, 4.0)):
        yield (
            f'<line x1="{x1:.1f}" y1="{middle - half:.1f}" x2="{x2:.1f}" y2="{middle + half:.1f}" '
            f'stroke="{_INK}"/>'
        )
    yield _text(max(value, most) + 8, middle + 4, number(bar.spread.summary))


def _x(value: float, end: float) -> float:
    return LABELS + (WIDTH - LABELS - NUMBERS) * value / end


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", ink: str = _INK, bold: bool = False
) -> str:
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{ink}"{weight}>'
        f"{escape(text)}</text>"
    )
