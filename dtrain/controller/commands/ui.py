"""``python -m dtrain ui``: MLflow's server on the embedded store, for this machine alone.

Exit codes: 0 the user ended it, 1 the server did not start or died, 2 wrong usage.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from dtrain import errors
from dtrain.controller.commands.parsing import Parser
from dtrain.errors import DamagedFile, DtrainError, UsageError, printable
from dtrain.host import terminal

HOST = "127.0.0.1"
START_SECONDS = 120.0  # importing MLflow is most of it
STOP_SECONDS = 10.0  # then it is killed
RUNS, _NEWEST = 100, 10  # in one address of a comparison: of a sweep, and of runs without one

# Loopback is reached without the proxy that the environment may name.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


@contextlib.contextmanager
def serving(output_dir: Path, port: int) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Start MLflow's server, wait until it answers, and end it with all its processes.

    Args:
        output_dir: with ``mlflow.db``.
        port: that is free.

    Yields:
        Its address, and the process.

    Raises:
        DtrainError: it did not start, or died.
    """
    address, folder = f"http://{HOST}:{port}", output_dir.absolute()
    command = [
        sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port),
        "--backend-store-uri", f"sqlite:///{folder}/mlflow.db",
        "--artifacts-destination", (folder / "mlartifacts").as_uri(),
        "--workers", "1", "--uvicorn-opts", "--log-level warning",
    ]  # fmt: skip
    environment = {
        **os.environ,
        "PYTHONSAFEPATH": "1",  # no folder called mlflow of the current directory
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # processes for what no run needs
    }
    with tempfile.TemporaryFile() as log:
        # A session of its own: Ctrl-C comes to us alone, and one signal reaches all of it.
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env=environment, start_new_session=True
        )
        try:
            _wait(process, address, log)
            yield address, process
            if process.poll() is not None:
                raise DtrainError(f"MLflow's server has died: {_last_line(log)}")
        finally:
            for number in terminal.STOPS:  # for the impatient: it takes STOP_SECONDS at most
                signal.signal(number, signal.SIG_IGN)
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_SECONDS)


def _wait(process: subprocess.Popen[bytes], address: str, log: IO[bytes]) -> None:
    until = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < until:
        try:
            with _open(f"{address}/health", timeout=5):
                return
        except OSError:  # no server listens yet
            time.sleep(0.2)
    reason = "does not answer" if process.poll() is None else "has not started"
    raise DtrainError(f"MLflow's server {reason}: {_last_line(log)}")


def _last_line(log: IO[bytes]) -> str:
    log.seek(max(0, log.seek(0, os.SEEK_END) - (1 << 16)))
    lines = log.read().decode(errors="replace").split("\n")
    return printable(next((line.strip() for line in lines[::-1] if line.strip()), "no message"))


def comparison(address: str) -> tuple[str, int] | None:
    """Return the address of the page that compares the newest runs, and their number.

    They are those of a sweep where the newest run is of one.

    Args:
        address: of the server.

    Returns:
        None where there is no run.
    """
    found = _post(address, "experiments/search", max_results=1000).get("experiments", [])
    newest = _runs(address, [each["experiment_id"] for each in found], 1)
    if not newest:
        return None
    tags = {tag["key"]: tag["value"] for tag in newest[0]["data"].get("tags", [])}
    experiment, run_id = newest[0]["info"]["experiment_id"], newest[0]["info"]["run_id"]
    parent = tags.get("mlflow.parentRunId", run_id)
    runs = _runs(address, [experiment], RUNS, f"tags.mlflow.parentRunId = '{parent}'")
    runs = runs or _runs(address, [experiment], _NEWEST)
    names = json.dumps([run["info"]["run_id"] for run in reversed(runs)], separators=(",", ":"))
    query = f"runs={quote(names)}&experiments={quote(json.dumps([experiment]))}"
    return f"{address}/#/compare-runs?{query}&workflowType=machine_learning", len(runs)


def _runs(address: str, experiments: list[str], count: int, where: str = "") -> list[Any]:
    found = _post(
        address, "runs/search", experiment_ids=experiments, max_results=count, filter=where,
        order_by=["attributes.start_time DESC"],
    )  # fmt: skip
    return found.get("runs", [])


def _post(address: str, method: str, **fields: Any) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{address}/api/2.0/mlflow/{method}",
        json.dumps(fields).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with _open(request, timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
    except (OSError, ValueError, HTTPException) as error:  # no answer, or the beginning of one
        raise DtrainError(f"MLflow's server does not answer {method}: {error}") from None
    return found


def _check(output_dir: Path) -> None:
    store = output_dir / "mlflow.db"
    if not store.is_file():
        raise UsageError(
            "--output-dir", output_dir, "holds no tracking store (mlflow.db)",
            "the output_dir of tracked runs",
            "--output-dir FOLDER, or a run with tracking=mlflow, which is the default",
        )  # fmt: skip
    address = f"file:{quote(str(store.absolute()))}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(address, uri=True)) as database:
            database.execute("SELECT count(*) FROM sqlite_master")
    except sqlite3.DatabaseError as error:
        raise DamagedFile(store, f"cannot be used as a store ({error})") from None


def _free(port: int) -> int:
    """Return ``port`` if it is free; of 0, one that is."""
    try:
        with socket.socket() as each:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
            each.bind((HOST, port))
            return int(each.getsockname()[1])
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            "--port", port, f"cannot be used ({reason})", "a free port", "no --port"
        ) from None


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: in place of those of the process.
    """
    parser = Parser(
        prog="python -m dtrain ui",
        description="Open MLflow's UI for the embedded store, on localhost; stop it with Ctrl-C.",
    )
    parser.add_argument("--port", type=int, default=0, help="port; default: a free one")
    parser.add_argument(
        "--output-dir", type=Path, default=Path("outputs"), help="folder of mlflow.db; outputs"
    )
    given = parser.parse_args(arguments)
    try:
        _check(given.output_dir)
        port = _free(given.port)
        print("starting: importing MLflow takes 5 to 20 s", flush=True)
        with serving(given.output_dir, port) as (address, process):
            print(f"UI:      {address}")
            found = comparison(address)
            print(f"compare: {found[0]} ({found[1]} runs)" if found else "compare: no run yet")
            print("Ctrl-C ends it", flush=True)
            process.wait()
    except KeyboardInterrupt:
        return errors.OK
    except DtrainError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"error: {error.filename or given.output_dir}: {error.strerror}", file=sys.stderr)
        return errors.FAILED
    return errors.OK
