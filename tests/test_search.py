"""Searches: which jobs they ask for, and what they learn."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain.errors import UsageError
from dtrain.run import journal
from dtrain.run.outcome import Outcome
from dtrain.sweep.search import Choice, Interval, Random, Tpe, read_space
from dtrain.sweep.state import Record
from tests.quick import outcome

WORDS = ["trainer.epochs=2", "x=interval(-10,10)", "kind=good,bad"]


def test_random_jobs_are_a_function_of_seed_and_number() -> None:
    few, many = Random(WORDS, 3, 0), Random(WORDS, 5, 0)
    assert few.total == 3
    assert few.ahead(None) == many.ahead(None)[:3]
    assert few.ahead(None) != Random(WORDS, 3, 1).ahead(None)
    assert len({tuple(job) for job in many.ahead(None)}) == 5
    assert all(job[0] == "trainer.epochs=2" for job in many.ahead(None))


def tpe(trials: int = 40, startup: int = 8, maximize: bool = False, pruning: bool = True) -> Tpe:
    return Tpe(WORDS, trials, 0, maximize, startup, pruning)


def value(job: list[str]) -> float:
    """Least at x=3 with the good kind."""
    words = dict(word.lstrip("+").split("=") for word in job)
    return (float(words["x"]) - 3) ** 2 + (50 if words["kind"] == "bad" else 0)


def follow(search: Tpe, sign: float = 1) -> list[list[str]]:
    jobs: list[list[str]] = []
    while (job := search.next()) is not None:
        search.report(len(jobs), Outcome(0, sign * value(job)))
        jobs.append(job)
    return jobs


@pytest.mark.parametrize(("maximize", "late"), [(False, False), (True, False), (True, True)])
def test_tpe_goes_where_the_objective_is_better(maximize: bool, late: bool) -> None:
    search = tpe(maximize=maximize)
    if late:  # the first job has chosen a loss
        search.aim("min")
        maximize = False
    jobs = follow(search, -1 if maximize else 1)
    assert len(jobs) == search.total == 40
    first, last = [[value(job) for job in part] for part in (jobs[:8], jobs[-8:])]
    assert sum(last) < 0.5 * sum(first)
    assert min(value(job) for job in jobs) < 1


def test_tpe_asks_for_several_jobs_before_the_first_is_done() -> None:
    search = tpe(trials=3)
    assert [search.next() is None for _ in range(4)] == [False, False, False, True]
    for number in (2, 0, 1):
        search.report(number, Outcome(0, float(number)))


def test_what_is_worse_than_the_median_is_given_up() -> None:
    search = tpe(trials=4, startup=2)
    for number in range(4):
        assert search.next() is not None
        if number < 2:
            assert not search.judge(number, 10, 1.0)
            search.report(number, Outcome(0, 1.0))
    assert search.judge(2, 10, 5.0)
    assert not search.judge(3, 10, 0.5)
    search.report(2, Outcome(75, 5.0, pruned=True))
    search.report(3, Outcome(0, 0.4))


def test_nothing_is_given_up_without_pruning() -> None:
    search = tpe(trials=3, startup=1, pruning=False)
    for number in range(2):
        search.next()
        assert not search.judge(number, 10, float(number))
        search.report(number, Outcome(0, float(number)))
    search.next()
    assert not search.judge(2, 10, 1e9)


@pytest.mark.parametrize("objective", [None, float("nan")])
def test_a_job_that_failed_teaches_nothing_and_stops_nothing(objective: float | None) -> None:
    search = tpe(trials=2)
    search.next()
    search.report(0, Outcome(1, objective))
    assert search.next() is not None


def run_until(search: Tpe, record: Record, parallel: int, turns: int) -> None:
    """Run jobs of five values each, until a kill: alone, before the last value is heard."""
    search.ahead(record if record.jobs else None)
    record.data["course"] = search.course
    for turn in range(1, turns + 1):
        while len(record.left) < parallel and (words := search.next()) is not None:
            (record.folder / str(len(record.jobs))).mkdir()
            record.add(len(record.jobs), words, None)
        values = {}
        for number in [job["number"] for job in record.left]:
            path = record.folder / str(number) / "journal.jsonl"
            step = min(len(journal.read(path)) + 1, 5)
            values[number] = step, value(record.jobs[number]["overrides"]) + 10 / step
            journal.Journal(path).write("metrics", step=step, metrics={"loss": values[number][1]})
        if turn == turns and parallel == 1:
            break
        pruned = [number for number, last in values.items() if search.judge(number, *last)]
        for number, (step, last) in values.items():
            if number in pruned or step == 5:
                end = {"status": "KILLED", "exit_code": 75} if number in pruned else {}
                ended = outcome(objective=last, pruned=number in pruned, **end)
                record.ended(number, ended)
                search.report(number, ended)


@pytest.mark.parametrize("parallel", [1, 2])
def test_a_killed_search_draws_and_prunes_what_an_undisturbed_one_does(
    parallel: int, tmp_path: Path
) -> None:
    results: list[Any] = []
    begun = {"objective": "loss", "objective_mode": "min", "jobs": []}
    words = ["trainer.epochs=2", "++x=interval(-10,10)", "+kind=choice(good,bad)"]
    for kill in (0, 2, 17, 23, 30, 31, 32):
        (tmp_path / str(kill)).mkdir()
        record = Record(tmp_path / str(kill), json.loads(json.dumps(begun)))
        for turns in (kill, 100):
            run_until(Tpe(words, 15, 0, False, 3, True), record, parallel, turns)
            record = Record(record.folder, json.loads(json.dumps(record.data)))
        assert len(record.jobs) == 15 and not record.left
        results.append([*(job["overrides"] for job in record.jobs), record.data["course"]])
        assert results[-1] == results[0]
    assert sum(job.get("pruned", False) for job in record.jobs) > 2


def test_a_search_that_draws_otherwise_is_refused(tmp_path: Path) -> None:
    jobs = [{"number": 0, "overrides": ["x=1"], "status": "WAITING", "objective": None}]
    with pytest.raises(ValueError, match=r"x=.* of job 0"):
        tpe().ahead(Record(tmp_path, {"jobs": jobs, "objective": None, "course": [["asked", 0]]}))


def test_without_optuna_one_sentence_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UsageError, match=r"Optuna is not installed.*dtrain\[search\]"):
        tpe()


# --- what it chooses from


def test_words_are_sorted_into_fixed_ones_and_dimensions() -> None:
    fixed, dimensions = read_space([
        "trainer.epochs=3", "model=mlp,cnn", "+model.width=int(interval(16,256))",
        "optimizer.learning_rate=tag(log,interval(1e-4,1e-1))", "model.dropout=interval(0,1)",
        "seed=range(3)",
    ])  # fmt: skip
    assert fixed == ["trainer.epochs=3"]
    assert dimensions == [
        Choice("model", ("mlp", "cnn")), Interval("+model.width", 16, 256, whole=True),
        Interval("optimizer.learning_rate", 1e-4, 1e-1, log=True),
        Interval("model.dropout", 0.0, 1.0), Choice("seed", ("0", "1", "2")),
    ]  # fmt: skip


def test_of_two_words_with_one_key_the_later_holds() -> None:
    fixed, dimensions = read_space(["seed=1,2", "trainer.epochs=3", "seed=5,6", "trainer.epochs=4"])
    assert fixed == ["trainer.epochs=4"]
    assert dimensions == [Choice("seed", ("5", "6"))]


def drawn(dimension: Choice | Interval, count: int = 4000) -> list[str]:
    generator = np.random.default_rng(0)
    return [dimension.draw(generator) for _ in range(count)]


def test_whole_numbers_reach_both_bounds_as_often_as_any_other() -> None:
    found = [int(value) for value in drawn(Interval("k", 1, 4, whole=True))]
    assert np.bincount(found, minlength=5)[1:] == pytest.approx([1000] * 4, rel=0.1)


def test_an_interval_is_drawn_from_evenly() -> None:
    found = [float(value) for value in drawn(Interval("k", 2.0, 6.0))]
    assert min(found) >= 2 and max(found) < 6 and np.mean(found) == pytest.approx(4, abs=0.1)
    found = [math.log10(float(value)) for value in drawn(Interval("k", 1e-4, 1e-2, log=True))]
    assert min(found) >= -4 and max(found) <= -2 and np.mean(found) == pytest.approx(-3, abs=0.05)
    assert set(drawn(Choice("k", ("a", "b", "c")), 100)) == {"a", "b", "c"}


def test_numbers_are_short() -> None:
    assert Interval("k", 0, 1).text(0.123456789) == "0.123457"
    assert Interval("k", 1, 8, whole=True).text(8.4) == "8"
