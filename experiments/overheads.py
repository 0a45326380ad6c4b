"""What recording costs: ``python experiments/overheads.py --pairs 8``; minutes.

Two questions, each of pairs of runs that follow each other, the other side first in every second
pair:

- ``tracking``: ``tracking=mlflow`` against ``tracking=none``;
- ``checkpoint``: ``checkpoint.every_seconds=2`` against no checkpoint.

A cost is 1 minus the ratio of the speeds of a pair. Of the pairs are shown the mean, its interval
of confidence (95 %, of Student's t), and the least and the greatest. Speed is examples over time,
between a tenth of the run and its end, on the one core that each run is given: what others do on
the machine meets both sides of a pair alike only in the mean.

A third is answered by runs that are both sides:

- ``times``: the accounting of where a step's time goes. One run calls two compiled functions, in a
  random order: one of them takes timestamps, and the host adds up how long its steps waited; the
  other does neither. A call is timed from its begin to that of the next, so that what the host does
  with it counts. The cost of a run is
  1 minus the ratio of the median seconds of a step. Two functions that do the same differ by some
  per cent, by where their memory happens to be: so there are many runs, and in every second one the
  function that is made first measures nothing. Batches of 64 (200 KB) and of 512 (1.6 MB), and of
  128 by an iterator of tf.data.

Of ``tracking`` there is a second figure, which others change less: the processor time of the
controller, which does all of the tracking, as a share of the controller's and the task's, one side
less the other. What tracking costs once, MLflow's import and its first connection, is no part of
either: such a run has both cores until that is over, and is measured from then on. The seconds of
the controller until then are a third figure, one side less the other.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: A small model, whose steps are short: what a step or a point costs counts most.
MODEL = (
    "strategy=one_device", "model=mlp", "dataset=synthetic", "dataset.shape=[28,28,1]",
    "dataset.examples=20000", "dataset.validation_examples=64", "trainer.epochs=1",
    "hardware.intra_op_threads=1",
)  # fmt: skip
NONE = ("tracking=none", "checkpoint.every_epochs=null")
#: Seconds from a command until tracking has connected and written its first points, and some more.
SETTLED = {"tracking": 25.0}
#: With and without, by question.
SIDES = {
    "tracking": (("tracking=mlflow", "checkpoint.every_epochs=null"), NONE),
    "checkpoint": ((*NONE, "checkpoint.every_seconds=2"), NONE),
}
#: Of ``times``: batch, and whether an iterator of tf.data hands it over.
TIMES = ((64, False), (512, False), (128, True))
#: Of Student's t, two-sided 95 %, by degrees of freedom.
T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179)


def __getattr__(name: str) -> object:
    """Return the strategy of ``times``; TensorFlow is imported where a task asks for it."""
    if name != "InTurn":
        raise AttributeError(name)
    from dtrain.task.strategies import OneDevice

    class InTurn(OneDevice):
        def __init__(self, devices: list[str]):
            super().__init__(devices)
            reads = "TF_DATA" not in os.environ
            self.abilities = dataclasses.replace(self.abilities, reads_in_loop=reads)

        def steps(self, *given: object, **named: object) -> object:
            sides = [super().steps(*given, **named), super().steps(*given, **named)]
            return Turns(sides, blind=int(os.environ["BLIND"]))

    return InTurn


class Turns:
    """Steps with the accounting of time and without, call by call.

    Args:
        sides: two of the same.
        blind: of which of them nothing will be measured.
    """

    max_steps = 50  # of a call: many of them

    def __init__(self, sides: list[Any], blind: int):
        self._sides, self._turn, self._began = sides, 0, 0.0
        self._coming: list[int] = []
        self._draws = random.Random(blind)
        sides[blind].waiting.measured = False
        self._file = Path(os.environ["CALLS"])

    def train(self, steps: int, ahead: int = 0) -> object:
        now = time.perf_counter()
        if not self._coming:  # both in turn, in an order that nothing else of the run can have
            self._coming = self._draws.sample((0, 1), 2)
        self._turn = self._coming.pop()
        with self._file.open("a") as file:
            file.write(f"{now - self._began}\n{self._turn} {steps} ")
        self._began = now
        return self._sides[self._turn].train(steps, ahead)

    def __getattr__(self, name: str) -> object:
        return getattr(self._sides[self._turn], name)


def seconds_of(process: int) -> float:
    """Return the processor time that a process has had, all its threads."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def descendants(process: int) -> list[int]:
    """Return the processes that a process has started, theirs among them."""
    files = Path(f"/proc/{process}/task").glob("*/children")
    own = [int(each) for file in files for each in file.read_text().split()]
    return [each for child in own for each in (child, *descendants(child))]


def pin(process: int) -> None:
    """Give a process, those that it has started and all their threads one core."""
    core = str(sorted(os.sched_getaffinity(0))[0])
    for each in (process, *descendants(process)):
        subprocess.run(["taskset", "-acp", core, str(each)], check=True, capture_output=True)


def watched(
    process: subprocess.Popen[str], settled: float, connected: Callable[[], bool]
) -> list[tuple[float, float, float]]:
    """Return times, each with the seconds of a controller and those of its task until then.

    Args:
        process: the controller.
        settled: seconds until it and its tasks are to share one core; nothing from before counts.
        connected: says whether its tracking has been, then.
    """
    found: list[tuple[float, float, float]] = []
    begin, late = time.time() + settled, threading.Event()

    def watch() -> None:
        pinned = False
        while process.poll() is None:
            if time.time() < begin or not descendants(process.pid):
                time.sleep(0.05)
                continue
            try:
                if not pinned:
                    pin(process.pid)
                    pinned = True
                    if not connected():
                        late.set()
                tasks = [seconds_of(each) for each in descendants(process.pid)]
                found.append((time.time(), seconds_of(process.pid), sum(tasks)))
            except OSError:
                continue  # one has just ended
            time.sleep(0.05)

    watcher = threading.Thread(target=watch)
    watcher.start()
    output, _ = process.communicate()
    watcher.join()
    if process.returncode or late.is_set():
        raise SystemExit(output if process.returncode else f"not connected after {settled:g} s")
    return found


def measured(
    folder: Path, overrides: tuple[str, ...], seconds: float, settled: float = 0.0
) -> tuple[float, float, float]:
    """Train for about so long.

    Returns:
        Examples a second, the controller's share of the processor time, and the seconds that it had
        before it was measured.
    """
    before = set(folder.glob("*/*"))
    command = [sys.executable, "-m", "dtrain", *MODEL, *overrides]

    def connected() -> bool:
        if not settled or "tracking=mlflow" not in overrides:
            return True
        files = {p / "tracking.json" for p in set(folder.glob("*/*")) - before}
        return any("run_id" in file.read_text() for file in files if file.exists())

    samples = watched(
        subprocess.Popen(
            [*command, f"trainer.steps_per_epoch={int(seconds * 1000)}", f"output_dir={folder}"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "DTRAIN_TRUST": "overheads",
                 "PYTHONPATH": str(Path(__file__).parent)},
        ), settled, connected,
    )  # fmt: skip
    [path] = {p for p in set(folder.glob("*/*")) - before if (p / "journal.jsonl").exists()}
    events = [json.loads(line) for line in (path / "journal.jsonl").read_text().splitlines()]
    points = [e for e in events if e["event"] == "metrics" and "loss" in e["metrics"]]
    last = points[-1]
    later = [p for p in points if p["step"] >= last["step"] / 10 and p["time"] > samples[0][0]]
    if not later:
        raise SystemExit(f"a run was over before it was measured: more than --seconds {seconds:g}")
    first = later[0]
    during = [each for each in samples if first["time"] <= each[0] <= last["time"]]
    controller, tasks = (during[-1][i] - during[0][i] for i in (1, 2))
    speed = 64 * (last["step"] - first["step"]) / (last["time"] - first["time"])
    return speed, controller / (controller + tasks), during[0][1]


def accounting(folder: Path, seconds: float, batch: int, tf_data: bool, blind: int) -> float:
    """Return what the accounting cost in a run of about so long, of :class:`Turns`."""
    file = folder / "calls"
    file.unlink(missing_ok=True)
    command = (
        sys.executable, "-m", "dtrain", *MODEL, *NONE, "strategy._target_=overheads.InTurn",
        f"trainer.batch_size={batch}", f"trainer.steps_per_epoch={int(seconds * 64_000 / batch)}",
        f"output_dir={folder}",
    )  # fmt: skip
    environment = {
        **os.environ, "DTRAIN_TRUST": "overheads", "PYTHONPATH": str(Path(__file__).parent),
        "CALLS": str(file), "BLIND": str(blind), **({"TF_DATA": "1"} if tf_data else {}),
    }  # fmt: skip
    one_core = ["taskset", "-c", str(min(os.sched_getaffinity(0))), *command]
    subprocess.run(one_core, env=environment, check=True, capture_output=True)
    calls = [line.split() for line in file.read_text().splitlines()[5:-1]]  # at first it is traced
    took: dict[int, list[float]] = {0: [], 1: []}
    for turn, steps, between in calls:
        took[int(turn)].append(float(between) / int(steps))
    return 1 - statistics.median(took[blind]) / statistics.median(took[1 - blind])


def interval(costs: list[float]) -> str:
    """Return mean, interval of confidence, least and greatest of costs, in per cent."""
    mean = statistics.mean(costs)
    text = f"{mean:.1%}"
    if len(costs) > 1:
        wide = T[min(len(costs) - 1, len(T)) - 1] * statistics.stdev(costs) / math.sqrt(len(costs))
        text += f" ({mean - wide:.1%} to {mean + wide:.1%})"
    return f"{text}, pairs from {min(costs):.1%} to {max(costs):.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0, help="of a run, at 1 ms a step")
    questions = ["times", *SIDES]
    parser.add_argument("--only", nargs="+", choices=questions, default=questions)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        if "tracking" in given.only:  # the first run makes the tables of the tracking store
            measured(folder, SIDES["tracking"][0], 0.1)
        for batch, tf_data in TIMES if "times" in given.only else ():
            costs = [
                accounting(folder, given.seconds, batch, tf_data, blind=index % 2)
                for index in range(given.pairs)
            ]
            by = ", by tf.data" if tf_data else ""
            print(f"times, batch {batch}{by}: costs {interval(costs)}", flush=True)
        for question in given.only:
            if question == "times":
                continue
            sides, costs, shares, once = SIDES[question], [], [], []
            settled = SETTLED.get(question, 0.0)
            for pair in range(given.pairs):
                order = (0, 1) if pair % 2 == 0 else (1, 0)
                found = {side: measured(folder, sides[side], given.seconds, settled)
                         for side in order}  # fmt: skip
                costs.append(1 - found[0][0] / found[1][0])
                shares.append(found[0][1] - found[1][1])
                once.append(found[0][2] - found[1][2])
                print(f"{question} {pair + 1}/{given.pairs}: {found[0][0]:,.0f} "
                      f"{found[1][0]:,.0f} {costs[-1]:+.2%}, controller {found[0][1]:.2%} "
                      f"{found[1][1]:.2%}", flush=True)  # fmt: skip
            print(f"{question}: costs {interval(costs)}; controller {interval(shares)}", flush=True)
            if settled:
                print(f"{question}: {statistics.median(once):.1f} s of the controller, once")


if __name__ == "__main__":
    main()
