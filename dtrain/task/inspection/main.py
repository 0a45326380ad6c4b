"""The process that reads a dataset for ``python -m dtrain data``."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import traceback
from typing import Any

import keras
import tensorflow as tf

import dtrain
from dtrain import secrets
from dtrain.config.schema import Config
from dtrain.data.checked import before_training
from dtrain.run.cluster import Cluster
from dtrain.task.inspection.report import report
from dtrain.task.process.answer import Send, answer

#: Where code is that the user did not write.
_NOT_USERS = (
    *(os.path.join(os.path.dirname(str(package.__file__)), "") for package in (dtrain, tf, keras)),
    str(contextlib.__file__),
)
#: What TensorFlow puts in front of a message, of an error of an operation and of a function that it
#: traces; and a line of the traceback in one.
_AROUND = re.compile(r"^(\{\{.*?\}\} )?(Error in user-defined function .*? iterator: \S+: )?")
_TRACED = "in user code:"
_FRAME = re.compile(r'File "(.+)", line (\d+), in (.+)')


def child(*arguments: Any) -> None:
    """Answer as :func:`dtrain.task.process.answer.answer`: send the parts of a report.

    What is asked are arguments of :func:`dtrain.task.inspection.report.report`.
    """
    answer(_reported, lambda error, asked: _message(error), *arguments)


def _reported(config: Config, cluster: Cluster, send: Send, asked: dict[str, Any]) -> None:
    with before_training(config.dataset):
        report(config, cluster, lambda kind, value: send((kind, value)), **asked)


def _message(error: Exception) -> str:
    """Return what went wrong, without what is TensorFlow's own; print where, of the user's code."""
    lines = str(getattr(error, "message", error)).splitlines() or [""]
    places = [match.groups() for match in map(_FRAME.search, lines) if match is not None]
    users = [place for place in places if _is_users(place[0])]
    where = " ({}, line {}, in {})".format(*users[-1]) if users else ""
    if lines[0] == _TRACED:
        return [line.strip() for line in lines if line.strip()][-1] + where
    if isinstance(error, tf.errors.OpError):
        return _AROUND.sub("", lines[0]) + where
    print(secrets.mask(_own_part(error)), file=sys.stderr)
    return f"{type(error).__name__}: {error}"


def _own_part(error: Exception) -> str:
    """Return a traceback from where code is called that is the user's."""
    frames = error.__traceback__
    while frames is not None and not _is_users(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))


def _is_users(file: str) -> bool:
    """Whether a frame is neither of dtrain nor of what it calls user code through."""
    return not file.startswith(_NOT_USERS)
