"""What an agent says of its host: versions, code, devices, addresses."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import socket
import time
from pathlib import Path
from typing import Any

import dtrain
from dtrain.controller.resources.devices import machine
from dtrain.host.versions import version


def found() -> dict[str, Any]:
    """Return what this process and its machine are, as JSON values.

    ``dtrain``, ``tensorflow``, ``keras``, ``python``: versions; ``code``: a digest of dtrain's own;
    ``gpus``, ``cores``: that tasks may have; ``address``: by which the launcher's connection
    reaches this machine, None where nothing says so; ``time``: of its clock; ``folder``: where
    tasks look for files.
    """
    here = machine(True)
    return {
        "dtrain": dtrain.__version__,
        "tensorflow": version("tensorflow"),
        "keras": version("keras"),
        "python": platform.python_version(),
        "code": code(),
        "gpus": here.gpus,
        "cores": here.cores,
        "name": socket.gethostname(),
        "address": own_address(),
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
    root = Path(dtrain.__file__).parent
    found = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        found.update(f"{path.relative_to(root)}\0".encode())
        found.update(path.read_bytes() + b"\0")
    return found.hexdigest()[:16]
