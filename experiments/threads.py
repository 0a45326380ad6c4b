"""How many threads an operation should have: ``python experiments/threads.py``.

Each model is trained for a moment with 1, 2, 4... intra-op threads, up to the number of cores, by
trials as those of ``python -m dtrain tune`` (nothing is printed or saved). Trials alternate, and
each round begins with another number. The ratio is that to as many threads as there are cores,
which is TensorFlow's own choice: the median of the ratios round by round, with the least and the
greatest. It is what the rule in ``dtrain/controller/resources/devices.py`` stands on.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from dtrain.config.settle import settle
from dtrain.controller import cli
from dtrain.controller.resources.devices import machine
from dtrain.controller.tuning.search import THREADS
from dtrain.controller.tuning.trials import Trials

_IMAGES = ("dataset=synthetic", "dataset.examples=2048", "dataset.validation_examples=64")
#: Overrides by name, from small steps to large ones.
MODELS: dict[str, tuple[str, ...]] = {
    "mlp, digits": ("model=mlp",),
    "cnn, digits": ("model=cnn",),
    "resnet, digits": ("model=resnet",),
    "transformer, text": (
        "model=transformer", "dataset=text", "objective=val_loss", "objective_mode=min",
    ),
    "mirrored x2, cnn, digits": ("model=cnn", "strategy=mirrored"),
    "mirrored x2, mlp, digits": ("model=mlp", "strategy=mirrored"),
    "mirrored x2, cnn, 28x28x1": ("model=cnn", "strategy=mirrored", *_IMAGES),
    "mirrored x2, transformer, text": (
        "model=transformer", "dataset=text", "objective=val_loss", "objective_mode=min",
        "strategy=mirrored",
    ),
    "cnn, 28x28x1": ("model=cnn", *_IMAGES),
    "MobileNetV2, 32x32x3": (
        "model=custom", "model._target_=keras.applications.MobileNetV2", "+model.weights=null",
        *_IMAGES, "dataset.shape=[32,32,3]", "dataset.examples=512",
    ),
    "cnn 64, 128, 64x64x3": (
        "model=cnn", "model.filters=[64,128]", *_IMAGES, "dataset.shape=[64,64,3]",
        "dataset.examples=256",
    ),
    "mlp 4096, 4096": ("model=mlp", "model.units=[4096,4096]", *_IMAGES),
}  # fmt: skip


class Composed(cli.Command):
    """Composes a configuration, and does nothing with it."""

    config: Any = None

    def job(self, node: Any) -> int:
        self.config = settle(node)
        return 0


def composed(*overrides: str) -> Any:
    """Return the configuration of a command line."""
    command = Composed()
    if cli.composed([*overrides, "tracking=none"], command):
        raise SystemExit(f"cannot be composed: {' '.join(overrides)}")
    return command.config


def measured(trials: Trials, counts: list[int], rounds: int) -> dict[int, list[float]]:
    """Return examples a second, by the number of threads and in the order of the rounds."""
    found: dict[int, list[float]] = {count: [] for count in counts}
    for index in range(rounds):
        turn = counts[index % len(counts) :] + counts[: index % len(counts)]
        for count in turn:
            result = trials.measure({THREADS: count})
            if result.speed is None:
                raise SystemExit(result.problem)
            found[count].append(result.speed)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a trial (default: 1)")
    parser.add_argument("--only", action="append", choices=list(MODELS), metavar="MODEL")
    arguments = parser.parse_args()
    cores = machine().cores
    counts = sorted({*(2**n for n in range(cores.bit_length()) if 2**n <= cores), cores})
    rows = []
    for name in arguments.only or MODELS:
        config = composed(*MODELS[name])
        with tempfile.TemporaryDirectory() as folder:
            trials = Trials(config, Path(folder), 5, arguments.seconds, 90.0)
            found = measured(trials, counts, arguments.rounds)
        cells = [f"{statistics.median(found[count]):,.0f}" for count in counts]
        for count in counts[:-1]:
            ratios = [a / b for a, b in zip(found[count], found[cores], strict=True)]
            median, least, most = statistics.median(ratios), min(ratios), max(ratios)
            cells.append(f"{median:.2f} ({least:.2f} to {most:.2f})")
        rows.append(f"| {name} | {' | '.join(cells)} |")
        print(rows[-1], file=sys.stderr, flush=True)
    heads = [f"{count} threads, examples/s" for count in counts]
    heads += [f"{count} against {cores}" for count in counts[:-1]]
    print(f"\n| model | {' | '.join(heads)} |\n|{'---|' * (len(heads) + 1)}")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
