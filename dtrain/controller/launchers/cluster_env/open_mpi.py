"""Open MPI: what ``mpirun`` has started.

The variables ``OMPI_COMM_WORLD_*`` are those of its manual ("Environment variables that Open MPI
sets"). Of other hosts they say nothing but where ``mpirun`` itself is, which mostly starts the
first process beside itself; a scheduler's list of hosts is looked at besides.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping

from dtrain.controller.launchers.cluster_env import hostlist
from dtrain.controller.launchers.cluster_env.base import Ranked, Started
from dtrain.errors import UsageError

_WORLD = "OMPI_COMM_WORLD"
#: Names of the number of this run of mpirun: of releases 4 and 5, and of older ones.
_RUN = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri")


class OpenMPI(Ranked):
    """A process of ``mpirun`` is a command of the job."""

    name = "Open MPI"

    def started(self) -> Started | None:
        """Return what mpirun has started, None if it has not started this command."""
        return read(os.environ)


def read(environ: Mapping[str, str]) -> Started | None:
    """Return the processes of which one with this environment is one.

    Raises:
        UsageError: a variable is not as Open MPI sets it.
    """
    if f"{_WORLD}_RANK" not in environ:
        return None
    rank, number = (_number(f"{_WORLD}_{name}", environ) for name in ("RANK", "SIZE"))
    if rank >= number:
        raise _wrong(f"{_WORLD}_RANK", environ, f"{_WORLD}_SIZE={number} has no such rank")
    local = tuple(
        _number(f"{_WORLD}_{name}", environ) if f"{_WORLD}_{name}" in environ else default
        for name, default in (("LOCAL_RANK", 0), ("LOCAL_SIZE", 1))
    )
    run = next((environ[name] for name in _RUN if name in environ), "")
    return Started(
        "Open MPI", rank, number,
        where="this machine" if local[1] == number else "",
        chief=tuple(dict.fromkeys(_chief(environ))),
        job=f"Open MPI {run}", local=(local[0], local[1]), same_home=True, typed="mpirun -n ",
    )  # fmt: skip


def _chief(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the hosts that the first process may be on."""
    # 1000144896.0;tcp://192.0.2.2,10.0.0.2:47451;tcp6://[fd00::2]:45933
    for addresses in re.findall(r"tcp6?://([^;]*):\d+", environ.get("OMPI_MCA_orte_hnp_uri", "")):
        yield from (address.strip("[]") for address in addresses.split(","))
    with contextlib.suppress(ValueError):
        yield from hostlist.hosts(environ.get("SLURM_JOB_NODELIST", ""))[:1]
    yield from environ.get("LSB_HOSTS", "").split()[:1]  # of LSF


def _number(name: str, environ: Mapping[str, str]) -> int:
    if re.fullmatch("[0-9]{1,9}", environ.get(name, "")) is None:
        raise _wrong(name, environ, "is not a number" if name in environ else "is not there")
    return int(environ[name])


def _wrong(name: str, environ: Mapping[str, str], problem: str) -> UsageError:
    return UsageError(
        name, environ.get(name, "(not set)"), f"{problem}, in a process of Open MPI",
        "what mpirun sets; or launcher=local, for this command alone", "launcher=local",
    )  # fmt: skip
