"""``python -m dtrain doctor KEY=VALUE ...``: show this machine and what would start where.

It shows versions, devices, the cluster, the network between hosts, where results go. Nothing is
started. Exit codes: 0 a run would start, 2 it would be rejected; the last line says why.

    python -m dtrain doctor strategy=multiworker launcher=ssh launcher.hosts=[a,b]
"""

from __future__ import annotations

import os
import platform
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dtrain import errors
from dtrain.cli import app
from dtrain.cli.registry import command
from dtrain.config.check import settle
from dtrain.config.tree import Config
from dtrain.errors import UsageError, printable
from dtrain.files import addresses
from dtrain.host import network, usage
from dtrain.host.frameworks import FRAMEWORKS
from dtrain.host.packages import version
from dtrain.host.terminal import aligned
from dtrain.job import report
from dtrain.job.checks import check, check_address
from dtrain.job.plan import Plan
from dtrain.launchers import env
from dtrain.run import devices
from dtrain.tracking.chosen import make_tracker

_VERSIONS = {"dtrain": "dtrain", "TensorFlow": "tensorflow", "Keras": "keras",
             "MLflow": "mlflow", "Hydra": "hydra-core", "NumPy": "numpy"}  # fmt: skip
#: Seconds that a server may take to answer.
_PATIENCE = 5.0


class Doctor(app.OneConfiguration):
    """Looks at what a run of a configuration would need."""

    name = "doctor"

    def __init__(self) -> None:
        self._doubts: list[str] = []

    def begin(self) -> None:
        """Report what does not depend on the configuration."""
        self._print("this machine", {
            "machine": f"{platform.node()}, {platform.system()} {platform.release()}, "
                       f"Python {platform.python_version()}",
            "versions": self._versions(), "cores": str(devices.machine().cores),
            "memory": f"{usage.available() / 1e9:.1f} GB free",
            "GPUs": str(devices.machine().gpus or "none"), "cluster": self._cluster(),
        })  # fmt: skip

    def job(self, node: Any) -> int:
        """Report what depends on it, and what would be started."""
        config = settle(node)
        check_address(config)
        refused: UsageError | None = None
        plan: Plan | None = None
        try:
            checked = check(config, prepare=False)
            checked.launcher.kill()  # it may have asked other hosts
            plan = checked.planned
        except UsageError as error:
            refused = error
        self._print("the network", self._network(config, plan))
        self._print("where results go", self._places(config))
        if plan is not None:
            drawing = report.drawing(plan.cluster, plan.where)
            print("what would be started", *map(printable, drawing), sep="\n  ")
        print(*(printable(f"note: {doubt}\n") for doubt in self._doubts), sep="", end="")
        if refused is not None:
            raise refused
        print("a run would start")
        return errors.OK

    def _print(self, title: str, rows: dict[str, str]) -> None:
        print(title, *aligned(list(rows.items())), sep="\n  ")

    def _doubt(self, name: str, problem: str) -> None:
        self._doubts.append(f"{name}: {problem}")

    def _versions(self) -> str:
        names = _VERSIONS | {each.title: each.packages[0] for each in FRAMEWORKS.values()}
        installed = {name: version(package) for name, package in names.items()}
        needed = {name: text for name, text in installed.items() if text or name in _VERSIONS}
        for name in (name for name, text in needed.items() if text is None):
            self._doubt("versions", f"{name} is not installed")
        return ", ".join(f"{name} {text or '(missing)'}" for name, text in needed.items())

    def _cluster(self) -> str:
        try:
            cluster = env.found()
        except UsageError as error:
            self._doubt("cluster", str(error))
            return "one that cannot be used"
        where = "none: launcher=auto is this machine"
        return where if cluster is None else f"{cluster[1]}; this is task {cluster[1].rank}"

    def _network(self, config: Config, plan: Plan | None) -> dict[str, str]:
        """Return the addresses of this machine, and from which of them each host is reached."""
        own = [f"{a} ({name})" for name, a in network.interfaces() if not a.is_loopback]
        given = [str(each) for each in config.launcher.get("hosts") or []]
        given += [task.address for task in plan.cluster.tasks if task.address] if plan else []
        hosts = dict.fromkeys(each.rpartition("@")[2].partition(":")[0] for each in given)
        rows = {"addresses": ", ".join(own) or "none but loopback"}
        return rows | {f"to {host}": self._route(host) for host in hosts}

    def _route(self, host: str) -> str:
        try:
            family, kind, *_, place = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind) as probe:
                probe.connect(place)  # sends nothing
                return f"{place[0]}, from {probe.getsockname()[0]}"
        except OSError as error:
            self._doubt(f"to {host}", f"there is no way ({error.strerror or error})")
            return "no way"

    def _places(self, config: Config) -> dict[str, str]:
        """Return where run folders, and what is tracked, would go."""
        output_dir = Path(config.output_dir)
        far, there = addresses.address_of(output_dir), output_dir.absolute()
        while not there.exists():
            there = there.parent
        if far is None and not os.access(there, os.W_OK | os.X_OK):
            self._doubt("output_dir", f"nothing can be written in {there}")
        address = make_tracker(config).address
        if address is not None and address.startswith(("http://", "https://")):
            parts = urlsplit(address)
            port = parts.port or (443 if parts.scheme == "https" else 80)
            try:
                with socket.create_connection((parts.hostname or "", port), _PATIENCE):
                    address += " can be reached"
            except OSError as error:
                self._doubt("tracking", f"it does not answer ({error.strerror or error}): a run "
                            "trains all the same, and sync ships it later")  # fmt: skip
        return {"output_dir": far or str(output_dir), "tracking": address or "none"}


@command(overrides=())
def main(overrides: list[str]) -> int:
    """Show what a run of a configuration would need, and return the exit code."""
    doctor = Doctor()
    doctor.begin()
    return app.composed(overrides, doctor)
