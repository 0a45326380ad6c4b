"""``mlflow.log_metric`` in a user's callback: a number of this run.

The controller tracks a run; MLflow's own functions would begin another one, of a random name, in a
store in the current folder. What a callback gives ``log_metric`` and ``log_metrics`` is recorded as
what it puts into ``logs``, with any tracker. The rest of MLflow's functions that need a run are
refused, unless the user has said where that run is to be. dtrain does not import MLflow here.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType

from dtrain.errors import refuse
from dtrain.task.aliases import Function

NAME = "mlflow"


class Logged(importlib.abc.MetaPathFinder):
    """Numbers that the user's code has logged with MLflow and that are not recorded yet."""

    def __init__(self) -> None:
        self._numbers: dict[str, float] = {}
        self._undo = contextlib.ExitStack()

    def take(self) -> dict[str, float]:
        """Return the newest number of each name, once."""
        numbers, self._numbers = self._numbers, {}
        return numbers

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Change the module where it is imported, or has been; inside of this context."""
        with self._undo:
            if NAME in sys.modules:
                self._change(sys.modules[NAME])
            else:
                sys.meta_path.insert(0, self)
                self._undo.callback(self._withdraw)
            yield

    def _withdraw(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Find MLflow by the other finders, and change it when it has been executed."""
        if name != NAME:
            return None
        self._withdraw()  # two threads may import it at once
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            loader, execute = spec.loader, spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                del loader.exec_module
                execute(module)
                self._change(module)

            loader.exec_module = exec_module  # type: ignore[method-assign] # of this one loader
        return spec

    def log_metric(self, key: str, value: float, *_: object, **__: object) -> None:
        """Take the place of ``mlflow.log_metric``; the step is that of the training."""
        self._numbers[key] = value

    def log_metrics(self, metrics: Mapping[str, float], *_: object, **__: object) -> None:
        """Take the place of ``mlflow.log_metrics``."""
        self._numbers.update(metrics)

    def _change(self, module: ModuleType) -> None:
        has_chosen = False  # the user, where runs go

        def changed(name: str, original: Function) -> Function:
            @functools.wraps(original)
            def call(*args: object, **kwargs: object) -> object:
                nonlocal has_chosen
                has_chosen |= name == "set_tracking_uri"
                if has_chosen:
                    return original(*args, **kwargs)
                if name != "start_run":
                    return getattr(self, name)(*args, **kwargs)
                refuse("mlflow", "would begin another run beside the one of this training", name,
                       accepted="mlflow.log_metric and log_metrics in a callback, or a run in a "
                       "store that you name",
                       hint="mlflow.set_tracking_uri(ADDRESS) before it")  # fmt: skip

            return call

        for owner in (module, sys.modules.get(f"{NAME}.tracking.fluent")):
            for name in ("set_tracking_uri", "start_run", "log_metric", "log_metrics"):
                if (original := getattr(owner, name, None)) is not None:
                    self._undo.callback(setattr, owner, name, original)
                    setattr(owner, name, changed(name, original))
