"""Measures ``python -m dtrain predict``: ``python experiments/predict.py``; 6 minutes.

1. One worker with all cores against ``keras.Model.predict`` in a process of its own, of the same
   model, rows and batch.
2. Two workers of one core each against one worker of one core.

Both for the digits CNN and for ``resnet``. The sides alternate; figures are medians, a ratio is the
median of the ratios pair by pair, with the least and the greatest. Speed is rows over the time from
the first row to the last file;
Keras' predict writes nothing, and is traced before.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BATCH = 64
ROWS = {"cnn": 1_600_000, "resnet": 600_000}


def keras_predict(model: str, rows: int) -> float:
    """Predict in this process and return rows a second."""
    import keras
    import numpy as np

    from dtrain import models

    keras.utils.set_random_seed(0)
    built = getattr(models, model)((8, 8, 1), 10)
    x = np.random.default_rng(0).normal(size=(rows, 8, 8, 1)).astype("float32")
    built.predict(x[: 2 * BATCH], batch_size=BATCH, verbose=0)
    begin = time.perf_counter()
    built.predict(x, batch_size=BATCH, verbose=0)
    return rows / (time.perf_counter() - begin)


def keras_process(model: str, rows: int) -> float:
    done = subprocess.run(
        [sys.executable, __file__, "--keras", model, str(rows)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return float(done.stdout.split()[-1])


def dtrain(*words: str, cores: set[int] | None = None) -> None:
    """Run a command, on some cores alone."""

    def pin() -> None:
        if cores is not None:
            os.sched_setaffinity(0, cores)

    subprocess.run(
        [sys.executable, "-m", "dtrain", *words],
        check=True, stdout=subprocess.DEVNULL, preexec_fn=pin,
    )  # fmt: skip


def predict(run: Path, rows: int, workers: int = 1, cores: set[int] | None = None) -> float:
    """Predict with a run into a new folder and return rows a second."""
    with tempfile.TemporaryDirectory(dir=run.parent) as folder:
        dtrain(
            "predict", str(run), f"to={folder}", f"workers={workers}", f"batch={BATCH}",
            "split=validation", "dataset=synthetic", "dataset.shape=[8,8,1]",
            f"dataset.validation_examples={rows}", "dataset.examples=64", cores=cores,
        )  # fmt: skip
    last = max((run / "predictions" / "jobs").glob("*/result.json"))
    return float(json.loads(last.read_text())["examples_per_second"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keras", nargs=2, metavar=("MODEL", "ROWS"))
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--models", nargs="+", choices=ROWS, default=list(ROWS))
    given = parser.parse_args()
    if given.keras:
        print(keras_predict(given.keras[0], int(given.keras[1])))
        return
    with tempfile.TemporaryDirectory() as folder:
        for model in given.models:
            run, rows = Path(folder) / model, ROWS[model]
            dtrain(
                f"model={model}", f"hydra.run.dir={run}", "tracking=none", "trainer.epochs=1",
                "trainer.steps_per_epoch=1", "strategy=one_device",
            )  # fmt: skip
            found: dict[str, list[float]] = {"keras": [], "one": [], "core": [], "two": []}
            for _ in range(given.pairs):
                found["keras"].append(keras_process(model, rows))
                found["one"].append(predict(run, rows))
                found["core"].append(predict(run, rows, cores={0}))
                found["two"].append(predict(run, rows, workers=2))
            report(model, found)


def report(model: str, found: dict[str, list[float]]) -> None:
    def ratio(one: str, other: str) -> str:
        each = [a / b for a, b in zip(found[one], found[other], strict=True)]
        return f"{statistics.median(each):.2f}, from {min(each):.2f} to {max(each):.2f}"

    speed = {name: f"{statistics.median(each):,.0f}" for name, each in found.items()}
    print(
        f"{model}: keras.Model.predict {speed['keras']} rows/s, one worker {speed['one']} "
        f"({ratio('one', 'keras')}); one core {speed['core']}, two workers of one core each "
        f"{speed['two']} ({ratio('two', 'core')})",
        flush=True,
    )


if __name__ == "__main__":
    main()
