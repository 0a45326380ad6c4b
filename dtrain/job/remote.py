"""Runs and sweeps in object stores: ``output_dir=s3://BUCKET/FOLDER``.

A run is made in a folder of this machine (:mod:`dtrain.files.addresses`); a thread uploads what
changes there, in the order of :mod:`dtrain.run.mirror`. A command that names a run at an address
downloads it first.

Who adds to a run: the folder that ``owner.json`` names there. A command that begins or resumes a
run writes it; a folder that finds another name uploads no more. ``.remote.json`` in the folder has
its name, and what was uploaded from it.

Objects are replaced as a whole, and cannot be renamed. So a checkpoint is there when its manifest
is, which comes last and goes first. One that is saved again under the same step is kept as
``.old-<step>`` until the new one is there.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shlex
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path
from typing import Any

from dtrain.data import servers
from dtrain.data.files import is_address
from dtrain.errors import UsageError, refuse
from dtrain.files import addresses, reading, writing
from dtrain.files.fields import Json
from dtrain.job import folders, resume
from dtrain.job.folders import age, runs_below
from dtrain.run.checkpoint.format import MANIFEST, STATE
from dtrain.run.checkpoint.store import ASIDE, POINTER
from dtrain.run.folder import RunDir, short, write_json
from dtrain.run.mirror import ChangedFile, Changes, Removed, checkpoint_of, problem_of
from dtrain.tracking.delivery import Delivery

_OWNER, _STATE = "owner.json", ".remote.json"
#: Bytes of a part of a large file, of which s3fs has ten in memory; S3 takes 10,000 parts.
_CHUNK, _CHUNKS = 16 << 20, 9_000
#: Longest wait for the last upload, in seconds.
_LAST_SECONDS = 600.0
#: Of a run at an address: what says whether it is the one that is looked for.
_HEAD = ("command.json", "config.yaml", "result.json")
_OF_CHECKPOINT = re.compile(
    rf"((?:.*/)?checkpoints/)({re.escape(ASIDE)})?(\d+)/({STATE}|{MANIFEST})"
)


class Bucket:
    """The folder at an address; its methods raise whatever its server does.

    Args:
        address: of a run, a sweep, or an ``output_dir``.
        key: that names it, for messages.

    Raises:
        UsageError: a package is not installed.
    """

    def __init__(self, address: str, key: str):
        self.address, self.key = address, key
        self._server = servers.filesystem(address, key, addresses.SCHEMES, hurries=True)
        self._at = address.partition("://")[2].rstrip("/")

    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self._server.rm_file(f"{self._at}/{path}")

    def paths(self, pattern: str = "") -> list[str]:
        """Return the paths of all files below the folder, or of those that match a pattern."""
        self._server.invalidate_cache()
        search = self._server.glob if pattern else self._server.find
        paths = search(f"{self._at}/{pattern}".rstrip("/"))
        return [str(each).lstrip("/").removeprefix(f"{self._at}/") for each in paths]

    def read(self, path: str) -> bytes | None:
        """Return what a small file has; None where it is not there."""
        self._server.invalidate_cache()
        try:
            data: bytes = self._server.cat_file(f"{self._at}/{path}")
        except FileNotFoundError:
            return None
        return data

    def owner(self) -> str | None:
        """Return the name of the folder that is uploaded there; None where no run is."""
        if (data := self.read(_OWNER)) is None:
            return None
        with contextlib.suppress(UsageError):
            return str(reading.parse_json(data, Path(_OWNER)).get("owner"))
        return "?"

    def set_owner(self, name: str) -> None:
        """Let a folder be the one that is uploaded there."""
        about = {"owner": name, "host": socket.gethostname(), "time": round(time.time(), 3)}
        self._server.pipe_file(f"{self._at}/{_OWNER}", json.dumps(about).encode() + b"\n")

    def apply(self, change: ChangedFile | Removed) -> None:
        """Upload, or remove, what has changed; a resume from there is possible at any moment."""
        folder = checkpoint_of(change.path)
        aside = f"checkpoints/{ASIDE}{(folder or '').rpartition('/')[2]}"
        if isinstance(change, Removed):
            folders = (aside, folder) if folder else ()  # ORDER: first it is none any more
            paths = [f"{each}/{name}" for each in folders for name in (MANIFEST, STATE)]
            for path in paths or [change.path]:
                self.remove(path)
            return
        if folder and change.path.endswith(STATE) and self.has(f"{folder}/{MANIFEST}"):
            for name in (STATE, MANIFEST):
                self._server.cp_file(f"{self._at}/{folder}/{name}", f"{self._at}/{aside}/{name}")
            self.remove(f"{folder}/{MANIFEST}")  # ORDER: from here on the one aside counts
        # The open file, whatever has its name by now; it is there when all of it is.
        self._server.put_file(
            f"/dev/fd/{change.descriptor}", f"{self._at}/{change.path}",
            chunksize=max(_CHUNK, change.size // _CHUNKS),
        )  # fmt: skip
        if folder and change.path.endswith(MANIFEST) and self.has(f"{aside}/{MANIFEST}"):
            for name in (MANIFEST, STATE):
                self.remove(f"{aside}/{name}")

    def has(self, path: str) -> bool:
        """Say whether a file is there."""
        self._server.invalidate_cache()
        return bool(self._server.exists(f"{self._at}/{path}"))

    def has_run(self) -> bool:
        """Say whether a run or a sweep is there: killed as it began, it has left an owner alone."""
        return any(map(self.has, ("command.json", "sweep.json")))

    def fetch(self, folder: Path, patterns: Sequence[str] = ("",)) -> None:
        """Download all that is sound of a run, of a sweep, or of what matches a pattern.

        Args:
            folder: an empty one.
            patterns: of paths.
        """
        paths = [path for pattern in patterns for path in self.paths(pattern)]
        # ORDER: checkpoints first: what is downloaded later is at least as new as they are.
        wanted = sorted(_wanted(paths), key=lambda each: not _OF_CHECKPOINT.fullmatch(each[0]))
        places = [f"{self._at}/{place}" for _, place in wanted]
        if wanted:
            self._server.get(places, [str(folder / path) for path, _ in wanted])


def _wanted(paths: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the files to download of those that a bucket has: their paths, and where each is."""
    present = set(paths)
    for path in paths:
        if (match := _OF_CHECKPOINT.fullmatch(path)) is None:
            if problem_of(path) is None and path.rpartition("/")[2] != _OWNER:
                yield path, path
            continue
        above, aside, step, name = match.groups()
        whole, kept = (
            {f"{above}{prefix}{step}/{each}" for each in (STATE, MANIFEST)} <= present
            for prefix in ("", ASIDE)
        )
        if (whole and not aside) or (kept and aside and not whole):
            yield f"{above}{step}/{name}", path


class Superseded(Exception):
    """Another machine has resumed the run."""


class Uploader:
    """Uploads a folder from a thread of its own, while work goes on in it.

    Args:
        folder: of a run or a sweep, locked by this command.
        bucket: its place.
        began: says whether anything is to be uploaded yet.
        warn: called with one line.

    Attributes:
        name: random, of this folder in ``owner.json``; None: it was downloaded, and not resumed.
    """

    def __init__(
        self, folder: Path, bucket: Bucket, began: Callable[[], bool] = lambda: True,
        warn: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
    ):  # fmt: skip
        self._folder, self._bucket, self._began, self._warn = folder, bucket, began, warn
        self.address = bucket.address
        state: Json = {}
        with contextlib.suppress(UsageError):  # damaged: all is uploaded again
            state = reading.read_json(folder / _STATE) or {}
        self.name: str | None = state.get("owner")
        self._changes = Changes(folder, copied=state.get("copied"))
        self._superseded = False
        self._delivery: Delivery | None = None

    def _write_state(self) -> None:
        write_json(self._folder / _STATE, {"owner": self.name, "copied": self._changes.copied})

    def was_downloaded(self) -> None:
        """Note that the bucket has all that is in the folder."""
        self._changes.skip()
        self._write_state()

    def open(self, resumed: bool) -> None:
        """Claim the place for this folder, and begin.

        Raises:
            UsageError: it cannot be written, has another run, or another machine has resumed this.
        """
        key = self._bucket.key
        latest = self._folder / "checkpoints" / POINTER
        # A job of a sweep, whose name is a number, may begin anew.
        new = not resumed and self.name is None and not self._folder.name.isdecimal()
        try:
            if new and self._bucket.has_run():
                refuse(key, "holds another run", self.address,
                       hint=f"resume={self.address} to resume it, or another place")  # fmt: skip
            newest = self._bucket.read(f"checkpoints/{POINTER}") if resumed else None
            own = reading.read_bytes(latest) if latest.is_file() else b""
            if self.name is None and newest not in (None, own):
                refuse(key, f"was downloaded before: {self.address} is newer", short(self._folder),
                       typed=f"{key}={self.address}")  # fmt: skip
            self._claim()
        except UsageError:
            raise
        except Superseded:
            raise UsageError(key, f"was resumed on another machine: {self.address} is newer",
                             short(self._folder),
                             typed=f"{key}={self.address}") from None  # fmt: skip
        except Exception as error:  # of each kind of server another
            if not resumed:
                raise _unusable(key, self.address, "written", error, "FOLDER") from None
        self._delivery = Delivery(
            self.address, self._deliver, lambda: None, self._warn, name="output"
        )

    def _claim(self) -> None:
        """Let ``owner.json`` name this folder, unless another one has resumed the run since.

        Raises:
            Superseded: it has.
        """
        owner = self._bucket.owner()
        if owner is None or self.name is None:
            owner = self.name or secrets.token_hex(8)
            self._bucket.set_owner(owner)
            self.name = owner
            self._write_state()
        if owner != self.name:
            raise Superseded

    def withdraw(self) -> None:
        """Leave nothing: the folder is removed, too."""
        self.finish(False)
        if self.name is not None:
            with contextlib.suppress(Exception):  # it is away: there is an empty run
                self._bucket.remove(_OWNER)

    def finish(self, all_of_it: bool) -> None:
        """End the thread; with ``all_of_it`` when all is uploaded, or the place is away."""
        if self._delivery is None:
            return
        done = self._delivery.finish(("", 0.0) if all_of_it else None, _LAST_SECONDS)
        self._delivery = None
        if all_of_it and not done:
            command = f"python -m dtrain sync {shlex.quote(short(self._folder))}"
            self._warn(f"output: {self.address} does not have all of it; type: {command}")

    def _deliver(self, last: Any) -> bool:
        # What a command that resumes has changed does not count before training begins.
        begun = last is not None or self._began()
        if self._superseded or not begun:
            return False
        return self.upload(last is not None, self._claim)

    def upload(self, ending: bool, claim: Callable[[], None]) -> bool:
        """Upload what the place lacks; return whether there was anything, or this was the end.

        Args:
            ending: growing files do not wait for a checkpoint.
            claim: called before each change.
        """
        changed = False
        try:
            for change in self._changes.files(patient=not ending):
                claim()
                self._bucket.apply(change)
                changed = True
        except Superseded:
            self._superseded = True
            self._warn(
                f"output: another machine has resumed {self.address}: this one copies no more"
            )
        finally:
            if changed:
                self._write_state()
        return changed or ending

    def upload_added(self) -> None:
        """Upload what a command has added to a run; that run is not claimed for this folder."""
        self.upload(True, self._claim if self.name else lambda: None)


def output_of(
    folder: Path, key: str, began: Callable[[], bool], warn: Callable[[str], None]
) -> Uploader | None:
    """Return what uploads a folder; None where it has no other place.

    Args:
        folder, began, warn: of :class:`Uploader`.
        key: that names the folder, for messages.

    Raises:
        UsageError: a package is not installed.
    """
    address = addresses.address_of(folder)
    return None if address is None else Uploader(folder, Bucket(address, key), began, warn)


def push(folder: Path) -> bool:
    """Upload what a run, or a sweep, has that is not at its address; return whether it has all."""
    run = run_of(folder)
    jobs = [each for each in run.glob("[0-9]*") if each.name.isdecimal()]
    return all([_push(each) for each in (*jobs, run)])


def _push(folder: Path) -> bool:
    address = addresses.address_of(folder)
    lock = RunDir(folder).lock() if address is not None else None
    if address is None or lock is None:  # the command that is at work there does so by itself
        return True
    try:
        Uploader(folder, Bucket(address, "RUN")).upload_added()
    except Exception as error:  # of each kind of server another
        print(f"output: {servers.reason(error)}", file=sys.stderr)
        return False
    finally:
        os.close(lock)
    return True


def _unusable(key: str, address: str, verb: str, error: Exception, instead: str) -> UsageError:
    return UsageError(key, f"cannot be {verb} ({servers.reason(error)})", address,
                      hint=f"{key}={instead}, or credentials in the environment")  # fmt: skip


def fetch_run(address: str, key: str) -> Path:
    """Return the folder of this machine for a run or a sweep at an address, as new as that is.

    Args:
        address: of it, or of a checkpoint of it.
        key: that names it, for messages.

    Raises:
        UsageError: there is none, or it cannot be read.
    """
    whole, at, step = address.rstrip("/").partition("/checkpoints/")
    folder, bucket = addresses.local(whole, key), Bucket(whole, key)
    try:
        owner = bucket.owner()
        is_own = owner is not None and owner == Uploader(folder, bucket).name
        if owner is None or not (is_own or bucket.has_run()):
            refuse(key, "no run is there", address,
                   hint=f"{key}={whole.rpartition('/')[0]}/TIME_NAME of a run")  # fmt: skip
        if not is_own:
            _fetch(bucket, folder)
    except UsageError:
        raise
    except Exception as error:  # of each kind of server another
        if not folder.is_dir():
            raise _unusable(key, address, "read", error, "outputs/DATE/TIME_NAME") from None
        print(f"output: {servers.reason(error)}; {short(folder)} is used as it is", file=sys.stderr)
    return folder / "checkpoints" / step if at else folder


def _fetch(bucket: Bucket, folder: Path) -> None:
    print(f"fetching {bucket.address} to {short(folder)}", file=sys.stderr, flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with writing.made_aside(folder) as temporary:
        temporary.mkdir()
        bucket.fetch(temporary)
        if folder.exists():
            _make_room(folder, Uploader(folder, bucket).name is not None)
        writing.rename(temporary, folder)
    Uploader(folder, bucket).was_downloaded()


def _make_room(folder: Path, trained: bool) -> None:
    """Remove what was downloaded before; what was trained here, and resumed elsewhere, stays."""
    os.close(folders.lock(RunDir(folder), "RUN"))
    if not trained:
        writing.remove(folder)
        return
    number = 1
    while (kept := folder.with_name(f"{folder.name}-before-{number}")).exists():
        number += 1
    writing.rename(folder, kept)
    print(f"it was resumed on another machine: what was here is {short(kept)}", file=sys.stderr)


def run_of(folder: Path) -> Path:
    """Return the folder of the run that a folder is, or that a checkpoint is of."""
    whole = folder.absolute()
    return whole.parent.parent if whole.parent.name == "checkpoints" else whole


def refuse_copy(folder: Path, address: str) -> None:
    """Refuse to follow a run that was downloaded before it had ended: the folder will not change.

    Args:
        folder: of this machine.
        address: of the run.

    Raises:
        UsageError: it was.
    """
    run = run_of(folder)
    state = reading.read_json(run / _STATE) or {}
    if state and not state.get("owner") and not RunDir(run).result.is_file():
        refuse("follow", f"{address} is a copy of a run that another machine trains", "true",
               accepted="the folder in which that machine trains it",
               hint="no follow=true, again when there is more")  # fmt: skip


def arguments(words: list[str], keys: Container[str]) -> list[str]:
    """Return a command line with the folders of this machine in the place of addresses of runs.

    Args:
        words: of the command line; what has no ``=`` may be an address, too.
        keys: whose values may be addresses of runs.

    Raises:
        UsageError: of :func:`fetch_run`.
    """
    local = []
    for word in words:
        key, sign, value = word.partition("=")
        if not sign or "://" in key:  # an address may have a sign of equality, too
            key, sign, value = "", "", word
        if is_address(value) and key in keys and value.partition("://")[0] in addresses.SCHEMES:
            word = f"{key}{sign}{fetch_run(value, key or 'RUN')}"
        local.append(word)
    return local


def find(config: Any, words: Json, chosen: Path | None) -> str | None:
    """Return what :func:`.resume.find` does, of runs at an address, too.

    Args:
        config: of the command; its ``output_dir`` is the folder of this machine.
        words: contents of ``command.json`` of the command.
        chosen: the only folder that is looked at; None for all below ``output_dir``.

    Raises:
        UsageError: the place cannot be read.
    """
    below = chosen or Path(config.output_dir)
    address = addresses.address_of(below)
    if address is None:
        return resume.find(config, words, chosen)
    bucket = Bucket(address, "output_dir")
    try:
        if chosen is not None:
            if bucket.has_run():
                fetch_run(address, "hydra.run.dir")
            return resume.find(config, words, chosen)
        with tempfile.TemporaryDirectory() as copies:
            bucket.fetch(Path(copies), [f"*/*/{name}" for name in _HEAD])
            # A run that was killed before anything was uploaded is here alone.
            runs = {run.relative_to(below).as_posix(): run for run in runs_below(below)}
            there = {run.relative_to(copies).as_posix(): run for run in runs_below(Path(copies))}
            runs |= there
            for name in sorted(runs, key=lambda n: (age(runs[n])[0], n in there, n), reverse=True):
                status = resume.status_of(runs[name], config, words)
                if status == "FINISHED":
                    return None
                if status is not None:
                    at = fetch_run(f"{address}/{name}", "resume") if name in there else runs[name]
                    return str(at)
    except UsageError:
        raise
    except Exception as error:  # of each kind of server another
        raise _unusable("output_dir", address, "read", error, "FOLDER") from None
    return None
