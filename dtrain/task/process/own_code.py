"""Which code is the user's, and where in it something has failed."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterable

import keras
import numpy as np

import dtrain
from dtrain.host.frameworks import FRAMEWORKS

#: Where code is that the user did not write. A framework need not be that of this process.
_NOT_USERS = tuple(
    os.path.join(folder, "")
    for folder in (
        *(os.path.dirname(str(package.__file__)) for package in (dtrain, keras, np)),
        *(os.path.join(os.path.dirname(keras.__path__[0]), name) for name in FRAMEWORKS),
        *(
            os.path.dirname(str(sys.modules[name].__file__))
            for name in {*FRAMEWORKS} & {*sys.modules}
        ),
    )
)
_STANDARD = os.path.join(sysconfig.get_path("stdlib"), "")
#: Folders below it that have what is installed, which may be the user's.
_INSTALLED = ("site-packages", "dist-packages")


def is_users(file: str) -> bool:
    """Whether a frame is neither of dtrain, Keras, its framework and NumPy nor of Python itself."""
    below = file.removeprefix(_STANDARD)
    return not file.startswith(_NOT_USERS) and (below == file or below.startswith(_INSTALLED))


def _has_text(file: str) -> bool:
    """Say whether a frame's file is one, or a cell of a notebook (:mod:`dtrain.host.pickles`)."""
    return os.path.isfile(file) or (file.startswith("Cell ") and file in linecache.cache)


def place(error: BaseException) -> str:
    """Return ``(FILE, line N, in F)`` of the user's own frame that is next to the error, or ''."""
    if isinstance(error, SyntaxError) and error.filename:  # no frame is in what cannot be read
        return f"({error.filename}, line {error.lineno})"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_users(frame.filename) and _has_text(frame.filename):
            return f"({frame.filename}, line {frame.lineno}, in {frame.name})"
    return ""


def line(frames: Iterable[tuple[str, int]]) -> str:
    """Return the innermost line of the user's code, ``FILE:LINE: CODE``, or ''.

    Args:
        frames: file and line of each, the outermost first.
    """
    for file, number in reversed(list(frames)):
        if is_users(file) and _has_text(file):
            code = linecache.getline(file, number).strip()
            near = os.path.relpath(file)
            return f"{file if near.startswith('..') else near}:{number}: {code}"
    return ""


def part(error: BaseException) -> str:
    """Return a traceback from where code is called that is the user's."""
    frames = error.__traceback__
    while frames is not None and not is_users(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))
