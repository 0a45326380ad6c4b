"""A training job of Amazon SageMaker, by the variables of its training toolkit.

https://github.com/aws/sagemaker-training-toolkit/blob/master/ENVIRONMENT_VARIABLES.md. A container
without that toolkit finds the same in a file.
https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-training-algo-running-container.html
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dtrain.controller.launchers.cluster_env.base import Ranked, Started
from dtrain.errors import UsageError

_FILE = Path("/opt/ml/input/config/resourceconfig.json")


class SageMaker(Ranked):
    """A host of the job has one command of it: the first of the hosts leads.

    Args:
        file: where SageMaker describes the hosts, for containers without its toolkit.
    """

    name = "a training job of SageMaker"

    def __init__(self, file: str | os.PathLike[str] = _FILE):
        self._file = Path(file)

    def started(self) -> Started | None:
        """Return the hosts of the job, None if this command is not on one of them."""
        found = read(os.environ)
        if found is not None or "TRAINING_JOB_NAME" not in os.environ:
            return found
        try:
            known = json.loads(self._file.read_text())
        except (OSError, ValueError):
            return None
        return _started(known.get("hosts"), known.get("current_host"), os.environ)


def read(environ: Mapping[str, str]) -> Started | None:
    """Return the hosts of which one has this environment.

    Raises:
        UsageError: a variable is not as SageMaker sets it.
    """
    text = environ.get("SM_HOSTS", "")
    if not text.strip():
        return None
    try:
        hosts = json.loads(text)
    except (ValueError, RecursionError):
        raise _wrong("SM_HOSTS", text, "is not JSON") from None
    return _started(hosts, environ.get("SM_CURRENT_HOST"), environ)


def _started(hosts: Any, own: Any, environ: Mapping[str, str]) -> Started:
    listed = isinstance(hosts, list) and hosts and all(isinstance(h, str) and h for h in hosts)
    if not listed or len(set(hosts)) < len(hosts):
        raise _wrong("SM_HOSTS", json.dumps(hosts), "is no list of different hosts")
    if own not in hosts:
        raise _wrong("SM_CURRENT_HOST", own or "(not set)", f"is none of {', '.join(hosts)}")
    job = environ.get("TRAINING_JOB_NAME") or _job(environ.get("SM_TRAINING_ENV", ""))
    return Started(
        f"SageMaker{' job ' if job else ''}{job}", hosts.index(own), len(hosts),
        where=", ".join(hosts[:8]) + (", ..." if len(hosts) > 8 else ""),
        chief=(hosts[0],), job=f"SageMaker {job}",
    )  # fmt: skip


def _job(text: str) -> str:
    """Return the name of the job in the toolkit's description of it, empty if there is none."""
    try:
        return str(json.loads(text).get("job_name", ""))
    except (ValueError, AttributeError, RecursionError):
        return ""


def _wrong(name: str, value: str, problem: str) -> UsageError:
    return UsageError(
        name, value[:80], problem, "what SageMaker sets; or launcher=local, for this command alone",
        "launcher=local",
    )  # fmt: skip
