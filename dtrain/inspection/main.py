"""The process that reads a dataset for ``python -m dtrain data``."""

from __future__ import annotations

import re
import sys
from typing import Any

from dtrain import secrets
from dtrain.config.schema import Config
from dtrain.data.checked import before_training
from dtrain.inspection.report import report
from dtrain.run.cluster import Cluster
from dtrain.task.backends.runtime import runtime
from dtrain.task.process import own_code
from dtrain.task.process.answer import Send, answer

#: What TensorFlow puts in front of a message, of an error of an operation and of a function that it
#: traces; and a line of the traceback in one.
_AROUND = re.compile(r"^(\{\{.*?\}\} )?(Error in user-defined function .*? iterator: \S+: )?")
_TRACED = "in user code:"
_FRAME = re.compile(r'File "(.+)", line (\d+), in (.+)')


def child(*arguments: Any) -> None:
    """Answer as :func:`dtrain.task.process.answer.answer`: send the parts of a report.

    What is asked are arguments of :func:`dtrain.inspection.report.report`.
    """
    answer(_reported, _message, *arguments)


def _reported(config: Config, cluster: Cluster, send: Send, asked: dict[str, Any]) -> None:
    with before_training(config.dataset):
        report(config, cluster, lambda kind, value: send((kind, value)), **asked)


def _message(error: Exception) -> str:
    """Return what went wrong, without what is TensorFlow's own; print where, of the user's code."""
    lines = str(getattr(error, "message", error)).splitlines() or [""]
    places = [match.groups() for match in map(_FRAME.search, lines) if match is not None]
    users = [place for place in places if own_code.is_users(place[0])]
    where = " ({}, line {}, in {})".format(*users[-1]) if users else ""
    if lines[0] == _TRACED:
        return [line.strip() for line in lines if line.strip()][-1] + where
    if isinstance(error, runtime().ERRORS):
        return _AROUND.sub("", lines[0]) + where
    print(secrets.mask(own_code.part(error)), file=sys.stderr)
    return f"{type(error).__name__}: {error}"
