"""Has the framework imported while Hydra is imported and composes. Light: it is to begin first."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence

from dtrain.controller.task_environment import task_environment
from dtrain.host import forkserver
from dtrain.host.frameworks import FRAMEWORKS

#: Options of a command that trains; with any other it only answers.
_TRAINS = re.compile(r"(-m|--multirun|-r|--run|(-cd|--config-dir)(=.*)?)", re.S)
#: Strategies that JAX alone has.
OF_JAX = ("fsdp", "hybrid", "model_parallel")
#: Launchers whose tasks are forked from the warm server.
_FORKING = ("auto", "local", "env")


@contextlib.contextmanager
def begun(arguments: Sequence[str]) -> Iterator[None]:
    """Start the warm server where it will probably be needed, and leave none that was not.

    Args:
        arguments: of a command line without a command.
    """
    if trains(arguments):
        forkserver.guess(task_environment(backend=_backend(arguments)))
    try:
        yield
    finally:
        forkserver.end_guessed()


def trains(arguments: Sequence[str]) -> bool:
    """Say whether a command will probably fork tasks that have the usual environment.

    What its presets and files say is not known yet: :func:`dtrain.host.forkserver.warm` is right
    whatever this returns.
    """
    return all(map(_may_train, arguments))


def _backend(arguments: Sequence[str]) -> str:
    words = [argument.lstrip("+~").partition("=") for argument in arguments]
    values = {key: value for key, _, value in words}
    if (named := values.get("backend", "auto")) != "auto":
        return named
    return "jax" if values.get("strategy") in OF_JAX else "tensorflow"


def _may_train(argument: str) -> bool:
    if argument.startswith("-"):
        return _TRAINS.fullmatch(argument) is not None
    key, _, value = argument.lstrip("+~").partition("=")
    if key == "launcher":
        return value in _FORKING
    if key == "backend":
        return value in (*FRAMEWORKS, "auto")
    if key == "dry_run":
        return value == "false"
    return key != "launcher._target_" and "onednn" not in argument
