"""``dataset=csv`` of files that memory is not for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from dtrain.data.files import DataFile
from dtrain.data.formats import csv_convert
from dtrain.data.formats.arrow import Arrow
from dtrain.data.formats.csv_convert import INPUTS, LABEL, NUMBER, WORDS, unreadable
from dtrain.data.formats.csv_form import Form
from dtrain.data.formats.shown import Shown
from dtrain.data.tables import Column
from dtrain.errors import UsageError


class Csv(Arrow):
    """The inputs and the label of the rows of text files.

    Args:
        files: in order.
        form: of them; its separator is one character.

    Raises:
        UsageError: a file cannot be read, its header is another, or a cell cannot be what it is to
            be.
    """

    def __init__(self, files: list[DataFile], form: Form):
        names = names_of(files[0], form)
        #: Its columns that are examples.
        self.chosen = form.columns(names, files[0].name)
        for file in files[1:]:
            _same(names_of(file, form), names, file.name, files[0].name)
        entries = [csv_convert.entry(file, form, names) for file in files]
        shown = [Shown(file.name, form.first, "line") for file in files]
        super().__init__([DataFile(str(entry)) for entry in entries], shown=shown)
        self.files = files
        each = [found for entry in entries if (found := csv_convert.labels(entry)).kind]
        kinds = {found.kind for found in each}
        self.words: np.ndarray | None = None
        self.whole, self.low, self.high = True, 0.0, 0.0
        if kinds <= {"numbers"} or kinds == {"booleans"}:
            self.whole = all(found.whole for found in each)
            self.low = min((found.low for found in each), default=0.0)
            self.high = max((found.high for found in each), default=0.0)
        else:
            several = [found.words for found in each]
            if None in several:
                raise UsageError(
                    "dataset.label", self.chosen.target, f"has more than {WORDS:,} different "
                    "labels, and words among them", "numbers, or fewer words",
                    "dataset.label=COLUMN",
                )  # fmt: skip
            self.words = np.array(sorted({w for words in several for w in words or ()}))
        kind = object if self.words is not None else np.int64 if self.whole else np.float32
        self.columns = {INPUTS: self.columns[INPUTS], LABEL: Column(np.dtype(kind))}

    def read(self, rows: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
        """Read columns at some rows.

        Raises:
            DataError: the cache has been damaged.
        """
        if self.words is not None or LABEL not in names:
            return super().read(rows, names)
        found = super().read(rows, [NUMBER if name == LABEL else name for name in names])
        found[LABEL] = found.pop(NUMBER).astype(self.columns[LABEL].dtype)
        return found


def names_of(file: DataFile, form: Form) -> list[str]:
    """Return the names of the columns of a file.

    Raises:
        UsageError: it is no table.
    """
    try:
        with csv_convert.opened(file) as lines:
            engine: Any = "c" if len(form.separator) == 1 else "python"
            more: dict[str, Any] = {"nrows": 0}
            if form.header is False:
                more = {"nrows": 1, "header": None}
            table = pd.read_csv(lines, sep=form.separator, engine=engine, **more)
            return [str(name) for name in table]
    except Exception as error:  # of pandas, and of each of its unpackers another
        raise unreadable(file.name, error) from None


def _same(names: list[str], first: list[str], file: str, before: str) -> None:
    if names == first:
        return
    wrong = next((n for n in first if n not in names), None)
    if wrong is not None:
        problem = f"{file} has no column {wrong!r}, which {before} has"
    elif len(names) > len(first):
        extra = next(n for n in names if n not in first)
        problem = f"{file} has a column {extra!r}, which {before} has not"
    else:
        at = next(i for i, n in enumerate(names) if n != first[i])
        problem = f"column {at + 1} of {file} is {names[at]!r}, and that of {before} {first[at]!r}"
    raise UsageError(
        "dataset.path", file, problem, "files with the same header", "dataset.path=FILE.csv"
    )
