"""Measures training beside its evaluator: ``python experiments/sidecar.py``; minutes.

Steps a second of a training on the first of two cores, in turn: ``none`` beside an evaluator that
has nothing to evaluate, ``busy`` beside that and a program of no concern on the second core, which
shows what the machine itself takes, and ``sidecar`` beside an evaluator at work. A ratio is the
median of the ratios of a turn. Steps a second are those from the end of the second epoch to the end
of the last one, with all that happens in between; each epoch saves a checkpoint on all sides.

``--inline`` adds a side that evaluates by itself.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

#: Evaluates nothing before the end.
_NEVER = ["trainer.validation_freq=1000000", "objective=loss", "objective_mode=min"]
#: What each side says; that which evaluates by itself has one core.
SIDES: dict[str, tuple[list[str], int]] = {
    "none": ([*_NEVER, "sidecar.evaluate=true"], 2),
    "busy": ([*_NEVER, "sidecar.evaluate=true"], 2),
    "sidecar": (["sidecar.evaluate=true"], 2),
    "inline": ([], 1),
}
#: Multiplies matrices of 600 x 600 until it is ended.
BUSY = "import numpy; a = numpy.random.rand(600, 600)\nwhile True: a @ a"


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """Keep the second core busy."""

    def pin() -> None:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[1]})

    process = subprocess.Popen([sys.executable, "-c", BUSY], preexec_fn=pin)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def run(folder: Path, side: str, words: list[str]) -> float:
    """Train and return steps a second, from the end of the second epoch to the last step."""
    own, cores = SIDES[side]

    def pin() -> None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])

    with busy() if side == "busy" else contextlib.nullcontext():
        subprocess.run(
            [sys.executable, "-m", "dtrain", f"hydra.run.dir={folder}", "tracking=none",
             "strategy=one_device", "hardware.intra_op_threads=1", "checkpoint.keep=1",
             *words, *own],
            check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=pin,
        )  # fmt: skip
    ends: list[tuple[float, int]] = []
    for line in (folder / "journal.jsonl").read_text().splitlines():
        event = json.loads(line)
        if "epoch_examples" in event.get("metrics", {}):
            ends.append((event["time"], event["step"]))
    (begun, first), (ended, last) = ends[1], ends[-1]
    return (last - first) / (ended - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--inline", action="store_true")
    parser.add_argument("words", nargs="*", help="overrides for all sides")
    given = parser.parse_args()
    names = list(SIDES) if given.inline else ["none", "busy", "sidecar"]
    words = [
        "model=cnn", "dataset=synthetic", "dataset.shape=[16,16,1]", "dataset.examples=20000",
        "dataset.validation_examples=20000", f"trainer.epochs={given.epochs}", *given.words,
    ]  # fmt: skip
    found: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(given.pairs):
            for name in names if pair % 2 else reversed(names):
                found[name].append(run(Path(folder) / f"{name}_{pair}", name, words))
            print({name: round(speeds[-1], 1) for name, speeds in found.items()}, flush=True)
    for name in names:
        ratios = [a / b for a, b in zip(found[name], found["none"], strict=True)]
        speed, ratio = statistics.median(found[name]), statistics.median(ratios)
        print(
            f"{name:8} {speed:9,.1f} steps/s, {ratio:.3f} of those without evaluation "
            f"({min(ratios):.3f} to {max(ratios):.3f})"
        )


if __name__ == "__main__":
    main()
