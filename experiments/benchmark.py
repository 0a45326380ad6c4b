"""Measures for ``docs/measurements.md``: ``make bench``, or ``python experiments/benchmark.py``.

1. Training of the digits CNN, one process, batch 64: Keras' ``fit`` in its default settings
   against ``python -m dtrain experiment=benchmark``.
2. 20,000 steps of a small model (``experiment=long``): ``tracking=mlflow`` against
   ``tracking=none``.

Runs alternate, so that a drift of the machine's speed meets both sides; figures are medians, and
the ratio is the median of the ratios pair by pair. Speed is examples over wall time from the end
of the first epoch to the end of the last, whatever is done in between.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BATCH = 64
EPOCHS = 60


def keras_fit() -> float:
    """Train under ``fit`` in this process and return examples a second."""
    import keras
    import numpy as np

    from dtrain.datasets import digits
    from dtrain.models import cnn

    train = digits(validation_split=0.0).train
    n = len(train) // BATCH * BATCH
    ends: list[float] = []

    class Clock(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: object = None) -> None:
            ends.append(time.perf_counter())

    keras.utils.set_random_seed(0)
    model = cnn((8, 8, 1), 10)
    model.compile("adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    x, y = np.asarray(train.x[:n]), np.asarray(train.y[:n])
    model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, callbacks=[Clock()], verbose=0)
    return n * (EPOCHS - 1) / (ends[-1] - ends[0])


def fit_process() -> float:
    """Run :func:`keras_fit` in a fresh process, as a user's own script would."""
    done = subprocess.run(
        [sys.executable, __file__, "--fit"], capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])


def dtrain(folder: Path, *overrides: str) -> float:
    """Run the command line in ``folder`` and return examples a second."""
    before = set(folder.glob("outputs/*/*/journal.jsonl"))
    subprocess.run(
        [sys.executable, "-m", "dtrain", *overrides],
        cwd=folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    [path] = set(folder.glob("outputs/*/*/journal.jsonl")) - before
    events = [json.loads(line) for line in path.read_text().splitlines()]
    [start] = [e for e in events if e["event"] == "start"]
    points = [e for e in events if e["event"] == "metrics"]
    first = next(p for p in points if p["step"] >= start["steps_per_epoch"])
    last = points[-1]
    return (last["step"] - first["step"]) * BATCH / (last["time"] - first["time"])


def compare(name: str, a: tuple[str, object], b: tuple[str, object], rounds: int) -> str:
    """Run two measurements in turn and return a table row."""
    pairs = []
    for index in range(rounds):
        pairs.append((a[1](), b[1]()))  # type: ignore[operator]
        print(f"{name} {index + 1}/{rounds}: {pairs[-1][0]:,.0f} {pairs[-1][1]:,.0f}", flush=True)
    ratio = statistics.median(x / y for x, y in pairs)
    ours, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
    return f"| {name} | {a[0]}: {ours:,.0f} | {b[0]}: {theirs:,.0f} | {ratio:.3f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fit", action="store_true", help="only Keras' fit, in this process")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.fit:
        print(keras_fit())
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = [
            compare(
                "digits CNN, batch 64",
                ("dtrain", lambda: dtrain(folder, "experiment=benchmark")),
                ("Keras fit", fit_process),
                arguments.rounds,
            )
        ]
        # The first run of all makes the tracking store's tables, once and for all later runs.
        dtrain(folder, "experiment=benchmark", "tracking=mlflow", "trainer.epochs=2")
        rows.append(
            compare(
                "20,000 steps, MLP",
                ("tracking=mlflow", lambda: dtrain(folder, "experiment=long")),
                ("tracking=none", lambda: dtrain(folder, "experiment=long", "tracking=none")),
                arguments.rounds,
            )
        )
    print("\n| what | examples/s | examples/s | ratio |\n|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
