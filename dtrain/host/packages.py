"""Packages: the version of one, all that are installed, and two that can be called."""

from __future__ import annotations

import importlib.metadata
import inspect
import json
import os
import re
import sys
import types
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

_INFO = re.compile(r"(.+?)-([^-]+)\.(?:dist|egg)-info")


def version(package: str) -> str | None:
    """Return the version of ``package``, None where there is none.

    Where it has been imported, that of what was imported. Elsewhere that of the distribution of its
    name, or of one that has a package of its name: TensorFlow is also installed from
    ``tensorflow-cpu``, ``tensorflow-tpu`` and ``tf-nightly``.
    """
    found = getattr(sys.modules.get(package), "__version__", None)
    if isinstance(found, str):
        return found
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        # ORDER: only now, for it reads the files of all distributions.
        for distribution in importlib.metadata.packages_distributions().get(package, ()):
            return importlib.metadata.version(distribution)
    return None


def installed(path: Sequence[str] | None = None) -> tuple[dict[str, str], list[str]]:
    """Return the versions of all distributions, and the folders of those that are editable.

    The names of their folders say so, which takes milliseconds.

    Args:
        path: folders to look in, in order, in place of ``sys.path``. Of two versions the first
            counts, as it does for an import.
    """
    versions: dict[str, str] = {}
    editable: list[str] = []
    for folder in sys.path if path is None else path:
        try:
            names = sorted(os.listdir(folder or "."))
        except OSError:  # a zip file, or a folder that is not there
            continue
        for info in filter(None, map(_INFO.fullmatch, names)):
            package = re.sub(r"[-_.]+", "-", info[1]).lower()
            if package not in versions:
                versions[package] = info[2]
                editable += _editable(os.path.join(folder, info[0], "direct_url.json"))
    return versions, editable


def _editable(path: str) -> list[str]:
    """Return the folder that a distribution is an editable installation of, if it is one."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        if found["dir_info"].get("editable"):
            return [unquote(urlsplit(found["url"]).path)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass  # it was installed from an index, or in a way that no standard describes
    return []


def make_callable(name: str) -> None:
    """Let a package be called like the function of the Python API that has its name, too.

    Args:
        name: ``dtrain.compare`` or ``dtrain.sweep``, which is being imported.
    """

    def function() -> Any:
        return getattr(importlib.import_module("dtrain.api.calls"), name.rpartition(".")[2])

    class Callable(types.ModuleType):
        @property
        def __signature__(self) -> Any:
            return inspect.signature(function())

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return function()(*args, **kwargs)

    sys.modules[name].__class__ = Callable
