"""``python -m dtrain serve RUN|models:/NAME@ALIAS|SAVEDMODEL``: answer requests with a model.

Exit codes: 0 it was asked to stop and has answered what was there, 1 the model cannot be served,
2 wrong usage.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import sys
import time
from pathlib import Path
from typing import Any

from dtrain import errors
from dtrain.config.settle import settle
from dtrain.controller import cli, folders
from dtrain.controller.commands import failures, of_run
from dtrain.controller.commands.export import Export
from dtrain.controller.launchers.model_process import ModelProcess
from dtrain.controller.served import OfRegistry, OfRun, own_folder
from dtrain.controller.serving_options import WORDS, Options, taken
from dtrain.controller.task_environment import task_environment
from dtrain.controller.terminal.serving import Status
from dtrain.errors import DtrainError, UsageError, printable
from dtrain.host import forkserver
from dtrain.serving import server
from dtrain.serving.follow import SAVED, Folder, Source
from dtrain.serving.model import Limits, Model
from dtrain.serving.server import Serving, Settings
from dtrain.serving.versions import Candidate
from dtrain.tracking.mlflow.registered import SCHEME, Registered

#: The variable with the token that requests have to bring; empty: anybody may ask.
TOKEN = "DTRAIN_SERVE_TOKEN"
_MEGABYTE = 1 << 20
#: Batches that a request has time for: one that hangs, itself alone, and one before it.
_BATCHES = 3
#: Seconds between two looks for the first checkpoint of a run.
_LOOK = 0.5


class _Command:
    """A server that is to be, whatever its versions come from.

    Args:
        given: what is served, as it was typed.
        options: of the command.
    """

    def __init__(self, given: str, options: Options):
        self._given, self._options = given, options
        self._token = os.environ.get(TOKEN)
        if self._token is None and not server.is_local(options.host):
            raise UsageError(
                "host", options.host, "others could ask the server, and no token is asked for",
                f"127.0.0.1, or a token in {TOKEN} (empty: anybody may ask)",
                f"{TOKEN}=... python -m dtrain serve {given} host={options.host}",
            )  # fmt: skip
        try:
            self._listener = server.listening(options.host, options.port)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                key, accepted, hint = "port", "a free port of this machine; 0 for any", "port=0"
            else:
                key, accepted, hint = "host", "an address of this machine", "host=127.0.0.1"
            raise UsageError(
                key, getattr(options, key), f"cannot be used ({error.strerror})", accepted, hint
            ) from None
        self._status = Status()
        self.activity = self._status.activity

    def close(self) -> None:
        """Let go of the port."""
        self._listener.close()

    def run(self, name: str, source: Source, key: str, first: Candidate) -> int:
        """Serve until the end, and return the exit code.

        Args:
            name: of the model.
            source: of versions.
            key: of ``first`` in it.
            first: the version to begin with.
        """
        options = self._options
        name = folders.check_name(options.name or name)
        if ":" in name:
            raise UsageError(
                "name", name, "has a colon, which ends names in addresses", "another name",
                "name=digits",
            )  # fmt: skip
        limits = Limits(
            options.max_batch,
            options.max_delay_ms / 1000,
            options.max_queue,
            options.timeout,
            options.timeout / _BATCHES,
        )
        settings = Settings(name, limits, int(options.max_body_mb * _MEGABYTE), self._token or None)
        environment = task_environment()
        made: list[Any] = []

        def start(path: str, asked: Any) -> tuple[Any, Any]:
            process = ModelProcess(
                environment, path, {**asked, "threads": options.threads, "nice": bool(made)}
            )
            return process, process.socket

        def begun(model: Model) -> None:
            made.append(model)
            self.activity.end()
            for line in self._lines(name, model):
                print(printable(line), flush=True)

        serving = Serving(settings, start, self._listener, self._status.say)
        self.activity.begin("loading the model")
        try:
            followed = source if options.follow else None
            serving.run(first, begun, followed, key, lambda: self._status.show(serving))
        finally:
            self.activity.end()
        print(f"stopped: {serving.metrics.requests:,} requests answered", flush=True)
        return errors.OK

    def _lines(self, name: str, model: Model) -> list[str]:
        where, loaded = server.address(self._listener), model.loaded
        examples, deviation = loaded["examples"], loaded["deviation"]
        compared = "not compared: no examples are stored with it"
        if examples:
            compared = f"within {deviation:.2g} of Keras on {examples} examples"
        shown = [f"serving: {name}, version {model.version} ({compared})"]
        shown += [f"note:    {loaded['note']}"] if loaded["note"] else []
        for role in ("inputs", "outputs"):
            specs = getattr(model.signature, role)
            shown.append(f"{role + ':':<8} " + ", ".join(f"{s.name} {s.text}" for s in specs))
        shown.append(f"predict: {where}/v2/models/{name}/infer  {where}/v1/models/{name}:predict")
        shown.append(f"page:    {where}/")
        if self._token:
            shown.append(f"token:   that of {TOKEN}")
        if self._options.follow:
            shown.append(f"follows: {self._given}")
        return [*shown, "Ctrl-C ends it"]


class _Run(Export):
    """Serves a checkpoint of a run."""

    def __init__(self, run: str, options: Options, command: _Command):
        super().__init__(run)
        self._options, self._command = options, command
        self._words["weights"] = options.weights
        self._words["checkpoint"] = options.checkpoint

    def job(self, node: Any) -> int:
        """Export the checkpoint and serve it, and return the exit code."""
        options, activity = self._options, self._command.activity
        word = options.checkpoint if self._chosen is None else self._chosen.name
        if word == "all" or (options.follow and word not in (None, "best", "latest")):
            raise UsageError(
                "checkpoint", word or "", "is not one that can be "
                + ("followed" if options.follow else "served"), "best or latest",
                "checkpoint=best",
            )  # fmt: skip
        config = settle(node)
        with own_folder() as own:
            source = OfRun(
                self._rundir, config, word, options.weights, own if options.follow else None,
                activity.begin, activity.continues,
            )  # fmt: skip
            if options.follow:
                self._wait(source)
            key, first = source.first()
            return self._command.run(source.name, source, key, first)

    def _wait(self, source: OfRun) -> None:
        """Wait for the first checkpoint of a run that trains.

        Raises:
            UsageError: the run has ended without any.
        """
        while source.newest() is None:
            if self._rundir.result.is_file():
                source.choose()
            self._command.activity.begin("waiting for the first checkpoint")
            time.sleep(_LOOK)
            self._command.activity.continues()


def _serve(given: str, rest: list[str]) -> int:
    path = Path(given)
    is_run = path.is_dir() and not (path / SAVED).is_file() and not _has_versions(path)
    options, others = taken(rest, "dataset" if is_run else None)
    if others and not is_run:
        raise UsageError(
            others[0], "", "says nothing of a model that is no run's", f"{', '.join(WORDS)}",
            f"the command without {others[0]}",
        )  # fmt: skip
    if not is_run:
        _check_words(given, options)
    command = _Command(given, options)
    try:
        forkserver.guess(task_environment())
        if is_run:
            return cli.composed(others, _Run(given, options, command))
        if given.startswith(SCHEME):
            return _registered(given, options, command)
        return _folder(path, command)
    finally:
        command.close()


def _check_words(given: str, options: Options) -> None:
    """Refuse words that mean something of a run alone.

    Raises:
        UsageError: one was given.
    """
    words = ["checkpoint", "weights", *([] if given.startswith(SCHEME) else ["uri"])]
    for each in dataclasses.fields(Options):
        value = getattr(options, each.name)
        if each.name in words and value != each.default:
            word = "tracking.uri" if each.name == "uri" else each.name
            of = "a registered model" if each.name == "uri" else "a run"
            raise UsageError(
                word, value, f"says nothing of {given}", of, f"the command without {word}="
            )


def _has_versions(path: Path) -> bool:
    return any(each.name.isdecimal() and (each / SAVED).is_file() for each in path.iterdir())


def _registered(given: str, options: Options, command: _Command) -> int:
    model = Registered(given, options.uri)
    if options.follow and model.alias is None:
        raise UsageError(
            "follow", "true", f"{given} is always the same version", "an alias, which moves",
            f"python -m dtrain serve models:/{model.name or 'NAME'}@champion follow=true",
        )  # fmt: skip
    with own_folder() as own:
        source = OfRegistry(model, own)
        command.activity.begin("asking MLflow, whose import takes 2 to 10 s")
        key = source.newest() or ""
        command.activity.begin("downloading the model")
        first = source.fetch(key)
        return command.run(model.name or "model", source, key, first)


def _folder(path: Path, command: _Command) -> int:
    source = Folder(path)
    key = source.newest() or "" if path.is_dir() else ""
    if not key:
        raise UsageError(
            "MODEL", path, "is no run folder, no model of a registry and no SavedModel",
            "a run folder, models:/NAME@ALIAS, or a folder with a SavedModel",
            "python -m dtrain serve outputs/DATE/TIME_NAME",
        )  # fmt: skip
    first = source.fetch(key)
    own = Path(first.path)
    name = own.parent.name if own.name.isdecimal() else own.name
    return command.run(name, source, key, first)


_PARSER = of_run.parser(
    "serve",
    "Serve a model over HTTP: KServe V2, TensorFlow Serving's REST, MLflow's "
    "/invocations. With follow=true it switches to newer versions as they appear.",
    f"{', '.join(f'{word}=' for word in WORDS)}; for a run also overrides of the dataset, if "
    f"its files have moved. The variable {TOKEN} sets a token for requests.",
    ("MODEL", "a run folder, RUN/checkpoints/STEP, models:/NAME@ALIAS, or a SavedModel's folder"),
)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: in place of those of the process.
    """
    given, rest = of_run.parsed(_PARSER, arguments)
    try:
        return _serve(given, rest)
    except DtrainError as error:
        return failures.report(error, "")
    except OSError as error:
        return failures.report(error, f"{error.filename or given}: {error.strerror or error}")
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return errors.FAILED
