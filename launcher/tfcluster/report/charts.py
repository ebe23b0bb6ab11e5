"""Line charts as SVG: pure functions from values to text, without a script and without a font.

Colours are CSS variables of the page (``--line-0`` …), which has a light and a dark set; dashes
tell the lines apart without colours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, Literal

from tfcluster.ui.formats import cut_to_columns, format_bytes, format_value
from tfcluster.ui.lines import sanitize_text

Axis = Literal["time", "step", "workers"]
Unit = Literal["number", "rate", "bytes"]
"""A rate and bytes begin at 0 and are never on a logarithmic scale."""

MOST_LINES: Final = 6
"""The lines that can be told apart by colour and dashes."""
DASHES: Final = ("", "", "", "7 3", "2 3", "9 3 2 3")
_WIDTH, _HEIGHT = 560, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 16, 40
_LONGEST_TEXT: Final = 1000
_LOG_FROM: Final = 1000
"""The ratio of the greatest to the least value from which the scale is logarithmic."""
_MOST_MARKS: Final = 60
_MOST_NAMED_RESTARTS: Final = 5
_TIME_STEPS: Final = (
    *(0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800),
    *(3600, 7200, 10800, 21600, 43200, 86400),
)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart."""

    label: str
    points: tuple[tuple[float, float], ...]
    """x and y in the order of time. x goes back where training restarts: a new line begins. y that
    is not finite is a gap with a cross."""
    colour: int = 0
    """The number of its colour and dashes, the same in all charts of a page."""


@dataclass(frozen=True, slots=True)
class Spot:
    """A single value with the range that it may have, such as the quartiles of a measurement."""

    x: float
    y: float
    low: float
    high: float
    text: str
    colour: int = 0
    is_predicted: bool = False
    """True for a ring, which nobody has measured, instead of a dot."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened at `x`: a restart (a vertical line) or a checkpoint (a triangle)."""

    x: float
    kind: Literal["restart", "checkpoint"]
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with a title and everything that is drawn in it."""

    title: str
    lines: tuple[Line, ...]
    axis: Axis
    unit: Unit = "number"
    marks: tuple[Mark, ...] = ()
    spots: tuple[Spot, ...] = ()

    @property
    def summary(self) -> str:
        """The chart in words: each line's first, least, greatest and last value, and each spot."""
        lines = (_describe(line, self.unit) for line in self.lines)
        return "; ".join([*lines, *(spot.text for spot in self.spots)])

    def to_svg(self, ident: str) -> str:
        """Return an ``<svg>`` element; `ident` is unique in its page."""
        scale = _Scale.of(self)
        title, description = _text(self.title), _text(self.summary)
        body = "".join([*_draw_axes(self, scale), *_draw_marks(self, scale)])
        body += "".join(_draw_line(line, scale) for line in self.lines)
        body += "".join(_draw_spot(spot, scale) for spot in self.spots)
        return (
            f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"'
            f' aria-labelledby="{ident}-title {ident}-desc">'
            f'<title id="{ident}-title">{title} over {self.axis}</title>'
            f'<desc id="{ident}-desc">{description}</desc>{body}</svg>'
        )


def format_ticks(values: Sequence[float], unit: Unit) -> list[str]:
    """Return the labels of an axis with as many digits as tell them apart."""
    for digits in (4, 6, 8):
        labels = [_format(value, unit, digits) for value in values]
        if len(set(labels)) == len(labels):
            break
    return labels


def format_time(seconds: float) -> str:
    """Return a time on an axis: ``90 s`` is ``1:30``, two hours are ``2:00:00``."""
    if seconds < 60:
        return f"{seconds:g} s"
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about `count` round numbers from `low` to `high` (1, 2 or 5 times a power of ten)."""
    raw = (high - low) / count
    if not (math.isfinite(raw) and raw > 0):
        return [low]
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
    return _multiples(low, high, step)


def time_ticks(low: float, high: float, count: int = 6) -> list[float]:
    """Return about `count` round times (seconds, minutes, hours, days) from `low` to `high`."""
    raw = (high - low) / count
    if raw > _TIME_STEPS[-1]:
        return [86400 * day for day in ticks(low / 86400, high / 86400, count)]
    return _multiples(low, high, next(step for step in _TIME_STEPS if step >= raw))


def _multiples(low: float, high: float, step: float) -> list[float]:
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, min(last, first + 50) + 1)] or [low]


@dataclass(frozen=True, slots=True)
class _Scale:
    """The range of both axes, and the place of a point in the picture."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float
    is_log: bool

    @classmethod
    def of(cls, chart: Chart) -> _Scale:
        xs = [x for line in chart.lines for x, _ in line.points if math.isfinite(x)]
        xs = [*xs, *(spot.x for spot in chart.spots)] or [0.0]
        ys = [y for line in chart.lines for _, y in line.points]
        ys += [y for spot in chart.spots for y in (spot.low, spot.y, spot.high)]
        ys = list(filter(_is_drawn, ys)) or [0.0, 1.0]
        low, high = min(ys), max(ys)
        is_log = chart.unit == "number" and low > 0 and high / low > _LOG_FROM
        if is_log:
            least, most = float(math.floor(math.log10(low))), float(math.ceil(math.log10(high)))
            return cls(*_widen(min(xs), max(xs)), least, most, True)
        if low >= 0 and (chart.unit != "number" or low < 0.4 * high):
            low = 0.0
        y_low, y_high = _widen(low, high)
        margin = 0.05 * (y_high - y_low)
        y_low = low if low == 0 else y_low - margin
        return cls(*_widen(min(xs), max(xs)), y_low, y_high + margin, False)

    def x(self, value: float) -> float:
        part = (value - self.x_low) / (self.x_high - self.x_low)
        return _LEFT + part * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        value = math.log10(value) if self.is_log else value
        part = (value - self.y_low) / (self.y_high - self.y_low)
        return _HEIGHT - _BOTTOM - part * (_HEIGHT - _TOP - _BOTTOM)

    def y_ticks(self) -> list[float]:
        if not self.is_log:
            return ticks(self.y_low, self.y_high)
        powers = range(int(self.y_low), int(self.y_high) + 1)
        found = (10.0**power for power in powers[:: max(1, len(powers) // 6)])
        return [value for value in found if value]  # the least number is above 1e-324, which is 0


def _is_drawn(y: float) -> bool:
    return math.isfinite(y) and abs(y) < 1e300


def _widen(low: float, high: float) -> tuple[float, float]:
    """Return a range that is not empty."""
    if high - low > 1e-12 * max(abs(low), abs(high)):
        return low, high
    half = abs(low) * 0.1 or 0.5
    return (0.0, 2 * half) if low == 0 else (low - half, high + half)


def _draw_axes(chart: Chart, scale: _Scale) -> Iterator[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    values = scale.y_ticks()
    for value, label in zip(values, format_ticks(values, chart.unit), strict=True):
        y = f"{scale.y(value):.1f}"
        yield f'<path class="grid" d="M{_LEFT} {y}H{right}"/>'
        yield f'<text class="tick end" x="{_LEFT - 6}" y="{y}" dy="4">{_text(label)}</text>'
    is_time = chart.axis == "time"
    found = (time_ticks if is_time else ticks)(scale.x_low, scale.x_high)
    if chart.axis == "workers":
        found = [value for value in found if value.is_integer()]
    labels = [format_time(value) for value in found] if is_time else format_ticks(found, "number")
    for value, label in zip(found, labels, strict=True):
        x = f"{scale.x(value):.1f}"
        yield f'<path class="axis" d="M{x} {bottom}v4"/>'
        yield f'<text class="tick middle" x="{x}" y="{bottom + 16}">{_text(label)}</text>'
    yield f'<path class="axis" d="M{_LEFT} {bottom}H{right}"/>'
    name: str = "time since the start" if is_time else chart.axis
    name += " (logarithmic scale)" if scale.is_log else ""
    yield f'<text class="tick end" x="{right}" y="{_HEIGHT - 6}">{name}</text>'


def _draw_marks(chart: Chart, scale: _Scale) -> Iterator[str]:
    bottom = _HEIGHT - _BOTTOM
    inside = [mark for mark in chart.marks if scale.x_low <= mark.x <= scale.x_high]
    shown = inside[:: 1 + len(inside) // _MOST_MARKS]
    restarts = sum(mark.kind == "restart" for mark in shown)
    for mark in shown:
        x, title = f"{scale.x(mark.x):.1f}", f"<title>{_text(mark.text)}</title>"
        if mark.kind == "checkpoint":
            yield f'<path class="checkpoint" d="M{x} {bottom}l-4 -7h8z">{title}</path>'
            continue
        yield f'<path class="restart" d="M{x} {_TOP}V{bottom}">{title}</path>'
        if restarts <= _MOST_NAMED_RESTARTS:
            name = _text(mark.text.partition(":")[0])
            yield f'<text class="tick middle" x="{x}" y="{_TOP - 4}">{name}</text>'


def _draw_line(line: Line, scale: _Scale) -> str:
    """Return the pieces of a line; a piece of one point is a dot, what is not finite a cross."""
    drawn, dots, colour = "", "", line.colour % MOST_LINES
    for piece in _pieces(line.points):
        (first, *more) = [f"{scale.x(x):.1f} {scale.y(y):.1f}" for x, y in piece]
        drawn += f"M{first}L{' '.join(more)}" if more else ""
        dots += "" if more else f"M{first}h.01"
    crosses = [scale.x(x) for x, y in line.points if not _is_drawn(y) and math.isfinite(x)]
    top, thinned = _TOP + 4, crosses[:: 1 + len(crosses) // _MOST_MARKS]
    cross = "".join(f"M{x - 3:.1f} {top}l6 6m0 -6l-6 6" for x in thinned)
    dashes = f'" stroke-dasharray="{DASHES[colour]}' if DASHES[colour] else ""
    paths = {f"line c{colour}{dashes}": drawn, f"dot c{colour}": dots, f"cross c{colour}": cross}
    title = f"<title>{_text(line.label)}</title>"
    return "".join(f'<path class="{c}" d="{d}">{title}</path>' for c, d in paths.items() if d)


def _draw_spot(spot: Spot, scale: _Scale) -> str:
    """Return a dot or a ring on a bar from the least to the greatest value."""
    low, y, high = (scale.y(value) for value in (spot.low, spot.y, spot.high))
    x, colour = scale.x(spot.x), spot.colour % MOST_LINES
    kind, radius = ("predicted", 3.5) if spot.is_predicted else ("measured", 1.5)
    return (
        f'<g class="{kind} c{colour}"><title>{_text(spot.text)}</title>'
        f'<path d="M{x:.1f} {low:.1f}V{high:.1f}m-4 0h8M{x - 4:.1f} {low:.1f}h8"/>'
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}"/></g>'
    )


def _pieces(points: Sequence[tuple[float, float]]) -> Iterator[list[tuple[float, float]]]:
    """Yield runs of points without a gap; where x goes back, another begins."""
    piece: list[tuple[float, float]] = []
    for x, y in points:
        is_drawn = _is_drawn(y) and math.isfinite(x)
        if piece and (not is_drawn or x < piece[-1][0]):
            yield piece
            piece = []
        if is_drawn:
            piece.append((x, y))
    if piece:
        yield piece


def _format(value: float, unit: Unit, digits: int = 4) -> str:
    return format_bytes(value) if unit == "bytes" else format_value(value, digits)


def _describe(line: Line, unit: Unit) -> str:
    values = [y for _, y in line.points]
    finite = [value for value in values if math.isfinite(value)]
    if not values:
        return f"{line.label}: no values"
    shown = f"{line.label}: {_format(values[0], unit)} to {_format(values[-1], unit)}"
    if finite:
        least, most = _format(min(finite), unit), _format(max(finite), unit)
        shown += f", least {least}, greatest {most}"
    return shown + (", with values that are not finite" if len(finite) < len(values) else "")


def _text(text: str) -> str:
    """Return text for an element of the page: without controls, cut, and escaped."""
    return escape(cut_to_columns(sanitize_text(text), _LONGEST_TEXT))
