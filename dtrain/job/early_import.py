"""The environment of a job's processes, and their framework, imported while Hydra composes.

Light: it is to begin first."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence

from dtrain.host import forkserver
from dtrain.host.frameworks import FRAMEWORKS, VARIABLE

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


#: Of the log of XLA and TensorFlow.
_LOG = "TF_CPP_MIN_LOG_LEVEL"
#: Whether threads of OpenMP that wait are active.
_WAIT = "OMP_WAIT_POLICY"
_HASHING = "PYTHONHASHSEED"


def task_environment(
    onednn: bool = True, backend: str = "tensorflow", hashing: str = "0"
) -> dict[str, str]:
    """Return them.

    They are the same for every kind of device, so that all processes of a job are forked from one
    warm server: those that look at data, too, which leave a GPU alone.

    Args:
        onednn: ``hardware.onednn``, of TensorFlow.
        backend: of Keras.
        hashing: of texts, by which sets are ordered: classes that are numbered by one must not be
            others in the next process; ``random`` where requests of others are answered.
    """
    common = {VARIABLE: backend, _LOG: os.environ.get(_LOG, "2")}
    common[_HASHING] = os.environ.get(_HASHING, hashing)
    if backend == "jax":
        return {**common, "JAX_PLATFORMS": "cpu"}  # a task on another device changes it in JAX
    if backend == "torch":
        return {
            **common,
            # Else Keras asks for GPUs while it is imported, and no process that is forked has one.
            # A task on another device says so to Keras.
            "KERAS_TORCH_DEVICE": "cpu",
            # Threads of an operation that wait for each other take the cores, which other programs
            # have as well: steps are then many times slower.
            _WAIT: os.environ.get(_WAIT, "PASSIVE"),
        }
    return {**common, "TF_ENABLE_ONEDNN_OPTS": "1" if onednn else "0"}
