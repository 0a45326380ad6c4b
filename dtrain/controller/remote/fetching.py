"""Runs and sweeps at addresses: found, and fetched into the folders of this machine."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Container
from pathlib import Path
from typing import Any

from dtrain.controller import resume
from dtrain.controller.folders import age, runs_below
from dtrain.controller.remote.output import State, owner_of
from dtrain.data.files import is_address
from dtrain.data.servers import reason
from dtrain.errors import UsageError
from dtrain.files import addresses, writing
from dtrain.run.folder import RunDir, short
from dtrain.run.mirror import Changes
from dtrain.run.mirror.bucket import Bucket

#: Of a run at an address: what says whether it is the one that is looked for.
_HEAD = ("command.json", "config.yaml", "result.json")


def fetched(address: str, key: str) -> Path:
    """Return the folder of this machine for a run or a sweep at an address, as new as that is.

    Args:
        address: of it, or of a checkpoint of it.
        key: that names it, for messages.

    Raises:
        UsageError: there is none, or it cannot be read.
    """
    whole, at, step = address.rstrip("/").partition("/checkpoints/")
    folder, bucket = addresses.local(whole, key), Bucket(whole, key)
    state = State(folder)
    try:
        owner = owner_of(bucket)
        if owner is None:
            raise UsageError(
                key, address, "no run is there", "the address that a run printed",
                f"{key}={whole.rpartition('/')[0]}/TIME_NAME",
            )  # fmt: skip
        if not (state.claimed and state.owner == owner):
            _fetch(bucket, folder, state)
    except UsageError:
        raise
    except Exception as error:  # of each kind of server another
        if not folder.is_dir():
            raise UsageError(
                key, address, f"cannot be read ({reason(error)})",
                "an address that can be read with the credentials of the environment",
                f"{key}=outputs/DATE/TIME_NAME",
            ) from None  # fmt: skip
        print(f"output: {reason(error)}; {short(folder)} is used as it is", file=sys.stderr)
    return folder / "checkpoints" / step if at else folder


def _fetch(bucket: Bucket, folder: Path, state: State) -> None:
    print(f"fetching {bucket.address} to {short(folder)}", file=sys.stderr, flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with writing.made_aside(folder) as temporary:
        temporary.mkdir()
        bucket.fetch(temporary)
        if folder.exists():
            _make_room(folder, state)
        writing.rename(temporary, folder)
    changes, new = Changes(folder), State(folder)
    changes.skip()
    new.known = changes.known()
    new.write()


def _make_room(folder: Path, state: State) -> None:
    """Let go of what was fetched before; what was trained here, and resumed elsewhere, stays."""
    lock = RunDir(folder).lock()
    if lock is None:
        raise UsageError(
            "RUN", folder, "a command is at work in it", "a run that this machine does not train",
            f"kill {RunDir(folder).holder()} to stop and save it, or wait",
        )  # fmt: skip
    os.close(lock)
    if not state.claimed:
        writing.remove(folder)
        return
    number = 2
    while (kept := folder.with_name(f"{folder.name}-before-{number - 1}")).exists():
        number += 1
    writing.rename(folder, kept)
    print(f"it was resumed on another machine: what was here is {short(kept)}", file=sys.stderr)


def arguments(given: list[str], keys: Container[str]) -> tuple[list[str], list[Path]]:
    """Return a command line with the folders of this machine in the place of addresses of runs.

    Args:
        given: the command line; what has no ``=`` may be an address, too.
        keys: whose values may be addresses of runs.

    Returns:
        The command line, and the folders.

    Raises:
        UsageError: of :func:`fetched`.
    """
    words, folders = [], []
    for word in given:
        key, sign, value = word.partition("=")
        if not sign or "://" in key:  # an address may have a sign of equality, too
            key, sign, value = "", "", word
        if is_address(value) and key in keys and value.partition("://")[0] in addresses.SCHEMES:
            folders.append(fetched(value, key or "RUN"))
            word = f"{key}{sign}{folders[-1]}"
        words.append(word)
    return words, folders


def find(config: Any, words: dict[str, Any], chosen: Path | None) -> str | None:
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
            if owner_of(bucket) is not None:
                fetched(address, "hydra.run.dir")
            return resume.find(config, words, chosen)
        runs = {str(run.relative_to(below)): run for run in runs_below(below)}
        there = {path.rpartition("/")[0] for path in bucket.paths("*/*/command.json")}
        with tempfile.TemporaryDirectory() as copies:
            for number, name in enumerate(sorted(there)):
                runs[name] = Path(copies, str(number))
                for each in _HEAD:
                    data = bucket.read(f"{name}/{each}")
                    if data is not None:
                        writing.write_bytes(runs[name] / each, data)
            for name in sorted(runs, key=lambda name: (age(runs[name])[0], name), reverse=True):
                status = resume.status_of(runs[name], config, words)
                if status == "FINISHED":
                    return None
                if status is not None:
                    at = fetched(f"{address}/{name}", "resume") if name in there else below / name
                    return str(at)
    except UsageError:
        raise
    except Exception as error:  # of each kind of server another
        raise UsageError(
            "output_dir", address, f"cannot be read ({reason(error)})",
            "an address that can be read with the credentials of the environment",
            "output_dir=FOLDER",
        ) from None  # fmt: skip
    return None
