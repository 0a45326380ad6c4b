"""The process that reads a dataset for ``python -m dtrain data``."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

import dtrain
from dtrain import secrets
from dtrain.config import load
from dtrain.data.checked import before_training
from dtrain.errors import DtrainError
from dtrain.run.cluster import Cluster
from dtrain.task.inspection.report import report
from dtrain.task.process import parent_death

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


def child(
    values: dict[str, Any],
    cluster: dict[str, Any],
    environment: dict[str, str],
    asked: dict[str, Any],
    output: Connection,
    pipe: Any,
) -> None:
    """Run as a forked process; send the parts of a report, and (exit code, message).

    Args:
        values: the configuration, plain.
        cluster: as of ``cluster.json``.
        environment: of this process.
        asked: what :func:`dtrain.task.inspection.report.report` is to report.
        output: takes what the user's code prints.
        pipe: a connection to the controller.
    """
    parent_death.end_with_the_parent()
    os.environ.update(environment)
    sys.stdout = sys.stderr = os.fdopen(os.dup(output.fileno()), "a", buffering=1)
    try:
        config = load.parse(values, Path("config.yaml"))
        with before_training(config.dataset):
            report(
                config,
                Cluster.from_json(cluster),
                lambda kind, value: pipe.send((None, (kind, value))),
                **asked,
            )
        pipe.send((0, None))
    except DtrainError as error:
        pipe.send((error.exit_code, secrets.mask(str(error))))
    except Exception as error:  # of the user's dataset, or of what runs in the input graph
        pipe.send((DtrainError.exit_code, secrets.mask(_message(error))))
    sys.stderr.flush()
    pipe.close()
    os._exit(0)


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
