"""Dates that are text: the form that they are in, and the days that they are."""

from __future__ import annotations

import collections
import functools
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import numpy as np

from dtrain.errors import refuse, typed

#: Share of the texts that are dates, from which on one that is none is an error.
ALMOST_ALL = 0.95
#: Days of a year and of a week: what a model gets of a date beside its number.
CYCLES = (365.2425, 7.0)
#: Forms of days, of which the first one that fits is taken, and of what may follow them.
_DAYS = (
    "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%Y/%m/%d", "%d-%m-%Y", "%m-%d-%Y", "%Y-%m-%d", "%Y.%m.%d",
    "%d %b %Y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y", "%d-%b-%Y", "%d.%m.%y", "%m/%d/%y",
    "%d/%m/%y", "%d-%b-%y",
)  # fmt: skip
_TIMES = ("%H:%M", "%H:%M:%S", "%H:%M:%S.%f", "%I:%M %p", "%I:%M:%S %p", "%I:%M%p")
#: Texts that are looked at first, and characters of a date.
_SAMPLE, _LONGEST = 1000, 100
_DATED = re.compile(
    r"\s*(\d{1,4}[-./ ]\w{1,9}[-./ ]\d{1,4}|[A-Z][a-z]{2,8} \d|\d{8}T\d|\d{4}-W\d\d)"
)


def form_of(
    texts: Sequence[str], least: float = ALMOST_ALL
) -> tuple[str | None, str | None] | None:
    """Return the form that most texts are dates in, for ``strptime``; None is ISO 8601.

    Args:
        texts: none of which is empty.
        least: share of them that have to be dates; 0: whatever they look like.

    Returns:
        It, and, where as many are dates in another form that makes other days of them, that form;
        None where they are no dates.
    """
    if not texts or (least and not any(map(_DATED.match, texts[:100]))):
        return None
    shapes = {_shape(text) for text in texts[:: 1 + len(texts) // _SAMPLE]}
    forms = [None, *(form for form, shape in _forms().items() if shape in shapes)]
    for step in (1 + len(texts) // _SAMPLE, 1):  # of many rows the likely forms alone
        counts = collections.Counter(texts[::step])
        tried = {f: {t: d for t in counts if (d := day_of(t, f)) is not None} for f in forms}
        rows = {form: sum(counts[text] for text in days) for form, days in tried.items()}
        best = max(forms, key=rows.__getitem__)  # the first one
        if rows[best] < least / 2 * counts.total():
            return None
        forms = [form for form in forms if rows[form] >= ALMOST_ALL * rows[best]]
    others = (f for f in forms if rows[f] == rows[best] > 0 and tried[f] != tried[best])
    return (best, next(others, None)) if rows[best] >= least * len(texts) else None


def day_of(text: str, form: str | None) -> float | None:
    """Return the days from 1970-01-01 to a date, with fractions; of one with a zone in UTC.

    None is of a text that is no date of the form.
    """
    return _day_of(text, form) if len(text) <= _LONGEST else None


@functools.lru_cache(1 << 16)  # dates repeat, and batches of them are read in each epoch
def _day_of(text: str, form: str | None) -> float | None:
    text = " ".join(text.split())
    try:
        moment = datetime.strptime(text, form) if form else datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            moment = moment.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        return None
    if form is None and len(text) < 8:
        return None
    return float(np.datetime64(moment, "us").astype(np.int64) / 86_400e6)


def days_of(
    name: str, cells: Sequence[str], form: str | None, place: Callable[[int], str]
) -> np.ndarray:
    """Return the days of a column, float64 ``[n]``; NaN of an empty cell.

    Args:
        name: of the column.
        cells: texts.
        form: of all of them.
        place: gives the place of a row, for messages.

    Raises:
        UsageError: one is no date of the form.
    """
    full = [text for text in cells if text]
    made = {text: day_of(text, form) for text in set(full)}
    for row, text in enumerate(cells):
        if text and made[text] is None:
            example, other = datetime(2026, 1, 31).strftime(form or "%Y-%m-%d"), form_of(full, 1.0)
            refuse("column", f"{place(row)}: {text!r} is no date", name,
                   accepted=f"dates as {example}, or in one other form in all rows, or empty cells",
                   hint=other and typed("dataset.columns", {name: other[0] or "%Y-%m-%d"})
                   )  # fmt: skip
    return np.array([made[text] if text else np.nan for text in cells], np.float64)


def moments_of(
    name: str, cells: Sequence[str], form: str | None, place: Callable[[int], str]
) -> np.ndarray | None:
    """Return texts as moments ``M8[us]``, NaT of an empty one; None where they are no dates.

    Args:
        name, cells, place: as of :func:`days_of`.
        form: of all of them; None: it is found out, as it is of ``date``, which has to be one.

    Raises:
        UsageError: almost all are dates, or are dates in two forms with other days.
    """
    if form in (None, "date"):
        full, least = [text for text in cells if text], 0.0 if form else ALMOST_ALL
        if (both := form_of(full, least)) is None:
            return None
        form, other = both
        if other is not None:
            refuse("dataset.split", f"{full[0]!r} may be a date as {form} or {other}, as may all",
                   f"{{by: {name}}}", accepted="dates in a form that is known",
                   typed=typed("dataset.columns", {name: other}))  # fmt: skip
    days = days_of(name, cells, form, place)
    moments = np.round(np.nan_to_num(days) * 86_400e6).astype(np.int64).astype("M8[us]")
    return np.where(np.isnan(days), np.datetime64("NaT", "us"), moments)


def _shape(text: str) -> str:
    """Return a text with one sign for each number and each word."""
    return re.sub("[A-Za-z]+", "A", re.sub("[0-9]+", "0", " ".join(text.split())))


@functools.cache
def _forms() -> dict[str, str]:
    """Return the shapes of texts by their forms, those first that are tried first."""
    ends = ["", *(before + time for time in _TIMES for before in (" ", ", "))]
    moment = datetime(2011, 12, 13, 14, 15, 16, 17)
    return {day + end: _shape(moment.strftime(day + end)) for end in ends for day in _DAYS}
