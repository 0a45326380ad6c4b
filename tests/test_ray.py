"""``launcher=ray`` on a real Ray cluster of two nodes on this machine (``make test-ray``)."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dtrain.host import python_path
from dtrain.run import checkpoint, journal
from tests.conftest import QUICK

pytest.importorskip("ray", reason="Ray is not installed: make test-ray installs it")
pytestmark = pytest.mark.ray

#: Starts a cluster of two nodes; a line on its input kills the second one's raylet.
NODES = """
import sys
from ray.cluster_utils import Cluster
node = dict(num_cpus=2, object_store_memory=80 << 20)
cluster = Cluster(initialize_head=True, head_node_args=dict(node, include_dashboard=False))
second = cluster.add_node(**node)
print(cluster.address, flush=True)
for line in sys.stdin:
    cluster.remove_node(second, allow_graceful=False)
    print("killed", flush=True)
cluster.shutdown()
"""


class Nodes:
    """A cluster.

    Attributes:
        address: of it.
        mark: in the environment of all that it starts.
    """

    def __init__(self, folder: Path):
        self.mark = secrets.token_hex(8)
        environment = {
            **os.environ, **python_path.environment(), "DTRAIN_TEST_MARK": self.mark,
            "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": "/tmp",
            "RAY_health_check_period_ms": "1000", "RAY_health_check_timeout_ms": "2000",
        }  # fmt: skip
        self._errors = (folder / "ray.log").open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", NODES], stdin=subprocess.PIPE, text=True,
            stdout=subprocess.PIPE, stderr=self._errors, env=environment, cwd=folder,
        )  # fmt: skip
        self.address = self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return next(line for line in self._process.stdout if not line.startswith("[")).strip()

    def kill_node(self) -> None:
        """Kill the raylet of the second node."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        assert self._line() == "killed"

    def agents(self) -> list[int]:
        """Return the processes of agents and tasks that are on the cluster."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self.mark.encode() not in (path / "environ").read_bytes():
                    continue
                if b"dtrain" in (path / "cmdline").read_bytes().replace(NODES.encode(), b""):
                    found.append(int(path.name))
        return found

    def end(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(60)
        finally:
            self._process.kill()
            self._errors.close()


@pytest.fixture
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    made = Nodes(tmp_path_factory.mktemp("ray"))
    yield made
    left = made.agents()
    made.end()
    assert not left


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """A cluster that loses no node."""
    made = Nodes(tmp_path_factory.mktemp("ray"))
    yield made
    made.end()


def until(condition: Callable[[], Any], seconds: float) -> Any:
    """Wait for a condition, and return what it is."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


def begun(nodes: Nodes, *words: str) -> subprocess.Popen[str]:
    """Start a command, in a process of its own."""
    environment = {**os.environ, **python_path.environment(), "RAY_ADDRESS": nodes.address}
    return subprocess.Popen(
        [sys.executable, "-m", "dtrain", *QUICK, "launcher=ray", "hydra.run.dir=run", *words],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment,
    )  # fmt: skip


def run(nodes: Nodes, *words: str, code: int = 0) -> str:
    """Run a command; return what it printed."""
    with begun(nodes, *words) as process:
        output = process.communicate(timeout=200)[0]
    assert process.returncode == code, output
    return output


def trains() -> bool:
    return any(e["event"] == "metrics" and e["step"] > 20 for e in journal.read(JOURNAL))


def losses(path: Path) -> dict[int, float]:
    points = [e for e in journal.read(path) if e["event"] == "metrics" and "loss" in e["metrics"]]
    return {e["step"]: e["metrics"]["loss"] for e in points}


JOURNAL = Path("run/journal.jsonl")


@pytest.mark.parametrize(
    "words",
    [
        ["strategy=one_device"],
        ["strategy=multiworker", "hardware.hosts=2"],
        ["strategy=multiworker", "hardware.hosts=4", "launcher.placement=pack"],
        ["strategy=ps", "strategy.workers=2", "strategy.update=sync", "launcher.cpus_per_task=0.5"],
    ],
    ids=["one_device", "multiworker", "packed", "ps"],
)
def test_the_losses_are_those_of_one_device(
    quiet: Nodes, tmp_path: Path, dtrain: Any, words: list[str]
) -> None:
    here = dtrain(*QUICK, "strategy=one_device", "optimizer=sgd", "hydra.run.dir=here")
    assert here.code == 0, here.output
    output = run(quiet, *words, "optimizer=sgd")
    assert "FINISHED" in output
    ours, theirs = losses(JOURNAL), losses(Path("here/journal.jsonl"))
    assert len(theirs) == 8 and ours == pytest.approx(theirs, rel=1e-5)
    assert until(lambda: not quiet.agents(), 20)


def test_a_node_that_dies_ends_the_job(nodes: Nodes) -> None:
    words = ["strategy=multiworker", "hardware.hosts=2", "trainer.epochs=100000"]
    with begun(nodes, *words) as process:
        until(trains, 120)
        nodes.kill_node()
        output = process.communicate(timeout=100)[0]
    assert process.returncode == 1, output
    # Whichever is first: Ray's own look at the node, or the chief, which lacks the other task.
    named = r"(nothing came lately from|is lost with its host) .*\(place [01]\)"
    assert re.search(named, output), output
    assert until(lambda: not nodes.agents(), 20)


def test_a_node_that_dies_is_replaced(nodes: Nodes) -> None:
    words = [
        "strategy=multiworker", "hardware.hosts=2", "launcher.max_restarts=1",
        "launcher.placement=spread", "trainer.epochs=1500", "checkpoint.every_epochs=50",
        "trainer.log_every_steps=50",
    ]  # fmt: skip
    with begun(nodes, *words) as process:
        until(trains, 120)
        nodes.kill_node()
        output = process.communicate(timeout=300)[0]
    assert process.returncode == 0, output
    assert "restart 1 of 1" in output
    found, problems = checkpoint.newest(Path("run/checkpoints"))
    assert found is not None and found.step == 6000 and not problems


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_the_end_of_the_command_leaves_nothing(quiet: Nodes, number: signal.Signals) -> None:
    words = ["strategy=multiworker", "hardware.hosts=2", "trainer.epochs=100000"]
    with begun(quiet, *words) as process:
        until(trains, 120)
        assert quiet.agents()
        process.send_signal(number)
        assert process.wait(60) == (-9 if number == signal.SIGKILL else 75)
        assert process.stdout is not None
        process.stdout.close()
    assert until(lambda: not quiet.agents(), 20)
    assert checkpoint.newest(Path("run/checkpoints"))[0] is not None


def swept(nodes: Nodes, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a sweep."""
    environment = {**os.environ, **python_path.environment(), "RAY_ADDRESS": nodes.address}
    return subprocess.run(
        [sys.executable, "-m", "dtrain", "-m", *QUICK, "launcher=ray",
         "launcher.cpus_per_task=0.5", *words],
        capture_output=True, text=True, env=environment, timeout=300,
    )  # fmt: skip


def test_a_sweep_shares_cores(quiet: Nodes) -> None:
    done = swept(quiet, "sweep.parallel=3", "seed=1,2,3,4,5")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FINISHED: 5 of 5 jobs done" in done.stdout + done.stderr
    assert until(lambda: not quiet.agents(), 20)


def test_what_is_not_there(quiet: Nodes) -> None:
    said = run(quiet, "launcher.address=127.0.0.1:1", code=2)
    assert "launcher.address=127.0.0.1:1: no Ray cluster answers (" in said
    said = run(quiet, "launcher.cpus_per_task=3", code=2)
    assert "the Ray cluster has no room for 1 x 3 CPU (PACK)" in said and "2 CPU" in said
    words = ["strategy=multiworker", "hardware.hosts=3", "trainer.batch_size=30"]
    said = run(quiet, *words, code=2)
    assert "has no room for 3 x 1 CPU (STRICT_SPREAD)" in said
    words = ["strategy=multiworker", "hardware.hosts=5", "launcher.placement=pack"]
    said = run(quiet, *words, "launcher.start_timeout=3", "trainer.batch_size=40", code=2)
    assert "had no room within 3 s (launcher.start_timeout) for 5 x 1 CPU" in said
    assert not Path("run").exists()
    done = swept(quiet, f"launcher.address={quiet.address},127.0.0.1:1")
    assert done.returncode == 2
    said = f"other jobs of this command are on {quiet.address}: Ray connects a process with one"
    assert said in done.stderr
