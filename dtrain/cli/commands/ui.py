"""``python -m dtrain ui``: MLflow's UI on the runs of this machine.

The server is MLflow's own, on the embedded store, and answers this machine alone; Ctrl-C stops it.
Exit codes: 0 the user ended it, 1 the server did not start or died, 2 wrong usage.

    python -m dtrain ui
    python -m dtrain ui port=5000 output_dir=FOLDER
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
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

from dtrain import errors
from dtrain.cli.registry import command
from dtrain.config.fields import Options, within
from dtrain.config.fields import Path as PathText
from dtrain.errors import DamagedFile, UsageError, refuse
from dtrain.host import pyproject, terminal

HOST = "127.0.0.1"
_SWEEP, _NEWEST = 100, 10  # runs in one address: of a sweep, and of runs without one
_STOP_SECONDS = 10.0  # then it is killed
_QUERY = (
    "SELECT runs.run_uuid, CAST(experiment_id AS TEXT), value FROM runs LEFT JOIN tags "
    "ON tags.run_uuid = runs.run_uuid AND key = 'mlflow.parentRunId' "
    f"WHERE lifecycle_stage = 'active' ORDER BY start_time DESC LIMIT {_SWEEP + 1}"
)


def serve(output_dir: Path, port: int) -> int:
    """Run MLflow's server to its end, with all its processes, and return the exit code.

    Args:
        output_dir: with ``mlflow.db``.
        port: 0 for a free one.
    """
    address = f"http://{HOST}:{_free(port)}"
    link = comparison(output_dir / "mlflow.db", address)
    folder = output_dir.absolute()
    command = [
        sys.executable, "-m", "mlflow", "server", "--host", HOST,
        "--port", address.rpartition(":")[2], "--workers", "1",
        "--backend-store-uri", f"sqlite:///{folder}/mlflow.db",
        "--artifacts-destination", (folder / "mlartifacts").as_uri(),
    ]  # fmt: skip
    environment = {
        "PYTHONSAFEPATH": "1",  # no folder called mlflow of the current directory
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # processes for what no run needs
    }
    print(f"UI:      {address}")
    print(f"compare: {link}")
    print("MLflow's server answers in 5 to 20 s; Ctrl-C ends it", flush=True)
    # A session of its own: Ctrl-C comes to us alone, and one signal reaches all of it.
    process = subprocess.Popen(command, env={**os.environ, **environment}, start_new_session=True)
    try:
        return errors.FAILED if process.wait() else errors.OK
    except KeyboardInterrupt:
        return errors.OK
    finally:
        for number in terminal.STOPS:  # for the impatient: it takes _STOP_SECONDS at most
            signal.signal(number, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_SECONDS)


def comparison(store: Path, address: str) -> str:
    """Return the address of the page that compares the jobs of the newest sweep, or newest runs.

    Args:
        store: MLflow's database.
        address: of the server.

    Raises:
        UsageError: there is no store, or it is damaged.
    """
    if not store.is_file():
        refuse("output_dir", "holds no tracking store (mlflow.db)", store.parent,
               accepted="a folder of tracked runs",
               hint="output_dir=FOLDER, or a run with tracking=mlflow, the default")  # fmt: skip
    place = f"file:{quote(str(store.absolute()))}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(place, uri=True)) as database:
            runs = database.execute(_QUERY).fetchall()
    except sqlite3.DatabaseError as error:
        raise DamagedFile(store, f"cannot be used as a store ({error})") from None
    if not runs:
        return "no run yet"
    newest, experiment, sweep = runs[0]
    shown = [run for run, _, parent in runs if parent is not None and parent in (sweep, newest)]
    shown = shown or [run for run, its, _ in runs if its == experiment][:_NEWEST]
    names = json.dumps(shown[::-1], separators=(",", ":"))
    query = f"runs={quote(names)}&experiments={quote(json.dumps([experiment]))}"
    page = f"{address}/#/compare-runs?{query}&workflowType=machine_learning"
    return f"{page} ({len(shown)} runs)"


def _free(port: int) -> int:
    """Return ``port`` if it is free; of 0, one that is."""
    try:
        with socket.socket() as each:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
            each.bind((HOST, port))
            return int(each.getsockname()[1])
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError("port", f"cannot be used ({reason})", port, accepted="a free port",
                         typed="port=0") from None  # fmt: skip


class UIOptions(Options):
    """Options of ``ui``."""

    port: Annotated[int, within(0, 65535)] = 0
    """Port of the server; 0: a free one."""
    output_dir: PathText | None = None
    """Folder of mlflow.db; null: that of runs, outputs."""


@command(None, UIOptions)
def main(options: UIOptions) -> int:
    """Serve the UI, and return the exit code."""
    return serve(Path(options.output_dir or pyproject.output_dir()), options.port)
