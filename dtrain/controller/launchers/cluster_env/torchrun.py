"""PyTorch's variables, by which ``torchrun`` and others number the processes that they start.

``RANK``, ``WORLD_SIZE`` and ``MASTER_ADDR`` are what ``torch.distributed`` reads; ``torchrun`` adds
``LOCAL_RANK``, ``LOCAL_WORLD_SIZE`` and its own (pytorch.org/docs/stable/elastic/run.html). A
PyTorchJob of Kubeflow and Vertex AI's images set the first three. At ``MASTER_PORT`` torchrun
itself may listen: ports are agreed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from dtrain.controller.launchers.cluster_env.base import ClusterEnvironment, Ranked, Started
from dtrain.controller.launchers.cluster_env.tf_config import TFConfig, is_local
from dtrain.errors import UsageError

#: Without one of these nothing has started several processes.
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR")
#: Set by torchrun alone, and counted up when it starts the processes again.
_RUN, _RESTARTS = "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"


class TorchVariables(Ranked):
    """A process with the variables of ``torch.distributed`` is a command of the job."""

    name = "RANK and WORLD_SIZE"

    def started(self) -> Started | None:
        """Return the processes of the job, None if the variables are not there."""
        return read(os.environ)


class Torchrun(TorchVariables):
    """A process of ``torchrun`` is a command of the job."""

    name = "torchrun"

    def started(self) -> Started | None:
        """Return what torchrun has started, None if it has not started this command."""
        return read(os.environ) if _RUN in os.environ else None


def of_variables() -> ClusterEnvironment:
    """Return the environment of ``launcher=env``: ``TF_CONFIG``, else PyTorch's variables."""
    is_torch = "TF_CONFIG" not in os.environ and all(name in os.environ for name in _NEEDED)
    return TorchVariables() if is_torch else TFConfig()


def read(environ: Mapping[str, str]) -> Started | None:
    """Return the processes of which one with this environment is one.

    Raises:
        UsageError: a variable is not as torchrun sets it.
    """
    if any(name not in environ for name in _NEEDED):
        return None
    rank, number = _number("RANK", environ), _number("WORLD_SIZE", environ)
    if rank >= number:
        raise _wrong("RANK", environ, f"WORLD_SIZE={number} has no such rank")
    chief = environ["MASTER_ADDR"]
    alone = (rank, number) if is_local(chief) else (0, 1)  # by hand, all on this machine
    local = tuple(
        _number(name, environ) if name in environ else default
        for name, default in zip(("LOCAL_RANK", "LOCAL_WORLD_SIZE"), alone, strict=True)
    )
    names = ("MASTER_PORT", _RUN, _RESTARTS)
    by_torchrun = _RUN in environ
    return Started(
        "torchrun" if by_torchrun else "the job of RANK and WORLD_SIZE", rank, number,
        where="this machine" if local[1] == number else "",
        chief=(chief,), job=" ".join(["torch", str(number), *(environ.get(n, "") for n in names)]),
        local=(local[0], local[1]), typed="torchrun --nproc-per-node=" * by_torchrun,
    )  # fmt: skip


def _number(name: str, environ: Mapping[str, str]) -> int:
    if re.fullmatch("[0-9]{1,9}", environ[name]) is None:
        raise _wrong(name, environ, "is not a number")
    return int(environ[name])


def _wrong(name: str, environ: Mapping[str, str], problem: str) -> UsageError:
    return UsageError(
        name, environ[name], f"{problem}, in the variables of torch.distributed",
        "what torchrun sets; or launcher=local, for this command alone", "launcher=local",
    )  # fmt: skip
