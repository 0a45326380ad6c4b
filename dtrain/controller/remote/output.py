"""Copies the folder of a run or a sweep to its address.

``.remote.json`` in the folder says what the other place has of it. ``owner.json`` at that place
names the folder that is copied to it: where another machine has resumed the run since, that one
is the run's.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import socket
import sys
import time
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

from dtrain.data.servers import reason
from dtrain.errors import UsageError
from dtrain.files import addresses, reading
from dtrain.run.folder import RunDir, short, write_json
from dtrain.run.mirror import Changes
from dtrain.run.mirror.bucket import OWNER, Bucket
from dtrain.tracking.delivery import INTERVAL, Delivery

_STATE = ".remote.json"
#: Bytes a second that are spent on files that only grow, and are replaced as a whole.
_GROWTH = 1 << 20
#: Longest wait for the last copy, in seconds.
_LAST_SECONDS = 600.0


class Taken(Exception):
    """Another machine has resumed the run."""


class State:
    """What is known of the copy of a folder: the contents of ``.remote.json``.

    Args:
        folder: of a run or a sweep.

    Attributes:
        owner: random name of this folder, by which the other place knows it.
        claimed: this folder is, or was, copied there; else it was only fetched.
        known: of :meth:`.Changes.known`.
    """

    def __init__(self, folder: Path):
        self._path = folder / _STATE
        found: dict[str, Any] = {}
        with contextlib.suppress(UsageError):  # damaged: all is copied again
            found = reading.read_json(self._path) or {}
        self.owner = str(found.get("owner") or secrets.token_hex(8))
        self.claimed = found.get("claimed") is True
        self.known: dict[str, Any] = found.get("known") or {}

    def write(self) -> None:
        """Write it.

        Raises:
            OSError: it cannot be written.
        """
        found = {"owner": self.owner, "claimed": self.claimed, "known": self.known}
        write_json(self._path, found)


class _Jobs(Container[str]):
    """The folders of a sweep's jobs, each of which is copied by its own."""

    def __contains__(self, name: object) -> bool:
        return str(name).isdecimal() or name == OWNER


class Output:
    """Copies a folder to its address from a thread of its own, while work goes on in it.

    Args:
        folder: of a run or a sweep, locked by this command.
        address: its place.
        key: that named it, for messages.
        began: says whether anything is to be copied yet.
        warn: called with one line.
    """

    def __init__(
        self,
        folder: Path,
        address: str,
        key: str,
        began: Callable[[], bool],
        warn: Callable[[str], Any],
    ):
        self._folder, self.address, self._began, self._warn = folder, address, began, warn
        self._bucket = Bucket(address, key)
        self._key = key
        self._state = State(folder)
        self._changes = Changes(folder, _Jobs(), self._state.known)
        self._copied: dict[str, float] = {}
        self._taken = False
        self._delivery: Delivery | None = None

    def open(self, resumed: bool) -> None:
        """Take the place for this folder, and begin.

        Raises:
            UsageError: it cannot be written, or another machine has resumed the run.
        """
        try:
            self._check()
            self._bucket.write(OWNER, _owner(self._state.owner))
            self._state.claimed = True
            self._state.write()
        except Taken:
            raise UsageError(
                self._key, short(self._folder), f"was resumed on another machine: {self.address} "
                "is newer", "its address", f"{self._key}={self.address}",
            ) from None  # fmt: skip
        except Exception as error:  # of each kind of server another
            if not resumed:
                raise UsageError(
                    self._key, self.address, f"cannot be written ({reason(error)})",
                    "an address that can be written with the credentials of the environment",
                    f"{self._key}=FOLDER",
                ) from None  # fmt: skip
        self._delivery = Delivery(
            self.address, self._deliver, lambda: None, self._warn, name="output"
        )

    def withdraw(self) -> None:
        """Leave nothing: the folder is removed, too."""
        self.finish(False)
        with contextlib.suppress(Exception):  # it is away: there is an empty run
            self._bucket.remove(OWNER)

    def finish(self, all_of_it: bool) -> None:
        """End the thread; with ``all_of_it`` when all is copied, or the place is away."""
        if self._delivery is None:
            return
        done = self._delivery.finish(("", 0.0) if all_of_it else None, _LAST_SECONDS)
        self._delivery = None
        if all_of_it and not done:
            command = f"python -m dtrain sync {shlex.quote(short(self._folder))}"
            self._warn(f"output: {self.address} does not have all of it; type: {command}")

    def _check(self) -> None:
        """Refuse to copy where another folder is copied to.

        Raises:
            Taken: another machine has resumed the run.
        """
        if self._state.claimed and owner_of(self._bucket) not in (None, self._state.owner):
            raise Taken

    def _deliver(self, last: Any) -> bool:
        if self._taken or not (last is not None or self._began()):
            return False
        return self.look(last is not None)

    def look(self, ending: bool) -> bool:
        """Copy what the other place lacks; return whether there was anything."""
        shipped = False
        try:
            for found in self._changes.files(lambda each: not ending and self._waits(each)):
                if not shipped:
                    self._check()
                    self._claim()
                self._bucket.apply(found)
                self._copied[found.path] = time.monotonic()
                shipped = True
        except Taken:
            self._taken = True
            self._warn(
                f"output: another machine has resumed {self.address}: this one copies no more"
            )
        finally:
            if shipped:
                self._state.known = self._changes.known()
                self._state.write()
        return shipped or ending

    def _claim(self) -> None:
        """Take the place, where it was away when this began; who adds to a run does not take it."""
        if self._delivery is not None and not self._state.claimed:
            self._bucket.write(OWNER, _owner(self._state.owner))
            self._state.claimed = True

    def _waits(self, found: Any) -> bool:
        """Say whether a growing file has time: all of it is sent for what was added."""
        since = time.monotonic() - self._copied.get(found.path, 0.0)
        return bool(since < max(INTERVAL, found.size / _GROWTH))


def _owner(name: str) -> bytes:
    about = {"owner": name, "host": socket.gethostname(), "time": round(time.time(), 3)}
    return json.dumps(about).encode() + b"\n"


def owner_of(bucket: Bucket) -> str | None:
    """Return the name of the folder that is copied to a place; None where there is none."""
    found = bucket.read(OWNER)
    if found is None:
        return None
    with contextlib.suppress(UsageError):
        return str(reading.parse_json(found, Path(OWNER)).get("owner"))
    return "?"


def output_of(
    folder: Path,
    key: str,
    began: Callable[[], bool],
    warn: Callable[[str], Any],
) -> Output | None:
    """Return what copies a folder; None where it has no other place.

    Args:
        folder, key, began, warn: of :class:`Output`.

    Raises:
        UsageError: a package is not installed.
    """
    address = addresses.address_of(folder)
    return None if address is None else Output(folder, address, key, began, warn)


def push(folder: Path) -> bool:
    """Copy to its address what a run, or a sweep, has that is not there.

    Returns:
        Whether it has all.
    """
    jobs = [each for each in folder.glob("[0-9]*") if each.name in _Jobs()]
    return all([_push(each) for each in (*jobs, folder)])


def _push(folder: Path) -> bool:
    output = output_of(folder, "RUN", lambda: True, lambda text: print(text, file=sys.stderr))
    lock = RunDir(folder).lock() if output is not None else None
    if output is None or lock is None:  # the command that is at work there does so by itself
        return True
    try:
        while output.look(False):
            pass
    except Exception as error:  # of each kind of server another
        print(f"output: {reason(error)}", file=sys.stderr)
        return False
    finally:
        os.close(lock)
    return True
