"""``python -m dtrain serve RUN|models:/NAME@ALIAS|SAVEDMODEL``: answer requests with a model.

Exit codes: 0 it was asked to stop and has answered what was there, 1 the model cannot be served,
2 wrong usage.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from dtrain import errors
from dtrain.config.settle import settle
from dtrain.controller import cli, folders
from dtrain.controller.commands import failures, of_run
from dtrain.controller.commands.export import Export
from dtrain.controller.launchers.model_process import ModelProcess
from dtrain.controller.served import SAVED, Folder, OfRegistry, OfRun, Server, Source
from dtrain.controller.serving_options import WORDS, Options, taken
from dtrain.controller.task_environment import task_environment
from dtrain.controller.terminal.activity import Activity
from dtrain.errors import DtrainError, UsageError, printable
from dtrain.host import forkserver
from dtrain.tracking.mlflow.registered import SCHEME, Registered

#: The variable with the token that requests bring; empty: anybody may ask.
TOKEN = "DTRAIN_SERVE_TOKEN"
_LOOK = 0.5  # seconds between two looks for the first checkpoint of a run


class _Command:
    """The command, whatever its versions come from.

    Args:
        given: what is served, as it was typed.
        options: of the command.
        own: a folder for files of versions, removed at the end.
    """

    def __init__(self, given: str, options: Options, own: Path):
        self.given, self.options, self.own = given, options, own
        self.activity, self._serves = Activity(), False
        self._token = os.environ.get(TOKEN)
        local = options.host in ("localhost", "::1") or options.host.startswith("127.")
        if self._token is None and not local:
            raise UsageError(
                "host", options.host, "others could ask the server, and no token is required",
                f"127.0.0.1, or a token in {TOKEN} (empty: anybody may ask)",
                f"{TOKEN}=... python -m dtrain serve {given} host={options.host}",
            )  # fmt: skip
        self._listener = _listening(options.host, options.port)

    def hear(self, text: str) -> None:
        """Show what is being done, before the server serves."""
        if not self._serves:
            self.activity.begin(text)

    def run(self, name: str, source: Source, key: str) -> int:
        """Serve until the end, and return the exit code.

        Args:
            name: of the model.
            source: of versions.
            key: of the first one in it.
        """
        options, name = self.options, folders.check_name(self.options.name or name)
        settings = {
            "name": name, "token": self._token, "max_body": int(options.max_body_mb * (1 << 20)),
            "threads": options.threads, "limits": {
                "max_batch": options.max_batch, "max_delay": options.max_delay_ms / 1000,
                "max_queue": options.max_queue, "timeout": options.timeout,
            },
        }  # fmt: skip
        start = functools.partial(ModelProcess, task_environment(), settings, self._listener)
        server = Server(start, self._say)
        try:
            version = source.fetch(key)
            self.hear("loading the model")
            about = server.load(version)
            self.activity.end()
            self._serves = True
            print(*map(printable, self._lines(name, version.number, about)), sep="\n", flush=True)
            if options.follow:
                arguments = (source, key, self.own)
                threading.Thread(target=server.follow, args=arguments, daemon=True).start()
            with contextlib.suppress(KeyboardInterrupt):
                server.watch()
        finally:
            self.activity.end()
            server.close()
        print("stopped", flush=True)
        return errors.OK

    def _lines(self, name: str, number: str, about: dict[str, Any]) -> list[str]:
        host, port = self._listener.getsockname()[:2]
        where = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        compared = "not compared: no examples are stored with it"
        if about["examples"]:
            compared = f"within {about['deviation']:.2g} of Keras on {about['examples']} examples"
        lines = [f"serving: {name}, version {number} ({compared})"]
        for role in ("inputs", "outputs"):
            specs = [(e["name"], e["dtype"], e["shape"] or []) for e in about[role]]
            shown = [f"{n} {d} [{', '.join(str(k or '?') for k in s)}]" for n, d, s in specs]
            lines.append(f"{role + ':':<8} {', '.join(shown)}")
        lines += [] if about["batched"] else ["note:    its requests share no batches"]
        lines += [f"predict: {where}/v2/models/{name}/infer  {where}/invocations"]
        lines += [f"page:    {where}/docs"]
        lines += [f"token:   that of {TOKEN}"] if self._token else []
        lines += [f"follows: {self.given}"] if self.options.follow else []
        return [*lines, "Ctrl-C ends it"]

    def _say(self, text: str) -> None:
        line = printable(f"{time.strftime('%H:%M:%S')} {text}")
        print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Let go of the port."""
        self._listener.close()


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=1024)
    except OSError as error:
        key, value, accepted, hint = "host", host, "an address of this machine", "host=127.0.0.1"
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            key, value, accepted, hint = "port", str(port), "a free port; 0 for any", "port=0"
        reason = str(error.strerror).partition(" (")[0]
        raise UsageError(key, value, f"cannot be used ({reason})", accepted, hint) from None


class _Run(Export):
    """Serves a checkpoint of a run."""

    def __init__(self, run: str, command: _Command):
        super().__init__(run)
        self._command, options = command, command.options
        self._words.update(weights=options.weights, checkpoint=options.checkpoint)

    def job(self, node: Any) -> int:
        """Export the checkpoint and serve it, and return the exit code."""
        command, word = self._command, self.checkpoint
        follow, activity = command.options.follow, command.activity
        if word == "all" or (follow and word not in (None, "best", "latest")):
            raise UsageError(
                "checkpoint", word or "", f"cannot be {'followed' if follow else 'served'}",
                "best or latest", "checkpoint=best",
            )  # fmt: skip
        source = OfRun(
            self._rundir, settle(node), word, str(self._words["weights"]),
            command.own if follow else None, command.hear, activity.continues,
        )  # fmt: skip
        while (key := source.newest()) is None:
            if not follow or self._rundir.result.is_file():
                source.choose()  # says what is wrong
            command.hear("waiting for the first checkpoint")
            time.sleep(_LOOK)
            activity.continues()
        return command.run(source.name, source, key)


def _serve(given: str, rest: list[str], own: Path) -> int:
    path = Path(given)
    is_run = path.is_dir() and not (path / SAVED).is_file() and Folder(path).newest() is None
    options, others = taken(rest, "dataset" if is_run else None)
    foreign = {} if is_run else {"checkpoint": options.checkpoint, "weights": options.weights}
    foreign |= {} if given.startswith(SCHEME) else {"tracking.uri": options.uri}
    for word, value in foreign.items():
        if value not in (None, "raw"):
            raise UsageError(word, value, f"is no option for {given}", "the other options",
                             f"the command without {word}=")  # fmt: skip
    command = _Command(given, options, own)
    try:
        forkserver.guess(task_environment())
        if is_run:
            return cli.composed(others, _Run(given, command))
        if given.startswith(SCHEME):
            return _registered(given, command)
        if not path.is_dir():
            raise UsageError(
                "MODEL", path, "is no run folder, no model of a registry and no SavedModel",
                "a run folder, models:/NAME@ALIAS, or a folder with a SavedModel",
                "python -m dtrain serve outputs/DATE/TIME_NAME",
            )  # fmt: skip
        source, whole = Folder(path), path.resolve()
        name = whole.parent.name if whole.name.isdecimal() else whole.name
        return command.run(name, source, source.newest() or "")
    finally:
        command.close()


def _registered(given: str, command: _Command) -> int:
    model = Registered(given, command.options.uri)
    if command.options.follow and model.alias is None:
        raise UsageError(
            "follow", "true", f"{given} is always the same version", "an alias, which moves",
            f"python -m dtrain serve models:/{model.name or 'NAME'}@champion follow=true",
        )  # fmt: skip
    command.hear("asking MLflow, whose import takes 2 to 10 s")
    source = OfRegistry(model, command.own)
    return command.run(model.name or "model", source, model.version())


_PARSER = of_run.parser(
    "serve",
    "Serve a model over HTTP: the Open Inference Protocol V2 and MLflow's /invocations. With "
    "follow=true it switches to newer versions as they appear.",
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
        with tempfile.TemporaryDirectory(prefix="dtrain-serve-", ignore_cleanup_errors=True) as own:
            return _serve(given, rest, Path(own))
    except DtrainError as error:
        return failures.report(error, "")
    except OSError as error:
        return failures.report(error, f"{error.filename or given}: {error.strerror or error}")
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return errors.FAILED
