"""``python -m dtrain doctor``: what this machine and its environment offer, and what would start.

Exit codes: 0 a run would start, 2 it would be rejected; the last line says why.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from dtrain import errors
from dtrain.config.schema import Config
from dtrain.config.settle import settle
from dtrain.controller import cli
from dtrain.controller.commands import failures
from dtrain.controller.commands.parsing import Parser
from dtrain.controller.examination import machine, network
from dtrain.controller.examination.finding import Finding
from dtrain.controller.launchers import automatic
from dtrain.controller.launchers.rendezvous import cluster_key
from dtrain.controller.plan import Plan
from dtrain.controller.terminal import report
from dtrain.controller.validate import check, check_address
from dtrain.errors import UsageError, printable
from dtrain.host.columns import aligned
from dtrain.tracking import choose

#: Programs by which jobs are started on clusters.
_PROGRAMS = ("srun", "sbatch", "mpirun", "ssh", "kubectl", "ray")


class Doctor(cli.OneConfiguration):
    """Looks at what a run of a configuration would need."""

    name = "doctor"

    def __init__(self) -> None:
        self._doubts: list[str] = []

    def begin(self) -> None:
        """Report what does not depend on the configuration."""
        self._print("this machine", machine.look())
        self._print("where this command was started", [_platform(), _key(), _programs()])

    def job(self, node: Any) -> int:
        """Report what depends on it, and what would be started."""
        config = settle(node)
        check_address(config)
        wanted = config.launcher.get("network")
        refused: UsageError | None = None
        plan: Plan | None = None
        try:
            checked = check(config, prepare=False)
            checked.launcher.kill()  # it may have asked other hosts
            plan = checked.planned
        except UsageError as error:
            refused = error
        several = plan is not None and len(plan.cluster.tasks) > 1
        elsewhere = several and plan is not None and plan.where != "this machine"
        self._print("the network", network.look(wanted, elsewhere))
        self._print("where results go", _places(config))
        if plan is not None:
            print("what would be started")
            for line in report.drawing(plan.cluster, plan.where):
                print(f"  {printable(line)}")
        for doubt in self._doubts:
            print(f"note: {printable(doubt)}")
        if refused is not None:
            raise refused
        print("a run would start")
        return errors.OK

    def _print(self, title: str, findings: list[Finding]) -> None:
        print(title)
        for line in aligned([(finding.name, finding.found) for finding in findings]):
            print(f"  {line}")
        self._doubts += [f"{each.name}: {each.doubt}" for each in findings if each.doubt]


def _platform() -> Finding:
    try:
        found = automatic.found()
    except UsageError as error:
        return Finding("cluster", "one that cannot be used", str(error))
    if found is None:
        return Finding("cluster", "none: launcher=auto is this machine")
    return Finding("cluster", f"{found[1]}; this is task {found[1].rank}")


def _key() -> Finding:
    """Return whether the hosts of a job have a key to prove."""
    try:
        found = cluster_key.find()
    except UsageError as error:
        return Finding("cluster key", "one that cannot be used", str(error))
    where = f"the variable {cluster_key.VARIABLE}, or the file {cluster_key.FILE}"
    return Finding("cluster key", "there is one" if found else f"none yet: {where}")


def _programs() -> Finding:
    found = [program for program in _PROGRAMS if shutil.which(program) is not None]
    return Finding("programs", ", ".join(found) or f"none of {', '.join(_PROGRAMS)}")


def _places(config: Config) -> list[Finding]:
    """Return where run folders, and what is tracked, would go."""
    found = (
        [] if "://" in config.output_dir else [machine.disk("output_dir", Path(config.output_dir))]
    )
    address = choose.tracker(config).address
    if address is None:
        return [*found, Finding("tracking", "none")]
    if address.startswith(("http://", "https://")):
        return [*found, network.server(address)]
    if address.startswith("sqlite:///"):
        place = machine.disk("tracking", Path(address.removeprefix("sqlite:///")).parent)
        return [*found, Finding("tracking", address, place.doubt)]
    return [*found, Finding("tracking", address)]


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: in place of those of the process.
    """
    parser = Parser(
        prog="python -m dtrain doctor", allow_abbrev=False,
        description="Check devices, memory, versions, cluster, network, disks and tracking, and "
        "show what would be started where. Nothing is started.",
        epilog="Exit codes: 0 a run would start, 2 it would be rejected.",
    )  # fmt: skip
    parser.add_argument("overrides", nargs="*", metavar="GROUP=OPTION | KEY=VALUE",
                        help="those of a training")  # fmt: skip
    parser.add_argument("--config-dir", "-cd", metavar="FOLDER", help="presets of your own")
    given = parser.parse_intermixed_args(arguments)
    words = [] if given.config_dir is None else ["--config-dir", given.config_dir]
    doctor = Doctor()

    def look() -> int:
        doctor.begin()
        return cli.composed([*words, *given.overrides], doctor)

    return failures.answered(look, "doctor")
