"""How well ``python -m dtrain tune`` chooses: ``python experiments/tuning.py``.

For each model it does what the command does, then looks for the fastest of all combinations of the
same settings that give the same numbers (losses within 1e-5): each is measured at least once, what
tune has measured not once more; the fastest quarter of them, and what tune has chosen, are measured
again, one after the other, and the fastest of that is the fastest of all. It and the chosen one are
then measured in turn, ``--rounds`` times: the ratio is the median of the ratios round by round,
with the least and the greatest. Readers are among the settings where steps wait for their input,
as they are in tune: then there are three times as many combinations on two cores. Models are those
of ``experiments/threads.py``. A row is printed as soon as its model is done.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from threads import MODELS, composed

from dtrain.controller.commands.tune import COMBINE, LIMIT, STEPS
from dtrain.controller.plan import plan, sizes
from dtrain.controller.resources.devices import machine
from dtrain.controller.tuning import coordinates
from dtrain.controller.tuning.search import (
    TOLERANCE,
    Found,
    Search,
    Setting,
    combinations,
    differing,
)
from dtrain.controller.tuning.settings import named
from dtrain.controller.tuning.trials import Trials

#: Those of the table in docs/tune.md.
SIX = (
    "mlp, digits", "cnn, digits", "resnet, digits", "transformer, text", "cnn, 28x28x1",
    "mirrored x2, cnn, digits",
)  # fmt: skip


def note(text: str) -> None:
    """Print a line about the progress."""
    print(text, file=sys.stderr, flush=True)


def fastest(
    measure: Callable[[Setting], Found], search: Search, everything: Sequence[Setting]
) -> Setting:
    """Return the fastest of all settings that give the numbers of the plain one.

    Args:
        measure: runs a trial.
        search: of tune, which is done.
        everything: all settings.
    """
    known = [(dict(row.setting), row.found) for row in reversed(search.rows)]  # the newest first
    speeds: list[tuple[float, Setting]] = []
    for setting in everything:
        found = next((result for each, result in known if each == setting), None)
        result = found or measure(setting)
        difference, _ = differing(search.plain.losses, result.losses)
        note(f"  {named(setting)}: {result.speed or 0:,.0f} {difference} {result.problem or ''}"
             + (" (of tune)" if found else ""))  # fmt: skip
        if result.speed and difference is not None and difference <= TOLERANCE:
            speeds.append((result.speed, setting))
    speeds.sort(key=lambda each: each[0], reverse=True)
    last = [setting for _, setting in speeds[: max(2, math.ceil(len(everything) / 4))]]
    if search.best.setting not in last:
        last.append(search.best.setting)
    again = [(measure(setting).speed or 0.0, setting) for setting in last]
    for speed, setting in again:
        note(f"  {named(setting)}: {speed:,.0f} (again)")
    return max(again, key=lambda each: each[0])[1]


def compared(trials: Trials, ours: Setting, theirs: Setting, rounds: int) -> list[float]:
    """Return the ratios of the speed of one setting to that of another, round by round."""
    ratios = []
    for index in range(rounds):
        turn = (ours, theirs) if index % 2 == 0 else (theirs, ours)
        speeds = [trials.measure(setting).speed or 0.0 for setting in turn]
        ratio = speeds[0] / speeds[1]
        ratios.append(ratio if index % 2 == 0 else 1 / ratio)
    return ratios


def row(name: str, seconds: float, rounds: int) -> str:
    """Measure one model, and return a row of the table."""
    config, here = composed(*MODELS[name]), machine()
    planned = plan(config, sizes(config), here)
    with tempfile.TemporaryDirectory() as folder:
        trials = Trials(config, Path(folder), STEPS, seconds, LIMIT)
        search = Search(trials.measure)
        began = time.monotonic()
        plain = search.begin()
        found = coordinates.of(config, planned, here, plain)
        search.walk(found)
        deadline = time.monotonic() + COMBINE
        search.combine(found, lambda: time.monotonic() >= deadline)
        search.compare_last()
        took = time.monotonic() - began
        chosen = search.best.setting
        everything = combinations([
            [part for part in each.settings if coordinates.PRECISION not in part]  # other numbers
            for each in found
        ])  # fmt: skip
        note(f"{name}: tune chose {named(chosen)}, {len(search.rows)} trials in {took:.0f} s; "
             f"{len(everything)} combinations")  # fmt: skip
        best = fastest(trials.measure, search, everything)
        ratios = [1.0] if best == chosen else compared(trials, chosen, best, rounds)
    least, most = min(ratios), max(ratios)
    note(f"{name}: {time.monotonic() - began:.0f} s in all")
    return (
        f"| {name} | {named(chosen)} | {len(search.rows)} in {took:.0f} s | {named(best)} | "
        f"{len(everything)} | {statistics.median(ratios):.2f} ({least:.2f} to {most:.2f}) |"
    )


def chosen_models(text: str) -> Sequence[str]:
    """Return the models that a word of ``--models`` stands for."""
    if text in MODELS:
        return [text]
    found = list(MODELS) if text == "all" else [name for name in SIX if text in name]
    if not found:
        raise argparse.ArgumentTypeError(f"no model has {text!r} in its name: {'; '.join(MODELS)}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a trial (default: 2)")
    parser.add_argument(
        "--models", nargs="+", type=chosen_models, metavar="MODEL",
        help="names, or parts of names of the six; all: those of threads.py (default: the six)",
    )  # fmt: skip
    arguments = parser.parse_args()
    names = SIX if arguments.models is None else itertools.chain(*arguments.models)
    print("| model | tune chose | trials | the fastest of all | of | tune's speed to its |")
    print("|---|---|---|---|---|---|", flush=True)
    for name in dict.fromkeys(names):
        print(row(name, arguments.seconds, arguments.rounds), flush=True)


if __name__ == "__main__":
    main()
