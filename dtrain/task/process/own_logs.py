"""What user code logs while it trains: ``dtrain.log_image`` and the like, in a callback or a step.

Numbers join the logs of the epoch. A file is written into the run folder (``logged/STEP/NAME``) and
named by an event of the journal, as a tag is: TensorBoard and the trackers have both from there,
with any tracker, and once: what a resumed run logs anew takes the place of what was there. The
chief alone writes. Outside of the training, in an evaluation or a trial step, nothing is recorded.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dtrain import secrets
from dtrain.errors import refuse
from dtrain.files import writing
from dtrain.run.folder import RunDir

_CHARACTERS = 5000  # of a tag
_NAME = re.compile(r"\w[\w ./:-]{0,199}")


class Target(Protocol):
    """Where it goes: the records of the run."""

    def tag(self, step: int, name: str, value: str) -> None:
        """Record a tag."""

    def file(self, step: int, name: str, kind: str, path: Path) -> None:
        """Record a file, which is in the run folder."""


class OwnLogs:
    """What the user's code of one task logs."""

    def __init__(self) -> None:
        self._numbers: dict[str, float] = {}
        self._target: Target | None = None
        self._folder = Path()
        self._step: Callable[[], int] = lambda: 0

    def begin(self, target: Target, rundir: RunDir, step: Callable[[], int]) -> None:
        """Record from now on.

        Args:
            target: of the chief.
            rundir: of the run.
            step: returns that of the training.
        """
        self._target, self._folder, self._step = target, rundir.logged, step

    def take(self) -> dict[str, float]:
        """Return the newest number of each name, once."""
        numbers, self._numbers = self._numbers, {}
        return numbers

    def metric(self, name: str, value: float) -> None:
        """Log a number."""
        self._numbers[name] = value

    def tag(self, name: str, value: object) -> None:
        """Log a tag of the run."""
        _check("set_tag", name)
        if self._target is not None:
            self._target.tag(self._step(), name, secrets.mask(str(value))[:_CHARACTERS])

    def image(self, name: str, image: Any) -> None:
        """Log an image: an array, a tensor, an image of Pillow's, or the path of a file."""
        self._bytes("log_image", name, "image", ".png", lambda: _png(image))

    def figure(self, name: str, figure: Any) -> None:
        """Log a figure of Matplotlib's as an image."""

        def drawn() -> bytes:
            figure.savefig(file := io.BytesIO(), format="png", bbox_inches="tight")
            return file.getvalue()

        self._bytes("log_figure", name, "image", ".png", drawn)

    def table(self, name: str, table: Any) -> None:
        """Log a table: a DataFrame, a list of mappings, or a mapping of columns."""
        self._bytes("log_table", name, "table", ".csv", lambda: _rows(table).encode())

    def text(self, name: str, text: str) -> None:
        """Log a text as a file."""
        self._bytes("log_artifact", name, "file", "", text.encode)

    def artifact(self, path: str | Path, name: str | None = None) -> None:
        """Log a copy of a file."""
        source = Path(path)
        name = name or source.name
        _check("log_artifact", name)
        if not source.is_file():
            refuse("dtrain.log_artifact", "is no file", path, hint="the path of a file")
        if self._target is not None:
            place = self._place(name, "")
            with writing.made_aside(place) as made:
                writing.copy(source, made)
                writing.replace(made, place)
            self._target.file(self._step(), name, "file", place)

    def _place(self, name: str, suffix: str) -> Path:
        place = self._folder / str(self._step()) / f"{name.removesuffix(suffix)}{suffix}"
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def _bytes(
        self, call: str, name: str, kind: str, suffix: str, made: Callable[[], bytes]
    ) -> None:
        _check(call, name)
        if self._target is None:
            return
        try:
            data = made()
        except Exception as error:  # of Pillow, of a tensor that is traced, of what is no table
            reason = " ".join(str(error).split())[:200]
            refuse(f"dtrain.{call}", f"is none that could be written ({reason})", name,
                   accepted="values: in a step that is traced there are none")  # fmt: skip
        place = self._place(name, suffix)
        writing.write_bytes(place, data)
        self._target.file(self._step(), name, kind, place)


def _check(call: str, name: str) -> None:
    """Refuse what is no name of a file, or of a chart."""
    if not _NAME.fullmatch(name) or ".." in name or "//" in name:
        refuse(f"dtrain.{call}", "is no name", name,
               accepted="letters, digits, spaces and _ - . / : as in val/confusion",
               hint=f"dtrain.{call}('val/confusion', ...)")  # fmt: skip


def _png(image: Any) -> bytes:
    from PIL import Image

    shown: Image.Image
    if isinstance(image, str | Path):
        shown = Image.open(image)
    elif isinstance(image, Image.Image):
        shown = image
    else:
        from keras import ops

        values = np.asarray(ops.convert_to_numpy(image))
        if values.ndim == 3 and values.shape[2] == 1:
            values = values[:, :, 0]
        if values.dtype != np.uint8:  # else from 0 to 1
            values = np.rint(255 * np.clip(np.nan_to_num(values.astype(float)), 0, 1))
        shown = Image.fromarray(values.astype(np.uint8))
    shown.convert("RGBA" if "A" in shown.getbands() else "RGB").save(
        file := io.BytesIO(), format="png"
    )
    return file.getvalue()


def _rows(table: Any) -> str:
    if hasattr(table, "to_csv"):
        return str(table.to_csv(index=False))
    if isinstance(table, Mapping):
        head, rows = list(table), list(zip(*table.values(), strict=True))
    else:
        head = list(dict.fromkeys(key for row in table for key in row))
        rows = [tuple(row.get(key, "") for key in head) for row in table]
    return writing.csv_text([head, *rows])


_current: OwnLogs | None = None


@contextlib.contextmanager
def receiving(logs: OwnLogs) -> Iterator[None]:
    """Let the functions below mean ``logs`` inside of this context."""
    global _current
    before, _current = _current, logs
    try:
        yield
    finally:
        _current = before


def _of_run(name: str) -> OwnLogs:
    if _current is None:
        refuse(f"dtrain.{name}", "logs to the run that trains, and none does in this process",
               accepted="in a callback, or in code that a training calls")  # fmt: skip
    return _current


def log_metric(name: str, value: float) -> None:
    """Log a number of this run, at the end of the epoch."""
    _of_run("log_metric").metric(name, value)


def log_image(name: str, image: Any) -> None:
    """Log an image of this step.

    Args:
        name: of its series.
        image: height, width and channels, as bytes or as numbers from 0 to 1; or an image of
            Pillow's, or the path of a file.
    """
    _of_run("log_image").image(name, image)


def log_figure(name: str, figure: Any) -> None:
    """Log a figure of Matplotlib's as an image of this step."""
    _of_run("log_figure").figure(name, figure)


def log_artifact(path: str | Path, name: str | None = None) -> None:
    """Log a copy of a file, as it is now, under a name: by default its own."""
    _of_run("log_artifact").artifact(path, name)


def log_table(name: str, table: Any) -> None:
    """Log a table of this step: a DataFrame, a list of mappings, or a mapping of columns."""
    _of_run("log_table").table(name, table)


def set_tag(name: str, value: object) -> None:
    """Set a tag of this run; the last value counts."""
    _of_run("set_tag").tag(name, value)
