"""Measures what exact resume costs: ``make bench``, or ``python experiments/resume.py``.

1. Checkpoints: ``experiment=resume`` saves every 2 s, and a call into TensorFlow takes about one. A
   snapshot is taken between two calls, and written during the second of them. What that call takes
   longer than its steps take in the calls before and after it is the cost of 2 s.
2. Input: 60,000 examples of 28x28x1, batch 64, drawn by dtrain's pipeline, whose order is a
   function of the position, against ``shuffle(60000).batch(64)`` of tf.data.
3. ``trainer.deterministic=true`` against ``false``, the same CNN.

Ratios are of neighbours in time; of several the median is shown, with the least and the greatest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 64
#: Seconds between two points that are not of the same call.
RESOLUTION = 0.1


def command(folder: Path, *overrides: str) -> list[dict[str, Any]]:
    """Run the command line once and return its journal."""
    before = set(folder.glob("*/*"))
    words = ["experiment=resume", f"output_dir={folder}", *overrides]
    done = subprocess.run(
        [sys.executable, "-m", "dtrain", *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    [path] = set(folder.glob("*/*")) - before
    return [json.loads(line) for line in (path / "journal.jsonl").read_text().splitlines()]


def curve(events: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """Return times and steps of the training points."""
    points = [e for e in events if e["event"] == "metrics" and "loss" in e["metrics"]]
    return np.array([p["time"] for p in points]), np.array([p["step"] for p in points])


def checkpoints(folder: Path, steps: int) -> list[float]:
    """Return the throughput kept with a checkpoint every 2 s, from each save of one run."""
    events = command(folder, f"trainer.steps_per_epoch={steps}")
    times, done = curve(events)
    # The points of a call are written together, when it is over.
    last = np.flatnonzero(np.append(np.diff(times) > RESOLUTION, True))
    times, done = times[last], done[last]
    taken, made = np.diff(times), np.diff(done)  # of each call, and of the time before it
    writes = [e["time"] for e in events if e["event"] == "checkpoint"]
    saved = {int(call) - 1 for call in np.searchsorted(times, writes)}
    kept = []
    for call in sorted(saved):
        if not 10 <= call < len(taken) - 1 or {call - 1, call + 1} & saved:
            continue  # at first calls are short
        quiet = [call - 1, call + 1]  # on both sides: a drift of the machine's speed meets both
        wanted = made[call] * taken[quiet].sum() / made[quiet].sum()
        kept.append(1 - (taken[call] - wanted) / 2)
    return kept


def pipelines(rounds: int, batches: int) -> list[tuple[float, float]]:
    """Return examples a second of dtrain's pipeline and of tf.data's shuffle, in turn."""
    import tensorflow as tf

    from dtrain.data.sources import Arrays
    from dtrain.task.backends.tensorflow import input_pipeline

    generator = np.random.default_rng(0)
    x = generator.standard_normal((60_000, 28, 28, 1), np.float32)
    y = generator.integers(0, 10, 60_000)
    source = Arrays(x, y)
    inputs = input_pipeline.Inputs(source, None, BATCH, 0)
    ours = input_pipeline.training(inputs, replicas=1, first_replica=0, local_replicas=1)
    theirs = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(60_000).repeat().batch(BATCH)

    def speed(dataset: tf.data.Dataset) -> float:
        iterator = iter(dataset)
        next(iterator)  # fills the shuffle buffer
        begin = time.perf_counter()
        for _ in range(batches):
            next(iterator)
        return batches * BATCH / (time.perf_counter() - begin)

    theirs = theirs.prefetch(tf.data.AUTOTUNE)
    return [(speed(ours), speed(theirs)) for _ in range(rounds)]


def deterministic(folder: Path, steps: int) -> float:
    """Return examples a second with ``trainer.deterministic=true`` over those without."""

    def speed(value: str) -> float:
        events = command(
            folder, f"trainer.deterministic={value}", f"trainer.steps_per_epoch={steps}",
            "checkpoint.every_seconds=null",
        )  # fmt: skip
        times, done = curve(events)
        return (done[-1] - done[len(done) // 10]) / (times[-1] - times[len(done) // 10])

    return speed("true") / speed("false")


def row(name: str, ratios: list[float]) -> str:
    middle = statistics.median(ratios)
    return f"| {name} | {middle:.3f} ({min(ratios):.3f} to {max(ratios):.3f}) | {len(ratios)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["checkpoints", "pipeline", "deterministic"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12_000, help="of the run with checkpoints")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        parts: dict[str, Callable[[], str]] = {
            "checkpoints": lambda: _checkpoints(Path(name), arguments.steps),
            "pipeline": lambda: _pipelines(arguments.rounds),
            "deterministic": lambda: row(
                "`deterministic=true`, throughput over `false`",
                [deterministic(Path(name), 2000) for _ in range(arguments.rounds)],
            ),
        }
        for part, measure in parts.items():
            if arguments.only in (None, part):
                rows.append(measure())
                print(rows[-1], flush=True)
    print("\n| what | ratio | of |\n|---|---|---|")
    print("\n".join(rows))


def _checkpoints(folder: Path, steps: int) -> str:
    kept = checkpoints(folder, steps)
    error = statistics.stdev(kept) / len(kept) ** 0.5
    mean = f"mean {statistics.mean(kept):.4f}, standard error {error:.4f}"
    return row(f"a checkpoint every 2 s, throughput kept; {mean}", kept)


def _pipelines(rounds: int) -> str:
    pairs = pipelines(rounds, 3000)
    for ours, theirs in pairs:
        print(f"pipeline: {ours:,.0f} examples/s, shuffle().batch(): {theirs:,.0f}", flush=True)
    return row("pipeline over `shuffle().batch()`", [a / b for a, b in pairs])


if __name__ == "__main__":
    main()
