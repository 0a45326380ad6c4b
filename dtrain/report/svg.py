"""Figures as SVG that takes its ink from the page, to be read at the width of a telephone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from dtrain.report.figures import Figure

#: Of a picture, and what is left around its axes.
_WIDTH, _HEIGHT = 360, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 10, 16, 36
COLOURS = ("#1f88e5", "#e8710a", "#2ca02c", "#e0417f", "#9467bd", "#00a3a3", "#c49a00", "#8c6d5a")


class _Axis:
    """Places of numbers along an axis, which is logarithmic where they span two decades.

    Args:
        values: that are drawn.
        begin, end: in the picture.
        straight: it is not logarithmic in any case.
    """

    def __init__(self, values: Sequence[float], begin: float, end: float, straight: bool):
        low, high = min(values), max(values)
        self._log = not straight and low > 0 and high > 99.9 * low
        if self._log:
            low, high = math.log10(low), math.log10(high)
        if high - low < 1e-12 * max(1.0, abs(low)):
            low, high = low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2
        self._low, self._high, self._begin, self._end = low, high, begin, end

    def place(self, value: float) -> float:
        """Return where a number is."""
        value = math.log10(max(value, 1e-300)) if self._log else value
        share = (value - self._low) / (self._high - self._low)
        return round(self._begin + share * (self._end - self._begin), 1)

    def ticks(self) -> list[tuple[float, str]]:
        """Return places and texts of round numbers."""
        if self._log:
            powers = range(math.ceil(self._low), math.floor(self._high) + 1)
            return [(self.place(10.0**power), f"{10.0**power:g}") for power in powers]
        rough = (self._high - self._low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
        first, last = math.ceil(self._low / step - 1e-9), math.floor(self._high / step + 1e-9)
        return [(self.place(n * step), f"{n * step:.6g}") for n in range(first, last + 1)]


def _text(x: float, y: float, text: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}"{more}>{escape(text)}</text>'


def _axes(x: _Axis, y: _Axis, names: Sequence[str]) -> list[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    parts = [f'<path class="a" d="M{_LEFT} {_TOP}V{bottom}H{right}"/>']
    for place, text in y.ticks():
        parts.append(f'<path class="g" d="M{_LEFT} {place}H{right}"/>')
        parts.append(_text(_LEFT - 5, place + 4, text, "end"))
    parts += [_text(place, bottom + 14, text) for place, text in x.ticks()]
    parts.append(_text((_LEFT + right) / 2, _HEIGHT - 5, names[0]))
    parts.append(_text(4, 10, names[1], "start"))
    return parts


def draw(figure: Figure) -> str:
    """Return the SVG of series of lines or points, and its legend; nothing without numbers."""
    rows = [row for row in figure.rows if all(_is_number(cell) for cell in row[1:3])]
    if not rows:
        return ""
    diagonal = figure.diagonal
    span = [cell for row in rows for cell in row[1:3]] if diagonal else None
    xs, ys = span or [row[1] for row in rows], span or [row[2] for row in rows]
    marked = [] if figure.mark is None else [figure.mark[0]]
    x = _Axis([*xs, *marked], _LEFT, _WIDTH - _RIGHT, straight=True)
    y = _Axis(ys, _HEIGHT - _BOTTOM, _TOP, straight=diagonal)
    parts = _axes(x, y, figure.head[1:])
    if diagonal:
        ends = min(xs), max(xs)
        line = "L".join(f"{x.place(each)} {y.place(each)}" for each in ends)
        parts.append(f'<path class="d" d="M{line}"/>')
    if figure.mark is not None:
        place = x.place(figure.mark[0])
        anchor = "start" if place < _WIDTH / 2 else "end"
        parts.append(f'<path class="d" d="M{place} {_TOP}V{_HEIGHT - _BOTTOM}"/>')
        parts.append(_text(place + (4 if anchor == "start" else -4), _TOP + 8, figure.mark[1],
                           anchor))  # fmt: skip
    series = list(dict.fromkeys(row[0] for row in rows))
    for index, name in enumerate(series):
        places = [(x.place(row[1]), y.place(row[2])) for row in rows if row[0] == name]
        colour = COLOURS[index % len(COLOURS)]
        if figure.kind == "lines":
            path = "L".join(f"{a} {b}" for a, b in places)
            parts.append(f'<path class="l" stroke="{colour}" d="M{path}"/>')
        if figure.kind == "points" or len(places) <= 12:
            size, opacity = (2, 0.5) if figure.kind == "points" else (2.5, 1)
            parts += [
                f'<circle cx="{a}" cy="{b}" r="{size}" fill="{colour}" opacity="{opacity}"/>'
                for a, b in places
            ]
    label = escape(figure.title)
    picture = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">'
    return f"{picture}{''.join(parts)}</svg>{_legend(series)}"


def _legend(series: Sequence[str]) -> str:
    names = (
        f'<span><i style="background:{COLOURS[index % len(COLOURS)]}"></i>{escape(name)}</span>'
        for index, name in enumerate(series)
    )
    return f'<p class="legend">{"".join(names)}</p>' if series != [""] else ""


def _is_number(cell: Any) -> bool:
    return isinstance(cell, int | float) and math.isfinite(cell)
