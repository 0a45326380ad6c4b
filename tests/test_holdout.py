"""Which rows are held out: at random, by class, by group, by time, and in folds."""

from __future__ import annotations

import pickle
import re
from datetime import date, datetime

import numpy as np
import pytest

from dtrain.data import draws
from dtrain.data.holdout import Holdout, divided
from dtrain.data.sources import Info, Source
from dtrain.errors import UsageError

ROWS = 103
CLASSES = np.repeat([0, 1, 2, 3], [60, 30, 12, 1])
GROUPS = np.array([f"g{i}" for i in draws.integers(ROWS, 17, 5)], object)
DATES = np.datetime64("2026-01-01") + draws.integers(ROWS, 50, 7)


def parts(**keys):
    return Holdout(**keys).rows(ROWS, lambda: CLASSES, {"group": GROUPS, "day": DATES}.get)


def whole(rows):
    return np.array_equal(np.sort(np.concatenate(rows)), np.arange(ROWS))


def test_at_random_as_it_always_was():
    train, held = parts(validation_split=0.2, split_seed=3)
    order = draws.order(ROWS, 3)
    assert np.array_equal(held, np.sort(order[:21])) and np.array_equal(train, np.sort(order[21:]))


class Later(Source):
    """Nothing knows how many examples it has."""

    info = Info(counted=False)

    def __len__(self):
        return ROWS

    def __getitem__(self, indices):
        return (indices,)

    def subset(self, rows):
        return rows


def test_rows_that_are_drawn_later_go_to_other_processes():
    drawn = pickle.loads(pickle.dumps(divided(Later(), Holdout())))
    assert whole([part() for part in drawn])
    assert all(map(np.array_equal, [part() for part in drawn], Holdout().rows(ROWS)))


@pytest.mark.parametrize("split", [None, "random", "classes", {"by": "group"}])
def test_folds_hold_out_every_row_once(split):
    folds = [parts(split=split, folds=5, fold=fold) for fold in range(5)]
    assert all(map(whole, folds))
    held = np.concatenate([held for _, held in folds])
    assert np.array_equal(np.sort(held), np.arange(ROWS))
    assert all(12 <= len(held) <= 29 for _, held in folds)


def test_classes_have_the_same_share_in_both_parts():
    train, held = parts(split="classes", validation_split=0.2)
    assert whole((train, held)) and len(held) == 21
    assert np.bincount(CLASSES[held], minlength=4).tolist() == [12, 6, 3, 0]
    counts = [np.bincount(CLASSES[parts(split="classes", folds=3, fold=k)[1]]) for k in range(3)]
    assert all(count[:3].tolist() == [20, 10, 4] for count in counts)


def test_rows_of_a_group_stay_together():
    train, held = parts(split={"by": "group"}, validation_split=0.3)
    assert whole((train, held)) and not set(GROUPS[train]) & set(GROUPS[held])
    assert abs(len(held) - 0.3 * ROWS) < 6
    assert not np.array_equal(held, parts(split={"by": "group"}, split_seed=1)[1])


def test_dates_are_divided_in_the_order_of_time():
    train, held = parts(split={"by": "day"}, validation_split=0.25)
    assert whole((train, held)) and DATES[train].max() < DATES[held].min()
    ends = [parts(split={"by": "day"}, folds=4, fold=fold) for fold in range(4)]
    assert all(DATES[train].max() < DATES[held].min() for train, held in ends)
    assert [len(train) for train, _ in ends] == sorted(len(train) for train, _ in ends)


FORMS = ("%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y %H:%M", "%m/%d/%y", "%d %B %Y", "%Y-%m", "%GW%V")


@pytest.mark.parametrize("form", FORMS)
def test_dates_that_are_text_are_divided_in_the_order_of_time(form):
    days = DATES.astype(object)
    if form == FORMS[-2]:  # months
        days = [date(2020 + number % 7, 1 + number % 12, 1) for number in range(ROWS)]
    cells = np.array([day.strftime(form) for day in days], object)
    keys = {"split": {"by": "day", "ordered": True}, "validation_split": 0.25}
    moments = np.array([datetime.fromisoformat(str(day)) for day in days])
    if form == FORMS[-1]:  # weeks
        moments = np.array([np.dot(day.isocalendar()[:2], (100, 1)) for day in moments])
    for more in ({}, {"folds": 4, "fold": 1}):
        train, held = Holdout(**keys, **more).rows(ROWS, column={"day": cells}.get)
        assert moments[train].max() < moments[held].min() and len(held)
    if form in FORMS[:-2]:
        alone = Holdout(**{**keys, "split": {"by": "day"}}).rows(ROWS, column={"day": cells}.get)
        assert moments[alone[0]].max() < moments[alone[1]].min()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"folds": 5, "fold": 5}, "dataset.fold=5 .* 0 to 4"),
        ({"fold": 2}, "dataset.fold=2 there are no folds"),
        ({"folds": 200}, "dataset.folds=200 there are 103 examples"),
        ({"split": "group"}, r"by: group"),
        ({"split": {"by": "nothing"}}, "no such column"),
        ({"split": {"by": "one"}}, "1 different values"),
        ({"split": {"by": "gaps"}}, "2 cells .* the first in row 2"),
        ({"split": {"by": "one", "ordered": True}}, "too many rows have one value"),
        ({"split": {"by": "words", "ordered": True}}, "'g12' is no date and no number"),
        ({"split": {"by": "open"}}, 'may be a date as .*columns={open "%d/%m/%Y"}'),
        ({"split": {"by": "wrong"}}, "row 103 'soon' is no date"),
        ({"validation_split": 0.999}, "leaves none of 103"),
    ],
)
def test_what_cannot_be_divided_is_refused(keys, message):
    gaps = np.where(np.isin(np.arange(ROWS), [1, 4]), np.nan, 1.0)
    texts = np.array([f"0{1 + row % 9}/0{1 + row % 7}/2026" for row in range(ROWS)], object)
    wrong = np.array([*(f"2026-01-{10 + n % 20}" for n in range(ROWS - 1)), "soon"], object)
    columns = {"one": np.ones(ROWS), "gaps": gaps, "words": GROUPS, "open": texts, "wrong": wrong}
    with pytest.raises(UsageError) as error:
        Holdout(**keys).rows(ROWS, lambda: CLASSES, columns.get)
    text = str(error.value).replace("\n", " ").replace(": ", " ")
    assert re.search(message.replace(": ", " "), text), text


def test_cross_validation_as_a_sweep(dtrain):
    folds = ["dataset.folds=3", "dataset.fold=range(3)", "trainer.epochs=1", "tracking=none"]
    run = dtrain("-m", *folds, "model=mlp")
    assert run.code == 0, run.output
    values = [float(value) for value in re.findall(r"FINISHED  val_accuracy (\S+)", run.output)]
    [line] = [line for line in run.output.splitlines() if line.startswith("mean: ")]
    mean, deviation = map(float, re.findall(r"val_accuracy (\S+) .* of (\S+) \(", line)[0])
    assert len(values) == 3 and "3 runs that differ in dataset.fold" in line
    assert abs(mean - np.mean(values)) < 1e-3 and abs(deviation - np.std(values, ddof=1)) < 1e-2
