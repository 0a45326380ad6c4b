"""Functions and classes that a caller gives: by import, else by source, else by cloudpickle."""

from __future__ import annotations

import base64
import contextlib
import functools
import inspect
import io
import os
import site
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dtrain.api import hints
from dtrain.api.source import NoSource, Place, arguments_of, is_importable, text_of
from dtrain.config.callables import KNOWN
from dtrain.errors import UsageError
from dtrain.files import writing
from dtrain.host import python_path

#: Bytes of a pickle: arrays do not travel so.
_LARGEST = 8_000_000
_PICKLED = '''"""{name}, pickled by cloudpickle under Python {version}: it has no source."""

import base64
import functools
import pickle

_given = pickle.loads(
    base64.b64decode(
        "{data}"
    )
)
if isinstance(_given, type):
    _given.__module__ = __name__
    {name} = _given
else:

    @functools.wraps(_given)
    def {name}(*args, **kwargs):
        return _given(*args, **kwargs)
'''
#: Where Keras has its names.
_SPACES = ("applications", "models", "layers", "losses", "metrics", "callbacks", "optimizers")
#: Where what was given from this process stands in the caller's files, by module.
PLACES: dict[str, list[Place]] = {}
#: What was reported already.
_told: set[str] = set()


class Objects:
    """Gives functions and classes to one run.

    Args:
        folder: ``given/`` of the run.
        tell: reports a sentence.

    Attributes:
        trusted: names that the command may call.
        paths: folders in which it finds modules.
    """

    def __init__(self, folder: Path, tell: Callable[[str], None]):
        self._folder, self._tell = folder, tell
        self.trusted: list[str] = []
        self.paths: list[str] = []

    def target(self, value: Any, key: str) -> str:
        """Return the name by which tasks find a function or class.

        Args:
            value: a function, a class, or its dotted name.
            key: that it is for, in messages.

        Raises:
            UsageError: it is none, or cannot be sent.
        """
        if isinstance(value, str):
            return value
        if not callable(value) or not hasattr(value, "__name__"):
            raise hints.refusal(value, key)
        if is_importable(value):
            return self._imported(value)
        name = value.__name__ if value.__name__.isidentifier() else "given"
        try:
            text, places = text_of(value)
            self._trust_imports(text)
        except NoSource as reason:
            places = []
            text = self._pickled(value, name, key)
            if name not in _told:
                _told.add(name)
                self._tell(f"{name} travels by cloudpickle, for this version of Python: {reason}")
        module = python_path.given_name(text.encode())
        self._folder.mkdir(parents=True, exist_ok=True)
        writing.write_bytes(self._folder / f"{module}.py", text.encode())
        self.trusted.append(module)
        PLACES[module] = places
        return f"{module}.{name}"

    def node(self, value: Any, key: str) -> Any:
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

    def _imported(self, value: Any) -> str:
        module = sys.modules[value.__module__]
        top = module.__name__.partition(".")[0]
        if top in KNOWN:
            return _public(value)
        self.trusted.append(top)
        self._find(top)
        return f"{module.__name__}.{value.__qualname__}"

    def _find(self, top: str) -> bool:
        """Have the command look where this process has found a package; say if it is the user's."""
        file = getattr(sys.modules.get(top), "__file__", None)
        if file is None:
            return False
        folder = Path(file).absolute().parent
        folder = folder.parent if Path(file).name == "__init__.py" else folder
        installed = {*site.getsitepackages(), os.path.dirname(os.__file__)}
        if str(folder) in installed or {"site-packages", "lib-dynload"} & set(folder.parts):
            return False
        if str(folder) != os.getcwd():
            self.paths.append(str(folder))
        return True

    def _trust_imports(self, text: str) -> None:
        for line in text.splitlines():
            words = line.split()
            if words[:1] in (["import"], ["from"]):
                self._trust_own(words[1].partition(".")[0])

    def _trust_own(self, top: str) -> None:
        if top in sys.modules and top not in {*KNOWN, "__main__"} and self._find(top):
            self.trusted.append(top)

    def _pickled(self, value: Any, name: str, key: str) -> str:
        try:
            data, tops = _pickle(value)
        except Exception as error:  # of whatever it refers to
            raise UsageError(
                key, name, f"cannot be sent to the processes that train ({error})",
                "a function that can be imported, or that uses plain values alone",
                f"{key}=build, of a module of your own",
            ) from error  # fmt: skip
        if len(data) > _LARGEST:
            raise UsageError(
                key, name, f"takes {len(data):,} bytes with all that it refers to",
                f"up to {_LARGEST:,}; arrays travel as data=", "data=(x, y)",
            )  # fmt: skip
        for top in sorted(tops):
            self._trust_own(top)
        version = ".".join(map(str, sys.version_info[:2]))
        return _PICKLED.format(
            name=name, version=version, data=base64.b64encode(data).decode("ascii")
        )


def _pickle(value: Any) -> tuple[bytes, set[str]]:
    """Return a pickle, and the packages that it may import."""
    import cloudpickle  # MLflow brings it

    tops: set[str] = set()

    class Pickler(cloudpickle.Pickler):
        dispatch_table = {**cloudpickle.Pickler.dispatch_table, type(functools.cache(len)): _cached}

        def reducer_override(self, obj: Any) -> Any:
            if inspect.ismodule(obj) or is_importable(obj):
                name: str = obj.__name__ if inspect.ismodule(obj) else obj.__module__
                tops.add(name.partition(".")[0])
            return super().reducer_override(obj)

    file = io.BytesIO()
    with _by_value("__mp_main__"):
        Pickler(file).dump(value)
    return file.getvalue(), tops


@contextlib.contextmanager
def _by_value(name: str) -> Iterator[None]:
    """Have cloudpickle write what a module has, where there is one, and not name it.

    A process that multiprocessing has spawned calls its script ``__mp_main__``.
    """
    import cloudpickle

    module = sys.modules.get(name)
    if module is None or name in cloudpickle.list_registry_pickle_by_value():
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _cached(value: Any) -> Any:
    """Return how a function behind ``functools.cache`` is made again.

    By itself it is pickled by its name in ``__main__``, which is another module in a task.
    """
    return value.__qualname__ if is_importable(value) else (functools.cache, (value.__wrapped__,))


def _public(value: Any) -> str:
    """Return the public name of what dtrain or Keras has, such as ``keras.losses.Huber``."""
    keras: Any = sys.modules.get("keras")
    for space in _SPACES if value.__module__.startswith("keras.") else ():
        if vars(getattr(keras, space)).get(value.__name__) is value:
            return f"keras.{space}.{value.__name__}"
    return f"{value.__module__}.{value.__qualname__}"
