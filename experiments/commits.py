"""Compares the speed of two checkouts: ``python experiments/commits.py BEFORE AFTER``.

The digits CNN under ``mirrored`` with two devices and ``multiworker`` with two tasks, 64 examples
a replica, no evaluation. The two run in turn, and each pair begins with the other of the two, so
that a drift of the machine's speed meets both. The ratio is the median of the ratios pair by pair,
with the least and the greatest. Speed is examples over time from the end of the first epoch to the
end of the last. Both run under the Python that runs this. A checkout of an earlier commit:

    git worktree add /tmp/before COMMIT

``--only start`` compares how long a job takes to start instead, ``--rounds 9``: seconds from the
command to the event ``start`` in its journal, of the digits MLP under ``default``.
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
from typing import Any

BATCH = 128  # of both replicas
STRATEGIES = {
    "mirrored x2": ("strategy=mirrored", "hardware.devices=2"),
    "multiworker x2": ("strategy=multiworker", "hardware.hosts=2"),
}
CNN = (
    "tracking=none", "hardware=cpu", "model=cnn", "dataset=digits", "dataset.validation_split=0.0",
    f"trainer.batch_size={BATCH}", "checkpoint.every_epochs=null", "objective=accuracy",
)  # fmt: skip
#: Of ``--only start``.
START = ("strategy=default", "dataset=digits", "model=mlp", "trainer.epochs=1", "tracking=none")


def trained(checkout: Path, folder: Path, *overrides: str) -> list[dict[str, Any]]:
    """Train once with the code of a checkout; return the events of the journal."""
    before = set(folder.glob("outputs/*/*/journal.jsonl"))
    command = [sys.executable, "-m", "dtrain", *overrides]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{checkout}: {' '.join(command)}\n{done.stdout}{done.stderr}")
    [path] = set(folder.glob("outputs/*/*/journal.jsonl")) - before
    return [json.loads(line) for line in path.read_text().splitlines()]


def seconds_to_start(checkout: Path, folder: Path) -> float:
    """Return how long a job takes to start."""
    began = time.time()
    events = trained(checkout, folder, *START)
    [start] = [e for e in events if e["event"] == "start"]
    return start["time"] - began


def speed(checkout: Path, folder: Path, *overrides: str) -> float:
    """Train once with the code of a checkout; return examples a second."""
    events = trained(checkout, folder, *overrides)
    [start] = [e for e in events if e["event"] == "start"]
    points = [e for e in events if e["event"] == "metrics" and "loss" in e["metrics"]]
    first = next(p for p in points if p["step"] >= start["steps_per_epoch"])
    steps, seconds = points[-1]["step"] - first["step"], points[-1]["time"] - first["time"]
    if not steps or not seconds:
        raise SystemExit("too short to be timed: more --epochs")
    return steps * start["global_batch_size"] / seconds


def pairs(
    name: str, checkouts: tuple[Path, Path], folder: Path, rounds: int, epochs: int
) -> list[tuple[float, float]]:
    """Return the speeds of both, or the seconds of their starts, pair by pair."""
    found = []
    for index in range(rounds):
        turn = (0, 1) if index % 2 == 0 else (1, 0)
        both = {
            side: seconds_to_start(checkouts[side], folder)
            if name == "start"
            else speed(checkouts[side], folder, *CNN, *STRATEGIES[name], f"trainer.epochs={epochs}")
            for side in turn
        }
        found.append((both[0], both[1]))
        print(f"{name} {index + 1}/{rounds}: {shown(both[0])} {shown(both[1])} "
              f"{both[1] / both[0]:.3f}", flush=True)  # fmt: skip
    return found


def shown(value: float) -> str:
    """Return examples a second, or seconds, with the digits that mean something."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--rounds", type=int, default=7, help="pairs of runs (default: 7)")
    parser.add_argument(
        "--epochs", type=int, default=60, help="of a run, of 14 steps (default: 60)"
    )
    parser.add_argument("--only", choices=[*STRATEGIES, "start"])
    arguments = parser.parse_args()
    checkouts = arguments.before.resolve(), arguments.after.resolve()
    for checkout in checkouts:
        if not (checkout / "dtrain" / "__main__.py").exists():
            parser.error(f"{checkout} is no checkout of dtrain")
    rows = []
    for name in [arguments.only] if arguments.only else STRATEGIES:
        with tempfile.TemporaryDirectory() as folder:
            found = pairs(name, checkouts, Path(folder), arguments.rounds, arguments.epochs)
        before, after = (statistics.median(side) for side in zip(*found, strict=True))
        ratios = [b / a for a, b in found]
        rows.append(f"| {name} | {shown(before)} | {shown(after)} | "
                    f"{statistics.median(ratios):.3f} | "
                    f"{min(ratios):.3f} to {max(ratios):.3f} |")  # fmt: skip
    unit = "s" if arguments.only == "start" else "examples/s"
    print(f"\n| digits | before, {unit} | after, {unit} | ratio | least to greatest |")
    print("|---|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
