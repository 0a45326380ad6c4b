"""Measures for ``docs/measurements.md``: ``python experiments/parameter_servers.py``; minutes.

Examples a second of ``strategy=ps``, under each kind of update, with two workers of one core each
against one such worker, and against ``strategy=one_device`` on one core: 64 examples for each
gradient, everywhere. The model is the CNN of ``clusters.py``; ``one_device`` prints how long a step
of it takes here.

The lone worker is kept to one core, as each of the two is. With ``--floating`` it is not: then it
has a part of the other core, which chief and server leave it.

The sides of a round follow each other, in the other order in every second round, so that a drift of
the machine's speed meets all; a ratio is the median of those of the rounds. Speed is examples over
time, between a tenth of the run and its end. Chief, servers and workers share the machine's cores.

``one_device, two at once`` are two runs of one core each that have nothing to do with each other:
what two workers could do together if chief and server took no time.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from clusters import CNN, beside, process_of, run, spread

BATCH = 64

#: What each side says, and its steps in those of ``--steps``.
SIDES: dict[str, tuple[tuple[str, ...], int]] = {
    "one_device": (("strategy=one_device", f"trainer.batch_size={BATCH}"), 2),
    "one_device, two at once": (("strategy=one_device", f"trainer.batch_size={BATCH}"), 2),
    "sync, 1 worker": (
        ("strategy=ps", "strategy.update=sync", "strategy.workers=1",
         f"trainer.batch_size={BATCH}"), 1,
    ),
    "sync, 2 workers": (
        ("strategy=ps", "strategy.update=sync", "strategy.workers=2",
         f"trainer.batch_size={2 * BATCH}"), 1,
    ),
    "async, 1 worker": (
        ("strategy=ps", "strategy.workers=1", f"trainer.batch_size={BATCH}"), 1,
    ),
    "async, 2 workers": (
        ("strategy=ps", "strategy.workers=2", f"trainer.batch_size={BATCH}"), 2,
    ),
}  # fmt: skip


@contextlib.contextmanager
def kept(folder: Path, task: str) -> Iterator[None]:
    """Keep ``task`` of the newest run below ``folder`` to the first core, from its start."""
    ended = threading.Event()

    def keep() -> None:
        while not ended.wait(0.02):
            pid = process_of(folder, task)
            if pid is not None:  # threads begun later are where the one is that begins them
                for thread in Path(f"/proc/{pid}/task").iterdir():
                    os.sched_setaffinity(int(thread.name), {0})
                return

    with beside(keep, ended):
        yield


def measured(folder: Path, side: str, given: argparse.Namespace) -> float:
    """Return examples a second of a run of one side."""
    own, times = SIDES[side]
    lone = side.endswith(" 1 worker") and not given.floating

    def train(where: Path, core: int | None) -> dict[str, Any]:
        with kept(where, "worker-0") if lone else contextlib.nullcontext():
            return run(
                where, *CNN, "trainer.log_every_steps=10", *own, *given.overrides,
                f"trainer.steps_per_epoch={times * given.steps}", core=core,
            )  # fmt: skip

    cores: list[int | None] = [None]
    if side.startswith("one_device"):
        cores = [0, 1] if side.endswith("at once") else [0]
    with ThreadPoolExecutor() as pool:
        folders = [folder / f"core{core}" for core in cores]
        runs = [pool.submit(train, *each) for each in zip(folders, cores, strict=True)]
        return float(sum(each.result()["speed"] for each in runs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--floating", action="store_true", help="the lone worker has any core")
    parser.add_argument("overrides", nargs="*", help="for all sides, behind --")
    given = parser.parse_args()
    found: dict[str, list[float]] = {side: [] for side in given.sides}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        for index in range(given.rounds):
            for side in given.sides if index % 2 == 0 else reversed(given.sides):
                found[side].append(measured(folder, side, given))
            shown = ", ".join(f"{side} {speeds[-1]:,.0f}" for side, speeds in found.items())
            print(f"{index + 1}/{given.rounds}: {shown}", flush=True)
    print("\n| side | examples/s | against one worker | against one_device |\n|---|---|---|---|")
    for side, speeds in found.items():
        alone = found.get(side.replace("2 workers", "1 worker"), [])
        columns = [
            spread([a / b for a, b in zip(speeds, base, strict=True)]) if base else "-"
            for base in (alone, found.get("one_device", []))
        ]
        print(f"| {side} | {statistics.median(speeds):,.0f} | {' | '.join(columns)} |")
    if "one_device" in found:
        step = 1000 * BATCH / statistics.median(found["one_device"])
        print(f"\na step of one_device on one core takes {step:.1f} ms")


if __name__ == "__main__":
    main()
