"""Test functions in fresh processes, forked from a warm server of the session for each backend."""

from __future__ import annotations

import contextlib
import importlib
import os
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

from dtrain.host.forkserver import warm
from dtrain.host.frameworks import FRAMEWORKS
from dtrain.job.early_import import task_environment

#: What every process of the suite runs with, by its backend, each with a warm server of its own.
ENVIRONMENTS = {name: {**task_environment(backend=name), "TF_CPP_MIN_LOG_LEVEL": "2"}
                for name in FRAMEWORKS}  # fmt: skip
ENVIRONMENT = ENVIRONMENTS["tensorflow"]


def _child(
    pipe: Any, module: str, name: str, arguments: dict[str, Any], devices: int, backend: str
) -> None:
    os.environ.update({**ENVIRONMENTS[backend], "CUDA_VISIBLE_DEVICES": "-1"})
    if backend == "jax":
        import jax

        jax.config.update("jax_num_cpu_devices", devices)
    elif backend == "torch":
        import torch

        assert devices == 1, "a process of PyTorch has one device: tests.test_strategies.together"
        torch.set_num_threads(1)  # as those of TensorFlow (conftest.py)
    else:
        import tensorflow as tf

        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration() for _ in range(devices)],
        )
    try:
        function: Any = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
        with warnings_are_errors():
            value = function(**arguments)
        pipe.send((None, value))
    except BaseException:
        pipe.send((traceback.format_exc(), None))
    pipe.close()
    os._exit(0)


@contextlib.contextmanager
def warnings_are_errors() -> Iterator[None]:
    """Raise warnings inside, as the suite does."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Of arrays and variables of Keras and TensorFlow, which np.array() copies.
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
        yield


def call(
    function: Any, devices: int, arguments: dict[str, Any], timeout: float = 120,
    backend: str = "tensorflow",
) -> Any:  # fmt: skip
    """Call ``function(**arguments)`` in a fresh process with ``devices`` logical CPUs.

    Returns what it returns; raises AssertionError with its traceback where it raises.
    """
    context = warm(ENVIRONMENTS[backend])
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_child,
        args=(theirs, function.__module__, function.__qualname__, arguments, devices, backend),
    )
    process.start()
    theirs.close()
    try:
        if not ours.poll(timeout):
            raise AssertionError(f"{function.__qualname__} took over {timeout} s")
        problem, value = ours.recv()
    except EOFError:
        process.join()
        raise AssertionError(f"the process died with {process.exitcode}") from None
    finally:
        process.kill()
        process.join()
    if problem is not None:
        raise AssertionError(problem)
    return value
