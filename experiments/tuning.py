"""How well ``python -m dtrain tune`` chooses: ``python experiments/tuning.py``.

For each model it does what the command does, then tries all combinations of the same settings. The
setting that tune has chosen and the fastest of all that give the same numbers (losses within 1e-5)
are measured once more in turn, ``--rounds`` times: the ratio is the median of the ratios round by
round, with the least and the greatest. Readers are left out, as tune leaves them out where steps do
not wait. Models are those of ``experiments/threads.py``.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from threads import MODELS, composed

from dtrain.controller.commands.tune import LIMIT, STEPS
from dtrain.controller.plan import plan, sizes
from dtrain.controller.resources.devices import machine
from dtrain.controller.tuning import coordinates
from dtrain.controller.tuning.search import TOLERANCE, Search, Setting, differing
from dtrain.controller.tuning.settings import named
from dtrain.controller.tuning.trials import Trials

#: Those of the table in docs/tune.md.
SIX = (
    "mlp, digits", "cnn, digits", "resnet, digits", "transformer, text", "cnn, 28x28x1",
    "mirrored x2, cnn, digits",
)  # fmt: skip


def combinations(found: Sequence[coordinates.Coordinate]) -> list[Setting]:
    """Return all combinations of settings, the plain one among them; bfloat16 is other numbers."""
    wholes: list[dict[str, Any]] = []
    kept = [each for each in found if not any(coordinates.PRECISION in s for s in each.settings)]
    for parts in itertools.product(*([{}, *each.settings] for each in kept)):
        whole = {key: value for part in parts for key, value in part.items()}
        if whole not in wholes:
            wholes.append(whole)
    return wholes


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
        took = time.monotonic() - began
        chosen, speeds = search.best.setting, []
        print(f"{name}: tune chose {named(chosen)} in {took:.0f} s", file=sys.stderr, flush=True)
        everything = combinations(found[:-1])  # the last one is threads once more
        for setting in everything:
            result = trials.measure(setting)
            difference, _ = differing(plain.losses, result.losses)
            print(f"{name}: {named(setting)}: {result.speed or 0:,.0f} {difference} "
                  f"{result.problem or ''}", file=sys.stderr, flush=True)  # fmt: skip
            if result.speed and difference is not None and difference <= TOLERANCE:
                speeds.append((result.speed, setting))
        best = max(speeds, key=lambda each: each[0])[1]
        ratios = [1.0] if best == chosen else compared(trials, chosen, best, rounds)
    least, most = min(ratios), max(ratios)
    return (
        f"| {name} | {named(chosen)} | {len(search.rows)} in {took:.0f} s | {named(best)} | "
        f"{len(everything)} | {statistics.median(ratios):.2f} ({least:.2f} to {most:.2f}) |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a trial (default: 2)")
    parser.add_argument("--only", action="append", choices=list(MODELS), metavar="MODEL")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.only or SIX:
        rows.append(row(name, arguments.seconds, arguments.rounds))
        print(rows[-1], file=sys.stderr, flush=True)
    print("\n| model | tune chose | trials | the fastest of all | of | tune's speed to its |")
    print("|---|---|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
