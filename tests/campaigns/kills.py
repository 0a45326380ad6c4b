"""Launching commands that are killed leave nothing behind: ``python -m tests.campaigns.kills``.

Each is killed (SIGKILL, of that command alone) at a random moment of its life. Then no process of
it may be left within ``--patience`` seconds, and no lock be held. Of every third, what the user
types next has to end ``FINISHED``: a resume, or the same command where there is nothing to resume.
ssh needs root (``make test-ssh``).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from dtrain.files import locks
from dtrain.launchers.local import Ports
from dtrain.run import checkpoint
from dtrain.run.folder import LOCK, RunDir, read_json
from tests import servers
from tests.conftest import QUICK

#: Of some seconds, with some checkpoints.
RUN = (
    *QUICK,
    "trainer.batch_size=36",
    "trainer.epochs=60",
    "checkpoint.every_steps=20",
    "hydra.run.dir=run",
)
TWO = ("strategy=multiworker", "hardware.hosts=2")
CASES = {
    "mirrored": (*RUN, "strategy=mirrored", "hardware.devices=2"),
    "multiworker": (*RUN, *TWO),
    # A command waits so long for one that never comes, as it was killed before.
    "env": (*RUN, *TWO, "launcher=env", "launcher.start_timeout=40"),
    "agents": (*RUN, *TWO, "launcher=local", "launcher._target_=tests.agents.Together"),
    "ssh": (*RUN, "strategy=multiworker", "launcher.hosts=[a,b]"),
    "sweep": ("-m", *RUN[:-1], "hydra.sweep.dir=run", "seed=1,2,3", "sweep.parallel=2"),
}  # fmt: skip
MARK = "DTRAIN_TEST_MARK"


class Attempt:
    """Commands of one job, in a folder of its own: two of ``env``, otherwise one.

    Args:
        name: of :data:`CASES`.
        folder: to be made.
        hosts: of ssh.
    """

    def __init__(self, name: str, folder: Path, hosts: servers.Cluster | None):
        self.name, self.folder, self._hosts = name, folder, hosts
        folder.mkdir()
        (folder / "tmp").mkdir()
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str) -> None:
        """Start the commands."""
        own = {MARK: str(self.folder), "TMPDIR": str(self.folder / "tmp"), "DTRAIN_TRUST": "tests"}
        if self.name == "ssh" and self._hosts is not None:
            command = self._hosts.start(*words, name=self.folder.name, **own)
            self.processes = [command.process]
            return
        tasks = [own]
        if self.name == "env":
            addresses = [f"127.0.0.1:{port}" for port in Ports().take(2)]
            tasks = [
                {**own, "HOME": str(self.folder), "TF_CONFIG": json.dumps(
                    {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
                )}
                for index in range(2)
            ]  # fmt: skip
        with (self.folder / "output.txt").open("a") as output:
            self.processes = [
                subprocess.Popen(
                    [sys.executable, "-m", "dtrain", *words], cwd=self.folder, stdout=output,
                    stderr=output, stdin=subprocess.DEVNULL, env={**os.environ, **task},
                )
                for task in tasks
            ]  # fmt: skip

    def wait(self) -> list[int]:
        """Return the exit codes of the commands."""
        return [process.wait(300) for process in self.processes]

    def left(self) -> list[str]:
        """Return the command lines of processes that come from these commands."""
        lines = [str(each) for each in (self._hosts.left().items() if self._hosts else ())]
        for path in self._here():
            with contextlib.suppress(OSError):
                line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                lines.append(f"{path.name} {line}")
        return lines

    def end(self) -> None:
        """Kill what is left on this machine."""
        for path in self._here():
            with contextlib.suppress(OSError):
                os.kill(int(path.name), signal.SIGKILL)

    def _here(self) -> list[Path]:
        """Return the folders below ``/proc`` of what has the mark in its environment."""
        mark, paths = f"{MARK}={self.folder}\0".encode(), []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (path / "environ").read_bytes():
                    paths.append(path)
        return paths

    def stage(self) -> str:
        """Return how far the job has come."""
        run = self.folder / "run"
        if not (run / ("sweep.json" if self.name == "sweep" else "command.json")).exists():
            return "before its folder"
        if (run / "result.json").exists():
            return "ended"
        if self.name != "sweep" and not checkpoint.steps(RunDir(run).checkpoints):
            return "before a checkpoint"
        return "in training"

    def next(self) -> str:
        """Do what a user does next; return the status of the job."""
        words = ["sweep.resume=run" if self.name == "sweep" else "resume=run"]
        if self.name == "ssh":
            words.append("launcher.hosts=[a,b]")  # the cluster's commands say launcher=ssh
        self.start(*(CASES[self.name] if self.stage() == "before its folder" else words))
        codes = self.wait()
        if self.name == "sweep":
            jobs = (read_json(self.folder / "run" / "sweep.json") or {}).get("jobs", [])
            done = {job["status"] for job in jobs}
            return "FINISHED" if codes == [0] and done == {"FINISHED"} else f"{codes} {done}"
        result = read_json(RunDir(self.folder / "run").result) or {}
        return str(result.get("status")) if set(codes) == {0} else f"{codes} {result}"


def kill(
    attempt: Attempt, chance: random.Random, seconds: float, patience: float
) -> tuple[str, float]:
    """Kill a command within ``seconds`` of its start.

    Returns:
        How far the job had come, and the seconds after which nothing of it was left.
    """
    attempt.start(*CASES[attempt.name])
    victim = chance.choice(attempt.processes)
    with contextlib.suppress(subprocess.TimeoutExpired):
        victim.wait(chance.uniform(0.02, 0.98) * seconds)
    stage = attempt.stage()
    victim.kill()
    since = time.monotonic()
    while left := attempt.left():
        if time.monotonic() > since + patience:
            raise AssertionError(f"{stage}: left after {patience:.0f} s: {left}")
        time.sleep(0.05)
    took = time.monotonic() - since
    attempt.wait()
    held = [path for path in attempt.folder.rglob(LOCK) if locks.is_held(path)]
    assert not held, f"{stage}: locked: {held}"
    return stage, took


def campaign(name: str, times: int, seed: int, patience: float, folder: Path) -> int:
    """Kill commands of one kind; print a line, and return how many of them left anything."""
    chance = random.Random(f"{seed} {name}")
    stages: Counter[str] = Counter()
    wrong, resumed, slowest = 0, 0, 0.0
    with servers.cluster(folder, "ab") if name == "ssh" else contextlib.nullcontext() as hosts:
        whole = Attempt(name, folder / f"{name}-whole", hosts)
        begin = time.monotonic()
        assert (status := whole.next()) == "FINISHED", f"{whole.folder}: {status}"
        seconds = time.monotonic() - begin
        for number in range(times):
            attempt = Attempt(name, folder / f"{name}-{number}", hosts)
            try:
                stage, took = kill(attempt, chance, seconds, patience)
                stages[stage] += 1
                slowest = max(slowest, took)
                if number % 3 == 0 and stage != "ended":
                    assert (status := attempt.next()) == "FINISHED", f"{stage}: then {status}"
                    resumed += 1
            except AssertionError as error:
                wrong += 1
                print(f"WRONG {attempt.folder}: {error}", flush=True)
                attempt.end()
    when = ", ".join(f"{count} {stage}" for stage, count in sorted(stages.items()))
    print(f"{name}: {times} killed ({when}), {wrong} wrong; all was gone within {slowest:.1f} s; "
          f"{resumed} went on to their end", flush=True)  # fmt: skip
    return wrong


def main() -> None:
    """Kill commands of each kind in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=100, help="in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--patience", type=float, default=30.0)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    arguments = parser.parse_args()
    names = [name for name in arguments.only if name != "ssh" or servers.lacking() is None]
    folder = Path(tempfile.mkdtemp(prefix="kills-"))
    wrong = 0
    for index, name in enumerate(names):
        times = len(range(index, arguments.times, len(names)))
        wrong += campaign(name, times, arguments.seed, arguments.patience, folder)
    print(f"{arguments.times} killed, {wrong} wrong, in {folder}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
