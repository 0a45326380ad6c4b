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
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from dtrain.errors import UsageError

NAME = "mlflow"


class Logged:
    """Numbers that the user's code has logged with MLflow and that are not recorded yet."""

    def __init__(self) -> None:
        self._numbers: dict[str, Any] = {}

    def take(self) -> dict[str, Any]:
        """Return the newest number of each name, once."""
        numbers, self._numbers = self._numbers, {}
        return numbers

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Change the module where it is imported, or has been; inside of this context."""
        finder = _Finder(self._change)
        sys.meta_path.insert(0, finder)
        undo = contextlib.ExitStack()
        finder.undo = undo
        try:
            if NAME in sys.modules:
                self._change(sys.modules[NAME], undo)
            yield
        finally:
            sys.meta_path.remove(finder)
            undo.close()

    def log_metric(self, key: str, value: float, *_: Any, **__: Any) -> None:
        """Take the place of ``mlflow.log_metric``; the step is that of the training."""
        self._numbers[key] = value

    def log_metrics(self, metrics: Mapping[str, float], *_: Any, **__: Any) -> None:
        """Take the place of ``mlflow.log_metrics``."""
        self._numbers.update(metrics)

    def _change(self, module: ModuleType, undo: contextlib.ExitStack) -> None:
        chosen = [False]  # by the user, where runs go

        def choose(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def set_tracking_uri(*args: Any, **kwargs: Any) -> Any:
                chosen[0] = True
                return original(*args, **kwargs)

            return set_tracking_uri

        def refuse(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def start_run(*args: Any, **kwargs: Any) -> Any:
                if chosen[0]:
                    return original(*args, **kwargs)
                raise UsageError(
                    "mlflow", original.__name__, "would begin another run of MLflow's beside the "
                    "one of this training, which the controller writes",
                    "mlflow.log_metric and log_metrics in a callback, which are numbers of this "
                    "run; or a run of your own, in a store that you name",
                    "mlflow.set_tracking_uri(ADDRESS) before it",
                )  # fmt: skip

            return start_run

        def either(original: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def log(*args: Any, **kwargs: Any) -> Any:
                return (original if chosen[0] else own)(*args, **kwargs)

            return log

        changed: dict[str, Callable[..., Any]] = {
            "set_tracking_uri": choose,
            "start_run": refuse,
            "log_metric": functools.partial(either, own=self.log_metric),
            "log_metrics": functools.partial(either, own=self.log_metrics),
        }
        fluent = sys.modules.get(f"{NAME}.tracking.fluent")
        for owner in (module, fluent):
            for name, change in changed.items():
                if (original := getattr(owner, name, None)) is not None:
                    undo.callback(setattr, owner, name, original)
                    setattr(owner, name, change(original))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds MLflow where it is, and changes it when it has been executed."""

    def __init__(self, change: Callable[[ModuleType, contextlib.ExitStack], None]):
        self._change = change
        self._finding = False
        self.undo = contextlib.ExitStack()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Find the module by the other finders."""
        if name != NAME or self._finding:
            return None
        self._finding = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._finding = False
        if spec is not None and spec.loader is not None:
            loader, execute = spec.loader, spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                del loader.exec_module
                execute(module)
                self._change(module, self.undo)

            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
