"""A cluster's commands meet among peers that are none of it: whole commands, on loopback.

The worker that comes in the end has another seed than the chief. So both commands end with one
sentence about that, without TensorFlow: they have met, whatever came before.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.harness import Case, Ended, Place, problems
from tests.hostile.peers import ANSWERS, ATTACKS, FalseChief
from tests.sampled import sampled

#: Seconds that a chief waits for its worker; no attack may use them up, nor make them longer.
START = 60
KEY = "0123456789abcdef0123456789abcdef"


class Command:
    """One command of a cluster, in an interpreter of its own."""

    def __init__(self, place: Place, task: str, port: int, *words: str):
        cluster = {"chief": [f"127.0.0.1:{port}"], "worker": ["127.0.0.1:1"]}
        about = {"cluster": cluster, "task": {"type": task, "index": 0}}
        environment = {
            **place.environment(), "TF_CONFIG": json.dumps(about), "DTRAIN_CLUSTER_KEY": KEY,
            "DTRAIN_TRUST": "",
        }  # fmt: skip
        self._file = (place.root / f"{task}.out").open("w+b")
        self._began = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dtrain", "strategy=multiworker", "hardware.hosts=2",
             "launcher=env", "dataset=synthetic", "model=mlp", "tracking=none", *words],
            cwd=place.work, env=environment, stdin=subprocess.DEVNULL,
            stdout=self._file, stderr=self._file, start_new_session=True,
        )  # fmt: skip

    def output(self) -> str:
        return Path(self._file.name).read_text(errors="surrogateescape")

    def says(self, text: str, seconds: float = 60) -> None:
        """Wait until it has printed ``text``."""
        until = time.monotonic() + seconds
        while text not in self.output():
            assert self.process.poll() is None, self.output()
            assert time.monotonic() < until, self.output()
            time.sleep(0.05)

    def ended(self, seconds: float) -> Ended:
        late = False
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            late = True
        self.close()
        waited = time.monotonic() - self._began
        return Ended(self.process.returncode, late, 0.0, 0, waited, 0, self.output())

    def close(self) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, 9)
            self.process.wait(30)
        self._file.close()


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        found: int = free.getsockname()[1]
        return found


@pytest.fixture
def held() -> Iterator[list[socket.socket]]:
    sockets: list[socket.socket] = []
    yield sockets
    for each in sockets:
        each.close()


def _meets(names: list[str], place: Place, port: int, held: list[socket.socket]) -> None:
    """Let a chief and its worker meet after attacks, and hold them to what they say."""
    before = place.snapshot()
    chief = Command(place, "chief", port, f"launcher.start_timeout={START}")
    worker: Command | None = None
    try:
        chief.says("waiting for worker-0")
        for name in names:
            try:
                ATTACKS[name](("127.0.0.1", port), held)
            except OSError as error:
                pytest.fail(f"the chief is gone before {name}: {error}\n{chief.output()}")
        worker = Command(place, "worker", port, "seed=1", f"launcher.start_timeout={START}")
        found = []
        for ended in (worker.ended(START), chief.ended(START)):
            case = Case("met", lambda place: None, (), says="seed")
            after = {k: v for k, v in place.snapshot().items() if not k.endswith(".out")}
            found += problems(place, ended, case, (2,), before, after, ())
        assert not found, f"{found}\n--- chief\n{chief.output()}\n--- worker\n{worker.output()}"
    finally:
        for command in filter(None, (chief, worker)):
            command.close()


def test_a_chief_among_all_of_them(place: Place, port: int, held: list[socket.socket]) -> None:
    _meets(list(ATTACKS), place, port, held)


@pytest.mark.faults
@pytest.mark.parametrize("name", ATTACKS)
def test_a_chief_and_one_of_them(
    name: str, place: Place, port: int, held: list[socket.socket]
) -> None:
    _meets([name], place, port, held)


@pytest.mark.parametrize("name", sampled(ANSWERS, "a folder elsewhere"))
def test_a_false_chief(name: str, place: Place) -> None:
    """A worker finds something else at its chief's address: it gives up in its own time."""
    (place.canary / "folder" / "config.yaml").write_text("seed: 1\n")
    before = place.snapshot()
    answer = ANSWERS[name].replace(b"{canary}", str(place.canary).encode())
    chief = FalseChief(answer)
    worker = Command(place, "worker", chief.address[1], "launcher.start_timeout=3")
    try:
        ended = worker.ended(60)
    finally:
        worker.close()
        chief.close()
    assert chief.came, ended.output
    case = Case("false", lambda place: None, ())
    after = {k: v for k, v in place.snapshot().items() if not k.endswith(".out")}
    found = [*problems(place, ended, case, (1, 2), before, after, ())]
    assert not found, f"{found}\n{ended.output}"
