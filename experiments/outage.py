"""Measures what a tracking server that falls silent costs: ``make bench``, or
``python experiments/outage.py``.

A real ``mlflow server`` on SQLite stands behind a proxy that swallows every byte for 60 s in the
middle of a run. Pairs of runs follow each other: ``tracking=none``, and with the server. A Keras
callback notes the time of every step (each is then a call into TensorFlow of its own); compared is
the 95th percentile of the time between two steps, over the whole run and over the steps that were
made while the server was silent. Then the points in MLflow are counted against the journal.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

WARM = 200  # first steps, which are not compared
CNN = (
    "model=cnn", "model.filters=[32,64]", "model.units=64", "dataset=synthetic",
    "dataset.shape=[28,28,1]", "dataset.examples=20000", "dataset.validation_examples=64",
    "trainer.epochs=1", "trainer.log_every_steps=10", "checkpoint.every_epochs=null",
)  # fmt: skip


class Proxy:
    """Passes bytes between clients and a server on this machine, or swallows them.

    Args:
        target: port of the server.
    """

    def __init__(self, target: int):
        self._target = target
        self._swallowing: tuple[str, ...] = ()
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.swallowed = threading.Event()  # something was, since swallow() was called
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def swallow(self, *ways: str) -> None:
        """From now on let nothing through: ``requests``, ``answers`` or both."""
        self.swallowed.clear()
        self._swallowing = ways

    def restore(self) -> None:
        """Pass everything again; connections that have lost bytes are closed."""
        self._swallowing = ()
        self.drop()

    def drop(self) -> None:
        """Close every connection."""
        with self._lock:
            for each in self._sockets:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            self._sockets.clear()

    def close(self) -> None:
        self._listener.close()
        self.drop()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:  # the server is down: so is this
                client.close()
                continue
            with self._lock:
                self._sockets |= {client, server}
            for source, sink, way in ((client, server, "requests"), (server, client, "answers")):
                threading.Thread(target=self._pass, args=(source, sink, way), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        with contextlib.suppress(OSError), source:
            while data := source.recv(65536):
                if way in self._swallowing:
                    self.swallowed.set()
                else:
                    sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


class Server:
    """A real ``mlflow server`` on SQLite.

    Args:
        folder: where its database and artifacts go.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self.database = folder / "server.db"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = [
            sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port",
            str(self.port), "--workers", "1", "--backend-store-uri",
            f"sqlite:///{self.database}", "--artifacts-destination",
            str(self._folder / "artifacts"),
        ]  # fmt: skip
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"},
            )  # fmt: skip
        health = f"http://127.0.0.1:{self.port}/health"
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(health, timeout=5):
                return
            if self._process.poll() is not None:
                raise SystemExit((self._folder / "server.log").read_text())
            time.sleep(0.1)

    def kill(self) -> None:
        """End it and its workers at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, 9)
        self._process.wait()


def clock(path: str) -> Any:
    """Return a Keras callback that writes the times of all steps, in seconds, to ``path``."""
    import keras

    class Clock(keras.callbacks.Callback):
        def on_train_begin(self, logs: object = None) -> None:
            self._times: list[float] = []

        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            self._times.append(time.time())

        def on_train_end(self, logs: object = None) -> None:
            np.save(path, np.array(self._times))

    return Clock()


def run(folder: Path, *overrides: str) -> tuple[np.ndarray, Path]:
    """Run the command line; return the times of all steps and the run folder."""
    times = folder / "times.npy"
    times.unlink(missing_ok=True)
    before = set(folder.glob("*/*"))
    callback = f"trainer.callbacks=[{{_target_:outage.clock,path:'{times}'}}]"
    done = subprocess.run(
        [sys.executable, "-m", "dtrain", *CNN, f"output_dir={folder}", callback, *overrides],
        cwd=Path(__file__).parent, capture_output=True, text=True, check=False,
        env={**os.environ, "DTRAIN_TRUST": "outage"},
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    print("\n".join(line for line in done.stderr.splitlines() if line.startswith("tracking:")))
    [path] = set(folder.glob("*/*")) - before
    return np.load(times), path


@contextlib.contextmanager
def silence(proxy: Proxy, folder: Path, steps: int, seconds: float) -> Iterator[list[float]]:
    """Silence the proxy for ``seconds`` once a fifth of the run that begins here is done.

    Yields a list that will hold the beginning and the end, in seconds since the epoch.
    """
    before = set(folder.glob("*/*/progress.json"))
    over = threading.Event()
    spans: list[float] = []

    def watch() -> None:
        while not over.wait(0.1):
            for path in set(folder.glob("*/*/progress.json")) - before:
                if json.loads(path.read_text())["step"] >= steps // 5:
                    proxy.swallow("requests", "answers")
                    spans.append(time.time())
                    over.wait(seconds)
                    spans.append(time.time())
                    proxy.restore()
                    return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield spans
    finally:
        over.set()
        thread.join()


def missing(path: Path) -> tuple[int, int, int]:
    """Return how many points a journal has, how many MLflow lacks, and how many it has twice."""
    from mlflow.tracking import MlflowClient

    tracked = json.loads((path / "tracking.json").read_text())
    events = [json.loads(line) for line in (path / "journal.jsonl").read_text().splitlines()]
    written: dict[str, list[int]] = {}
    for event in events:
        for name in event.get("metrics", {}) if event["event"] == "metrics" else ():
            written.setdefault(name, []).append(event["step"])
    client = MlflowClient(tracked["uri"])
    lacking = twice = 0
    for name, steps in written.items():
        found = [point.step for point in client.get_metric_history(tracked["run_id"], name)]
        lacking += len(set(steps) - set(found))
        twice += len(found) - len(set(found))
    return sum(map(len, written.values())), lacking, twice


def percentile(times: np.ndarray, spans: list[float] | None = None) -> float:
    """Return the 95th percentile of the time between two steps, of those within ``spans``."""
    ends = times[WARM:]
    gaps = np.diff(ends)
    if spans is not None:
        gaps = gaps[(ends[1:] > spans[0]) & (ends[1:] < spans[1])]
    return float(np.percentile(gaps, 95))


def pair(folder: Path, server: Server, steps: int, seconds: float) -> tuple[float, float]:
    """Return the ratios of one pair of runs: over all steps, and over those of the silence."""
    length = f"trainer.steps_per_epoch={steps}"
    plain, _ = run(folder, length, "tracking=none")
    proxy = Proxy(server.port)
    try:
        with silence(proxy, folder, steps, seconds) as spans:
            tracked, path = run(
                folder, length, f"tracking.uri=http://127.0.0.1:{proxy.port}"
            )  # fmt: skip
        if len(spans) < 2 or spans[1] - spans[0] < seconds:
            raise SystemExit(f"the run ended before the silence of {seconds:g} s: more --steps")
        if not proxy.swallowed.is_set():
            raise SystemExit("the tracker was not at work yet when the silence began: more --steps")
        total, lacking, twice = missing(path)
    finally:
        proxy.close()
    whole = percentile(tracked) / percentile(plain)
    silent = percentile(tracked, spans) / percentile(plain)
    print(
        f"p95 {percentile(tracked) * 1000:.2f} ms over {percentile(plain) * 1000:.2f} ms: "
        f"{whole:.3f}, in the silence {silent:.3f}; of {total} points {lacking} are missing, "
        f"{twice} there twice",
        flush=True,
    )
    return whole, silent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60, help="of silence")
    parser.add_argument("--steps", type=int, default=10_000, help="of each run")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        server = Server(Path(name))
        try:
            pairs = [
                pair(Path(name) / "outputs", server, arguments.steps, arguments.seconds)
                for _ in range(arguments.rounds)
            ]
        finally:
            server.kill()
    print("\n| 95th percentile of a step's time, over `tracking=none` | ratio |\n|---|---|")
    for what, ratios in zip(("whole run", "while silent"), zip(*pairs, strict=True), strict=True):
        middle = statistics.median(ratios)
        print(f"| {what} | {middle:.3f} ({min(ratios):.3f} to {max(ratios):.3f}) |")


if __name__ == "__main__":
    main()
