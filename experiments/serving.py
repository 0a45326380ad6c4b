"""Measures ``python -m dtrain serve``: ``python experiments/serving.py``; minutes.

1. Beside ``mlflow models serve --env-manager local`` of the same model: requests of one example to
   ``/invocations`` from 8 clients that ask again as soon as they are answered.
2. One client, against calling the Keras model (``model(x)``) and its SavedModel in a process.
3. Times of requests while newer versions take over, against those while none does, and memory.

The sides alternate; figures are medians, a ratio is the median of the ratios pair by pair. The
clients are one process, which shares the machine's cores with the server.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
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

CLIENTS = 8
STORE = ""  # of MLflow, with the model
_CALL = """
import json, statistics, sys, time
import keras, numpy as np, tensorflow as tf

def seconds(call):
    times = []
    for _ in range(300):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times[50:])

x = np.full((1, 8, 8, 1), 0.5, np.float32)
model = keras.saving.load_model(sys.argv[1], compile=False)
loaded = tf.saved_model.load(sys.argv[2])
serve = loaded.signatures["serving_default"]
print(json.dumps({
    "model(x)": seconds(lambda: model(x).numpy()),
    "SavedModel": seconds(lambda: serve(inputs=tf.constant(x))["outputs"].numpy()),
}))
"""


class Client(asyncio.Protocol):
    """A client that sends one request after the other on one connection."""

    def __init__(self, request: bytes, end: float, pause: float, seconds: list[float]):
        self._request, self._end, self._pause, self._seconds = request, end, pause, seconds
        self._answer, self.done = b"", asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._ask()

    def _ask(self) -> None:
        self._began = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head, found, body = self._answer.partition(b"\r\n\r\n")
        if not found:
            return
        lines = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:])
        if len(body) < int(lines[b"content-length"]):
            return
        self._seconds.append(time.perf_counter() - self._began)
        if b" 200 " not in head[:20]:
            self._transport.close()
            self.done.set_exception(RuntimeError(self._answer[:500]))
            return
        self._answer = b""
        if time.perf_counter() >= self._end:
            self._transport.close()
            self.done.set_result(None)
        else:
            asyncio.get_running_loop().call_later(self._pause, self._ask)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionError("the server has left"))


async def _clients(
    port: int, request: bytes, seconds: float, pause: float, clients: int
) -> list[float]:
    loop, times = asyncio.get_running_loop(), []
    end = time.perf_counter() + seconds
    made = [
        await loop.create_connection(lambda: Client(request, end, pause, times), "127.0.0.1", port)
        for _ in range(clients)
    ]
    await asyncio.gather(*(client.done for _, client in made))
    return times


def load(port: int, seconds: float, body: bytes, pause: float = 0.0, clients: int = CLIENTS) -> Any:
    """Ask for a while, from a process of its own; return the seconds of each request."""
    with tempfile.NamedTemporaryFile() as file:
        words = [str(port), str(seconds), str(pause), str(clients), file.name]
        subprocess.run([sys.executable, __file__, "--load", *words], input=body, check=True)
        return json.load(file)


def p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98]


def shown(times: list[float], seconds: float) -> str:
    middle, late = 1000 * statistics.median(times), 1000 * p99(times)
    return f"{len(times) / seconds:,.0f} requests/s, p50 {middle:.2f} ms, p99 {late:.2f} ms"


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


@contextlib.contextmanager
def serving(command: list[str], port: int) -> Iterator[int]:
    """Run a server until it answers, and end it."""
    # MLflow starts uvicorn by its name.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        env={**os.environ, "PATH": path, "MLFLOW_TRACKING_URI": STORE},
    )  # fmt: skip
    try:
        end = time.monotonic() + 180
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=5):
                    break
            except OSError:
                assert process.poll() is None and time.monotonic() < end, command
                time.sleep(0.2)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def dtrain(*words: str) -> list[str]:
    return [sys.executable, "-m", "dtrain", *words]


def pss(pid: int) -> float:
    """Return the megabytes of a process and all below it, shared pages by their share."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            above = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(above, []).append(int(entry.name))
    total, left = 0, [pid]
    while left:
        each = left.pop()
        left += children.get(each, [])
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def beside_mlflow(run: Path, body: bytes, pairs: int, seconds: float) -> None:
    """Compare with MLflow's server of the model that dtrain has logged."""
    ours, theirs = free_port(), free_port()
    command = [
        sys.executable, "-m", "mlflow", "models", "serve", "-m", "models:/digits/1",
        "--env-manager", "local", "--port", str(theirs),
    ]  # fmt: skip
    with serving(dtrain("serve", str(run), f"port={ours}"), ours), serving(command, theirs):
        for port in (ours, theirs):
            load(port, 1, body)
        ratios, all_ours, all_theirs = [], [], []
        for _ in range(pairs):
            a, b = load(ours, seconds, body), load(theirs, seconds, body)
            ratios.append(len(a) / len(b))
            all_ours += a
            all_theirs += b
    print(f"mlflow models serve: {shown(all_theirs, pairs * seconds)}")
    print(f"dtrain serve: {shown(all_ours, pairs * seconds)}")
    print(f"requests/s, dtrain / mlflow: {statistics.median(ratios):.2f} "
          f"({min(ratios):.2f} to {max(ratios):.2f})", flush=True)  # fmt: skip


def one_client(run: Path, export: Path, body: bytes, pairs: int) -> None:
    """Compare one client with the model itself, called in a process of its own."""
    port = free_port()
    model = next(run.glob("exports/*/*/model.keras"))
    with serving(dtrain("serve", str(export), f"port={port}"), port):
        load(port, 1, body, clients=1)
        ratios: dict[str, list[float]] = {"model(x)": [], "SavedModel": []}
        for _ in range(pairs):
            asked = 1000 * statistics.median(load(port, 2, body, clients=1))
            called = subprocess.run(
                [sys.executable, "-c", _CALL, str(model), str(export)], check=True,
                capture_output=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
            )  # fmt: skip
            for name, seconds in json.loads(called.stdout.splitlines()[-1]).items():
                ratios[name].append(asked / 1000 / seconds)
    for name, found in ratios.items():
        print(f"latency of one client / {name}: {statistics.median(found):.2f} "
              f"({min(found):.2f} to {max(found):.2f}); {asked:.2f} ms", flush=True)  # fmt: skip


class Folder:
    """A folder in which versions of one model appear."""

    def __init__(self, path: Path, export: Path):
        self.path, self._export, self.number = path, export, 0
        path.mkdir()
        self.next()

    def next(self) -> None:
        self.number += 1
        aside = self.path / f".{self.number}"
        shutil.copytree(self._export, aside)
        aside.rename(self.path / str(self.number))
        shutil.rmtree(self.path / str(self.number - 3), ignore_errors=True)


def serves(port: int, name: str, number: int) -> None:
    """Wait until a version serves."""
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/models/{name}") as answer:
            if json.load(answer)["versions"][0] == str(number):
                return
        time.sleep(0.05)


def swaps(
    folder: Path, export: Path, body: bytes, pairs: int, seconds: float, pause: float
) -> None:
    made, port = Folder(folder, export), free_port()
    with serving(dtrain("serve", str(made.path), f"port={port}", "follow=true"), port):
        load(port, 1, body, pause)
        ratios, still, moving = [], [], []
        for _ in range(pairs):
            a = load(port, seconds, body, pause)
            swap = threading.Timer(0.3, made.next)  # the clients' process begins meanwhile
            swap.start()
            b = load(port, seconds, body, pause)
            swap.join()
            serves(port, folder.name, made.number)
            ratios.append(p99(b) / p99(a))
            still += a
            moving += b
    print(f"without a swap: {shown(still, pairs * seconds)}")
    print(f"with a swap:    {shown(moving, pairs * seconds)}")
    print(f"p99 with / without: {statistics.median(ratios):.2f}, of all "
          f"{p99(moving) / p99(still):.2f} ({pairs} swaps, none failed)", flush=True)  # fmt: skip


def memory(folder: Path, export: Path, body: bytes, count: int) -> None:
    made, port = Folder(folder, export), free_port()
    with serving(dtrain("serve", str(made.path), f"port={port}", "follow=true"), port) as pid:
        found = []
        for _ in range(count):
            made.next()
            serves(port, folder.name, made.number)
            load(port, 0.2, body)
            time.sleep(0.3)  # the one before the last ends
            found.append(pss(pid))
    settled = found[4:]
    print(f"memory after 5 swaps {settled[0]:.0f} MB, after {count} {settled[-1]:.0f} MB; "
          f"least {min(settled):.0f}, most {max(settled):.0f}", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--swaps", type=int, default=20)
    parser.add_argument("--memory-swaps", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument(
        "--pause", type=float, default=0.01, help="of a client between two requests, with swaps"
    )
    parser.add_argument("--load", nargs=5, metavar=("PORT", "SECONDS", "PAUSE", "CLIENTS", "FILE"))
    given = parser.parse_args()
    if given.load:
        port, seconds, pause, clients, file = given.load
        body = sys.stdin.buffer.read()
        head = "POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        work = _clients(int(port), request, float(seconds), float(pause), int(clients))
        with contextlib.suppress(ImportError):
            import uvloop

            asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
        Path(file).write_text(json.dumps(asyncio.run(work)))
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        global STORE
        STORE = f"sqlite:///{folder}/outputs/mlflow.db"
        run = folder / "run"
        for words in (
            ["model=cnn", "dataset=digits", "trainer.epochs=1", "tracking.model=final",
             "tracking.register=digits", f"hydra.run.dir={run}", "name=digits"],
            ["export", str(run), "format=savedmodel,keras"],
        ):  # fmt: skip
            subprocess.run(dtrain(*words), check=True, capture_output=True, cwd=folder)
        [export] = [path for path in (run / "exports/digits").iterdir() if path.name.isdecimal()]
        body = json.dumps({"inputs": [[[[0.5]] * 8] * 8]}).encode()
        if given.pairs:
            beside_mlflow(run, body, given.pairs, given.seconds)
            one_client(run, export, body, given.pairs)
        if given.swaps:
            swaps(folder / "swapped", export, body, given.swaps, given.seconds, given.pause)
        if given.memory_swaps:
            memory(folder / "kept", export, body, given.memory_swaps)


if __name__ == "__main__":
    main()
