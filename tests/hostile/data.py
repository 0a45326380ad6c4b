"""Data from elsewhere, named by a configuration: the controller counts its examples."""

from __future__ import annotations

import gzip
import io
import os
import struct
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from tests.hostile.harness import Case, Place

_CODES = (2,)


def _file(name: str, data: Callable[[], bytes], *words: str) -> Callable[[Place], None]:
    """Write a file of data, and type its path."""

    def build(place: Place) -> None:
        (place.work / name).write_bytes(data())
        place.words = (*words, f"dataset.path={name}")

    return build


def _at(make: Callable[[Path], object], *words: str, name: str = "it") -> Callable[[Place], None]:
    def build(place: Place) -> None:
        make(place.work / name)
        place.words = (*words, f"dataset.path={name}")

    return build


def _archive(**entries: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(f"{name}.npy", data)
    return file.getvalue()


def _array(header: str, data: bytes = b"\0" * 64) -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def _sound() -> bytes:
    file = io.BytesIO()
    np.savez(file, x=np.zeros((4, 2)), y=np.zeros(4, np.int64))
    return file.getvalue()


def _pickled() -> bytes:
    array = _array("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
                   b"cos\nsystem\n(S'touch ran'\ntR.")  # fmt: skip
    return _archive(x=array, y=array)


def _shape(shape: str) -> bytes:
    array = _array(f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}")
    return _archive(x=array, y=array)


def _bomb() -> bytes:
    """400 MB of nothing in half a megabyte, said to be 8 GB."""
    array = _array("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000,), }",
                   b"\0" * (400 << 20))  # fmt: skip
    return _archive(x=array, y=array)


def _table_bomb() -> bytes:
    return gzip.compress(b"a,b\n" + b"1,2\n" * 20_000_000, 1)


def _line_bomb() -> bytes:
    return gzip.compress(bytes(1 << 30), 1) * 16


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10 << 30)


def _images(path: Path) -> None:
    (path / "a").mkdir(parents=True)
    os.mkfifo(path / "a" / "1.png")
    (path / "loop").symlink_to("loop")


_NPZ, _CSV, _TEXT, _IMAGES = (
    (f"dataset={name}",) for name in ("npz", "csv", "text", "image_folder")
)


def _cases() -> Iterable[Case]:
    both = ("typed", "typed dry")
    for what, data in {
        "a pickle": _pickled,
        "a shape that is too large": lambda: _shape("(1000000000000,)"),
        "a shape that overflows": lambda: _shape("(4294967296, 4294967296, 2)"),
        "a negative shape": lambda: _shape("(-1,)"),
        "a shape that is code": lambda: _shape("__import__('os').system('touch ran')"),
        "a deep shape": lambda: _shape("(" * 3000 + ")" * 3000),
        "half a file": lambda: _sound()[:100],
        "nothing": lambda: b"",
        "names with escapes": lambda: _archive(**{"\x1b[31mx": b""}),
    }.items():
        yield Case(f"arrays of {what}", _file("it.npz", data, *_NPZ), both, _CODES)
    yield Case("arrays that are a bomb", _file("it.npz", _bomb, *_NPZ), both, _CODES, slow=True)
    for what, data in {
        "one long line": lambda: b"x" * (8 << 20),
        "100,000 columns": lambda: (",".join(map(str, range(100_000))) + "\n").encode() * 2,
        "escapes": lambda: b"\x1b[31ma,b\n\x1b[2J,2\n",
        "NUL bytes": lambda: b"\0" * 4096,
        "nothing": lambda: b"",
    }.items():
        yield Case(f"a table of {what}", _file("it.csv", data, *_CSV), both, (0, 2))
    for what, bomb in {"a bomb": _table_bomb, "a line that is a bomb": _line_bomb}.items():
        yield Case(f"a table of {what}", _file("it.csv.gz", bomb, *_CSV), both, (0, 2), slow=True)
    for group in ("npz", "csv", "text"):
        words = (f"dataset={group}",)
        yield Case(f"{group} in a pipe", _at(os.mkfifo, *words), both, _CODES)
        yield Case(f"{group} in a folder", _at(os.mkdir, *words), both, _CODES)
        yield Case(f"{group} without an end", _at(
            lambda path: path.symlink_to("/dev/zero"), *words), both, _CODES)  # fmt: skip
        yield Case(f"{group} of 10 GB", _at(_sparse, *words), both, (0, 2), slow=True)
    yield Case("images in a pipe", _at(_images, *_IMAGES), both, (0, 2))
    yield Case("a table at an address", lambda place: setattr(place, "words", (
        *_CSV, f"dataset.path=http://127.0.0.1:{place.port}/x.csv")), both, _CODES)  # fmt: skip


CASES = [*_cases()]
