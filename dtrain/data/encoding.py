"""From columns of numbers, categories, dates and text to one matrix of numbers.

What a column becomes is fitted on the training examples alone and kept with the run, so that any
other table is read by the names of its columns with the vocabulary of the training.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, cast

import numpy as np

from dtrain.errors import UsageError, nearest

Kind = Literal["number", "boolean", "date", "category", "text"]
#: What ``dataset.columns`` may say of a column.
KINDS = ("number", "boolean", "date", "category", "text", "skip")
#: Categories of a column, and words of a text, that have a number of their own, at most.
CATEGORIES, WORDS = 10_000, 500
#: Examples that are looked at, evenly spread.
EXAMPLES = 1_000_000
#: Formats of dates that are text; None is ISO 8601.
_DATES = (None, "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%Y/%m/%d", "%d-%m-%Y", "%d %b %Y", "%b %d, %Y")
#: Share of the texts that are dates, from which on one that is none is an error.
_ALMOST_ALL = 0.95
#: Share of the rows that have a text of their own, above which no category can be learned.
_OWN = 0.9
#: As Keras' TextVectorization: ASCII letters become small, and punctuation goes.
_STANDARD: dict[int, str | None] = {ord(c): None for c in "!\"#$%&()*+,-./:;<=>?@[\\]^_`{|}~'"}
_STANDARD |= {ord(c): c.lower() for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
_TRUE, _FALSE = ("true", "yes", "y", "t", "1"), ("false", "no", "n", "f", "0")
_ORDER = {"number": 0, "boolean": 0, "date": 0, "text": 1, "category": 2}


@dataclasses.dataclass(frozen=True)
class Feature:
    """A column of inputs, and what was fitted of it.

    Attributes:
        name: of the column.
        kind: of its values.
        mean, variance: of numbers, booleans (0 and 1) and dates (days since 1970-01-01), without
            the empty cells; the variance of a column of one value is 0.
        missing: share of the cells that are empty.
        values: categories, of which the first is number 1; or words of a text.
        format: of dates that are text; None for ISO 8601.
    """

    name: str
    kind: Kind
    mean: float = 0.0
    variance: float = 0.0
    missing: float = 0.0
    values: tuple[str, ...] = ()
    format: str | None = None

    @property
    def width(self) -> int:
        """How many columns of the matrix it has."""
        return len(self.values) if self.kind == "text" else 1

    @property
    def is_text(self) -> bool:
        """Whether its cells are texts, of a category or of words."""
        return self.kind in ("category", "text")


@dataclasses.dataclass(frozen=True)
class Target:
    """The targets, and what was fitted of them.

    Attributes:
        columns: their names.
        kind: ``classes``, ``labels`` (several columns of 0 and 1) or ``numbers``.
        names: of the classes or labels.
        mean, deviation: of numbers, one of each column.
    """

    columns: tuple[str, ...]
    kind: Literal["classes", "labels", "numbers"]
    names: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True)
class Encoding:
    """How the columns of a table become a matrix, float32 ``[rows, width]``.

    Numbers, booleans and dates come first, in the order of the table, then words, then categories.

    Attributes:
        features: in the order of the matrix.
        target: None where there are no targets.
        left_out: columns that are no inputs, each with a clause that says why.
    """

    features: tuple[Feature, ...]
    target: Target | None = None
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def width(self) -> int:
        """Columns of the matrix."""
        return sum(feature.width for feature in self.features)

    def of(self, *kinds: Kind) -> list[Feature]:
        """Return the features of some kinds, in the order of the matrix."""
        return [feature for feature in self.features if feature.kind in kinds]

    def encode(
        self, columns: Mapping[str, Any], place: Callable[[int], str] = "row {}".format
    ) -> np.ndarray:
        """Return the matrix of some rows.

        An empty number, boolean or date is NaN; a category that training had not is 0, and so is
        an empty one; of a text each word that occurs is 1.

        Args:
            columns: arrays of one length by name; others than the inputs are not looked at.
            place: gives the place of a row, for messages.

        Raises:
            UsageError: a column is missing, or a value is not what its column has.
        """
        self._check(columns)
        rows = len(columns[self.features[0].name]) if self.features else 0
        made = np.empty((rows, self.width), np.float32)
        at = 0
        for feature in self.features:
            made[:, at : at + feature.width] = _encoded(feature, columns[feature.name], place)
            at += feature.width
        return made

    def plain(
        self, columns: Mapping[str, Any], place: Callable[[int], str] = "row {}".format
    ) -> dict[str, np.ndarray]:
        """Return the inputs of :func:`dtrain.models.with_columns`, ``[rows]`` each.

        Numbers, booleans and dates are float32, NaN where a cell is empty; the others are texts.

        Args:
            columns, place: as of :meth:`encode`.

        Raises:
            UsageError: as of :meth:`encode`.
        """
        self._check(columns)
        inputs = {}
        for feature in self.features:
            values = columns[feature.name]
            if feature.is_text:
                inputs[feature.name] = np.array(texts(np.asarray(values)), object)
            else:
                inputs[feature.name] = _encoded(feature, values, place)[:, 0]
        return inputs

    def _check(self, columns: Mapping[str, Any]) -> None:
        for feature in self.features:
            if feature.name not in columns:
                near = nearest(feature.name, [n for n in columns if n not in self._names()])
                raise UsageError(
                    "column", feature.name, "is missing, and the model was trained with it",
                    f"the columns {', '.join(self._names())}",
                    f"{near} renamed to {feature.name}" if near else "a table that has it",
                )  # fmt: skip

    def _names(self) -> list[str]:
        return [feature.name for feature in self.features]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        made: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return made

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Encoding:
        """Return what :meth:`to_json` has made plain."""
        features = [Feature(**{**f, "values": tuple(f["values"])}) for f in value["features"]]
        target = value.get("target")
        if target is not None:
            lists = ("columns", "names", "mean", "deviation")
            target = Target(kind=target["kind"], **{name: tuple(target[name]) for name in lists})
        return cls(tuple(features), target, dict(value.get("left_out", {})))


def _encoded(feature: Feature, values: Any, place: Callable[[int], str]) -> np.ndarray:
    """Return one column, ``[rows, width]``."""
    values = np.asarray(values)
    if feature.kind == "category":
        numbers = {value: i for i, value in enumerate(feature.values, 1)}
        codes = [numbers.get(word, 0) for word in texts(values)]
        return np.array(codes, np.float32)[:, None]
    if feature.kind == "text":
        numbers = {value: i for i, value in enumerate(feature.values)}
        made = np.zeros((len(values), feature.width), np.float32)
        for row, text in enumerate(texts(values)):
            for word in words(text):
                if (at := numbers.get(word)) is not None:
                    made[row, at] = 1.0
        return made
    try:
        if feature.kind == "date":
            cells = _days(values, feature)
        else:
            cells = booleans(values) if feature.kind == "boolean" else _numbers(values)
    except _Unfit as error:
        raise UsageError(
            "column", feature.name, f"{place(error.row)}: {error.value!r} is no {feature.kind}",
            f"a {feature.kind}, as in the training" if feature.kind != "date"
            else "dates as 2026-01-31, or in one other form in all rows",
            f"'dataset.columns={{{feature.name}: category}}'",
        ) from None  # fmt: skip
    return cells.astype(np.float32)[:, None]


class _Unfit(ValueError):
    """A value that its column cannot have."""

    def __init__(self, row: int, value: object):
        super().__init__(row, value)
        self.row, self.value = row, value


def texts(values: np.ndarray) -> list[str]:
    """Return values as text; of an empty cell that is empty."""
    if values.dtype.kind == "f":
        return ["" if v != v else str(int(v)) if v == int(v) else str(v) for v in values.tolist()]
    if values.dtype.kind == "b":
        return ["true" if v else "false" for v in values.tolist()]
    if values.dtype.kind == "M":
        return ["" if v == "NaT" else v for v in values.astype(str).tolist()]
    return [_text(v) for v in values.tolist()]


def _text(value: Any) -> str:
    if value is None or value != value:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def words(text: str) -> list[str]:
    """Return the words of a text, as Keras' ``TextVectorization`` does."""
    return text.translate(_STANDARD).split()


def _numbers(values: np.ndarray) -> np.ndarray:
    """Return numbers; NaN for empty cells, and for what is infinite."""
    if values.dtype.kind in "biu":
        return values
    if values.dtype.kind != "f":
        made = np.full(len(values), np.nan)
        for row, value in enumerate(values.tolist()):
            if value is None or value == "":
                continue
            try:
                made[row] = float(value)
            except (TypeError, ValueError):
                raise _Unfit(row, value) from None
        values = made
    return values if np.isfinite(values).all() else np.where(np.isfinite(values), values, np.nan)


def booleans(values: np.ndarray) -> np.ndarray:
    """Return 1 and 0; NaN for empty cells."""
    if values.dtype.kind in "biuf":
        return _numbers(values)
    made = np.full(len(values), np.nan)
    for row, text in enumerate(texts(values)):
        if text.lower() in _TRUE:
            made[row] = 1.0
        elif text.lower() in _FALSE:
            made[row] = 0.0
        elif text:
            raise _Unfit(row, text)
    return made


def _days(values: np.ndarray, feature: Feature) -> np.ndarray:
    """Return days since 1970-01-01, with fractions; NaN for empty cells."""
    if values.dtype.kind in "biuf":
        return _numbers(values)  # days already
    if values.dtype.kind != "M":
        cells = texts(values)
        values = _dates(cells, feature.format)
        wrong = [row for row, text in enumerate(cells) if text and np.isnat(values[row])]
        if wrong:
            raise _Unfit(wrong[0], cells[wrong[0]])
    days = values.astype("M8[us]").astype(np.int64) / 86_400e6
    return np.where(np.isnat(values), np.nan, days)


def _dates(cells: Sequence[str], form: str | None) -> np.ndarray:
    """Return texts as dates, NaT for those that are none."""
    import datetime

    made = np.full(len(cells), "NaT", "M8[us]")
    for row, text in enumerate(cells):
        try:
            if form is None:
                date = datetime.datetime.fromisoformat(text.strip()) if len(text) >= 8 else None
            else:
                date = datetime.datetime.strptime(text.strip(), form)
        except ValueError:
            continue
        if date is not None:
            made[row] = np.datetime64(date.replace(tzinfo=None), "us")
    return made


# -- fitting

#: Reads a column of the training examples, some rows at a time.
Read = Callable[[str], Iterator[np.ndarray]]


def fit(
    names: Sequence[str],
    read: Read,
    declared: Mapping[str, str],
    chosen: bool,
    left_out: Mapping[str, str],
    place: Callable[[int], str] = "row {}".format,
) -> Encoding:
    """Fit the columns of inputs.

    Args:
        names: of the columns.
        read: reads one.
        declared: kinds by name, as ``dataset.columns`` has them.
        chosen: whether the user has named the columns: then none is left out.
        left_out: columns that are left out already.
        place: gives the place of a row, in the order in which they are read.

    Raises:
        UsageError: a column cannot be what it is declared to be, or none is left.
    """
    features, skipped = [], dict(left_out)
    for name in names:
        kind = declared.get(name)
        if kind == "skip":
            skipped[name] = "as dataset.columns says"
            continue
        feature = _fitted(name, kind, list(read(name)), place)
        if isinstance(feature, Feature):
            features.append(feature)
        elif chosen:
            features.append(_category(name, _joined_texts(read(name))))
        else:
            skipped[name] = feature
    if not features:
        reasons = "; ".join(f"{name}: {why}" for name, why in skipped.items())
        raise UsageError(
            "dataset.inputs", "null", f"no column is left ({reasons})", "columns that are inputs",
            "dataset.inputs=[COLUMN]",
        )  # fmt: skip
    features.sort(key=lambda feature: _ORDER[feature.kind])
    return Encoding(tuple(features), left_out=skipped)


def _fitted(
    name: str, kind: str | None, parts: list[np.ndarray], place: Callable[[int], str]
) -> Feature | str:
    """Return what a column is; or why it is left out."""
    values = np.concatenate(parts) if parts else np.zeros(0, np.float32)
    if kind is None and values.dtype.kind == "f" and len(values) and np.isnan(values).all():
        return "every cell is empty"
    if kind in ("category", "text"):
        cells = texts(values)
        return _category(name, cells) if kind == "category" else _words(name, cells)
    if kind is None and values.dtype.kind not in "biufM":
        return _of_texts(name, texts(values), place)
    if kind is None:
        kind = {"b": "boolean", "M": "date"}.get(values.dtype.kind, "number")
    assert kind in ("number", "boolean", "date")
    form = None
    if kind == "date" and values.dtype.kind not in "biufM":
        form, _ = _form_of_dates(texts(values))
    feature = Feature(name, cast(Kind, kind), format=form)
    return _with_moments(feature, _encoded(feature, values, place)[:, 0])


def _with_moments(feature: Feature, values: np.ndarray) -> Feature:
    full = values[~np.isnan(values)].astype(np.float64)
    if not len(full):
        return dataclasses.replace(feature, missing=1.0)
    return dataclasses.replace(
        feature, mean=float(full.mean()), variance=float(full.var()),
        missing=1 - len(full) / len(values),
    )  # fmt: skip


def _of_texts(name: str, cells: list[str], place: Callable[[int], str]) -> Feature | str:
    """Return what a column of texts is: dates, a text, categories; or why it is left out."""
    full = [text for text in cells if text]
    if not full:
        return "every cell is empty"
    if _looks_dated(full[0]):
        form, share = _form_of_dates(full)
        if share >= _ALMOST_ALL:
            values = np.array(cells, object)
            feature = Feature(name, "date", format=form)
            return _with_moments(feature, _encoded(feature, values, place)[:, 0])
    different = len(set(full))
    spaces = sum(len(text.split()) for text in full[:10_000]) / min(len(full), 10_000)
    if spaces >= 3 and different > max(20, 0.2 * len(full)):
        return _words(name, cells)
    if different > _OWN * len(full) and len(full) > 20:
        if spaces >= 1.5:
            return _words(name, cells)
        return "it has another text in each row, as an id has"
    return _category(name, cells)


def _looks_dated(text: str) -> bool:
    return re.match(r"\d{1,4}[-./ ]\w{1,3}[-./ ]\d{1,4}|[A-Z][a-z]{2} \d", text.strip()) is not None


def _form_of_dates(cells: Sequence[str]) -> tuple[str | None, float]:
    """Return the form that most texts are dates in, and their share."""
    full = [text for text in cells if text]
    best: tuple[str | None, float] = (None, -1.0)
    for form in _DATES:
        share = float(1 - np.isnat(_dates(full, form)).mean()) if full else 0.0
        if share > best[1]:
            best = (form, share)
        if share == 1:
            break
    return best


def _category(name: str, cells: Iterable[str]) -> Feature:
    counts = collections.Counter(cells)
    empty = counts.pop("", 0)
    rows = counts.total() + empty
    most = sorted(counts, key=lambda value: (-counts[value], value))[:CATEGORIES]
    share = empty / rows if rows else 0.0
    return Feature(name, "category", missing=share, values=tuple(sorted(most)))


def _words(name: str, cells: Sequence[str]) -> Feature:
    counts = collections.Counter(word for text in cells for word in set(words(text)))
    common = [word for word in counts if counts[word] > 1] or list(counts)
    most = sorted(common, key=lambda word: (-counts[word], word))[:WORDS]
    share = sum(not text for text in cells) / max(1, len(cells))
    return Feature(name, "text", missing=share, values=tuple(sorted(most)))


def _joined_texts(parts: Iterable[np.ndarray]) -> list[str]:
    return [text for part in parts for text in texts(part)]
