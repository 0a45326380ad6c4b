"""Measures what grows with a run, a file, a sweep, a comparison: ``python experiments/memory.py``.

``--only steps``: a run of 200,000 steps with ten values at every tenth (``--every``), all of them
recorded in MLflow. The resident memory of the controller and of the task is read from ``/proc`` ten
times a second, and printed at some parts of the steps. ``--only data``: the controller of a run on
an ``.npz`` of 500 MB, while it trains. ``--only sweep``: the controller of a sweep of 200 short
jobs, and when which part of them had ended. ``--only compare``: ``python -m dtrain compare`` on 50
to 500 runs, copies of one with 40 points.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

PARTS = (0.1, 0.25, 0.5, 0.75, 1.0)
SMALL = ("model=mlp", "model.units=[8]", "hardware=cpu", "strategy=one_device")
#: Two steps an epoch.
SHORT = (
    *SMALL, "tracking=none", "dataset=synthetic", "dataset.shape=[4]", "dataset.examples=16",
    "dataset.validation_examples=8", "trainer.batch_size=8",
)  # fmt: skip
#: With loss, learning_rate and examples_per_second ten values a point.
METRICS = "[accuracy,{}]".format(
    ",".join(
        f"{{_target_:keras.metrics.SparseTopKCategoricalAccuracy,k:{k},name:top_{k}}}"
        for k in range(2, 8)
    )
)


def resident(pid: int) -> float:
    """Return the resident memory of a process in MB; 0 of one that is gone."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            pages = int(file.read().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def children(pid: int) -> list[int]:
    """Return the processes that a process has started and that are still there."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for t in threads for child in (t / "children").read_text().split()]
    except OSError:
        return []


def step(folder: Path) -> int:
    """Return the step at which the run below ``folder`` is."""
    for path in folder.glob("outputs/*/*/progress.json"):
        try:
            return int(json.loads(path.read_text())["step"])
        except (OSError, ValueError):
            return 0
    return 0


def watched(folder: Path, *words: str) -> tuple[list[tuple[int, float, float]], float, Any]:
    """Run dtrain; return (step, MB of the controller, of the task) over time, seconds, result."""
    command = [sys.executable, "-m", "dtrain", *SMALL, *words]
    begin, samples = time.perf_counter(), []
    with (folder / "output.txt").open("w") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output)
        while process.poll() is None:
            # The controller has a server that imports TensorFlow, and the task is forked from that.
            tasks = [task for server in children(process.pid) for task in children(server)]
            now = step(folder)
            if now and tasks:
                samples.append((now, resident(process.pid), max(map(resident, tasks))))
            time.sleep(0.1)
    seconds = time.perf_counter() - begin
    if process.returncode:
        sys.exit((folder / "output.txt").read_text())
    [path] = folder.glob("outputs/*/*/result.json")
    return [s for s in samples if s[2]], seconds, json.loads(path.read_text())


def steps(total: int, every: int, tracking: str) -> None:
    """Print the memory of a run of ``total`` steps with a point after each ``every``."""
    with tempfile.TemporaryDirectory() as made:
        samples, seconds, result = watched(
            Path(made), "dataset=synthetic", "dataset.shape=[4]", "dataset.examples=8000",
            "dataset.validation_examples=8", "trainer.batch_size=8", f"tracking={tracking}",
            "trainer.steps_per_epoch=1000", f"trainer.epochs={-(-total // 1000)}",
            f"trainer.log_every_steps={every}", f"trainer.metrics={METRICS}", "checkpoint.keep=2",
        )  # fmt: skip
        [journal] = Path(made).glob("outputs/*/*/journal.jsonl")
        lines = sum('"metrics"' in line for line in journal.open())
    print(f"{result['step']:,} steps, {lines:,} points, tracking={tracking}, {seconds:.0f} s")
    print("| of the steps | controller | task |\n|---|---|---|")
    for part in PARTS:
        at = [s for s in samples if s[0] <= part * result["step"]][-1]
        print(f"| {part:.0%} | {at[1]:.0f} MB | {at[2]:.0f} MB |")
    print(
        f"| highest | {max(s[1] for s in samples):.0f} MB | {max(s[2] for s in samples):.0f} MB |"
    )


def data(megabytes: int) -> None:
    """Print the memory of the controller of a run on a large file."""
    with tempfile.TemporaryDirectory() as made:
        n = megabytes * 10**6 // 4000
        x = np.random.default_rng(0).random((n, 1000), np.float32)
        np.savez(f"{made}/large.npz", x=x, y=np.arange(n) % 10)
        del x
        samples, _, _ = watched(
            Path(made), "dataset=npz", f"dataset.path={made}/large.npz", "tracking=none",
            "trainer.steps_per_epoch=100", "trainer.epochs=20",
        )  # fmt: skip
    print(f"a file of {megabytes} MB: the controller has {max(s[1] for s in samples):.0f} MB")


def sweep(jobs: int) -> None:
    """Print the memory of the controller of a sweep of short jobs, and the seconds of its parts."""
    words = ["-m", *SHORT, "trainer.epochs=1", f"seed=range(0,{jobs})", "hydra.sweep.dir=sweep"]
    begin, samples = time.perf_counter(), []
    with tempfile.TemporaryDirectory() as made, Path(made, "output.txt").open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "dtrain", *words], cwd=made, stdout=output, stderr=output
        )
        while process.poll() is None:
            done = sum(1 for _ in Path(made).glob("sweep/*/result.json"))
            samples.append((done, time.perf_counter() - begin, resident(process.pid)))
            time.sleep(0.2)
        if process.returncode:
            sys.exit(Path(made, "output.txt").read_text())
    print(f"a sweep of {jobs} jobs\n| of the jobs | seconds | controller |\n|---|---|---|")
    for part in PARTS:
        _, seconds, memory = next((s for s in samples if s[0] >= part * jobs), samples[-1])
        print(f"| {part:.0%} | {seconds:.0f} | {memory:.0f} MB |")


def compare(runs: int) -> None:
    """Print the seconds and the memory of comparisons of some runs, and of more."""
    print(f"| runs of {runs} | seconds | seconds a run | MB |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as made:
        first = Path(made, "outputs", "0")
        words = [*SHORT, "trainer.epochs=20", "trainer.log_every_steps=1", f"hydra.run.dir={first}"]
        subprocess.run(
            [sys.executable, "-m", "dtrain", *words], cwd=made, check=True, capture_output=True
        )
        for part in PARTS:
            count = max(2, int(part * runs))
            for i in range(len(list(first.parent.iterdir())), count):
                shutil.copytree(first, first.parent / str(i))
            command = [sys.executable, "-m", "dtrain", "compare", str(first.parent)]
            begin = time.perf_counter()
            with Path(made, "output.txt").open("w") as output:
                process = subprocess.Popen(command, cwd=made, stdout=output, stderr=output)
                _, status, usage = os.wait4(process.pid, 0)
            if status:
                sys.exit(Path(made, "output.txt").read_text())
            took, memory = time.perf_counter() - begin, usage.ru_maxrss / 1024
            print(f"| {count} | {took:.1f} | {took / count:.3f} | {memory:.0f} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("steps", "data", "sweep", "compare"))
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--tracking", choices=("mlflow", "none"), default="mlflow")
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--runs", type=int, default=500)
    given = parser.parse_args()
    if given.only in (None, "steps"):
        steps(given.steps, given.every, given.tracking)
    if given.only in (None, "data"):
        data(given.megabytes)
    if given.only in (None, "sweep"):
        sweep(given.jobs)
    if given.only in (None, "compare"):
        compare(given.runs)
