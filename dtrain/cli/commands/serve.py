"""``python -m dtrain serve MODEL``: serve a model over HTTP, and newer versions as they appear.

It speaks the Open Inference Protocol V2 and MLflow's /invocations; the variable DTRAIN_SERVE_TOKEN
sets a token for requests. Exit codes: 0 it was asked to stop and has answered what was there, 1 the
model cannot be served, 2 wrong usage.

    python -m dtrain serve latest follow=true
    python -m dtrain serve models:/digits@champion port=8000
"""

from __future__ import annotations

import collections
import contextlib
import errno
import json
import multiprocessing.connection
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from dtrain import errors
from dtrain.cli import app
from dtrain.cli.on_run import OfModel, wait_for_first
from dtrain.cli.registry import Target, command
from dtrain.config.check import settle
from dtrain.errors import DtrainError, UsageError, printable, refuse
from dtrain.files import writing
from dtrain.files.fields import Json
from dtrain.host import forkserver
from dtrain.job import exporting, folders
from dtrain.job.early_import import task_environment
from dtrain.launchers.questions import ModelProcess
from dtrain.run import checkpoint
from dtrain.run.exports import FORMATS
from dtrain.run.follow import Followed
from dtrain.serving.options import ServeOptions
from dtrain.terminal.progress import Activity
from dtrain.tracking.mlflow.store import SCHEME, Registered

#: The variable with the token that requests bring; empty: requests need none.
TOKEN = "DTRAIN_SERVE_TOKEN"


class _Command:
    """The command, whatever its versions come from.

    Args:
        given: what is served, as it was typed.
        options: of the command.
        listener: a socket that listens.
        own: a folder for files of versions, removed at the end.
    """

    def __init__(self, given: str, options: ServeOptions, listener: socket.socket, own: Path):
        self.given, self.options, self.listener, self.own = given, options, listener, own
        self.activity, self._server = Activity(), Server(self._start, self._say)

    def _start(self, backend: str) -> ModelProcess:
        environment = task_environment(backend=backend, hashing="random")
        token = os.environ.get(TOKEN)
        return ModelProcess(environment, self.options, token, self.listener)

    def _say(self, text: str) -> None:
        self.activity.end()
        line = printable(f"{time.strftime('%H:%M:%S')} {text}")
        print(line, file=sys.stderr, flush=True)

    def waiting(self) -> None:
        """Show that something takes long; what serves is started again where it has died."""
        if self._server.version is None:
            self.activity.continues()
        self._server.revive()

    def run(self, name: str, source: VersionSource, key: str) -> int:
        """Serve until the end, and return the exit code.

        Args:
            name: of the model.
            source: of versions.
            key: of the first one in it.
        """
        name = folders.check_name(self.options.name or name)
        self.options = self.options.model_copy(update={"name": name})
        follow = source if self.options.follow else None
        try:
            version = source.fetch(key)
            self.activity.begin("loading the model")
            about = self._server.load(version)
            self.activity.end()
            print(*map(printable, self._lines(name, version.number, about)), sep="\n", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                self._server.run(follow, key, self.own)
        finally:
            self.activity.end()
            self._server.close()
        print("stopped", flush=True)
        return errors.OK

    def _lines(self, name: str, number: str, about: Json) -> list[str]:
        host, port = self.listener.getsockname()[:2]
        where = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        compared = "not compared: no examples are stored with it"
        if about["examples"]:
            deviation, count = about["deviation"], about["examples"]
            compared = f"within {deviation:.2g} of the trained model on {count} examples"
        inputs, _, outputs = about["signature"].partition(" -> ")
        lines = [
            f"serving: {name}, version {number} ({compared})",
            f"inputs:  {inputs}",
            f"outputs: {outputs}" + "; requests share no batches" * (not about["batched"]),
            f"predict: {where}/v2/models/{name}/infer  {where}/invocations",
            f"page:    {where}/docs",
        ]
        lines += [f"token:   that of {TOKEN}"] if os.environ.get(TOKEN) else []
        lines += [f"follows: {self.given}"] if self.options.follow else []
        return [*lines, "Ctrl-C ends it"]


class _Run(OfModel):
    """Serves checkpoints of a run: a source of versions, each of which it exports.

    Args:
        run: that was typed.
        command: serves them.
    """

    name = "serve"

    def __init__(self, run: str, command: _Command):
        super().__init__(run, command.options.checkpoint, command.options.weights)
        self._command = command

    def job(self, node: Any) -> int:
        """Export the checkpoint and serve it, and return the exit code."""
        command, word, follow = self._command, self.checkpoint, self._command.options.follow
        self._config = settle(node)
        mode = self._config.objective_mode
        self._model = exporting.name_of(self.rundir, command.options.weights)
        if follow and word != "all":
            self._checkpoints = Followed(self.rundir, word, mode)
            key = wait_for_first(self._checkpoints, command.waiting)
            return command.run(self._model, self, key)
        path = checkpoint.only(self.rundir.checkpoints, word, mode)
        return command.run(self._model, self, str(checkpoint.step_of(path)))

    def newest(self) -> str | None:
        """Return the step and the digest of the checkpoint that is meant now."""
        return self._checkpoints.newest()

    def fetch(self, key: str) -> Version:
        """Export a checkpoint; one that is followed goes when it serves no more."""
        command, step, place = self._command, key.partition(" ")[0], self.rundir.path / "exports"
        if command.options.follow:
            place = Path(tempfile.mkdtemp(dir=command.own))
        [made] = exporting.export(
            self._config, self.rundir, (), command.options.weights, step, place / self._model,
            command.activity.begin, command.waiting, command.options.follow,
        )  # fmt: skip
        if made.refused:
            raise DtrainError(next(iter(made.refused.values())))
        return Version(step, made.path)


def _listen(given: str, options: ServeOptions) -> socket.socket:
    """Return a socket that listens.

    Raises:
        UsageError: it cannot, or others could ask without a token.
    """
    host, port = options.host, options.port
    if TOKEN not in os.environ and host not in ("localhost", "::1") and host[:4] != "127.":
        refuse("host", "others could ask the server, and no token is required", host,
               accepted=f"127.0.0.1, or a token in {TOKEN} (empty: no token is asked for)",
               hint=f"{TOKEN}=... python -m dtrain serve {given} host={host}")  # fmt: skip
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=1024)
    except OSError as error:
        problem = f"cannot be used ({str(error.strerror).partition(' (')[0]})"
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise UsageError("port", problem, port, accepted="a free port",
                             typed="port=0") from None  # fmt: skip
        raise UsageError("host", problem, host, accepted="an address of this machine",
                         typed="host=127.0.0.1") from None  # fmt: skip


def _serve(given: str, options: ServeOptions, overrides: list[str], own: Path) -> int:
    path, is_model = Path(given), given.startswith(SCHEME)
    if not is_model and not path.is_dir():
        refuse("MODEL", "is no run folder, no model of a registry and no export", path,
               accepted="a run folder, models:/NAME@ALIAS, or a folder with a SavedModel or a "
               "model.pt2", hint="python -m dtrain serve outputs/DATE/TIME_NAME")  # fmt: skip
    is_run = not is_model and ExportFolder(path).newest() is None
    foreign = [*([] if is_run else ["checkpoint", "weights"]), *([] if is_model else ["uri"])]
    for name in options.model_fields_set.intersection(foreign):
        refuse("tracking.uri" if name == "uri" else name, f"is not of what is served, {given}",
               getattr(options, name), accepted="checkpoint= and weights= of a run, tracking.uri= "
               "of a model of a registry", hint="the command without it")  # fmt: skip
    if overrides and not is_run:
        refuse(overrides[0], "is of the data of a run, and none is served", accepted="a run",
               hint=f"the command without {overrides[0]}")  # fmt: skip
    with _listen(given, options) as listener:
        command = _Command(given, options, listener, own)
        if is_run:
            run = _Run(given, command)
            forkserver.guess(task_environment(backend=exporting.backend_of(run.rundir)))
            return app.composed(overrides, run)
        if is_model:
            forkserver.guess(task_environment(hashing="random"))
            model = Registered(given, options.uri)
            if options.follow and model.alias is None:
                refuse("follow", f"{given} is always the same version, which no alias moves",
                       "true", hint=f"python -m dtrain serve models:/{model.name or 'NAME'}@ALIAS "
                       "follow=true")  # fmt: skip
            command.activity.begin("asking MLflow, whose import takes 2 to 10 s")
            return command.run(model.name or "model", OfRegistry(model, own), model.version())
        whole = path.resolve()
        name = whole.parent.name if whole.name.isdecimal() else whole.name
        return command.run(name, ExportFolder(path), ExportFolder(path).newest() or "")


#: The file that makes a folder a version that may serve, and the backend that loads it.
_LOADED_BY = {FORMATS[name].files[-1]: backend
              for name, backend in (("savedmodel", "tensorflow"), ("pt2", "torch"))}  # fmt: skip
_LOOK = 1.0  # seconds between two looks for a newer version
_TRIES = 3  # of one version
#: Seconds before a process that has died is started again, the last from then on.
_PAUSES = (0.0, 1.0, 5.0, 30.0)


class Version(NamedTuple):
    """A version that may serve: what answers call it, and the folder of its model."""

    number: str
    path: Path

    @property
    def backend(self) -> str:
        """What loads it."""
        return _loaded_by(self.path) or "tensorflow"


def _loaded_by(path: Path) -> str | None:
    """Return the backend that loads the model in a folder; None where there is none."""
    return next((name for file, name in _LOADED_BY.items() if (path / file).is_file()), None)


class VersionSource(Protocol):
    """Where versions come from."""

    def newest(self) -> str | None:
        """Return a key of the version that is to serve now; None where there is none yet."""

    def fetch(self, key: str) -> Version:
        """Make the files of a version."""


class OfRegistry:
    """A :class:`VersionSource`: versions of a registered model, downloaded to ``own``."""

    def __init__(self, model: Registered, own: Path):
        self._model, self._own = model, own

    def newest(self) -> str | None:
        """Return the version that is meant now."""
        return self._model.version()

    def fetch(self, key: str) -> Version:
        """Download a version."""
        return Version(key, self._model.download(key, Path(tempfile.mkdtemp(dir=self._own))))


class ExportFolder:
    """A :class:`VersionSource`: an export, or a folder of several with numbers for names."""

    def __init__(self, path: Path):
        self._path = path

    def newest(self) -> str | None:
        """Return the highest number; ``.`` where the folder itself is an exported model."""
        if _loaded_by(self._path):
            return "."
        names = filter(str.isdecimal, os.listdir(self._path))
        versions = [name for name in names if _loaded_by(self._path / name)]
        return max(versions, key=int, default=None)

    def fetch(self, key: str) -> Version:
        """Return that version, which is there already."""
        path = (self._path / key).resolve()
        return Version(path.name if path.name.isdecimal() else "1", path)


class Server:
    """The process that serves; it is started again where it dies.

    Args:
        start: starts one for a backend.
        say: prints a sentence.
    """

    def __init__(self, start: Callable[[str], ModelProcess], say: Callable[[str], None]):
        self._start, self._say, self.ends = start, say, False
        self._process: ModelProcess | None = None
        self.version: Version | None = None
        self._deaths = 0

    def load(self, version: Version) -> Json:
        """Have a version serve, beside which the one before goes on until then.

        Returns:
            The description of the model: ``about`` of :class:`dtrain.export.sample.Served`.

        Raises:
            DtrainError: it cannot serve; the one before goes on.
        """
        process = self._process = self._process or self._start(version.backend)
        asked = {"version": version.number, "path": str(version.path)}
        try:
            process.link.send_bytes(json.dumps(asked).encode())
            about: Json = json.loads(process.link.recv_bytes())
        except (EOFError, OSError):
            raise DtrainError("its process died while it was loaded") from None
        if "failed" in about:
            raise DtrainError(about["failed"])
        self.version = version
        return about

    def revive(self, seconds: float = 0.0) -> None:
        """Start the process again if it dies within so many seconds, with what it served."""
        process, version = self._process, self.version
        if process is None or version is None:
            return
        if not multiprocessing.connection.wait([process.sentinel], seconds) or self.ends:
            return
        process.kill()
        self._process = None
        time.sleep(_PAUSES[min(self._deaths, len(_PAUSES) - 1)])
        self._deaths += 1
        try:
            self.load(version)
            self._say(f"the process has died; version {version.number} serves again")
        except (DtrainError, OSError) as error:
            self._say(f"version {version.number} cannot be loaded again: {error}")

    def run(self, source: VersionSource | None, key: str, own: Path) -> None:
        """Keep the process alive, and load newer versions as they appear, until the end.

        Args:
            source: where they come from; None: what serves stays.
            key: of the version that serves.
            own: folder with the files of versions, which are removed once they serve no more.
        """
        tries: collections.Counter[str] = collections.Counter()
        newest, last = key, ""
        while not self.ends:
            self.revive(_LOOK)
            if source is None:
                continue
            try:
                if (newest := source.newest() or key) == key or tries[newest] == _TRIES:
                    continue
                tries[newest] += 1
                version = source.fetch(newest)
                self.load(version)
                key, text = newest, f"version {version.number} serves now"
                for folder in own.iterdir():
                    if folder not in version.path.parents:
                        writing.remove(folder)
            except Exception as error:  # of a library, too: what serves goes on
                text = f"version {newest.partition(' ')[0]} does not serve: {error}"
                text = text if newest != key else f"newer versions cannot be looked for: {error}"
            if text != last:
                self._say(text)
            last = text

    def close(self) -> None:
        """End the process once the requests that it has are answered."""
        self.ends = True
        if self._process is not None:
            try:
                self._process.link.close()
                self._process.join()
            finally:
                self._process.kill()


@command(
    Target("MODEL", "a run folder, RUN/checkpoints/STEP, models:/NAME@ALIAS, or the folder of an "
           "export; latest: the newest run"),
    ServeOptions, overrides=("dataset",),
)  # fmt: skip
def main(model: str, options: ServeOptions, overrides: list[str]) -> int:
    """Serve a model until the end, and return the exit code."""
    with tempfile.TemporaryDirectory(prefix="dtrain-serve-", ignore_cleanup_errors=True) as own:
        return _serve(model, options, overrides, Path(own))
