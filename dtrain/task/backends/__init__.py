"""The seam for frameworks: protocols (:mod:`base`), and a package for each framework."""

from __future__ import annotations

import importlib
import os
from types import ModuleType

from dtrain.host.frameworks import VARIABLE


def module(name: str = "") -> ModuleType:
    """Import the package of the backend of this process, or a module of it."""
    package = f"{__name__}.{os.environ.get(VARIABLE, 'tensorflow')}"
    return importlib.import_module(f"{package}.{name}" if name else package)
