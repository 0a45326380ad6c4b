"""Tables: columns of rows in files."""

from __future__ import annotations

import io
import itertools
from typing import Literal

import numpy as np

from dtrain.data.lines import Lines
from dtrain.data.sources import Splits
from dtrain.data.splits import as_targets, existing_file, split
from dtrain.errors import UsageError, nearest


def csv(
    path: str,
    label: str | None = None,
    separator: str = ",",
    validation_split: float = 0.2,
    split_seed: int = 0,
) -> Splits:
    """A table with a header line: one column is the label, all others are numbers.

    Args:
        path: the file.
        label: name of the label column; the last one if None. Whole numbers are classes, words
            are classes in alphabetical order, other numbers are targets of a regression.
        separator: between columns.
        validation_split: fraction to split off.
        split_seed: of the shuffle before the split.
    """
    import pandas as pd
    from pandas.io.common import get_handle

    file = existing_file(path)
    try:
        with get_handle(file, "rb", compression="infer", is_text=False) as opened:
            lines = io.BufferedReader(Lines(opened.handle))
            engine: Literal["c", "python"] = "c" if len(separator) == 1 else "python"
            # ORDER: of whole columns: in chunks a label "07" is 7 until the first word is met.
            whole = {"low_memory": False} if engine == "c" else {}
            table = pd.read_csv(lines, sep=separator, engine=engine, **whole)
    except Exception as error:  # of pandas, and of each of its unpackers another
        raise UsageError(
            "dataset.path", path, f"cannot be read as CSV ({str(error).strip()})",
            "a text table with a header line", "dataset.path=FILE.csv",
        ) from None  # fmt: skip
    names = [str(name) for name in table.columns]
    if len(names) == 1:
        guess = next((s for s in (";", "|", " ", ",") if s in names[0] and s != separator), "X")
        raise UsageError(
            "dataset.separator", separator, f"leaves {path} with one column, {names[0]!r}",
            "what stands between the columns of the file", f"dataset.separator={guess!r}",
        )  # fmt: skip
    label = names[-1] if label is None else label
    if label not in names:
        near = nearest(label, names) or names[-1]
        raise UsageError(
            "dataset.label", label, f"{path} has no such column",
            ", ".join(names), f"dataset.label={near}",
        )  # fmt: skip
    sound = (table.dtypes.map(lambda kind: kind.kind in "iufb") & table.notna().all()).to_numpy()
    for name in itertools.compress(names, ~sound):
        column = table[name]
        empty = column.isna().to_numpy()
        words = pd.to_numeric(column, errors="coerce").isna().to_numpy() & ~empty
        if empty.any() or (name != label and words.any()):
            row = int(np.argmax(empty if empty.any() else words))
            what = "empty" if empty.any() else f"{column.iloc[row]!r}, a text"
            raise UsageError(
                "dataset.path", path, f"column {name!r} is {what}, in line {row + 2}",
                "numbers in every column but the label's",
                f"dataset.label={name}, or take the column out",
            )  # fmt: skip
    target = table.pop(label)
    x = table.to_numpy(dtype=np.float32)
    y = target.to_numpy()
    if target.dtype.kind not in "iufb":
        y = np.unique(y.astype(str), return_inverse=True)[1]
    return split(x, as_targets(y, "dataset.label", label), validation_split, split_seed)
