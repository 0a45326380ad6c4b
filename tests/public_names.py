"""The public names of Keras, PyTorch and its metrics: ``python -m tests.public_names`` writes them.

Each file begins with the package and its version. A line for each module has its names, that of
``losses.get`` and ``metrics.get`` the texts that these functions take.
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Iterator
from typing import Any

from dtrain.config.targets import FOLDER
from dtrain.host.packages import version

#: Modules by package; True: those below it, too.
MODULES = {
    "keras": {"": False, **dict.fromkeys((
        "activations", "applications", "callbacks", "constraints", "dtype_policies", "initializers",
        "layers", "losses", "metrics", "optimizers", "random", "regularizers",
    ), True)},
    "torch": {"nn": False, "nn.functional": False, "optim": False, "optim.lr_scheduler": False},
    "torchmetrics": {"": False, "classification": False, "regression": False},
}  # fmt: skip


def text(package: str) -> str:
    """Return the contents of a package's file."""
    lines = [f"{package} {str(version(package)).partition('+')[0]}"]
    for name, below in MODULES[package].items():
        module = importlib.import_module(f"{package}.{name}".rstrip("."))
        lines += [f"{where}: {' '.join(names)}" for where, names in _names(module, below)]
    if package == "keras":
        for each in ("losses", "metrics"):
            known = importlib.import_module(f"keras.src.{each}").ALL_OBJECTS_DICT
            lines.append(f"keras.{each}.get: {' '.join(sorted(known))}")
    return "\n".join([*lines, ""])


def _names(module: Any, below: bool) -> Iterator[tuple[str, list[str]]]:
    """Yield a module, and those below it, with their names."""
    where = module.__name__
    names = [name for name in sorted(vars(module)) if not name.startswith("_")]
    yield where, names
    for value in (getattr(module, name) for name in names if below):
        if inspect.ismodule(value) and value.__name__.startswith(f"{where}."):
            yield from _names(value, below)


def main() -> None:
    """Write all files."""
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    FOLDER.mkdir(exist_ok=True)
    for package in MODULES:
        (FOLDER / f"{package}.txt").write_text(text(package), encoding="utf-8")


if __name__ == "__main__":
    main()
