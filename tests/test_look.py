"""What a look at a table says: each defect is put into a clean table, and named."""

from __future__ import annotations

import numpy as np
import pytest

from dtrain.data.tabular.look import look

ROWS = 400


def table(rows: int = ROWS, seed: int = 0) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    age = draw.normal(40, 10, rows)
    return {
        "age": age,
        "income": draw.normal(3_000, 900, rows),
        "visits": draw.poisson(4, rows),
        "city": np.array(["Rome", "Oslo", "Lima"], object)[draw.integers(3, size=rows)],
        "note": np.array(
            [f"a note about {n} things" for n in draw.integers(99, size=rows)], object
        ),
        "churn": (age + draw.normal(0, 10, rows) > 40).astype(np.int64),
    }


def test_of_a_clean_table_nothing_is_said():
    assert look(table(), table(seed=1), "churn", classes=True) == []
    assert look(table(), None, "age", classes=False) == []


def gaps(t, held):
    t["age"][:60] = np.nan
    t["city"][:240] = None


def leak(t, held):
    t["reason"] = np.where(t["churn"] == 1, "left", "stays").astype(object)


#: What is changed in a table, and what is said of it.
DEFECTS = {
    "empty": (
        gaps, "empty cells: city 60.0%, age 15.0%; to leave out: 'dataset.columns={city: skip}'"
    ),
    "constant": (lambda t, held: t.update(one=np.ones(ROWS)), "the same in every row: one;"),
    "id": (lambda t, held: t.update(id=np.arange(ROWS) + 10**6), "as an id has: id;"),
    "text id": (
        lambda t, held: t.update(key=np.array([f"k{i}" for i in range(ROWS)], object)),
        "as an id has: key;",
    ),
    "the same": (
        lambda t, held: t.update(years=t["age"] * 2),
        "say the same as another column: years (age);",
    ),
    "leak": (leak, "a leak? these alone tell churn: reason (100.0%); to leave out"),
    "imbalance": (
        lambda t, held: t.update(churn=(np.arange(ROWS) % 10 == 0).astype(int)),
        "imbalance: 90.0% of churn are 0",
    ),
    "twice": (
        lambda t, held: [v.__setitem__(slice(0, 30), v[30:60]) for v in t.values()],
        "rows that occur before: 30 of the 400",
    ),
    "in both": (
        lambda t, held: [held[n].__setitem__(slice(0, 7), t[n][:7]) for n in held],
        "rows of the validation that are trained on, too: 7 of 400",
    ),
    "range": (
        lambda t, held: held["age"].__setitem__(slice(0, 40), 500.0),
        "far outside the range of training: age (10.0%)",
    ),
    "category": (
        lambda t, held: held["city"].__setitem__(0, "Bern"),
        "values of the validation that training has not: city (Bern)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("defect", DEFECTS)
def test_each_defect_is_named(defect):
    change, sentence = DEFECTS[defect]
    training, held = table(), table(seed=1)
    change(training, held)
    said = look(training, held, "churn", classes=True)
    assert len(said) == 1 and sentence in said[0], said


def test_a_number_that_goes_with_a_number_is_a_leak():
    training = table()
    training["total"] = training["age"] * 12 + 1e-3 * training["visits"]
    [said] = look(training, None, "age", classes=False)
    assert said.startswith("a leak? these alone go with age: total (correlation 1.000)")
