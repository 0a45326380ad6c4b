"""Test functions in fresh processes, forked from a warm server of the session.

A controller has one warm server, of one framework. That of the suite's process has TensorFlow; a
controller of JAX' is a process of its own, which is started when the first test needs it.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import multiprocessing
import os
import tempfile
import traceback
import warnings
from collections.abc import Callable
from typing import Any

from dtrain.controller.task_environment import task_environment
from dtrain.host.forkserver import warm

#: What the processes of the suite run with, by backend: one environment for each warm server.
ENVIRONMENTS = {name: task_environment(backend=name) for name in ("tensorflow", "jax")}
ENVIRONMENT = ENVIRONMENTS["tensorflow"]


def in_controller(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in the controller of JAX'.

    Returns what it returns; raises AssertionError with its traceback where it raises.
    """
    pipe = _controller()
    pipe.send((function, arguments))
    problem, value = pipe.recv()
    if problem is not None:
        raise AssertionError(problem)
    return value


@functools.cache
def _controller() -> Any:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    context.Process(target=_serve, args=(theirs,)).start()
    theirs.close()
    atexit.register(ours.close)  # it ends then
    return ours


def _serve(pipe: Any) -> None:
    with tempfile.TemporaryDirectory(prefix="dtrain-jax-") as folder:
        # What one test has compiled, the others need not: small operations most of all.
        os.environ["JAX_COMPILATION_CACHE_DIR"] = folder
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
        warm(ENVIRONMENTS["jax"])
        while True:
            try:
                function, arguments = pipe.recv()
            except EOFError:
                return
            try:
                pipe.send((None, function(*arguments)))
            except BaseException:
                pipe.send((traceback.format_exc(), None))


def _has_devices(backend: str, devices: int) -> None:
    if backend == "jax":
        import jax

        jax.config.update("jax_num_cpu_devices", devices)
        return
    import tensorflow as tf

    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration() for _ in range(devices)],
    )


def _child(
    pipe: Any,
    folder: str,
    module: str,
    name: str,
    arguments: dict[str, Any],
    devices: int,
    backend: str,
) -> None:
    os.chdir(folder)
    os.environ.update({**ENVIRONMENTS[backend], "CUDA_VISIBLE_DEVICES": "-1"})
    _has_devices(backend, devices)
    try:
        function: Any = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            value = function(**arguments)
        pipe.send((None, value))
    except BaseException:
        pipe.send((traceback.format_exc(), None))
    pipe.close()
    os._exit(0)


def call(
    function: Any,
    devices: int,
    arguments: dict[str, Any],
    timeout: float = 120,
    backend: str = "tensorflow",
) -> Any:
    """Call ``function(**arguments)`` in a fresh process with ``devices`` logical CPUs.

    Returns what it returns; raises AssertionError with its traceback where it raises.
    """
    what = function.__module__, function.__qualname__, arguments, devices, backend
    if backend == "jax":
        return in_controller(_forked, os.getcwd(), what, timeout)
    return _forked(os.getcwd(), what, timeout)


def _forked(folder: str, what: tuple[Any, ...], timeout: float) -> Any:
    name, backend = what[1], what[-1]
    context: Any = warm(ENVIRONMENTS[backend])
    ours, theirs = context.Pipe()
    process = context.Process(target=_child, args=(theirs, folder, *what))
    process.start()
    theirs.close()
    try:
        if not ours.poll(timeout):
            raise AssertionError(f"{name} took over {timeout} s")
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
