"""Measures training beside its evaluator: ``python experiments/sidecar.py``; four minutes.

One training on the first of two cores, and an evaluator on the second that has always something to
evaluate. The evaluator is stopped and continued in turn (SIGSTOP, SIGCONT), a window of seconds
each, and the steps a second of neighbouring windows are a pair: what the machine does to both by
itself, which is more than what is looked for, is the same in both. With ``--programs`` a training
without an evaluator has programs of no concern on the second core in the same way: what is left of
its steps is what the machine takes for any work beside a training.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

#: Adds numbers up in the cache of its core, and matrices of 600 x 600 through the memory.
PROGRAMS = {
    "in its cache": "x = 0\nwhile True: x = (x * 5 + 1) % 1000003",
    "matrices": "import numpy; a = numpy.random.rand(600, 600)\nwhile True: a @ a",
}
#: Seconds of a window of which nothing counts: caches fill, and a step may have begun before.
BEGINNING = 0.3


def cores() -> list[int]:
    """Return the two cores."""
    return sorted(os.sched_getaffinity(0))[:2]


def task(log: Path) -> int | None:
    """Return the process that writes a log."""
    for each in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(each / "fd/1") == str(log):
                return int(each.name)
    return None


@contextlib.contextmanager
def training(folder: Path, words: list[str]) -> Iterator[None]:
    """Train, until it is enough."""
    beside = "sidecar.evaluate=true" in words
    command = subprocess.Popen(
        [sys.executable, "-m", "dtrain", f"hydra.run.dir={folder}", "tracking=none",
         "strategy=one_device", "hardware.intra_op_threads=1", "checkpoint.keep=1",
         "trainer.log_every_steps=20", *words],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        preexec_fn=lambda: os.sched_setaffinity(0, cores()[: 2 if beside else 1]),
    )  # fmt: skip
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGINT):
            command.send_signal(number)
            time.sleep(1)
        command.wait(60)


@contextlib.contextmanager
def program(code: str) -> Iterator[int]:
    """Start a program on the second core."""
    process = subprocess.Popen(
        [sys.executable, "-c", code], preexec_fn=lambda: os.sched_setaffinity(0, cores()[1:])
    )
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def begun(folder: Path) -> None:
    """Wait until a training is under way."""
    while len(points(folder)) < 150:
        time.sleep(0.5)


def points(folder: Path) -> list[tuple[float, int]]:
    """Return when the training was at which step."""
    journal = folder / "journal.jsonl"
    lines = journal.read_bytes().splitlines()[:-1] if journal.exists() else []
    events = [json.loads(line) for line in lines]
    return [
        (event["time"], event["step"])
        for event in events
        if event["event"] == "metrics" and "loss" in event["metrics"]
    ]


def pairs(pid: int, number: int, seconds: float) -> list[tuple[bool, float, float]]:
    """Stop and continue a process in turn; return (at work, begin, end) of each window."""
    found = []
    for _ in range(number):
        first = random.random() < 0.5
        for working in (first, not first):
            os.kill(pid, signal.SIGCONT if working else signal.SIGSTOP)
            begin = time.time()
            time.sleep(seconds)
            found.append((working, begin + BEGINNING, time.time()))
    os.kill(pid, signal.SIGCONT)
    return found


def ratios(windows: list[tuple[bool, float, float]], at: list[tuple[float, int]]) -> list[float]:
    """Return the steps a second with the process at work, of those without, for each pair."""
    speeds = []
    for working, begin, end in windows:
        inside = [(when, step) for when, step in at if begin <= when <= end]
        (t0, s0), (t1, s1) = inside[0], inside[-1]
        speeds.append((working, (s1 - s0) / (t1 - t0)))
    return [
        max(pair)[1] / min(pair)[1]  # False comes before True
        for pair in zip(speeds[::2], speeds[1::2], strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=70)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--programs", action="store_true")
    parser.add_argument("words", nargs="*", help="overrides of the training")
    given = parser.parse_args()
    # With a schedule the rate is read at each point, so that each has a time of its own.
    words = [
        "model=cnn", "dataset=synthetic", "dataset.shape=[16,16,1]", "dataset.examples=20000",
        "dataset.validation_examples=100000", "trainer.steps_per_epoch=600",
        "trainer.epochs=100000", "optimizer/schedule=cosine", *given.words,
    ]  # fmt: skip
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(os.path.realpath(temporary))
        folder = place / "beside"
        with training(folder, ["sidecar.evaluate=true", "sidecar.every=newest", *words]):
            begun(folder)
            evaluator = task(folder / "logs" / "evaluator-0.log")
            assert evaluator is not None
            windows = pairs(evaluator, given.pairs, given.seconds)
            found["the evaluator"] = ratios(windows, points(folder))
        if given.programs:
            folder = place / "alone"
            with training(folder, ["trainer.validation_freq=1000000", "objective=loss",
                                   "objective_mode=min", *words]):  # fmt: skip
                begun(folder)
                for name, code in PROGRAMS.items():
                    with program(code) as other:
                        windows = pairs(other, given.pairs, given.seconds)
                    found[f"a program, {name}"] = ratios(windows, points(folder))
    for name, of in found.items():
        draws = [statistics.median(random.choices(of, k=len(of))) for _ in range(2000)]
        low, *_, high = statistics.quantiles(draws, n=40)
        print(
            f"{name:24} {statistics.median(of):.3f} of the steps/s without it (95 % of the "
            f"median's draws {low:.3f} to {high:.3f}; {len(of)} pairs, "
            f"{min(of):.3f} to {max(of):.3f})"
        )


if __name__ == "__main__":
    main()
