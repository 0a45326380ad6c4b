"""A look at a table before training: what a data scientist would check, each in one sentence.

Of a long table the first rows are looked at (:data:`ROWS`), of a wide one the first columns
(:data:`COLUMNS`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from dtrain.data.encoding import Feature, as_numbers
from dtrain.data.sources import Splits
from dtrain.data.tabular.encoded import ArraysOfTable, EncodedSource
from dtrain.errors import typed
from dtrain.host.terminal import aligned

#: Rows and columns that are looked at, at most.
ROWS, COLUMNS = 100_000, 1_000
#: Columns that a sentence names.
_NAMED = 6
#: Share of empty cells of a column from which on it is worth leaving out.
_EMPTY = 0.5
#: Share of the largest class from which on classes are called imbalanced.
_LARGEST = 0.8
#: Share of the rows whose target a column has to tell to be called a leak, and rows that are needed
#: for it.
_TELLS, _ENOUGH = 0.995, 30
#: Different texts up to which a column is one of categories; of many rows one of so many.
_FEW = 50
#: Share of the rows with a value of its own that makes a column of whole numbers or texts an id.
_OWN = 0.999


def advice(splits: Splits, regression: bool) -> list[str]:
    """Return what is worth knowing of a table.

    Args:
        splits: the examples.
        regression: whether the targets are numbers.
    """
    train, held = (
        each.source if isinstance(each, ArraysOfTable) else each
        for each in (splits.train, splits.validation)
    )
    if not isinstance(train, EncodedSource):
        return []
    target = train.target_column
    names = [feature.name for feature in train.fit.encoding.features][:COLUMNS]
    names += [] if target is None else [target]
    own = _columns(train, names)
    other = _columns(held, names) if isinstance(held, EncodedSource) else None
    return look(own, other, target, not regression)


def _columns(source: EncodedSource, names: list[str]) -> dict[str, np.ndarray]:
    """Return columns by name."""
    rows = np.arange(min(len(source), ROWS))
    cells = source.cells(rows, [n for n in names if n in source.table.columns])
    for feature in source.fit.encoding.of("number"):
        if feature.name in cells and cells[feature.name].dtype == object:
            cells[feature.name] = as_numbers(feature, cells[feature.name], source.where)
    return cells


def columns(splits: Splits) -> list[str]:
    """Return a row for each column of a table: what it is taken for, and what was fitted of it.

    Raises:
        UsageError: a column cannot be an input.
    """
    encoding = None if splits.encoding is None else splits.encoding()
    if encoding is None:
        return []
    rows = [[f.name, f.kind, _fitted(f)] for f in encoding.features[:COLUMNS]]
    rows += [[name, "left out", why] for name, why in encoding.left_out.items()]
    return aligned([["column", "kind", "of training"], *rows])


def _fitted(feature: Feature) -> str:
    if feature.is_text:
        noun = "values" if feature.kind == "category" else "words"
        more = ", ..." if len(feature.values) > 5 else ""
        what = f"{len(feature.values):,} {noun}: {', '.join(feature.values[:5])}{more}"
    elif feature.kind == "date":
        day = np.datetime64(0, "D") + int(feature.mean + feature.offset)
        what = f"{day} on average, {feature.format or 'ISO 8601'}"
    else:
        what = f"mean {feature.mean + feature.offset:.4g}, deviation {feature.variance**0.5:.4g}"
    rare = " or rare" if feature.kind == "category" else ""
    return what + (f", {feature.missing:.1%} empty{rare}" if feature.missing else "")


def look(
    training: Mapping[str, np.ndarray],
    validation: Mapping[str, np.ndarray] | None,
    target: str | None,
    classes: bool,
) -> list[str]:
    """Return what is worth knowing of a table, in sentences, each with what to type if anything.

    Args:
        training: columns by name, one value a row: numbers (NaN where a cell is empty), dates,
            texts (None).
        validation: the same columns of what is evaluated on; None for none.
        target: the column that is predicted; None for none.
        classes: whether the target is classes.
    """
    train, held = pd.DataFrame(training), None
    if validation is not None:
        held = pd.DataFrame({n: validation[n] for n in training if n in validation})
    inputs = [name for name in train.columns if name != target]
    constant = [name for name in inputs if train[name].nunique() <= 1]
    ids = [name for name in inputs if name not in constant and _is_id(train[name])]
    rest = [name for name in inputs if name not in {*constant, *ids}]
    sentences = [
        *_empty(train[inputs]),
        *_left_out("the same in every row", dict.fromkeys(constant, "")),
        *_left_out("another value in every row, as an id has", dict.fromkeys(ids, "")),
        *_left_out("say the same as another column", _doubled(train[rest])),
    ]
    if target is not None:
        leaks = _leaks(train[rest], train[target], classes)
        what = "tell" if classes else "go with"
        sentences += _left_out(f"a leak? these alone {what} {target}", leaks)
        if classes:
            sentences += _imbalance(train[target])
    if held is not None:
        ranges = list(_ranges(train[rest], held))
        held = held.drop(columns=ids, errors="ignore")
    sentences += _repeated(train.drop(columns=ids), held)
    return sentences if held is None else sentences + ranges


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _skip(names: Iterable[str]) -> str:
    return f"; to leave out: {typed('dataset.columns', dict.fromkeys(names, 'skip'))}"


def _empty(inputs: pd.DataFrame) -> Iterator[str]:
    shares = inputs.isna().mean()
    shares = shares[shares > 0].sort_values(ascending=False)
    if shares.empty:
        return
    parts = [f"{name} {share:.1%}" for name, share in shares.items()]
    many = [str(name) for name, share in shares.items() if share >= _EMPTY]
    yield f"empty cells: {_names(parts)}" + (_skip(many) if many else "")


def _left_out(what: str, notes: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence about columns, each with a note."""
    if notes:
        parts = [f"{name} ({note})" if note else name for name, note in notes.items()]
        yield f"{what}: {_names(parts)}{_skip(notes)}"


def _is_id(values: pd.Series) -> bool:
    """Whether nearly every row has a value of its own, and the values are no measured numbers."""
    if len(values) < _ENOUGH or values.nunique() < _OWN * values.notna().sum():
        return False
    present = values.dropna()
    if values.dtype.kind in "fiu":
        # Whole numbers that fill their range are numbers of rows; others may be measured.
        whole = bool((present == np.floor(present)).all())
        return whole and len(present) > 0 and bool(np.ptp(present) < 2 * len(present))
    return values.dtype.kind == "O" and not present.astype(str).str.contains(" ").mean() > 0.5


def _doubled(inputs: pd.DataFrame) -> dict[str, str]:
    """Return columns that another one before them tells, value by value, with that one."""
    first: dict[bytes, str] = {}
    found = {}
    for name in inputs:
        values = inputs[name]
        # Numbers by rank, others in the order of their appearance: what says the same is equal.
        if values.dtype.kind in "biufM":
            codes = values.rank(method="dense").fillna(-1).to_numpy()
        elif values.nunique() < len(values):
            codes = pd.factorize(values)[0]
        else:
            continue  # by their order texts that are all different are all alike
        key = codes.astype(np.int32).tobytes()
        if key in first:
            found[str(name)] = first[key]
        first.setdefault(key, str(name))
    return found


def _leaks(inputs: pd.DataFrame, target: pd.Series, classes: bool) -> dict[str, str]:
    """Return columns that alone tell the target, with the share of the rows, or the correlation."""
    present = target.notna()
    if present.sum() < _ENOUGH:
        return {}
    measure, shown = (_told, "{:.1%}") if classes else (_correlation, "correlation {:.3f}")
    shares = {str(name): measure(inputs[name][present], target[present]) for name in inputs}
    return {name: shown.format(share) for name, share in shares.items() if share >= _TELLS}


def _told(values: pd.Series, target: pd.Series) -> float:
    """Share of the rows whose class the values of a column tell, above what the largest class is.

    Numbers are grouped into 20 quantiles. A share says nothing where each value has few rows.
    """
    if target.value_counts(normalize=True).iloc[0] >= _TELLS:
        return 0.0
    if values.dtype.kind in "fiuM" and values.nunique() > 20:
        values = pd.qcut(values.rank(method="first"), 20, labels=False)
    groups = pd.DataFrame({"value": pd.factorize(values)[0], "class": pd.factorize(target)[0]})
    if len(groups) < 5 * groups["value"].nunique():
        return 0.0
    return float(groups.value_counts().groupby("value").max().sum() / len(groups))


def _correlation(values: pd.Series, target: pd.Series) -> float:
    if values.dtype.kind not in "fiu" or target.dtype.kind not in "fiu":
        return 0.0
    with np.errstate(invalid="ignore", divide="ignore"):  # of a column of one value
        correlation = values.astype(float).corr(target.astype(float), min_periods=_ENOUGH)
    return 0.0 if np.isnan(correlation) else abs(float(correlation))


def _imbalance(target: pd.Series) -> Iterator[str]:
    shares = target.value_counts(normalize=True)
    if len(shares) > 1 and shares.iloc[0] >= _LARGEST:
        yield (
            f"imbalance: {shares.iloc[0]:.1%} of {target.name} are {shares.index[0]}, so this "
            "accuracy says nothing; to draw each class as often: dataset.balance=true"
        )


def _repeated(train: pd.DataFrame, held: pd.DataFrame | None) -> Iterator[str]:
    """Rows that occur twice, and in both splits; numbers of rows do not count."""
    own = pd.util.hash_pandas_object(train, index=False).to_numpy()
    twice = len(own) - len(np.unique(own))
    if twice:
        yield f"rows that occur before: {twice:,} of the {len(own):,} training rows"
    if held is None or list(held.columns) != list(train.columns):
        return
    both = int(np.isin(pd.util.hash_pandas_object(held, index=False).to_numpy(), own).sum())
    if both:
        yield f"rows of the validation that are trained on, too: {both:,} of {len(held):,}"


def _ranges(train: pd.DataFrame, held: pd.DataFrame) -> Iterator[str]:
    outside, unknown = [], []
    for name in train:
        if name not in held or train[name].isna().all() or held[name].isna().all():
            continue
        one, other = train[name].dropna(), held[name].dropna()
        if one.dtype.kind in "fiuM" and other.dtype.kind in "fiuM":
            low, high, width = one.min(), one.max(), one.max() - one.min()
            share = ((other < low - width / 10) | (other > high + width / 10)).mean()
            if share > 0:
                outside.append(f"{name} ({share:.1%})")
        elif one.dtype.kind == "O" and one.nunique() <= max(_FEW, len(one) // _FEW):
            values = sorted(set(map(str, other)) - set(map(str, one)))
            if values:
                unknown.append(f"{name} ({_names(values)})")
    if outside:
        yield f"validation rows far outside the range of training: {_names(outside)}"
    if unknown:
        yield f"values of the validation that training has not: {_names(unknown)}"
