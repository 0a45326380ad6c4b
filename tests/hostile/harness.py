"""A place to be attacked in, commands that are let loose on it, and what must not have happened.

::

    <root>/canary/      not the command's: a changed, new or missing file there fails the case
    <root>/home/        the user's; likewise
    <root>/work/        the current directory, with `outputs` of earlier commands, and `presets`
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import select
import shutil
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
#: What a command may take, in seconds of CPU; and when one that waits for ever is given up.
CPU_SECONDS, HANGS = 10.0, 40.0
#: A variable of the environment that no command may print, write or send.
SECRET = "HOSTILE_API_KEY"
SECRET_VALUE = "s3cr3t-of-the-canary-0451"
#: Makes jobs of processes without TensorFlow; with `DTRAIN_TRUST=tests`.
QUICK = ("launcher=local", "launcher._target_=tests.quick.Quick", "tracking=none")
SMALL = ("dataset=synthetic", "model=mlp", "trainer.epochs=3")
#: Of the template's folders, below `outputs`.
RUN, STOPPED, OTHER = (
    "2026-01-02/10-00-00_run",
    "2026-01-02/11-00-00_stopped",
    "2026-01-03/09_other",
)
SWEEP = "multirun/2026-01-02/12-00-00_sweep"

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
#: What a command says that ends with 1; the head of a list of checkpoints, each with its state.
_FAILED = re.compile(r"(?m)error: |damaged|FAILED|failed|no sound|^ *step  ")
_LARGE = 16 << 20
#: Characters that a line may have: more than a value that was typed, which `--cfg job` shows whole.
_LINE = 16_384
#: Folders of other packages, below the root.
_OTHERS = ("matplotlib", "keras")


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a command ended: see :func:`tests.hostile.server._wait`."""

    code: int
    late: bool
    cpu: float
    megabytes: int
    seconds: float
    left: int
    output: str


class Commands:
    """Runs commands, each in a fork of one warm process."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._count = 0
        self._server: subprocess.Popen[str] = subprocess.Popen(
            [sys.executable, "-m", "tests.hostile.server"],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert self._answer() == "ready"

    def _answer(self) -> Any:
        assert self._server.stdout is not None
        line = self._server.stdout.readline()
        assert line, "the server of the commands died"
        return json.loads(line)

    def __call__(
        self,
        module: str,
        *arguments: str,
        cwd: Path,
        environment: Mapping[str, str],
        timeout: float = HANGS,
    ) -> Ended:
        """Run ``python -m MODULE ARGUMENTS`` in ``cwd`` with that environment and no other."""
        self._count += 1
        output = self._folder / f"output-{self._count}"
        assert self._server.stdin is not None
        request = {
            "module": module, "arguments": arguments, "cwd": str(cwd), "output": str(output),
            "environment": dict(environment), "timeout": timeout,
        }  # fmt: skip
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        found = self._answer()
        text = output.read_bytes().decode("utf-8", "surrogateescape")
        output.unlink()
        return Ended(**found, output=text)

    def fresh(
        self,
        module: str,
        *arguments: str,
        cwd: Path,
        environment: Mapping[str, str],
        timeout: float = HANGS,
    ) -> Ended:
        """Run it in an interpreter of its own: nothing is imported before what it imports."""
        self._count += 1
        output = self._folder / f"output-{self._count}"
        began = time.monotonic()
        with output.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments], cwd=cwd, env=dict(environment),
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
            )  # fmt: skip
        watched = os.pidfd_open(process.pid)
        late = not select.select([watched], [], [], timeout)[0]
        os.close(watched)
        if late:
            process.kill()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        text = output.read_bytes().decode("utf-8", "surrogateescape")
        output.unlink()
        return Ended(
            process.returncode, late, used.ru_utime + used.ru_stime, used.ru_maxrss >> 10,
            time.monotonic() - began, 0, text,
        )  # fmt: skip

    def close(self) -> None:
        """End the server."""
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(60)
        self._server.stdout.close()


class Listener:
    """A server of the attacker's, on loopback: keeps every byte that it is sent."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.received = b""
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(2)
                self.received += connection.recv(1 << 16)
                connection.sendall(
                    b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
                )

    def close(self) -> None:
        """Stop listening."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(10)


class Place:
    """Where one case is played: a copy of the template, which the case spoils.

    Args:
        root: an empty folder.
        template: a place to copy; None makes an empty one.
        port: of the attacker's server.
        bystander: the id of a process that must not be signalled.
        make: make the folders; else only their names are wanted.
    """

    def __init__(
        self, root: Path, template: Place | None, port: int, bystander: int, make: bool = True
    ):
        self.root, self.port, self.bystander = root, port, bystander
        self.canary, self.home, self.work = root / "canary", root / "home", root / "work"
        self.outputs = self.work / "outputs"
        self.presets = self.work / "presets"
        self.run, self.stopped = self.outputs / RUN, self.outputs / STOPPED
        self.other, self.sweep = self.outputs / OTHER, self.outputs / SWEEP
        self.words: tuple[str, ...] = ()  # of a case that is typed
        self.it = ""  # a path that is typed
        if not make:
            return
        if template is None:
            self._make()
        else:
            shutil.copytree(template.root, root, symlinks=True, dirs_exist_ok=True)
            self._say_where(template)

    def _make(self) -> None:
        for folder in (self.canary / "folder" / "inside", self.home, self.work, self.presets):
            folder.mkdir(parents=True)
        (self.canary / "file.txt").write_text("a line of the user's own\n")
        (self.canary / "file.json").write_text('{"a": 1}\n')
        (self.canary / "file.yaml").write_text("a: 1\n")
        (self.canary / "folder" / "a.txt").write_text("a\n")
        (self.canary / "folder" / "inside" / "b.txt").write_text("b\n")
        (self.canary / "secret.txt").write_text(f"{SECRET_VALUE}\n")
        (self.home / ".bashrc").write_text("# of the user\n")

    def _say_where(self, template: Place) -> None:
        """Put this place's path where the files of runs have the template's."""
        for path in self.outputs.rglob("*"):
            if path.suffix in (".json", ".yaml", ".jsonl") and path.is_file():
                text = path.read_text()
                if str(template.root) in text:
                    path.write_text(text.replace(str(template.root), str(self.root)))
        with contextlib.closing(sqlite3.connect(self.outputs / "mlflow.db")) as store, store:
            for table, column in (("experiments", "artifact_location"), ("runs", "artifact_uri")):
                store.execute(
                    f"UPDATE {table} SET {column} = replace({column}, ?, ?)",
                    (template.root.as_uri(), self.root.as_uri()),
                )

    def environment(self) -> dict[str, str]:
        """Return that of the commands."""
        return {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": str(self.home),
            "TMPDIR": str(self.root),
            "PYTHONPATH": str(ROOT),
            "DTRAIN_TRUST": "tests",
            "LANG": "C.UTF-8",
            "COLUMNS": "200",
            "TZ": "UTC",
            "MPLCONFIGDIR": os.environ.get("MPLCONFIGDIR", str(self.root / "matplotlib")),
            "KERAS_HOME": str(self.root / "keras"),
            "MLFLOW_HTTP_REQUEST_TIMEOUT": "2",
            SECRET: SECRET_VALUE,
        }

    def snapshot(self) -> dict[str, str]:
        """Return what every path below the root is, no link followed."""
        found = {}
        left = [str(self.root)]
        while left:  # deeper than a recursion could go
            for entry in os.scandir(left.pop()):
                below = os.path.relpath(entry.path, self.root)
                if entry.name == "__pycache__" or below.split("/")[0] in _OTHERS:
                    continue
                found[below] = _state(entry.path)
                if entry.is_dir(follow_symlinks=False):
                    left.append(entry.path)
        return found


def _state(path: str) -> str:
    about = os.lstat(path)
    kind = stat.S_IFMT(about.st_mode)
    if stat.S_ISLNK(kind):
        return f"link to {os.readlink(path)}"
    if not stat.S_ISREG(kind):
        return f"kind {kind:o}"
    if about.st_size > _LARGE:
        return f"{about.st_size} bytes of {about.st_mtime_ns}"
    if os.path.basename(path).endswith(".lock"):
        return "a lock" if about.st_size < 64 else "a large lock"
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


@dataclasses.dataclass(frozen=True)
class Case:
    """One attack, or one accident.

    Attributes:
        name: what it is.
        build: spoils a place.
        commands: which are let loose on it, by their names in :data:`tests.hostile.commands.ALL`.
        codes: the exit codes that are right, of commands that say nothing of their own.
        says: what the output must hold, a regular expression, where the command does not end
            with 0; None where any sentence will do.
        exits: exit codes of some of the commands.
        keeps: paths below the root that must stay as they are, whatever the exit code.
        look: says what else is wrong, when a command has ended.
        kept: it is always in the default suite.
        slow: it is for ``make test-faults`` alone.
        skip: why it cannot be played here.
    """

    name: str
    build: Callable[[Place], None]
    commands: tuple[str, ...]
    codes: tuple[int, ...] = (2,)
    says: str | None = None
    exits: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    keeps: tuple[str, ...] = ()
    look: Callable[[Place, Ended], Iterable[str]] | None = None
    kept: bool = False
    slow: bool = False
    skip: str | None = None


def problems(
    place: Place, ended: Ended, case: Case, codes: tuple[int, ...],
    before: Mapping[str, str], after: Mapping[str, str], mine: tuple[str, ...],
) -> Iterator[str]:  # fmt: skip
    """Yield what was wrong with how a command ended.

    Args:
        place: where.
        ended: how.
        case: what was played.
        codes: of its exit codes those of this command.
        before, after: snapshots.
        mine: paths below the root that the command may write, where it does not end with 2.
    """
    if ended.late:
        yield f"hung: no end within {ended.seconds:.0f} s"
    elif ended.code not in codes:
        yield f"exit code {ended.code}, not {' or '.join(map(str, codes))}"
    if ended.cpu > CPU_SECONDS:
        yield f"took {ended.cpu:.1f} s of CPU"
    if ended.left:
        yield f"left {ended.left} processes"
    text = ended.output
    if "Traceback (most recent call last)" in text:
        yield "printed a traceback"
    if found := _CONTROL.search(text):
        yield f"printed the control character {found[0]!r}"
    if SECRET_VALUE in text:
        yield "printed the secret"
    yield from _sentence(ended, case.says)
    yield from _changes(place, ended, case, before, after, mine)
    if case.look is not None:
        yield from case.look(place, ended)


def _sentence(ended: Ended, says: str | None) -> Iterator[str]:
    text = ended.output
    lines = text.splitlines()
    if ended.code == 2:
        told = [line for line in lines if re.match(r"error: +\S", line)]
        if len(told) != 1:
            yield f"{len(told)} sentences that begin with 'error:'"
    elif ended.code == 1 and not re.search(
        r"(?m)error: |damaged|FAILED|failed|no sound|^ *step  ", text
    ):
        yield "no sentence says what failed"
    long = ended.code != 0 and len(text) > 40_000
    if long or any(len(line) > _LINE for line in lines):
        yield f"{len(text)} characters, the longest line {max(map(len, lines))}"
    if says is not None and ended.code != 0 and not re.search(says, text):
        yield f"does not say {says!r}"


def _changes(
    place: Place, ended: Ended, case: Case,
    before: Mapping[str, str], after: Mapping[str, str], mine: tuple[str, ...],
) -> Iterator[str]:  # fmt: skip
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) == after.get(path) or _temporary(path):
            continue
        own = any(path == each or path.startswith(f"{each}/") for each in mine)
        if own and ended.code != 2 and path not in case.keeps:
            continue
        verb = "made" if path not in before else "removed" if path not in after else "changed"
        yield f"{verb} {path}"
    for path in after.keys() - before.keys():
        whole = place.root / path
        # Of the attacker's own making it was there before.
        if whole.is_file() and not whole.is_symlink() and whole.stat().st_size < _LARGE:
            with contextlib.suppress(OSError):
                if SECRET_VALUE.encode() in whole.read_bytes():
                    yield f"wrote the secret to {path}"


def _temporary(path: str) -> bool:
    """Say whether it is MLflow's, or a lock: taken, and left as they are."""
    return path.endswith(".lock") or path.startswith("work/began-")  # of tests.quick
