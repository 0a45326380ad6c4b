"""Imports Keras without pandas, scikit-learn and Matplotlib, which take longer than Keras itself.

Keras imports them wherever they are installed (MLflow installs all three), for a few functions that
few people call. Those functions go on working: what they need is imported when they are called.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator
from typing import Any

from dtrain.host.versions import version

#: What Keras can be imported without.
OPTIONAL = ("pandas", "sklearn", "matplotlib")
#: The releases of Keras of which that was tried. Any other is imported with all it wants.
TRIED = "3.15."


@contextlib.contextmanager
def without() -> Iterator[None]:
    """Import TensorFlow and Keras inside it: they find :data:`OPTIONAL` later, each when needed."""
    tried = (version("keras") or "").startswith(TRIED)
    names = OPTIONAL if tried else ()
    hidden = [name for name in names if name not in sys.modules and importlib.util.find_spec(name)]
    absent: Any = None  # as the import system has it for a module that is not there
    sys.modules.update(dict.fromkeys(hidden, absent))
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
    for name in hidden:
        _GIVEN_BACK[name]()


class Later:
    """A module that is imported when something in it is asked for.

    Args:
        name: of the module.
    """

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


class _OfPandas(type):
    """A class that stands for that of its name in pandas: who has one of those has imported it."""

    def __instancecheck__(cls, value: object) -> bool:
        pandas = sys.modules.get("pandas")
        return pandas is not None and isinstance(value, getattr(pandas, cls.__name__))


def _pandas() -> None:
    slicing: Any = importlib.import_module("keras.src.trainers.data_adapters.array_slicing")
    kinds = [_OfPandas(name, (), {}) for name in ("Series", "DataFrame")]
    slicing.pandas = types.SimpleNamespace(**{kind.__name__: kind for kind in kinds})
    slicing.ARRAY_TYPES = (*slicing.ARRAY_TYPES, *kinds)


def _matplotlib() -> None:
    plots = "keras.src.visualization.plot"
    images: Any = importlib.import_module(f"{plots}_image_gallery")
    boxes: Any = importlib.import_module(f"{plots}_bounding_box_gallery")
    images.plt, boxes.patches = Later("matplotlib.pyplot"), Later("matplotlib.patches")


def _sklearn() -> None:
    """Have ``keras.wrappers``, whose classes derive from scikit-learn's, made when asked for."""
    made = ("keras.wrappers", "keras.src.wrappers")
    for name in [name for name in sys.modules if name.startswith(made)]:
        del sys.modules[name]
    for name in ("keras", "keras._tf_keras.keras"):
        if name in sys.modules:
            module: Any = sys.modules[name]
            module.wrappers = Later("keras.wrappers")


_GIVEN_BACK = {"pandas": _pandas, "matplotlib": _matplotlib, "sklearn": _sklearn}
