"""What a caller gives of functions and classes: by the name of its module, or pickled."""

from __future__ import annotations

import dataclasses
import functools
import os
import pickle
import site
import sys
from pathlib import Path
from typing import Any

from dtrain.api import keywords
from dtrain.config.trust import KNOWN
from dtrain.errors import UsageError, refuse
from dtrain.files import writing
from dtrain.files.fields import Values
from dtrain.host import pickles

#: Where Keras has its names.
_SPACES = ("applications", "models", "layers", "losses", "metrics", "callbacks", "optimizers")


@dataclasses.dataclass
class Trust:
    """What a command may call and load besides what it may by itself.

    Attributes:
        names: packages, and modules of none.
        paths: folders in which it finds modules.
        files: pickles.
    """

    names: list[str] = dataclasses.field(default_factory=list)
    paths: list[str] = dataclasses.field(default_factory=list)
    files: list[str] = dataclasses.field(default_factory=list)

    def __add__(self, other: Trust) -> Trust:
        return Trust(self.names + other.names, self.paths + other.paths, self.files + other.files)


class Objects:
    """Gives functions and classes to one run.

    Args:
        folder: ``given/`` of the run.

    Attributes:
        trust: that the command needs for them.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self.trust = Trust()

    def target(self, value: Any, key: str) -> str:
        """Return the name by which tasks find a function or class.

        Args:
            value: a function, a class, or its dotted name.
            key: that it is for, in messages.

        Raises:
            UsageError: it is none, or refers to what cannot be pickled.
        """
        if isinstance(value, str):
            return value
        if not callable(value) or not hasattr(value, "__name__"):
            raise keywords.refusal(value, key)
        from dtrain.api import pickler  # which imports cloudpickle

        if pickler.is_importable(value):
            return self._name_import(value)
        name = value.__name__ if value.__name__.isidentifier() else "given"
        try:
            body, tops = pickler.pickle_by_value(value, name)
        except pickle.PicklingError as error:
            raise UsageError(key, f"cannot be sent to the processes that train ({error})", name,
                             accepted="a function that makes what it uses, or takes it from a "
                             "module", hint=f"what cannot be sent, made inside of {name}"
                             ) from error  # fmt: skip
        data = pickles.written(filter(self._is_own, tops), body)
        if len(data) > pickles.LARGEST:
            refuse(key, f"takes {len(data):,} bytes with all that it uses", name,
                   accepted=f"up to {pickles.LARGEST:,}", hint="data=(x, y)")  # fmt: skip
        module = pickles.name_of(data)
        file = pickles.file(self._folder, module)
        self._folder.mkdir(parents=True, exist_ok=True)
        writing.write_bytes(file, data)
        self.trust.files.append(str(file.absolute()))
        return f"{module}.{name}"

    def node(self, value: object, key: str) -> Any:
        """Return what stands in the configuration for a function, a class, or a partial of one.

        Raises:
            UsageError: as of :meth:`target`.
        """
        if isinstance(value, str | None | bool | int | float):
            return value
        if isinstance(value, dict):
            return {name: self.node(part, f"{key}.{name}") for name, part in value.items()}
        if isinstance(value, list | tuple):
            return [self.node(part, f"{key}[{index}]") for index, part in enumerate(value)]
        function, arguments = arguments_of(value)
        return {"_target_": self.target(function, key), **arguments}

    def _name_import(self, value: Any) -> str:
        module = sys.modules[value.__module__]
        top = module.__name__.partition(".")[0]
        if top in KNOWN:
            return _public(value)
        if not self._is_own(top):
            self.trust.names.append(top)
        return f"{module.__name__}.{value.__qualname__}"

    def _is_own(self, top: str) -> bool:
        """Say whether a package is the user's; have the command trust it, and look where it is."""
        file = getattr(sys.modules.get(top), "__file__", None)
        if file is None or top in {*KNOWN, "__main__"}:
            return False
        folder = Path(file).absolute().parent
        folder = folder.parent if Path(file).name == "__init__.py" else folder
        installed = {*site.getsitepackages(), os.path.dirname(os.__file__)}
        if str(folder) in installed or {"site-packages", "lib-dynload"} & set(folder.parts):
            return False
        self.trust.names.append(top)
        if str(folder) != os.getcwd():
            self.trust.paths.append(str(folder))
        return True


def arguments_of(value: object) -> tuple[Any, Values]:
    """Return what a ``functools.partial`` of names calls, with its arguments; else ``value``."""
    if isinstance(value, functools.partial) and not value.args:
        return value.func, value.keywords
    return value, {}


def _public(value: Any) -> str:
    """Return the public name of what dtrain or Keras has, such as ``keras.losses.Huber``."""
    keras: Any = sys.modules.get("keras")
    for space in _SPACES if value.__module__.startswith("keras.") else ():
        if vars(getattr(keras, space)).get(value.__name__) is value:
            return f"keras.{space}.{value.__name__}"
    return f"{value.__module__}.{value.__qualname__}"
