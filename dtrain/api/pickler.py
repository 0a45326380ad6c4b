"""Pickles a function or class of this process by value, as :mod:`dtrain.host.pickles` loads it.

What lies in a module that can be imported travels by its name; what a script, a notebook or
another function defines, and what that uses, by value. The same definition at the same place makes
the same file in every process. With it goes the text of what is defined: in tracebacks it is that
of the caller's, and AutoGraph reads it.
"""

from __future__ import annotations
import __future__

import contextlib
import functools
import inspect
import io
import linecache
import pickle
import sys
import types
from collections.abc import Iterator
from typing import Any

import cloudpickle

_FUTURE = __future__.annotations.compiler_flag
_REDUCERS = cloudpickle.Pickler.dispatch_table
_NAMED = types.ModuleType | types.FunctionType | types.BuiltinFunctionType | type


if "__mp_main__" in sys.modules:  # the script of a process that multiprocessing has spawned
    cloudpickle.register_pickle_by_value(sys.modules["__mp_main__"])


def pickle_by_value(value: object, name: str) -> tuple[bytes, set[str]]:
    """Return the pickle of a function or class, and the modules at the top that it imports.

    Args:
        value: the function or class.
        name: that it is to have.

    Raises:
        PicklingError: it refers to what cannot be pickled, which the message names.
    """
    first, file = Pickler(io.BytesIO()), io.BytesIO()
    try:
        first.dump(value)
        Pickler(file).dump((name, value, first.defined, first.texts))
    except Exception as error:  # of whatever it refers to
        raise pickle.PicklingError(_culprit(first.defined) or str(error)) from error
    return file.getvalue(), first.tops


def is_importable(value: object) -> bool:
    """Say whether another process finds a function or class by its module and name."""
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    if not _is_file(module):
        return False
    named: Any = module
    for name in getattr(value, "__qualname__", "<none>").split("."):
        named = getattr(named, name, None)
    return named is value


def _is_file(module: types.ModuleType | None) -> bool:
    spec = getattr(module, "__spec__", None)
    return spec is not None and spec.origin is not None and module is not sys.modules["__main__"]


class Pickler(cloudpickle.Pickler):
    """Notes what it pickles.

    Attributes:
        tops: packages, and modules of none, that are imported where it is loaded.
        defined: functions and classes that it pickles by value.
        texts: those of these functions, by file and first line.
    """

    def __init__(self, file: io.BytesIO):
        super().__init__(file)
        self.tops: set[str] = set()
        self.defined: list[Any] = []
        self.texts: dict[str, dict[int, str]] = {}

    def reducer_override(self, obj: Any) -> Any:
        """Return how something is made again."""
        reduced = super().reducer_override(obj)
        if isinstance(obj, _NAMED) and (inspect.ismodule(obj) or is_importable(obj)):
            name: str = obj.__name__ if inspect.ismodule(obj) else obj.__module__
            self.tops.add(name.partition(".")[0])
        elif isinstance(obj, types.FunctionType):
            self.defined.append(obj)
            code = obj.__code__
            if not _is_file(sys.modules.get(obj.__module__)) and _is_read(code):
                text = "".join(inspect.getsourcelines(code)[0])
                self.texts.setdefault(_place(code), {})[code.co_firstlineno] = text
        elif isinstance(obj, type) and isinstance(reduced, tuple) and len(reduced) > 2:
            self.defined.append(obj)
            make, (*arguments, _, extra), *rest = reduced
            return make, (*arguments, None, extra), *rest  # its number is another in each process
        return reduced


def _reduce_cached(value: Any) -> Any:
    """Return how a function behind ``functools.cache`` is made again: it has a cache of its own."""
    return value.__qualname__ if is_importable(value) else (functools.cache, (value.__wrapped__,))


def _refuse_file(value: Any) -> Any:
    raise pickle.PicklingError(f"the open file {value.name!r}")  # cloudpickle would send its text


def _reduce_code(code: types.CodeType) -> Any:
    return _REDUCERS[types.CodeType](code.replace(co_filename=_place(code)))


Pickler.dispatch_table = {
    **_REDUCERS, type(functools.cache(len)): _reduce_cached, types.CodeType: _reduce_code,
    io.TextIOWrapper: _refuse_file,
}  # fmt: skip


def _place(code: types.CodeType) -> str:
    """Return the file that code is in, or what IPython calls its cell; else one that is not."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    named = getattr(getattr(shell, "compile", None), "format_code_name", lambda name: None)
    if (cell := named(code.co_filename)) is not None:
        return " ".join(cell)
    return code.co_filename if _is_read(code) else f"<{code.co_filename}, as it was run>"


def _is_read(code: types.CodeType) -> bool:
    """Say whether its file can be read, and still is what runs here."""
    linecache.checkcache(code.co_filename)
    text = "".join(linecache.getlines(code.co_filename))
    with contextlib.suppress(SyntaxError, ValueError):
        return code in _compiled(text, code.co_filename, code.co_flags & _FUTURE)
    return False


@functools.lru_cache(maxsize=4)
def _compiled(text: str, file: str, flags: int) -> frozenset[types.CodeType]:
    return frozenset(_codes(compile(text, file, "exec", flags=flags, dont_inherit=True)))


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the code of all that is defined inside of other code."""
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield part
            yield from _codes(part)


def _culprit(defined: list[Any]) -> str | None:
    """Return which name of which function means something that cannot be pickled, and why not."""
    for function in reversed([each for each in defined if isinstance(each, types.FunctionType)]):
        for name, value in _uses(function):
            try:
                if not isinstance(value, _NAMED):
                    Pickler(io.BytesIO()).dump(value)
            except Exception as error:  # whatever it raises
                return f"{name}, which {function.__name__} uses: {error}"
    return None


def _uses(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what a function takes from outside of it, by name."""
    names = {n for code in (function.__code__, *_codes(function.__code__)) for n in code.co_names}
    for name in sorted(names & function.__globals__.keys()):
        yield name, function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # it is empty
            yield name, cell.cell_contents
