"""dtrain: one declared Keras experiment, trained and recorded on any strategy.

The names of the Python API (docs/python.md) are loaded when they are used: importing dtrain imports
no library, and starts nothing.
"""

import sys

# ORDER: before anything else is imported. `python -m dtrain` has put the current directory first,
# and a folder called keras in it would be imported in the place of Keras.
_first = sys.path.pop(0) if sys.argv[:1] == ["-m"] and not sys.flags.safe_path else None

from typing import Any  # noqa: E402

from dtrain.host import python_path  # noqa: E402

python_path.settle(_first is not None)

__version__ = "0.2.0"
#: What :mod:`dtrain.api.calls` has; their types are in ``__init__.pyi``. ``compare`` is a package
#: of dtrain's, too, which can be called.
_LAZY = ("Run", "Sweep", "compare", "evaluate", "export", "predict", "sweep", "train")
#: What a user's code calls while it trains, in the process of a task.
_LOGS = ("log_artifact", "log_figure", "log_image", "log_metric", "log_table", "set_tag")


def __getattr__(name: str) -> Any:
    if name not in (*_LAZY, *_LOGS):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    if name == "compare":  # which `from dtrain import compare` means, too
        return importlib.import_module("dtrain.compare")
    place = "dtrain.task.process.own_logs" if name in _LOGS else "dtrain.api.calls"
    return getattr(importlib.import_module(place), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_LOGS})
