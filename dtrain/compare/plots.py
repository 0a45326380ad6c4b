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
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from dtrain.compare.comparison import Comparison, is_finite
from dtrain.compare.load import Run, number

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


#: A run, and what is drawn of it: places and values.
Drawn = tuple[Run, Sequence[float], Sequence[float]]


def sections(found: Comparison) -> list[Section]:
    """Draw everything that the runs allow, whatever the user's matplotlibrc says."""
    with warnings.catch_warnings(), matplotlib.rc_context():
        # Of a letter its font has not, or a long label: nothing that the reader could mend.
        warnings.simplefilter("ignore")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        return [_curves(found), _objective(found), _speed(found), _difference(found)]


def _plot(
    section: Section, found: Comparison, labels: tuple[str, str, str], drawn: Iterable[Drawn],
    marker: str = "", log: str = "", finish: Callable[[Axes], object] = lambda axes: None,
) -> None:  # fmt: skip
    """Add a plot to a section.

    Args:
        section: gets it.
        found: that it is of.
        labels: its title, and those of its axes.
        drawn: a line each.
        marker: of each point.
        log: names of the axes that are logarithmic.
        finish: changes the axes in the end.
    """
    title, x, y = map(_short, labels)
    figure = Figure(figsize=(5.2, 3.2), layout="constrained", facecolor="none")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot(facecolor="none")
    axes.set(title=title, xlabel=x, ylabel=y)
    file = io.StringIO()
    many = len(found.runs) > len(_FEW)
    try:
        for run, places, values in drawn:
            index, is_base = found.places[run.name], run.name in found.baselines
            is_marked = run is found.best or is_base
            axes.plot(
                places, [value if math.isfinite(value) else math.nan for value in values],
                color=colours(len(found.runs))[index], linestyle="--" if is_base else "-",
                linewidth=2.2 if is_marked else 0.8 if many else 1.4,
                marker=marker or ("." if len(places) == 1 else ""),
                zorder=3 if is_marked else 2, gid=f"run-{index}",
            )  # fmt: skip
        for name in log:
            axes.set(**{f"{name}scale": "log"})
            (axes.xaxis if name == "x" else axes.yaxis).set_major_formatter("{x:g}")
        finish(axes)
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    except (ArithmeticError, ValueError, RuntimeError) as error:  # of numbers near the largest
        section.notes.append(f"No {title}: it cannot be drawn ({_short(str(error))}).")
        return
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    section.plots.append(re.sub(r'\bid="(run-\d+)"', r'class="\1"', svg))


def _short(text: str) -> str:
    return text if len(text) <= _CHARACTERS else f"{text[: _CHARACTERS - 1]}…"


def _are_wide(values: Iterable[float]) -> bool:
    """Say whether values are positive, and span over two decades."""
    finite = [value for value in values if math.isfinite(value)]
    return bool(finite) and min(finite) > 0 and max(finite) > 99.9 * min(finite)


def _curves(found: Comparison) -> Section:
    section = Section("Curves")
    for metric in (found.metric, f"val_{found.metric}"):
        curves = [(run, run.curves[metric]) for run in found.runs if run.curves.get(metric)]
        if not curves:
            section.notes.append(f"No {metric}: no run has recorded it.")
            continue
        drawn: list[Drawn] = []
        for run, points in curves:
            steps = sorted(points)
            steps = [*steps[: -1 : len(steps) // _POINTS + 1], steps[-1]]
            drawn.append((run, steps, [points[step] for step in steps]))
        is_wide = _are_wide(value for _, points in curves for value in points.values())
        _plot(section, found, (metric, "step", metric), drawn, log="y" * is_wide)
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
    runs = [run for run in found.runs if is_finite(run.objective) and run.value(key) is not None]
    if not runs:
        section.notes.append(f"No {key}: no run that has it has an objective.")
        return
    texts = [str(run.value(key)) for run in runs]
    numbers = [value for value in map(number, texts) if value is not None and math.isfinite(value)]
    are_numbers = len(numbers) == len(texts)
    names = list(dict.fromkeys(texts))
    places = numbers if are_numbers else [float(names.index(text)) for text in texts]

    def name_places(axes: Axes) -> None:
        shown = [name if len(name) <= 24 else f"{name[:23]}…" for name in names]
        every = len(shown) // 30 + 1  # as many as can be read
        rotation = 90 if sum(map(len, shown)) > 50 else 0
        axes.set_xticks(range(0, len(shown), every), shown[::every], rotation=rotation)
        axes.margins(x=0.2)

    _plot(
        section, found, (key, key, found.objective or ""),
        [(run, [at], [run.objective or 0.0]) for run, at in zip(runs, places, strict=True)],
        "o", "x" * (are_numbers and _are_wide(numbers)),
        (lambda axes: None) if are_numbers else name_places,
    )  # fmt: skip


def _speed(found: Comparison) -> Section:
    section = Section("Speed by replicas")
    runs = [run for run in found.runs if run.replicas and run.speed]
    if not runs:
        section.notes.append("Left out: no run has recorded its examples a second.")
        return section
    speeds = {run.name: run.speed or 0.0 for run in runs}
    kinds = [("throughput", "examples/s", speeds)]
    if found.efficiency:
        kinds.append(("scaling efficiency", "examples/s of a replica, relative", found.efficiency))
    else:
        section.notes += [note for note in found.notes if "efficiency" in note]
    ticks = sorted({run.replicas or 0 for run in runs})
    for title, label, values in kinds:
        _plot(
            section, found, (title, "replicas", label),
            [(r, [r.replicas or 0], [values[r.name]]) for r in runs if r.name in values], "o",
            finish=lambda axes: axes.set(ylim=(0, None), xticks=ticks),
        )  # fmt: skip
    return section


def _difference(found: Comparison) -> Section:
    section = Section(f"Difference of {found.metric} from the baseline")
    if not found.baselines:
        section.notes.append("Left out: no baseline is chosen (baseline=RUN or KEY=VALUE).")
        return section
    others = {name: d for name, d in found.differences.items() if name not in found.baselines}
    # A logarithm has no place for zero, nor for the infinity that a NaN is.
    places = {name: {s: v for s, v in d.items() if 0 < v < math.inf} for name, d in others.items()}
    same = [name for name, d in others.items() if not any(d.values())]
    if same:
        section.notes.append(f"No difference at all: {', '.join(same)}.")
    drawn = [(run, *_largest(places[run.name])) for run in found.runs if places.get(run.name)]
    if drawn:
        title = f"relative difference from {', '.join(found.baselines)}"
        _plot(section, found, (title, "step", "|difference| / |baseline|"), drawn, log="y")
    return section


def _largest(points: dict[int, float]) -> tuple[list[int], list[float]]:
    """Return the largest of each few neighbours, so that no peak is lost."""
    steps = sorted(points)
    every = len(steps) // _POINTS + 1
    parts = [steps[first : first + every] for first in range(0, len(steps), every)]
    return [part[-1] for part in parts], [max(points[step] for step in part) for part in parts]
