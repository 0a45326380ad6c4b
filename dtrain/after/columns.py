"""The columns of predictions: what a model returned, by name, and what of the data goes along.

``function`` is applied to the outputs, in the graph: a word (:data:`NAMED`), or a function
of the user's own, which takes the outputs of a batch, a tensor ``[b, ...]`` or a nest of such, and
returns the same, or others with the same first axis.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence

import keras
import numpy as np

from dtrain.data import nest
from dtrain.data.encoding import texts as cell_texts
from dtrain.data.nest import Leaf, Nest, Parts, Tensor
from dtrain.data.sources import Source
from dtrain.errors import DataError, UsageError, nearest, refuse
from dtrain.run.predictions import CLASS, INDEX, ColumnSpec
from dtrain.task.backends.runtime import runtime
from dtrain.task.model.probabilities import is_probability, probabilities

#: The name of the only output of a model.
ONLY = "prediction"
#: Outputs of a row that have a column each, at most, where they have names.
_NAMED = 100
#: What of the data may go along: the parts of an example, and the names of their columns.
PARTS = {"inputs": (0, "input"), "labels": (1, "label")}
_FREE = re.compile(r"[^\w.-]+")  # what no name of a file should have


def argmax(outputs: Nest) -> Nest:
    """Return, of scores ``[b, ..., classes]``, the class with the largest: int64 ``[b, ...]``."""
    ops = keras.ops
    return nest.mapped(lambda s: ops.cast(ops.argmax(_of_classes(s), -1), "int64"), outputs)


def top_k(outputs: Nest, k: int = 5) -> Nest:
    """Return, of scores ``[b, ..., classes]``, the ``k`` classes with the largest, and these.

    Of fewer classes it returns all.

    Returns:
        ``{"class": int32 [b, ..., k], "score": [b, ..., k]}`` for each output, the largest first.
    """

    def best(scores: Tensor) -> dict[str, Tensor]:
        scores = _of_classes(scores)
        values, indices = keras.ops.top_k(scores, min(k, scores.shape[-1]))
        return {"class": indices, "score": values}

    return nest.mapped(best, outputs)


def _of_classes(scores: Tensor) -> Tensor:
    width = scores.shape[-1] if len(scores.shape) > 1 else 1
    if width is None or width < 2:
        refuse("function", f"an output has {width} scores of each row", "argmax or top_k",
               accepted="2 or more, or a function of your own, or none")  # fmt: skip
    return scores


#: Those that a word names.
NAMED = {"argmax": argmax, "top_k": top_k}


@dataclasses.dataclass(eq=False)
class Columns:
    """Makes columns of the outputs for a batch, in the graph.

    Attributes:
        model: gives the names of its outputs.
        function: of the outputs; None: as they are.
        include: parts of the data, of :data:`PARTS`.
        classes: the names of the run's classes; none where it has none.
        targets: columns of several targets, which are what the numbers of a row are of.
        beside: columns of the data as they are in it, of all rows.
        format: of the files.
        classified: once described, the column that says which class a row is of; None: none does.
        divided: once described, names of the numbers in a row of :data:`ONLY`; none: it is one.
    """

    model: keras.Model
    function: Callable[[Nest], Nest] | None
    include: Sequence[str]
    classes: Sequence[str] = ()
    targets: Sequence[str] = ()
    beside: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    format: str = "parquet"
    classified: str | None = None
    divided: Sequence[str] = ()

    def __call__(self, outputs: Nest, parts: Parts) -> dict[str, Tensor]:
        """Return the columns by name, tensors ``[b, ...]``.

        Args:
            outputs: of the model, a nest.
            parts: of the batch: inputs, targets and weights.

        Raises:
            UsageError: something has no place in a table of rows.
        """
        own = getattr(self.function, "func", self.function) not in (None, argmax, top_k)
        outputs = outputs if own else probabilities(self.model, outputs)
        outputs = _by_name(self.model, outputs)
        if self.function is not None:
            outputs = self.function(outputs)
        rows = nest.leaves(parts[0])[0].shape[0]
        columns: dict[str, Tensor] = {}
        for name, leaf in nest.named(nest.structured(outputs)):
            _add(columns, name or ONLY, leaf, rows)
        for part in self.include:
            at, title = PARTS[part]
            if at >= len(parts) or parts[at] is None:
                refuse("include", "the data has none", part, accepted="inputs, or data "
                       "with labels", typed="'include=[inputs]'")  # fmt: skip
            for name, leaf in nest.named(parts[at]):
                if leaf is not None:
                    _add(columns, f"{title}.{name}" if name else title, leaf, rows)
        return columns

    def described(self, specs: Mapping[str, ColumnSpec]) -> dict[str, ColumnSpec]:
        """Return what is written, of each row: with the name of the class, where there is one.

        Args:
            specs: of the columns, by name.
        """
        described = {
            name: ColumnSpec((), "string" if values.dtype == object else values.dtype.name)
            for name, values in self.beside.items()
        } | dict(specs)
        function = getattr(self.function, "func", self.function)  # of functools.partial
        name = "class" if function is top_k else ONLY
        spec, names = specs.get(name), self.classes or self.targets
        if function not in (None, argmax, top_k) or spec is None or not names:
            return described
        is_float, is_pair = "float" in spec.dtype, len(self.classes) == 2
        of_one = is_pair and spec.shape in ((), (1,)) and is_probability(self.model)
        scores = is_float and (spec.shape[-1:] == (len(names),) or of_one)
        if scores and len(spec.shape) < 2 and 1 < len(names) <= _NAMED and self.format != "npy":
            self.divided = [f"{ONLY}.{name}" for name in names]
            del described[name]
            described |= dict.fromkeys(self.divided, ColumnSpec((), spec.dtype))
        if self.classes and (scores or "int" in spec.dtype):
            self.classified = name
            described[CLASS] = ColumnSpec(spec.shape[:-1] if scores else spec.shape, "string")
        return described

    def written(self, columns: Mapping[str, np.ndarray], first: int) -> dict[str, np.ndarray]:
        """Return columns as they are written: bytes as texts, and the names of the classes.

        Args:
            columns: by name, ``[rows, ...]``, as the model and the function returned them.
            first: the first row.

        Raises:
            DataError: bytes are no UTF-8.
        """
        rows = slice(first, first + len(next(iter(columns.values()))))
        written = {name: self._cells(values[rows]) for name, values in self.beside.items()}
        for name, column in columns.items():
            if name == ONLY and self.divided:
                parts = column.T if column.shape[1:] == (len(self.divided),) else _both(column)
                written |= dict(zip(self.divided, parts, strict=True))
            else:
                written[name] = texts(name, column, first)
        if self.classified is not None:
            numbers = columns[self.classified]
            if numbers.dtype.kind == "f":
                of_one = numbers.shape[1:] in ((), (1,))
                numbers = (_both(numbers).T if of_one else numbers).argmax(-1)
            written[CLASS] = np.array(self.classes, object)[numbers]
        return written

    def _cells(self, values: np.ndarray) -> np.ndarray:
        """Return cells of the data, of which those of a text file are empty where they were."""
        if values.dtype.kind != "f" or self.format not in ("csv", "jsonl"):
            return values
        cells = values.astype(object)
        cells[np.isnan(values)] = None
        return np.array([int(v) if isinstance(v, float) and v.is_integer() else v for v in cells])


def _both(column: np.ndarray) -> np.ndarray:
    """Return the probabilities of two classes by that of the second."""
    second = column.reshape(-1)
    return np.stack([1 - second, second])


def beside(source: Source, names: Sequence[str], known: Sequence[str]) -> dict[str, np.ndarray]:
    """Return columns of the data as they are in it, of all rows.

    Args:
        source: has the rows.
        names: of the columns.
        known: columns of the training, for messages.

    Raises:
        UsageError: the data has no such column.
    """
    columns: dict[str, np.ndarray] = {}
    for name in names:
        values = source.info.column(name)
        if values is None or values.ndim != 1:
            near = nearest(name, [*PARTS, *known]) or "inputs"
            refuse("include", "is no column of the data with one value in a row", name,
                   accepted="inputs, labels, or the name of a column",
                   typed=f"'include=[{near}]'")  # fmt: skip
        own = name
        while own in (INDEX, CLASS) or own.partition(".")[0] == ONLY:
            own += "_"
        if values.dtype.kind == "M":  # with a time where any has one
            days = values.astype("M8[D]")
            values = days if ((days == values) | np.isnat(values)).all() else values
        is_text = values.dtype.kind not in "biuf"
        columns[own] = np.array(cell_texts(values), object) if is_text else values
    return columns


def _by_name(model: keras.Model, outputs: Nest) -> Nest:
    """Return several outputs without names by those that the model gives them."""
    if isinstance(outputs, tuple | list):
        names = getattr(model, "output_names", None)
        if names is not None and len(names) == len(outputs) and len(set(names)) == len(names):
            return dict(zip(names, outputs, strict=True))
        return {f"{ONLY}.{number}": each for number, each in enumerate(outputs)}
    return outputs


def _add(columns: dict[str, Tensor], name: str, leaf: Leaf, rows: int | None) -> None:
    name = _FREE.sub("_", name)
    while name in columns or name == INDEX:
        name += "_"
    value = keras.ops.convert_to_tensor(leaf)
    if not isinstance(value, runtime().TENSORS):
        raise _refused(name, "is ragged or sparse")
    dtype, rank = keras.backend.standardize_dtype(value.dtype), len(value.shape)
    if rank == 0 or value.shape[0] not in (None, rows):
        raise _refused(name, f"has the shape {value.shape}, which is not one of rows")
    if None in value.shape[1:]:
        raise _refused(name, f"has the shape {value.shape}: a length that differs by batch")
    if dtype in ("bfloat16", "float16"):
        value = keras.ops.cast(value, "float32")  # which has all of their numbers
    elif not (keras.backend.is_float_dtype(dtype) or "int" in dtype or dtype in ("bool", "string")):
        raise _refused(name, f"is of {dtype}")
    columns[name] = value


def _refused(name: str, problem: str) -> UsageError:
    return UsageError("function", problem, name, accepted="columns of numbers or texts, "
                      "one shape in every row, as of a function of your own")  # fmt: skip


def texts(name: str, column: np.ndarray, first: int) -> np.ndarray:
    """Return a column as it is written: bytes as texts.

    Args:
        name: of it.
        column: ``[rows, ...]``.
        first: its first row.

    Raises:
        DataError: bytes are no UTF-8.
    """
    if column.dtype != object:
        return column
    strings = np.empty(column.shape, object)
    for place, value in np.ndenumerate(column):
        try:
            strings[place] = value.decode() if isinstance(value, bytes) else str(value)
        except UnicodeDecodeError:
            raise DataError(f"row {first + place[0]}, column {name!r}", "is no UTF-8") from None
    return strings
