"""What an agent says of its host, and the variables that go along to the tasks there."""

from __future__ import annotations

import functools
import hashlib
import importlib.machinery
import os
import platform
import re
import socket
import sys
import time
from pathlib import Path
from typing import Any

import dtrain
from dtrain.controller.resources.devices import machine
from dtrain.host import network
from dtrain.host.frameworks import FRAMEWORKS
from dtrain.host.packages import version


def found() -> dict[str, Any]:
    """Return what this process and its machine are, as JSON values.

    ``dtrain``, ``tensorflow``, ``jax``, ``jaxlib``, ``keras``, ``python``: versions; ``code``: a
    digest of dtrain's own; ``gpus``, ``cores``: that tasks may have; ``address``: by which the
    launcher's connection reaches this machine, None where nothing says so; ``addresses``: of its
    interfaces, with their names; ``time``: of its clock; ``folder``: where tasks look for files.
    """
    here = machine()
    return {
        "dtrain": dtrain.__version__,
        **{name: version(name) for each in FRAMEWORKS.values() for name in each.packages},
        "keras": version("keras"),
        "python": platform.python_version(),
        "code": code(),
        "gpus": here.gpus,
        "cores": here.cores,
        "name": socket.gethostname(),
        "address": own_address(),
        "addresses": [[name, str(address)] for name, address in network.interfaces()],
        "time": time.time(),
        "folder": os.getcwd(),
        "pid": os.getpid(),
    }


def own_address() -> str | None:
    """Return the address by which the OpenSSH client that has connected here reaches this host."""
    parts = os.environ.get("SSH_CONNECTION", "").split()
    return parts[2] if len(parts) == 4 else None


@functools.cache
def code() -> str:
    """Return a digest of the source of dtrain."""
    return _digest(Path(dtrain.__file__).parent)


def modules(names: list[str]) -> dict[str, str | None]:
    """Return a digest of the source of each module at the top; None where it is not found.

    Nothing is imported. Of modules that are not Python's or not files, it is empty.
    """
    found: dict[str, str | None] = {}
    for name in names:
        spec = importlib.machinery.PathFinder.find_spec(name, [*sys.path, os.getcwd()])
        if spec is None:
            found[name] = None
            continue
        places = list(spec.submodule_search_locations or [spec.origin or ""])
        found[name] = _digest(Path(places[0])) if Path(places[0]).exists() else ""
    return found


def _digest(place: Path) -> str:
    """Return a digest of a file, or of the Python files below a folder."""
    found = hashlib.sha256()
    for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
        found.update(f"{path.relative_to(place) if place.is_dir() else ''}\0".encode())
        found.update(path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


#: How their names begin: what the user trusts and allows, and secrets that were typed.
_OWN = ("DTRAIN_TRUST", "DTRAIN_ENV", "DTRAIN_SECRET_", "TF_CPP_MIN_LOG_LEVEL")
_REFERENCE = re.compile(r"\$\{\s*oc\.env\s*:\s*['\"]?(\w+)")


def own() -> dict[str, str]:
    """Return those that every task has."""
    return {name: value for name, value in os.environ.items() if name.startswith(_OWN)}


def referred(text: str) -> dict[str, str]:
    """Return those that a configuration refers to: secrets are not written there.

    Args:
        text: of ``config.yaml``.
    """
    return {name: os.environ[name] for name in _REFERENCE.findall(text) if name in os.environ}
