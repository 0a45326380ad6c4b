"""From columns of numbers, categories, dates and text to one matrix of numbers.

What a column becomes is fitted on the training examples alone and kept with the run, so that any
other table is read by the names of its columns with the vocabulary of the training.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import re
from collections.abc import Callable, Mapping
from typing import Literal, get_args

import numpy as np

from dtrain.data import dates
from dtrain.data.nest import Leaf
from dtrain.errors import UsageError, nearest, refuse, typed
from dtrain.files.fields import Json, Values

Kind = Literal["number", "boolean", "date", "category", "text"]
#: What ``dataset.columns`` may say of a column.
KINDS = (*get_args(Kind), "skip")
#: As Keras' TextVectorization: ASCII letters become small, and punctuation goes.
_STANDARD: dict[int, str | None] = {ord(c): None for c in "!\"#$%&()*+,-./:;<=>?@[\\]^_`{|}~'"}
_STANDARD |= {ord(c): c.lower() for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
_BOOLEANS = dict.fromkeys(("true", "yes", "y", "t", "1"), 1.0)
_BOOLEANS |= dict.fromkeys(("false", "no", "n", "f", "0"), 0.0)
#: Cells that stand for an empty one among numbers, in small letters.
_GAPS = frozenset((
    "", "?", "-", "--", "---", "\u2013", "\u2014", ".", "..", "...", "*", "na", "n/a", "n.a.",
    "<na>", "nan", "-nan", "inf", "+inf", "-inf", "infinity", "-infinity", "none", "null", "\\n",
    "missing", "unknown", "undefined", "#n/a", "#div/0!", "#value!", "#ref!", "#name?", "#num!",
))  # fmt: skip
#: Numbers in digits alone, and as people write them: with a currency, thousands, a percent sign.
_DIGITS = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?", re.I)
_MONEY = "(?:US\\$|[$\u20ac\u00a3\u00a5\u20b9]|kr|z\u0142|Fr\\.|USD|EUR|GBP|JPY|CHF|INR|CNY)?"
_WRITTEN = re.compile(
    rf"(?P<minus>[(-]|{_MONEY} ?-|\+)? ?{_MONEY} ?(?P<digits>\d[\d.,'\u2019 ]*|[.,]\d+)"
    rf"(?P<power>e[+-]?\d+)? ?(?P<percent>%)?{_MONEY}\)?", re.I,
)  # fmt: skip
_THOUSANDS = re.compile(r"[1-9]\d{0,2}(?P<mark>[,'\u2019 ])(?:\d{2,3}(?P=mark))*\d{3}(?:\.\d*)?")
_LARGEST = float(np.finfo(np.float32).max)
#: Characters of a number that is written in another way.
_LONGEST = 50


@dataclasses.dataclass(frozen=True)
class Feature:
    """A column of inputs, and what was fitted of it.

    Attributes:
        name: of the column.
        kind: of its values.
        mean, variance: of numbers, booleans (0 and 1) and dates (days since 1970-01-01), without
            the empty cells; the variance of a column of one value is 0.
        missing: share of the cells that are empty; of a category, of those whose number is 0.
        values: categories, of which the first is number 1; words of a text; texts that stand for
            an empty cell among numbers.
        format: of dates that are text; None for ISO 8601. Of numbers their decimal comma, if any.
        offset: what is taken from numbers, in float64, before they become float32: their mean, if
            they are large and differ little.
    """

    name: str
    kind: Kind
    mean: float = 0.0
    variance: float = 0.0
    missing: float = 0.0
    values: tuple[str, ...] = ()
    format: str | None = None
    offset: float = 0.0

    @functools.cached_property
    def _codes(self) -> tuple[dict[str, int], dict[str, int]]:
        """Numbers of the categories, by their texts; and by a spelling that is of one alone."""
        spelled = collections.Counter(map(spelling, self.values))
        codes = {value: at for at, value in enumerate(self.values, 1)}
        own = {spelling(v): at for v, at in codes.items() if spelled[spelling(v)] == 1}
        truths = {_BOOLEANS.get(word): at for word, at in own.items()}
        if len(truths) == len(codes) == 2 and None not in truths:
            own |= {word: truths[truth] for word, truth in _BOOLEANS.items()}
        return codes, own

    def code(self, text: str) -> int:
        """Return the number of a category, as the training or another file spells it; else 0."""
        codes, spelled = self._codes
        return codes.get(text) or spelled.get(spelling(text), 0)

    def unknown(self, cells: np.ndarray) -> collections.Counter[str]:
        """Count the texts among cells that are none of the categories; of numbers new gaps."""
        known = self.code if self.is_text else lambda text: self.missing or not is_gap(text)
        counts = collections.Counter(texts(cells))
        return collections.Counter({t: n for t, n in counts.items() if t and not known(t)})

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
        notices: what was taken of cells that may mean something else; not saved.
    """

    features: tuple[Feature, ...]
    target: Target | None = None
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)
    notices: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """Columns of the matrix."""
        return sum(feature.width for feature in self.features)

    def of(self, *kinds: Kind) -> list[Feature]:
        """Return the features of some kinds, in the order of the matrix."""
        return [feature for feature in self.features if feature.kind in kinds]

    def encode(
        self, columns: Mapping[str, Leaf], place: Callable[[int], str] = "row {}".format
    ) -> np.ndarray:
        """Return the matrix of some rows.

        An empty number, boolean or date is NaN; a category that the encoding has not is 0, and so
        is an empty one; of a text each word that occurs is 1.

        Args:
            columns: arrays of one length by name; others than the inputs are not looked at.
            place: gives the place of a row, for messages.

        Raises:
            UsageError: a column is missing, or a value is not what its column has.
        """
        self._check(columns)
        parts = [_encoded(each, columns[each.name], place) for each in self.features]
        return np.concatenate(parts, axis=1) if parts else np.empty((0, 0), np.float32)

    def plain(self, columns: Mapping[str, Leaf]) -> dict[str, np.ndarray]:
        """Return the inputs of :func:`dtrain.models.with_columns`, ``[rows]`` each.

        Numbers, booleans and dates are float32, NaN where a cell is empty, and float64 where they
        have an offset; the others are texts.

        Args:
            columns: as of :meth:`encode`.

        Raises:
            UsageError: as of :meth:`encode`.
        """
        self._check(columns)
        return {
            feature.name: _plain(feature, np.asarray(columns[feature.name]))
            for feature in self.features
        }

    def matrix(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the matrix of what :meth:`plain` returns."""
        parts = [
            _encoded(each, inputs[each.name], "row {}".format) if each.is_text
            else subtract_offset(inputs[each.name], each.offset)[:, None]
            for each in self.features
        ]  # fmt: skip
        return np.concatenate(parts, axis=1)

    def _check(self, columns: Mapping[str, Leaf]) -> None:
        names = [feature.name for feature in self.features]
        for name in names:
            if name not in columns:
                near = nearest(name, [each for each in columns if each not in names])
                refuse("column", "is missing, and the model was trained with it", name,
                       accepted=f"the columns {', '.join(names)}",
                       hint=near and f"{near} renamed to {name}")  # fmt: skip

    def to_json(self) -> Json:
        """Return it as plain values."""
        made: Json = json.loads(json.dumps(dataclasses.asdict(self)))
        del made["notices"]
        return made

    @classmethod
    def from_json(cls, value: Values) -> Encoding:
        """Return what :meth:`to_json` has made plain."""
        features = [Feature(**{**f, "values": tuple(f["values"])}) for f in value["features"]]
        target = value.get("target")
        if target is not None:
            lists = ("columns", "names", "mean", "deviation")
            target = Target(kind=target["kind"], **{name: tuple(target[name]) for name in lists})
        return cls(tuple(features), target, dict(value.get("left_out", {})))


def _plain(feature: Feature, values: np.ndarray) -> np.ndarray:
    """Return one input of a model of columns."""
    if not feature.is_text:
        numbers = as_numbers(feature, values, "row {}".format)
        return numbers.astype(np.float64 if feature.offset else np.float32)
    cells = texts(values)
    if feature.kind == "category":
        cells = [feature.values[code - 1] if (code := feature.code(c)) else c for c in cells]
    return np.array(cells, object)


def _encoded(feature: Feature, values: Leaf, place: Callable[[int], str]) -> np.ndarray:
    """Return one column, ``[rows, width]``."""
    values = np.asarray(values)
    if feature.kind == "category":
        cells = texts(values)
        codes = {word: feature.code(word) for word in set(cells)}
        return np.array([codes[word] for word in cells], np.float32)[:, None]
    if feature.kind == "text":
        numbers = {value: at for at, value in enumerate(feature.values)}
        made = np.zeros((len(values), feature.width), np.float32)
        for row, text in enumerate(texts(values)):
            made[row, [numbers[word] for word in words(text) if word in numbers]] = 1.0
        return made
    return subtract_offset(as_numbers(feature, values, place), feature.offset)[:, None]


def subtract_offset(numbers: np.ndarray, offset: float) -> np.ndarray:
    """Return numbers less an offset as float32; of whole ones no digit is lost."""
    if offset and numbers.dtype.kind in "iu":
        numbers = (numbers.astype(np.uint64) - np.uint64(int(offset) % 2**64)).astype(np.int64)
    elif offset:
        numbers = numbers - offset
    return numbers.astype(np.float32)


def as_numbers(
    feature: Feature, values: np.ndarray, place: Callable[[int], str], fits: bool = False
) -> np.ndarray:
    """Return numbers, booleans as 1 and 0, dates as days since 1970-01-01, with fractions.

    NaN is what is empty, or infinite as float32.

    Args:
        feature: the column.
        values: its cells.
        place: gives the place of a row, for messages.
        fits: whether the column may be another kind, and no training has decided.

    Raises:
        UsageError: a cell is no number.
    """
    if values.dtype.kind == "M" and feature.kind == "date":
        days = values.astype("M8[us]").astype(np.int64) / 86_400e6
        return np.where(np.isnat(values), np.nan, days)
    if feature.kind == "date":  # numbers such as 20260131 are ISO 8601's short form
        form = feature.format if values.dtype.kind == "O" else None
        cells = ["" if is_gap(text) else text for text in texts(values)]
        return dates.days_of(feature.name, cells, form, place)
    if values.dtype.kind in "biu":
        return values
    if values.dtype.kind != "f":
        cells, values = texts(values), np.full(len(values), np.nan)
        for row, text in enumerate(cells):
            try:
                values[row] = _as_number(feature, text)
            except (ValueError, KeyError):
                kind, kinds = feature.kind, {feature.name: "category"}
                key, value = ("dataset.columns", kinds) if fits else ("dataset.empty", [text])
                raise UsageError("column", f"{place(row)}: {text!r} is no {kind}", feature.name,
                                 accepted=f"a {kind}" + ", as in the training" * (not fits),
                                 typed=typed(key, value)) from None  # fmt: skip
    return np.where(np.abs(values) <= _LARGEST, values, np.nan)


def _as_number(feature: Feature, text: str) -> float:
    if is_gap(text) or text in feature.values:
        return np.nan
    if feature.kind == "boolean":
        return _BOOLEANS[text.strip().lower()]
    return number_of(text, feature.format)


def is_gap(text: str) -> bool:
    """Say whether a text stands for an empty cell among numbers, such as ``?`` and ``n/a``."""
    return text.strip().lower() in _GAPS


def number_of(text: str, decimal: str | None = None) -> float:
    """Return the number that a text is: ``-3e5``, ``$7,120.00``, ``63%`` (0.63), ``(1,200)``.

    Args:
        text: of a cell.
        decimal: a comma that stands before fractions, with points between thousands; None: none.

    Raises:
        ValueError: it is none.
    """
    if decimal is None and _DIGITS.fullmatch(text):
        return float(text)
    if len(text) > _LONGEST:  # of a column of long texts
        raise ValueError(text)
    match = _WRITTEN.fullmatch(re.sub("\\s", " ", text.strip()).replace("\u2212", "-"))
    if match is None:
        raise ValueError(text)
    digits = match["digits"].strip()
    if decimal is not None:
        digits = digits.translate({ord("."): ",", ord(","): "."})
    if thousands := _THOUSANDS.fullmatch(digits):
        digits = digits.replace(thousands["mark"], "")
    value = float(digits + (match["power"] or "")) / (100 if match["percent"] else 1)
    return -value if set(match["minus"] or "") & {"-", "("} else value


def spelling(text: str) -> str:
    """Return a number or a truth value as it is spelled among categories; others as they are."""
    text = text.strip()
    if len(text) > _LONGEST or not _DIGITS.fullmatch(text) or re.match(r"[+-]?0\d", text):
        return text.lower() if text.lower() in _BOOLEANS else text
    value: float = float(text) if re.search("[.e]", text, re.I) else int(text)
    return str(int(value)) if abs(value) < _LARGEST and value == int(value) else str(value)


def texts(values: np.ndarray, errors: str = "replace") -> list[str]:
    """Return values as text; of an empty cell that is empty.

    Args:
        values: ``[n]``.
        errors: what becomes of bytes that are no text (``bytes.decode``).
    """
    if values.dtype.kind == "f":
        return ["" if v != v else str(int(v)) if v % 1 == 0 else str(v) for v in values.tolist()]
    if values.dtype.kind == "b":
        return ["true" if v else "false" for v in values.tolist()]
    if values.dtype.kind == "M":
        return ["" if v == "NaT" else v for v in values.astype(str).tolist()]
    return [_text(v, errors) for v in values.tolist()]


def _text(value: object, errors: str) -> str:
    if value is None or value != value:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.decode(errors=errors) if isinstance(value, bytes) else str(value)


def words(text: str) -> list[str]:
    """Return the words of a text, as Keras' ``TextVectorization`` does."""
    return text.translate(_STANDARD).split()
