"""What the columns of a table become: fitted on the training examples, as an encoding."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, cast

import numpy as np

from dtrain.data import dates
from dtrain.data.encoding import (
    Encoding,
    Feature,
    Kind,
    as_numbers,
    is_gap,
    number_of,
    subtract_offset,
    texts,
    words,
)
from dtrain.errors import refuse, typed

#: Categories of a column, and words of a text, that have a number of their own, at most.
CATEGORIES, WORDS = 10_000, 500
#: Categories of a column that are many: models embed them, and those of one row have no number.
MANY = 32
#: Examples that are looked at, evenly spread.
EXAMPLES = 1_000_000
#: Share of the rows that have a text of their own, above which no category can be learned.
_OWN = 0.9
#: Different other texts among numbers that may stand for empty cells, and different numbers that
#: there are then, at least.
_FEW, _MEASURED = 3, 20
#: A mean of so many deviations leaves too few of float32's digits: numbers are read less the mean.
_FAR = 1e4
#: Names of columns that say which row, customer or order it is.
_ID = re.compile(r"(?:.*[\W_])?(?i:id)|.*[a-z](?:Id|ID)")
#: Kinds of columns, by those of NumPy's types.
_PLAIN: dict[str, Kind] = {"b": "boolean", "i": "number", "u": "number", "f": "number", "M": "date"}
_ORDER = {"number": 0, "boolean": 0, "date": 0, "text": 1, "category": 2}


def fit(
    names: Sequence[str], read: Callable[[str], np.ndarray], declared: Mapping[str, str],
    chosen: bool, left_out: Mapping[str, str], place: Callable[[int], str],
    whole: Callable[[str], np.ndarray],
) -> Encoding:  # fmt: skip
    """Fit the columns of inputs.

    Args:
        names: of the columns.
        read: reads one, of the training examples.
        declared: kinds by name, as ``dataset.columns`` has them.
        chosen: whether the user has named the columns: then none is left out.
        left_out: columns that are left out already.
        place: gives the place of a row, in the order in which they are read.
        whole: reads one of all examples, where those of the training leave open what it is.

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
            kind, notice = _form_of_dates(name, kind, values, whole)
            notices += [notice] if notice else []
        feature: Feature | str = "it has another whole number in each row, as an id has"
        if kind is not None or chosen or not _is_id(name, values):
            feature = _fitted(name, kind, values, place, notices, whole)
        if isinstance(feature, Feature):
            features.append(feature)
        elif chosen:
            features.append(_category(name, texts(values)))
        else:
            skipped[name] = feature
    if not features:
        reasons = "; ".join(f"{name}: {why}" for name, why in skipped.items())
        refuse("dataset.inputs", f"no column is left ({reasons})", "null", accepted="some columns")
    features.sort(key=lambda feature: _ORDER[feature.kind])
    return Encoding(tuple(features), left_out=skipped, notices=tuple(notices))


def _fitted(
    name: str, kind: str | None, values: np.ndarray, place: Callable[[int], str],
    notices: list[str], whole: Callable[[str], np.ndarray],
) -> Feature | str:  # fmt: skip
    """Return what a column is, and say what was taken for it; or return why it is left out."""
    is_text, form = values.dtype.kind not in _PLAIN, None
    if kind is not None and "%" in kind:
        kind, form = "date", kind
    cells = texts(values) if is_text or kind in ("category", "text") else []
    full = [text for text in cells if text]
    if kind is None and is_text:
        if not full:
            return "every cell is empty"
        kind, numbers = _kind_of_texts(full), Numbers.among(full)
        if numbers.are_codes:  # a cell that is none may be held out
            numbers = Numbers.among(texts(whole(name)))
        if numbers.are_all and not numbers.are_codes:
            kind = "number"
        elif kind is None:
            more = f"; it looks like numbers but for {next(iter(numbers.others), '')!r}"
            more = more if numbers.others else f"; or: {typed('dataset.columns', {name: 'number'})}"
            return "it has another text in each row, as an id has" + more * numbers.are_most
    if kind == "category":
        return _category(name, cells)
    if kind == "text":
        return _words(name, cells)
    feature = Feature(name, cast(Kind, kind or _PLAIN[values.dtype.kind]), format=form)
    if kind == "number" and is_text:
        feature = Numbers.among(full).feature(name, notices)
    elif gaps := list(filter(is_gap, full)):
        notices.append(f"the column {name!r} has {gaps[0]!r} or so in {len(gaps):,} rows: empty")
    exact = as_numbers(feature, values, place, fits=True)
    sound = exact[~np.isnan(exact)]
    if not len(sound):
        return "every cell is empty" if kind is None else dataclasses.replace(feature, missing=1.0)
    center = float(np.round(sound.mean(dtype=np.float64)))
    if abs(center) > _FAR * subtract_offset(sound, center).std(dtype=np.float64) > 0:
        feature = dataclasses.replace(feature, offset=center)
    sound = subtract_offset(sound, feature.offset).astype(np.float64)
    return dataclasses.replace(
        feature, mean=float(sound.mean()), variance=float(sound.var()),
        missing=1 - len(sound) / len(exact),
    )  # fmt: skip


def _is_id(name: str, values: np.ndarray) -> bool:
    """Say whether numbers tell which row it is, by the name of the column."""
    few = len(values) <= 20 and name.lower() != "id"  # which may differ by chance
    if not _ID.fullmatch(name) or values.dtype.kind not in "iuf" or few or len(values) < 2:
        return False
    return bool((values % 1 == 0).all()) and len(np.unique(values)) == len(values)


@dataclasses.dataclass(frozen=True)
class Numbers:
    """How far the texts of a column are numbers: different ones, and how many rows have each.

    Attributes:
        numbers: those that are.
        gaps: those that stand for an empty cell.
        others: those that are neither.
        decimal: a comma that stands before fractions; None: none.
    """

    numbers: Mapping[str, int]
    gaps: Mapping[str, int]
    others: Mapping[str, int]
    decimal: str | None

    @classmethod
    def among(cls, cells: Iterable[str]) -> Numbers:
        """Look at the texts of a column; empty ones do not count."""
        counts = collections.Counter(cells)
        del counts[""]
        some = [text for text, _ in zip(counts, range(1000), strict=False)]
        decimal = max((None, ","), key=lambda mark: sum(_is_number(t, mark) for t in some))
        gaps = {text: rows for text, rows in counts.items() if is_gap(text)}
        numbers = {text: rows for text, rows in counts.items() if _is_number(text, decimal)}
        others = {text: counts[text] for text in counts if text not in gaps and text not in numbers}
        return cls(numbers, gaps, others, decimal)

    @property
    def are_most(self) -> bool:
        """Whether almost all rows have numbers, apart from gaps."""
        rows = sum(self.numbers.values())
        return 0 < rows >= dates.ALMOST_ALL * (rows + sum(self.others.values()))

    @property
    def are_all(self) -> bool:
        """Whether they are numbers, and the others a few that stand for an empty cell."""
        if not self.others:
            return len(self.numbers) > 1 or sum(self.numbers.values()) > sum(self.gaps.values())
        is_few = len(self.others) <= _FEW and not re.search(r"\d", "".join(self.others))
        return is_few and self.are_most and len(self.numbers) > _MEASURED

    @property
    def are_codes(self) -> bool:
        """Whether they are texts as they should be: a format without types makes numbers of them.

        They are digits alone, or a few numbers with points, such as versions.
        """
        if self.gaps or self.others or self.odd:
            return False
        return len(self.numbers) < MANY or all(text.isdigit() for text in self.numbers)

    @property
    def odd(self) -> str | None:
        """A number that is not written in digits alone; None: there is none."""
        return next((t for t in self.numbers if not re.fullmatch(r"-?\d+(\.\d*)?", t)), None)

    def feature(self, name: str, notices: list[str]) -> Feature:
        """Return a column of these numbers, and say what was taken for what."""
        others = tuple(self.others) if self.are_all else ()
        shown = [f"{text!r} is empty" for text in (*self.gaps, *others)[:5]]
        rows = sum(self.gaps.values()) + sum(self.others[text] for text in others)
        if self.odd is not None:
            shown.append(f"{self.odd!r} is {number_of(self.odd, self.decimal):.10g}")
        notices.append(
            f"the column {name!r} is read as numbers"
            + (f", {rows:,} cells as empty" if rows else "")
            + (f" ({', '.join(shown)})" if shown else "")
            + f"; otherwise: {typed('dataset.columns', {name: 'category'})}"
        )
        return Feature(name, "number", values=others, format=self.decimal)


def _is_number(text: str, decimal: str | None) -> bool:
    """Say whether a text is a number; digits behind a 0, as of a postal code, are none."""
    try:
        number_of(text, decimal)
    except ValueError:
        return False
    return re.fullmatch(r"\s*[+-]?0\d[\d\s]*", text) is None


def _form_of_dates(
    name: str, kind: str | None, values: np.ndarray, whole: Callable[[str], np.ndarray]
) -> tuple[str | None, str | None]:
    """Return the form of dates that are text, or their kind, and a notice where it is doubtful."""
    full = [text for text in texts(values) if not is_gap(text)]
    made = dates.form_of(full, 0.0 if kind else dates.ALMOST_ALL)
    if made is not None and made[1] is not None:  # the held-out rows may have a day above 12
        made = dates.form_of([text for text in texts(whole(name)) if not is_gap(text)], 0.0)
    form, other = made or (kind, None)
    return form if made is None else form or "date", other and (
        f"the dates of the column {name!r}, such as {full[0]}, are read as {form}, and all may be "
        f"{other} as well; to read them so: {typed('dataset.columns', {name: other})}"
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
