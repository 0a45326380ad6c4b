"""What a host is, and whether the hosts of a job go together.

The same versions and frameworks, and ports at which they reach each other; and the variables that
go along to the tasks there.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.machinery
import os
import platform
import re
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dtrain
from dtrain.files.fields import Json
from dtrain.host import network, python_path
from dtrain.host.frameworks import FRAMEWORKS, Framework
from dtrain.host.packages import version
from dtrain.run.devices import machine


def found() -> Json:
    """Return what this process and its machine are, as JSON values.

    ``dtrain``, ``tensorflow``, ``jax``, ``jaxlib``, ``keras``, ``python``: versions; ``code``: a
    digest of dtrain's own; ``gpus``, ``cores``: that tasks may have; ``address``: by which the
    launcher's connection reaches this machine, None where nothing says so; ``addresses``: of its
    interfaces, with their names; ``time``: of its clock; ``folder``: where tasks look for files.
    """
    here = machine()
    connection = os.environ.get("SSH_CONNECTION", "").split()  # of the client, as sshd sees it
    return {
        "dtrain": dtrain.__version__,
        **{name: version(name) for each in FRAMEWORKS.values() for name in each.packages},
        "keras": version("keras"),
        "python": platform.python_version(),
        "code": code(),
        "gpus": here.gpus,
        "cores": here.cores,
        "name": socket.gethostname(),
        "address": connection[2] if len(connection) == 4 else None,
        "addresses": [[name, str(address)] for name, address in network.interfaces()],
        "time": time.time(),
        "folder": os.getcwd(),
        "pid": os.getpid(),
    }


#: The digest of dtrain's own code, among facts.
CODE = "code of dtrain"


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


#: What begins the name of a digest of a module, among facts.
MODULE = "module "


def list_alike(framework: Framework) -> dict[str, str]:
    """Return what has to be the same on every host of a job, beside its configuration."""
    packages = {name: version(name) for name in ("keras", *framework.packages)}
    own = modules(sorted(python_path.tops()))
    alike = {**packages, CODE: code(), **{f"{MODULE}{name}": own[name] for name in own}}
    return {name: str(text) for name, text in alike.items()}


def advise(key: str, ours: str | None) -> dict[str, str]:
    """Return what to type, or a hint, where one of them or a key of the configuration differs.

    Args:
        key: what it is called.
        ours: what it has to be; None: it must not be there.
    """
    if ours is None:
        return {"typed": "", "hint": f"the command without {key}"}
    if key == CODE or key.startswith(MODULE):
        return {"typed": "", "hint": "the same code on every host"}
    packages = ["dtrain", "keras", *(p for each in FRAMEWORKS.values() for p in each.packages)]
    return {"typed": f"pip install {key}=={ours}" if key in packages else f"{key}={ours}",
            "hint": ""}  # fmt: skip


def _digest(place: Path) -> str:
    """Return a digest of a file, or of the Python files below a folder."""
    found = hashlib.sha256()
    for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
        found.update(f"{path.relative_to(place) if place.is_dir() else ''}\0".encode())
        found.update(path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


#: How their names begin: what the user trusts, has passed and allows, and secrets that were typed.
_OWN = ("DTRAIN_TRUST", "DTRAIN_GIVEN", "DTRAIN_ENV", "DTRAIN_SECRET_", "TF_CPP_MIN_LOG_LEVEL")
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


#: Bytes of a secret that are read.
_LONGEST = 256
#: Seconds between two attempts.
_AGAIN = 0.2


class Doors:
    """Listens on ports, and answers whoever comes with a text that only this job knows.

    Args:
        ports: free ones.
        secret: the text.

    Raises:
        OSError: one of them is not free.
    """

    def __init__(self, ports: list[int], secret: str):
        self._listeners: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        try:
            for port in ports:
                self._listeners.append(_listener(port))
                arguments = (self._listeners[-1], secret.encode())
                thread = threading.Thread(target=_answer, args=arguments, daemon=True)
                thread.start()
                self._threads.append(thread)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Free the ports."""
        for listener in self._listeners:
            with contextlib.suppress(OSError):  # it was closed before
                listener.shutdown(socket.SHUT_RDWR)  # which ends what waits there
        for thread in self._threads:
            thread.join()


def _answer(listener: socket.socket, secret: bytes) -> None:
    with listener:
        while True:
            try:
                visitor, _ = listener.accept()
            except ConnectionError:  # it has gone again
                continue
            except OSError:
                return
            with visitor, contextlib.suppress(OSError):
                visitor.setblocking(False)
                visitor.send(secret)


def _listener(port: int) -> socket.socket:
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", port), family=family, dualstack_ipv6=both, backlog=64)


def tried(addresses: list[str], secret: str, seconds: float) -> dict[str, str | None]:
    """Return for each address why it cannot be reached from here, None where it can.

    Args:
        addresses: ``host:port``.
        secret: what answers there.
        seconds: until what does not answer counts as closed.
    """
    with ThreadPoolExecutor(min(32, len(addresses) or 1)) as pool:
        found = pool.map(lambda address: _try(address, secret, seconds), addresses)
        return dict(zip(addresses, found, strict=True))


def _try(address: str, secret: str, seconds: float) -> str | None:
    host, _, port = address.rpartition(":")
    deadline, why = time.monotonic() + seconds, "nothing answered"
    while (left := deadline - time.monotonic()) > 0:
        try:
            with socket.create_connection((host.strip("[]"), int(port)), left) as connected:
                connected.settimeout(left)
                data = connected.recv(_LONGEST)
            return None if data == secret.encode() else "another program answers there"
        except TimeoutError:
            return f"nothing answered within {seconds:g} s: a firewall?"
        except (OSError, UnicodeError) as error:  # its host may not have begun to listen
            why = getattr(error, "strerror", None) or str(error)
            time.sleep(min(_AGAIN, max(0.0, deadline - time.monotonic())))
    return why


#: Facts that decide what is computed, and what they are called.
_SAME = {"dtrain": "dtrain", "tensorflow": "TensorFlow", "keras": "Keras"}
#: Seconds that a clock may differ: times of events, and of checkpoints, are compared.
CLOCK = 60.0


def problem(facts: Json, here: Json) -> tuple[str, str] | None:
    """Return how a host differs from this machine, and what to do; None where it does not.

    Args:
        facts: of the host (:mod:`.facts`).
        here: of this machine.
    """
    difference = next(filter(None, (_other(*same, facts, here) for same in _SAME.items())), None)
    if difference is not None:
        return difference
    if facts.get("code") != here.get("code"):
        return (
            "its code of dtrain is another than this machine's, of the same version",
            "the same checkout on every host",
        )
    off = float(facts["time"]) - float(facts["came"])  # when its greeting came
    if abs(off) > CLOCK:
        way = "ahead of" if off > 0 else "behind"
        return f"its clock is {abs(off):.0f} s {way} this machine's", "the time by NTP, there"
    return None


def framework_problem(framework: Framework, facts: Json, here: Json) -> tuple[str, str] | None:
    """Return how what a job computes with differs on a host, and what to do; None: in nothing."""
    differences = (_other(name, name, facts, here) for name in framework.packages)
    return next(filter(None, differences), None)


def _other(key: str, what: str, facts: Json, here: Json) -> tuple[str, str] | None:
    ours, theirs = here.get(key), facts.get(key)
    if ours == theirs:
        return None
    has = f"has no {what}; this machine has {ours}"
    if theirs is not None:
        has = f"has {what} {theirs}, and this machine {ours}"
    return has, f"pip install {key}=={ours}, there"
