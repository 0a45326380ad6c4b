"""The plots of a comparison, as SVG that takes its ink from the page: light or dark.

Importing matplotlib takes a second: this module is imported where a page is made.
"""

from __future__ import annotations

import colorsys
import dataclasses
import functools
import io
import logging
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from dtrain.compare.comparison import Comparison, is_finite
from dtrain.compare.load_folders import Run, number

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it tells of fonts
_INK = "#010203"  # a colour nobody else uses, replaced by the page's
_CHARACTERS = 80  # of a title
_POINTS = 400  # of a curve, as many as can be seen
_FEW = ("#1f88e5", "#e8710a", "#2ca02c", "#e0417f", "#9467bd", "#00a3a3", "#c49a00", "#8c6d5a")
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "dtrain",  # the same comparison gives the same page
    "text.parse_math": False,  # a dollar is a dollar
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.15,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.titlecolor": _INK,
    "axes.edgecolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "grid.color": _INK,
}


@dataclasses.dataclass
class Section:
    """Plots that belong together.

    Attributes:
        title: above them.
        plots: SVG elements.
        notes: below them; what is missing, and why.
    """

    title: str
    plots: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)


@functools.cache
def colours(count: int) -> tuple[str, ...]:
    """Return as many colours, to be distinguished on white and on black."""
    if count <= len(_FEW):
        return _FEW[:count]
    return tuple(_colour(index / count, (0.2, 0.3, 0.4)[index % 3]) for index in range(count))


def _colour(hue: float, luminance: float) -> str:
    """Return the colour of a hue that is as bright as the others, between white and black."""
    low, high = 0.0, 1.0
    while high - low > 0.005:
        middle = (low + high) / 2
        red, green, blue = colorsys.hls_to_rgb(hue, middle, 0.75)
        bright = 0.21 * red**2.2 + 0.72 * green**2.2 + 0.07 * blue**2.2
        low, high = (middle, high) if bright < luminance else (low, middle)
    return "#" + "".join(f"{round(255 * part):02x}" for part in (red, green, blue))


def sections(found: Comparison) -> list[Section]:
    """Draw everything that the runs allow."""
    with _style():
        return [_curves(found), _objective(found), _speed(found), _difference(found)]


@contextmanager
def _style() -> Iterator[None]:
    """Set matplotlib's parameters to ours, whatever the user's matplotlibrc says, and back."""
    with warnings.catch_warnings(), matplotlib.rc_context():
        # Of a letter its font has not, or a long label: nothing that the reader could mend.
        warnings.simplefilter("ignore")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


@contextmanager
def _plot(section: Section, title: str, x: str, y: str) -> Iterator[Axes]:
    """Draw into the axes given, and add the plot to the section."""
    figure = Figure(figsize=(5.2, 3.2), layout="constrained", facecolor="none")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot(facecolor="none")
    axes.set(title=_short(title), xlabel=_short(x), ylabel=_short(y))
    file = io.StringIO()
    try:
        yield axes
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    except (ArithmeticError, ValueError, RuntimeError) as error:  # of numbers near the largest
        section.notes.append(f"No {_short(title)}: it cannot be drawn ({_short(str(error))}).")
        return
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    section.plots.append(re.sub(r'\bid="(run-\d+)"', r'class="\1"', svg))


def _short(text: str) -> str:
    return text if len(text) <= _CHARACTERS else f"{text[: _CHARACTERS - 1]}…"


def _curves(found: Comparison) -> Section:
    section = Section("Curves")
    for metric in (found.metric, f"val_{found.metric}"):
        drawn = [(run, run.curves[metric]) for run in found.runs if run.curves.get(metric)]
        if not drawn:
            section.notes.append(f"No {metric}: no run has recorded it.")
            continue
        with _plot(section, metric, "step", metric) as axes:
            for run, points in drawn:
                steps = sorted(points)
                steps = [*steps[: -1 : len(steps) // _POINTS + 1], steps[-1]]
                _line(axes, found, run, steps, [points[step] for step in steps])
            _scale(axes, "y", [value for _, points in drawn for value in points.values()])
    return section


def _objective(found: Comparison) -> Section:
    section = Section("Objective by parameter")
    if found.objective is None:
        section.notes.append("Left out: the runs have different objectives.")
    elif not found.keys:
        section.notes.append("Left out: no parameter differs.")
    elif not any(is_finite(run.objective) for run in found.runs):
        section.notes.append(f"Left out: no run has a number for {found.objective}.")
    else:
        for key in found.keys:
            _by(section, found, key)
    return section


def _by(section: Section, found: Comparison, key: str) -> None:
    drawn = [run for run in found.runs if is_finite(run.objective) and run.value(key) is not None]
    if not drawn:
        section.notes.append(f"No {key}: no run that has it has an objective.")
        return
    texts = [str(run.value(key)) for run in drawn]
    numbers = [value for value in map(number, texts) if value is not None and math.isfinite(value)]
    numeric = len(numbers) == len(texts)
    names = list(dict.fromkeys(texts))
    places = numbers if numeric else [float(names.index(text)) for text in texts]
    with _plot(section, key, key, found.objective or "") as axes:
        for run, place in zip(drawn, places, strict=True):
            _line(axes, found, run, [place], [run.objective or 0.0], marker="o")
        if numeric:
            _scale(axes, "x", numbers)
        else:
            shown = [name if len(name) <= 24 else f"{name[:23]}…" for name in names]
            turned = sum(map(len, shown)) > 50
            every = len(shown) // 30 + 1  # as many as can be read
            axes.set_xticks(
                range(0, len(shown), every), shown[::every], rotation=90 if turned else 0
            )
            axes.margins(x=0.2)


def _speed(found: Comparison) -> Section:
    section = Section("Speed by replicas")
    drawn = [run for run in found.runs if run.replicas and run.speed]
    if not drawn:
        section.notes.append("Left out: no run has recorded its examples a second.")
        return section
    speeds = {run.name: run.speed or 0.0 for run in drawn}
    kinds = [("throughput", "examples/s", speeds)]
    if found.efficiency:
        kinds.append(("scaling efficiency", "examples/s of a replica, relative", found.efficiency))
    else:
        section.notes += [note for note in found.notes if "efficiency" in note]
    for title, label, values in kinds:
        with _plot(section, title, "replicas", label) as axes:
            for run in drawn:
                if run.name in values:
                    _line(axes, found, run, [run.replicas or 0], [values[run.name]], marker="o")
            axes.set_ylim(bottom=0)
            axes.set_xticks(sorted({run.replicas or 0 for run in drawn}))
    return section


def _difference(found: Comparison) -> Section:
    section = Section(f"Difference of {found.metric} from the baseline")
    if not found.baselines:
        section.notes.append("Left out: no baseline is chosen (baseline=RUN or KEY=VALUE).")
        return section
    others = {name: d for name, d in found.differences.items() if name not in found.baselines}
    # A logarithm has no place for zero, nor for the infinity that a NaN is.
    places = {name: {s: v for s, v in d.items() if 0 < v < math.inf} for name, d in others.items()}
    drawn = {name: points for name, points in places.items() if points}
    same = [name for name, d in others.items() if not any(d.values())]
    if same:
        section.notes.append(f"No difference at all: {', '.join(same)}.")
    if drawn:
        title = f"relative difference from {', '.join(found.baselines)}"
        with _plot(section, title, "step", "|difference| / |baseline|") as axes:
            for run in found.runs:
                if run.name in drawn:
                    _line(axes, found, run, *_largest(drawn[run.name]))
            _logarithmic(axes, "y")
    return section


def _largest(points: dict[int, float]) -> tuple[list[int], list[float]]:
    """Return the largest of each few neighbours, so that no peak is lost."""
    steps = sorted(points)
    every = len(steps) // _POINTS + 1
    parts = [steps[first : first + every] for first in range(0, len(steps), every)]
    return [part[-1] for part in parts], [max(points[step] for step in part) for part in parts]


def _line(
    axes: Axes, found: Comparison, run: Run, x: Sequence[float], y: Sequence[float],
    marker: str = "",
) -> None:  # fmt: skip
    index, many = found.places[run.name], len(found.runs) > len(_FEW)
    marked = run is found.best or run.name in found.baselines
    axes.plot(
        x,
        [value if math.isfinite(value) else math.nan for value in y],
        color=colours(len(found.runs))[index],
        linestyle="--" if run.name in found.baselines else "-",
        linewidth=2.2 if marked else 0.8 if many else 1.4,
        marker=marker or ("." if len(x) == 1 else ""),
        zorder=3 if marked else 2,
        gid=f"run-{index}",
    )


def _scale(axes: Axes, axis: str, values: Sequence[float]) -> None:
    """Make an axis logarithmic where its values are positive and span over two decades."""
    finite = [value for value in values if math.isfinite(value)]
    if finite and min(finite) > 0 and max(finite) > 99.9 * min(finite):
        _logarithmic(axes, axis)


def _logarithmic(axes: Axes, axis: str) -> None:
    axes.set(**{f"{axis}scale": "log"})
    (axes.xaxis if axis == "x" else axes.yaxis).set_major_formatter("{x:g}")
