"""From columns of numbers, categories, dates and text to one matrix of numbers.

What a column becomes is fitted on the training examples alone and kept with the run, so that any
other table is read by the names of its columns with the vocabulary of the training.
"""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, cast

import numpy as np

from dtrain.data import dates
from dtrain.errors import UsageError, nearest

Kind = Literal["number", "boolean", "date", "category", "text"]
#: What ``dataset.columns`` may say of a column.
KINDS = ("number", "boolean", "date", "category", "text", "skip")
#: Categories of a column, and words of a text, that have a number of their own, at most.
CATEGORIES, WORDS = 10_000, 500
#: Categories of a column that are many: models embed them, and those of one row have no number.
MANY = 32
#: Examples that are looked at, evenly spread.
EXAMPLES = 1_000_000
#: Share of the rows that have a text of their own, above which no category can be learned.
_OWN = 0.9
#: As Keras' TextVectorization: ASCII letters become small, and punctuation goes.
_STANDARD: dict[int, str | None] = {ord(c): None for c in "!\"#$%&()*+,-./:;<=>?@[\\]^_`{|}~'"}
_STANDARD |= {ord(c): c.lower() for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
_BOOLEANS = dict.fromkeys(("true", "yes", "y", "t", "1"), 1.0)
_BOOLEANS |= dict.fromkeys(("false", "no", "n", "f", "0"), 0.0)
#: Kinds of columns, by those of NumPy's types.
_PLAIN: dict[str, Kind] = {"b": "boolean", "i": "number", "u": "number", "f": "number", "M": "date"}
_ORDER = {"number": 0, "boolean": 0, "date": 0, "text": 1, "category": 2}


@dataclasses.dataclass(frozen=True)
class Feature:
    """A column of inputs, and what was fitted of it.

    Attributes:
        name: of the column.
        kind: of its values.
        mean, variance: of numbers, booleans (0 and 1) and dates (days since 1970-01-01), without
            the empty cells; the variance of a column of one value is 0.
        missing: share of the cells that are empty; of a category, of those whose number is 0.
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
        self, columns: Mapping[str, Any], place: Callable[[int], str] = "row {}".format
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

    def plain(self, columns: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return the inputs of :func:`dtrain.models.with_columns`, ``[rows]`` each.

        Numbers, booleans and dates are float32, NaN where a cell is empty; the others are texts.

        Args:
            columns: as of :meth:`encode`.

        Raises:
            UsageError: as of :meth:`encode`.
        """
        self._check(columns)
        return {
            feature.name: np.array(texts(np.asarray(columns[feature.name])), object)
            if feature.is_text
            else _encoded(feature, columns[feature.name], "row {}".format)[:, 0]
            for feature in self.features
        }

    def _check(self, columns: Mapping[str, Any]) -> None:
        names = [feature.name for feature in self.features]
        for name in names:
            if name not in columns:
                near = nearest(name, [each for each in columns if each not in names])
                raise UsageError(
                    "column", name, "is missing, and the model was trained with it",
                    f"the columns {', '.join(names)}",
                    f"{near} renamed to {name}" if near else "a table that has it",
                )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        made: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        del made["notices"]
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
    numbers = {value: at for at, value in enumerate(feature.values)}
    if feature.kind == "category":
        codes = [numbers.get(word, -1) + 1 for word in texts(values)]
        return np.array(codes, np.float32)[:, None]
    if feature.kind == "text":
        made = np.zeros((len(values), feature.width), np.float32)
        for row, text in enumerate(texts(values)):
            made[row, [numbers[word] for word in words(text) if word in numbers]] = 1.0
        return made
    return _as_numbers(feature, values, place).astype(np.float32)[:, None]


def _as_numbers(feature: Feature, values: np.ndarray, place: Callable[[int], str]) -> np.ndarray:
    """Return numbers, booleans as 1 and 0, dates as days since 1970-01-01, with fractions.

    NaN is what is empty or infinite.
    """
    if values.dtype.kind == "M" and feature.kind == "date":
        days = values.astype("M8[us]").astype(np.int64) / 86_400e6
        return np.where(np.isnat(values), np.nan, days)
    if feature.kind == "date":  # numbers such as 20260131 are ISO 8601's short form
        return dates.days_of(feature.name, texts(values), feature.format, place)
    if values.dtype.kind in "biu":
        return values
    if values.dtype.kind != "f":
        cells, values = texts(values), np.full(len(values), np.nan)
        for row, text in enumerate(cells):
            try:
                values[row] = _as_number(feature, text) if text else np.nan
            except (ValueError, KeyError):
                raise UsageError(
                    "column", feature.name, f"{place(row)}: {text!r} is no {feature.kind}",
                    f"a {feature.kind}, as in the training",
                    f"'dataset.columns={{{feature.name}: category}}'",
                ) from None  # fmt: skip
    return np.where(np.isfinite(values), values, np.nan)


def _as_number(feature: Feature, text: str) -> float:
    return float(text) if feature.kind == "number" else _BOOLEANS[text.lower()]


def texts(values: np.ndarray, errors: str = "replace") -> list[str]:
    """Return values as text; of an empty cell that is empty.

    Args:
        values: ``[n]``.
        errors: what becomes of bytes that are no text (``bytes.decode``).
    """
    if values.dtype.kind == "f":
        return ["" if v != v else str(int(v)) if v == int(v) else str(v) for v in values.tolist()]
    if values.dtype.kind == "b":
        return ["true" if v else "false" for v in values.tolist()]
    if values.dtype.kind == "M":
        return ["" if v == "NaT" else v for v in values.astype(str).tolist()]
    return [_text(v, errors) for v in values.tolist()]


def _text(value: Any, errors: str) -> str:
    if value is None or value != value:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.decode(errors=errors) if isinstance(value, bytes) else str(value)


def words(text: str) -> list[str]:
    """Return the words of a text, as Keras' ``TextVectorization`` does."""
    return text.translate(_STANDARD).split()


# -- fitting


def fit(
    names: Sequence[str],
    read: Callable[[str], np.ndarray],
    declared: Mapping[str, str],
    chosen: bool,
    left_out: Mapping[str, str],
    place: Callable[[int], str] = "row {}".format,
    whole: Callable[[str], np.ndarray] | None = None,
) -> Encoding:
    """Fit the columns of inputs.

    Args:
        names: of the columns.
        read: reads one, of the training examples.
        declared: kinds by name, as ``dataset.columns`` has them.
        chosen: whether the user has named the columns: then none is left out.
        left_out: columns that are left out already.
        place: gives the place of a row, in the order in which they are read.
        whole: reads one of all examples, where those of the training leave its dates open.

    Raises:
        UsageError: a column cannot be what it is declared to be, or none is left.
    """
    features, skipped, notices = [], dict(left_out), list[str]()
    for name in names:
        kind = declared.get(name)
        if kind == "skip":
            skipped[name] = "as dataset.columns says"
            continue
        values = read(name)
        if values.dtype.kind not in _PLAIN and kind in (None, "date"):
            kind, notice = _form_of_dates(name, kind, values, whole or read)
            notices += [notice] if notice else []
        feature = _fitted(name, kind, values, place)
        if isinstance(feature, Feature):
            features.append(feature)
        elif chosen:
            features.append(_category(name, texts(values)))
        else:
            skipped[name] = feature
    if not features:
        reasons = "; ".join(f"{name}: {why}" for name, why in skipped.items())
        raise UsageError(
            "dataset.inputs", "null", f"no column is left ({reasons})", "columns that are inputs",
            "dataset.inputs=[COLUMN]",
        )  # fmt: skip
    features.sort(key=lambda feature: _ORDER[feature.kind])
    return Encoding(tuple(features), left_out=skipped, notices=tuple(notices))


def _fitted(
    name: str, kind: str | None, values: np.ndarray, place: Callable[[int], str]
) -> Feature | str:
    """Return what a column is; or why it is left out."""
    is_text, form = values.dtype.kind not in _PLAIN, None
    if kind is not None and "%" in kind:
        kind, form = "date", kind
    if kind is None and values.dtype.kind == "f" and len(values) and np.isnan(values).all():
        return "every cell is empty"
    cells = texts(values) if is_text or kind in ("category", "text") else []
    full = [text for text in cells if text]
    if kind is None and is_text:
        if not full:
            return "every cell is empty"
        if (kind := _kind_of_texts(full)) is None:
            return "it has another text in each row, as an id has"
    if kind == "category":
        return _category(name, cells)
    if kind == "text":
        return _words(name, cells)
    feature = Feature(name, cast(Kind, kind or _PLAIN[values.dtype.kind]), format=form)
    numbers = _encoded(feature, values, place)[:, 0]
    sound = numbers[~np.isnan(numbers)].astype(np.float64)
    if not len(sound):
        return dataclasses.replace(feature, missing=1.0)
    return dataclasses.replace(
        feature, mean=float(sound.mean()), variance=float(sound.var()),
        missing=1 - len(sound) / len(numbers),
    )  # fmt: skip


def _form_of_dates(
    name: str, kind: str | None, values: np.ndarray, whole: Callable[[str], np.ndarray]
) -> tuple[str | None, str | None]:
    """Return the form of dates that are text, or their kind, and a notice where it is doubtful."""
    full = list(filter(None, texts(values)))
    made = dates.form_of(full, 0.0 if kind else dates.ALMOST_ALL)
    if made is not None and made[1] is not None:  # the held-out rows may have a day above 12
        made = dates.form_of(list(filter(None, texts(whole(name)))), 0.0)
    form, other = made or (kind, None)
    return form if made is None else form or "date", other and (
        f"the dates of the column {name!r}, such as {full[0]}, are read as {form}, and all may be "
        f"{other} as well; to read them so: 'dataset.columns={{{name}: \"{other}\"}}'"
    )  # fmt: skip


def _kind_of_texts(full: Sequence[str]) -> Literal["category", "text"] | None:
    different, some = len(set(full)), full[:10_000]
    spaces = sum(len(text.split()) for text in some) / len(some)
    if spaces >= 3 and different > max(20, 0.2 * len(full)):
        return "text"
    if different > _OWN * len(full) and len(full) > 20:
        return "text" if spaces >= 1.5 else None
    return "category"


def _category(name: str, cells: Iterable[str]) -> Feature:
    counts = collections.Counter(cells)
    rows = counts.total()
    del counts[""]
    if len(counts) >= MANY:  # a category of one row says nothing of another row: it is unknown
        counts = collections.Counter({v: n for v, n in counts.items() if n > 1}) or counts
    most = sorted(counts, key=lambda value: (-counts[value], value))[:CATEGORIES]
    share = (rows - sum(counts[value] for value in most)) / rows if rows else 0.0
    return Feature(name, "category", missing=share, values=tuple(sorted(most)))


def _words(name: str, cells: Sequence[str]) -> Feature:
    counts = collections.Counter(word for text in cells for word in set(words(text)))
    common = [word for word in counts if counts[word] > 1] or list(counts)
    most = sorted(common, key=lambda word: (-counts[word], word))[:WORDS]
    share = sum(not text for text in cells) / max(1, len(cells))
    return Feature(name, "text", missing=share, values=tuple(sorted(most)))
