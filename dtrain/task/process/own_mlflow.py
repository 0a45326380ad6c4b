"""``mlflow.log_metric``, ``log_artifact`` and others in a user's callback mean this run.

The controller tracks a run; MLflow's own functions would begin another one, of a random name, in a
store in the current folder. So they become those of dtrain, with any tracker. The rest of MLflow's
functions that need a run are refused, unless the user has said where that run is to be. dtrain does
not import MLflow here.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from dtrain.errors import refuse
from dtrain.task.aliases import Function
from dtrain.task.process.own_logs import OwnLogs

NAME = "mlflow"


class OwnMLflow(importlib.abc.MetaPathFinder):
    """Changes MLflow's functions.

    Args:
        logs: what they mean.
    """

    def __init__(self, logs: OwnLogs) -> None:
        self._logs = logs
        self._undo = contextlib.ExitStack()

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

    def _functions(self) -> dict[str, Function]:
        """Return what takes the place of MLflow's functions; the step is that of the training."""
        logs = self._logs

        def log_metric(key: str, value: float, *_: object, **__: object) -> None:
            logs.metric(key, value)

        def log_metrics(metrics: Mapping[str, float], *_: object, **__: object) -> None:
            for name, value in metrics.items():
                logs.metric(name, value)

        def set_tag(key: str, value: object, *_: object, **__: object) -> None:
            logs.tag(key, value)

        def set_tags(tags: Mapping[str, object], *_: object, **__: object) -> None:
            for name, value in tags.items():
                logs.tag(name, value)

        def log_artifact(local_path: str, artifact_path: str | None = None, *_: object) -> None:
            logs.artifact(local_path, _below(artifact_path, Path(local_path).name))

        def log_artifacts(local_dir: str, artifact_path: str | None = None, *_: object) -> None:
            for path in sorted(each for each in Path(local_dir).rglob("*") if each.is_file()):
                logs.artifact(path, _below(artifact_path, path.relative_to(local_dir).as_posix()))

        def log_figure(figure: object, artifact_file: str, *_: object, **__: object) -> None:
            logs.figure(artifact_file, figure)

        def log_image(
            image: object, artifact_file: str | None = None, key: str | None = None, *_: object,
            **__: object,
        ) -> None:  # fmt: skip
            logs.image(str(key or artifact_file), image)

        def log_table(data: object, artifact_file: str, *_: object, **__: object) -> None:
            logs.table(artifact_file, data)

        def log_text(text: str, artifact_file: str, *_: object, **__: object) -> None:
            logs.text(artifact_file, text)

        return {name: each for name, each in locals().items() if name not in ("self", "logs")}

    def _change(self, module: ModuleType) -> None:
        has_chosen = False  # the user, where runs go
        functions = self._functions()

        def changed(name: str, original: Function) -> Function:
            @functools.wraps(original)
            def call(*args: object, **kwargs: object) -> object:
                nonlocal has_chosen
                has_chosen |= name == "set_tracking_uri"
                if has_chosen or kwargs.get("run_id") is not None:  # or another run is meant
                    return original(*args, **kwargs)
                if name in functions:
                    return functions[name](*args, **kwargs)
                refuse("mlflow", "would begin another run beside the one of this training", name,
                       accepted="mlflow.log_metric, log_artifact, log_image, set_tag in a "
                       "callback, or a run in a store that you name",
                       hint="mlflow.set_tracking_uri(ADDRESS) before it")  # fmt: skip

            return call

        for owner in (module, sys.modules.get(f"{NAME}.tracking.fluent")):
            for name in ("set_tracking_uri", "start_run", *functions):
                if (original := getattr(owner, name, None)) is not None:
                    self._undo.callback(setattr, owner, name, original)
                    setattr(owner, name, changed(name, original))


def _below(folder: str | None, name: str) -> str:
    return name if folder is None else f"{folder.strip('/')}/{name}"
