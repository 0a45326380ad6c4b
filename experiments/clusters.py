"""Measures for ``docs/measurements.md``: ``make bench``, or ``python experiments/clusters.py``.

1. Scaling: ``strategy=multiworker`` on two processes against ``strategy=one_device`` on one, each
   process with one core, 64 examples a worker, a CNN of 28x28x1 images.
2. Start: from the fork of four tasks, with TensorFlow imported, to the first step.
3. A slow worker: ``strategy=ps`` with the two fast workers alone, and with a third that gets a
   tenth of the time of a core (SIGSTOP and SIGCONT in turn), under each kind of update. Written to
   ``docs/stragglers.png`` too.

Each ratio is of runs that follow each other; of several rounds the median is shown, with the least
and the greatest. Speed is examples over time, between a tenth of the run and its end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PERIOD = 0.1  # of the slow worker's pauses, in seconds
SHARE = 0.12  # of it that it may run; it shares its core even then

CNN = (
    "tracking=none", "model=cnn", "model.filters=[32,64]", "model.units=64", "dataset=synthetic",
    "dataset.shape=[28,28,1]", "dataset.examples=20000", "dataset.validation_examples=64",
    "trainer.epochs=1", "checkpoint.every_epochs=null", "hardware.intra_op_threads=1",
)  # fmt: skip


def run(folder: Path, *overrides: str, slow: str | None = None, core: int | None = None) -> dict:
    """Run the command line once; return its result with ``speed``, in examples a second.

    Args:
        folder: of its outputs, where no other run begins meanwhile.
        overrides: of the command.
        slow: a task that gets a tenth of its time.
        core: the only one that the command may use.
    """
    command = [sys.executable, "-m", "dtrain", *overrides, f"output_dir={folder}"]
    if core is not None:
        command = ["taskset", "-c", str(core), *command]
    before = set(folder.glob("*/*"))
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        with slowed(folder, slow) if slow else contextlib.nullcontext():
            code = process.wait()
        if code:
            log.seek(0)
            raise SystemExit(log.read().decode())
    [path] = set(folder.glob("*/*")) - before
    result = json.loads((path / "result.json").read_text())
    events = [json.loads(line) for line in (path / "journal.jsonl").read_text().splitlines()]
    points = [e for e in events if e["event"] == "metrics" and "loss" in e["metrics"]]
    first = next(p for p in points if p["step"] >= result["step"] / 10)
    examples = result["examples"] / result["step"] * (points[-1]["step"] - first["step"])
    return {**result, "speed": examples / (points[-1]["time"] - first["time"])}


@contextlib.contextmanager
def slowed(folder: Path, task: str) -> Iterator[None]:
    """Give ``task`` of the newest run below ``folder`` a tenth of its time, from its start."""
    ended = threading.Event()

    def alternate() -> None:
        pid = None
        while pid is None and not ended.wait(0.1):
            pid = process_of(folder, task)
        with contextlib.suppress(ProcessLookupError):
            while pid is not None and not ended.is_set():
                os.kill(pid, signal.SIGSTOP)
                time.sleep((1 - SHARE) * PERIOD)
                os.kill(pid, signal.SIGCONT)
                time.sleep(SHARE * PERIOD)

    with beside(alternate, ended):
        yield


@contextlib.contextmanager
def beside(work: Callable[[], None], ended: threading.Event) -> Iterator[None]:
    """Do ``work`` in a thread, which ends once ``ended`` is set, while what is inside runs."""
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def process_of(folder: Path, task: str) -> int | None:
    for link in Path("/proc").glob("[0-9]*/fd/1"):
        with contextlib.suppress(OSError):
            log = Path(os.readlink(link))
            if log.name == f"{task}.log" and folder in log.parents:
                return int(link.parts[2])
    return None


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def scaling(folder: Path, rounds: int, steps: int) -> None:
    """Compare for the small model, and for one that computes more for each byte it sends."""
    wide = ("model.filters=[64,128,128]",)
    for name, model, length in (("CNN", (), steps), ("wider CNN", wide, steps // 4)):
        ratios = []
        for index in range(rounds):
            own = (*CNN, *model, f"trainer.steps_per_epoch={length}")
            one = run(folder, *own, "strategy=one_device", "trainer.batch_size=64", core=0)
            two = run(folder, *own, "strategy=multiworker", "trainer.batch_size=128")
            ratios.append(two["speed"] / one["speed"])
            print(f"{name} {index + 1}/{rounds}: {one['speed']:,.0f} {two['speed']:,.0f} "
                  f"{ratios[-1]:.3f}", flush=True)  # fmt: skip
        print(f"\n{name}, two processes of one core against one: {spread(ratios)}\n")


def start(folder: Path, rounds: int) -> None:
    quick = (*CNN, "trainer.steps_per_epoch=20")
    hosts = ("strategy=multiworker", "hardware.hosts=4", "trainer.batch_size=64")
    servers = ("strategy=ps", "trainer.batch_size=64")
    for name, overrides in (("multiworker, 4 hosts", hosts), ("ps, 1 + 2 + 1 tasks", servers)):
        seconds = [run(folder, *quick, *overrides)["start_seconds"] for _ in range(rounds)]
        print(f"from the fork to the first step, {name}: {spread(seconds)} s", flush=True)


def stragglers(folder: Path, rounds: int, steps: int, plot: Path | None) -> None:
    """Fill one row for each kind of update: fast workers alone, then with the slow one."""
    sync = ("strategy=ps", "strategy.update=sync")
    two, three = "strategy.workers=2", "strategy.workers=3"
    # 64 examples for each worker's gradient, everywhere.
    kinds = {
        "async": (
            ("strategy=ps", two, "trainer.batch_size=64"),
            ("strategy=ps", three, "trainer.batch_size=64"),
        ),
        "sync, 1 backup worker": (
            (*sync, two, "trainer.batch_size=128"),
            (*sync, three, "trainer.batch_size=192", "strategy.backup_workers=1"),
        ),
        "sync": ((*sync, two, "trainer.batch_size=128"), (*sync, three, "trainer.batch_size=192")),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
    for index in range(rounds):
        for name, (alone, together) in kinds.items():
            many = 2 * steps if name == "async" else steps
            few = steps // 4 if name == "sync" else many  # it is slow indeed
            log = "trainer.log_every_steps=10"
            fast = run(folder, *CNN, log, *alone, f"trainer.steps_per_epoch={many}")
            slow = run(
                folder, *CNN, log, *together, f"trainer.steps_per_epoch={few}", slow="worker-2"
            )
            found[name].append((fast["speed"], slow["speed"]))
            print(f"{name} {index + 1}/{rounds}: {fast['speed']:,.0f} {slow['speed']:,.0f} "
                  f"{slow['worker_steps']}", flush=True)  # fmt: skip
    print("\n| update | 2 fast workers, examples/s | and a third, ten times slower | kept |")
    print("|---|---|---|---|")
    kept = {name: [slow / fast for fast, slow in pairs] for name, pairs in found.items()}
    for name, pairs in found.items():
        fast, slow = (statistics.median(side) for side in zip(*pairs, strict=True))
        print(f"| {name} | {fast:,.0f} | {slow:,.0f} | {spread(kept[name])} |")
    if plot is not None:
        draw(kept, plot)


def draw(kept: dict[str, list[float]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 2.4), layout="constrained")
    medians = [statistics.median(values) for values in kept.values()]
    axes.barh(list(kept), medians, color="#3b6ea5")
    for row, values in enumerate(kept.values()):
        axes.plot(values, [row] * len(values), "k|", markersize=12)
        axes.text(0.02, row, f"{medians[row]:.2f}", color="white", va="center")
    axes.axvline(0.8, color="grey", linestyle=":")
    axes.invert_yaxis()
    axes.set_xlabel("throughput kept when a slow third worker joins")
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--plot", type=Path, help="where the picture of the slow worker goes")
    parser.add_argument("--only", choices=("scaling", "start", "stragglers"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        if arguments.only in (None, "scaling"):
            scaling(folder, arguments.rounds, arguments.steps)
        if arguments.only in (None, "start"):
            start(folder, arguments.rounds)
        if arguments.only in (None, "stragglers"):
            stragglers(folder, arguments.rounds, arguments.steps, arguments.plot)


if __name__ == "__main__":
    main()
