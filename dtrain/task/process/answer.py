"""The process that :mod:`dtrain.launchers.questions` asks about a run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from dtrain import secrets
from dtrain.config import tree
from dtrain.config.tree import Config
from dtrain.errors import DtrainError
from dtrain.files.fields import Json
from dtrain.host import terminal
from dtrain.run.cluster import Cluster
from dtrain.task.process import signals

#: Takes a part of an answer.
Send = Callable[[Any], None]


def answer(
    find: Callable[[Config, Cluster, Send, Json], object], message: Callable[[Exception], str],
    values: Json, cluster: Json, environment: dict[str, str], asked: Json, output: Connection,
    pipe: Connection,
) -> None:  # fmt: skip
    """Run as a forked process; send parts of an answer, and (exit code, answer or message).

    The process ends here, with exit code 0: what went wrong is said by the code that is sent.

    Args:
        find: called with the configuration, the cluster, what sends a part, and ``asked``.
        message: of an error that is not dtrain's: one of the user's code, or of a library.
        values: the configuration, plain.
        cluster: as of ``cluster.json``.
        environment: of this process.
        asked: what is asked.
        output: takes what the user's code prints.
        pipe: a connection to the controller.
    """
    signals.end_with_the_parent()
    os.environ.update(environment)
    sys.stdout = sys.stderr = os.fdopen(os.dup(output.fileno()), "a", buffering=1)
    try:
        config = tree.parse(values, Path("config.yaml"))
        result = find(
            config, Cluster.from_json(cluster), lambda part: pipe.send((None, part)), asked
        )
        pipe.send((0, result))
    except DtrainError as error:
        pipe.send((error.exit_code, secrets.mask(str(error))))
    except Exception as error:
        pipe.send((DtrainError.exit_code, secrets.mask(message(error))))
    terminal.flush()
    pipe.close()
    os._exit(0)
