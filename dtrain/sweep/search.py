"""Where the jobs of a sweep come from: listed, or drawn by a search.

A search chooses from what the overrides of its command line name, by Hydra's grammar:

=============================================  =================================================
``model=mlp,cnn`` ``optimizer.beta_1=choice(0.8,0.9)``   one of these
``model.dropout=interval(0,0.5)``              a number, evenly
``optimizer.learning_rate=tag(log,interval(1e-4,1e-1))``  a number, its logarithm evenly
``model.width=int(interval(16,256))``          a whole number, both ends included
=============================================  =================================================
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override

from dtrain.config import explain
from dtrain.data.draws import Stream
from dtrain.errors import OK, UsageError, refuse
from dtrain.run.outcome import Outcome
from dtrain.sweep.state import Record


@dataclasses.dataclass(frozen=True)
class Choice:
    """One of several values.

    Attributes:
        key: of the configuration.
        values: as they stand on the command line.
    """

    key: str
    values: tuple[str, ...]

    def draw(self, generator: Stream) -> str:
        """Return one of them, all alike."""
        return self.values[generator.integers(len(self.values))]


@dataclasses.dataclass(frozen=True)
class Interval:
    """A number between two.

    Attributes:
        key: of the configuration.
        low, high: bounds.
        log: evenly in its logarithm.
        whole: a whole number; then both bounds are possible.
    """

    key: str
    low: float
    high: float
    log: bool = False
    whole: bool = False

    def draw(self, generator: Stream) -> str:
        """Return a number as text."""
        # A whole number stands for all that round to it, so that the bounds are as likely.
        margin = 0.5 if self.whole else 0.0
        low, high = self.low - margin, self.high + margin
        if self.log:
            value = math.exp(generator.uniform(math.log(low), math.log(high)))
        else:
            value = generator.uniform(low, high)
        return self.text(value)

    def text(self, value: float) -> str:
        """Return ``value`` as it stands on the command line, a number with six digits."""
        if self.whole:
            return str(min(max(round(value), int(self.low)), int(self.high)))
        return f"{value:.6g}"


Dimension = Choice | Interval


def read_space(typed: Sequence[str]) -> tuple[list[str], list[Dimension]]:
    """Sort the overrides of a search into those that hold for every job and those to choose.

    Args:
        typed: overrides in Hydra's grammar; of two with one key the later holds.

    Returns:
        (the fixed overrides, the dimensions), each in order.

    Raises:
        UsageError: nothing is left to choose, or an interval is empty.
    """
    overrides: dict[str, Override] = {}
    for override in OverridesParser.create().parse_overrides(list(typed)):
        overrides[override.get_key_element().lstrip("+")] = override
    fixed, dimensions = [], []
    for override in overrides.values():
        if override.is_sweep_override():
            explain.number(override)
            dimensions.append(_dimension(override))
        else:
            fixed.append(override.input_line or "")
    if not dimensions:
        refuse("hydra/sweeper", "there is nothing to choose", "a search",
               accepted="at least one key with several values or an interval",
               typed="'optimizer.learning_rate=tag(log,interval(0.0001,0.1))'")  # fmt: skip
    return fixed, dimensions


def _dimension(override: Override) -> Dimension:
    key = override.get_key_element()
    if override.is_discrete_sweep():
        return Choice(key, tuple(override.sweep_string_iterator()))
    interval = override.value()
    assert isinstance(interval, IntervalSweep)
    low, high = interval.start, interval.end
    assert low is not None and high is not None
    log, shown = "log" in interval.tags, f"interval({low:g},{high:g})"
    if not all(abs(bound) <= 1e300 for bound in (low, high)):  # NaN is neither
        refuse(key, "has no end", shown, accepted="two finite numbers",
               typed=f"'{key}=interval(0,1)'")  # fmt: skip
    if log and not 0 < low < high:
        refuse(key, "has no logarithms to choose from", shown,
               accepted="a lower and a higher bound, above 0",
               typed=f"'{key}=tag(log,interval(0.001,0.1))'")  # fmt: skip
    if low >= high:
        refuse(key, "has nothing in it", shown, accepted="a lower and a higher bound",
               typed=f"'{key}=interval(0,1)'")  # fmt: skip
    return Interval(key, low, high, log, isinstance(low, int))


class Source:
    """Says which jobs there are. All of it is called from one thread, the sweep's own.

    Jobs are numbered from 0, first those of :meth:`ahead`, then those of :meth:`next`. Here all are
    known ahead, and how they go changes nothing.

    Args:
        jobs: the overrides of each.

    Attributes:
        total: how many jobs there will be at most.
        course: what has happened, for ``sweep.json``: in order ``["asked", JOB]``,
            ``["pruned", JOB, STEP]`` and ``["ended", JOB]``; None where the jobs do not depend on
            that.
    """

    def __init__(self, jobs: Sequence[Sequence[str]]):
        self._jobs = [list(job) for job in jobs]
        self.total = len(self._jobs)
        self.course: list[list[Any]] | None = None

    def ahead(self, past: Record | None) -> list[list[str]]:
        """Return the overrides of the jobs that are known: all are checked before one runs.

        Args:
            past: what earlier commands of this sweep have done; None of a new one.

        Raises:
            LookupError, TypeError, ValueError: its jobs are not what this source draws.
        """
        return self._jobs

    def next(self) -> list[str] | None:
        """Return the overrides of one job more, for which there is room now.

        None: of no more for now. It is asked again when something has happened; when no job runs
        either, the sweep has ended.
        """
        return None

    def aim(self, mode: str) -> None:
        """Hear which objective is better, ``max`` or ``min``, before any value of one."""

    def judge(self, number: int, step: int, value: float) -> bool:
        """Hear of a new value of a job's objective, and say whether to prune the job."""
        return False

    def report(self, number: int, outcome: Outcome) -> None:
        """Hear how a job ended."""


class Random(Source):
    """Jobs drawn without regard to one another, so all are known before the first runs.

    (Bergstra and Bengio 2012, "Random search for hyper-parameter optimization".)

    Args:
        words: of the command line, in Hydra's grammar.
        trials: how many jobs.
        seed: of the draws; job n is a function of the seed and n alone.

    Raises:
        UsageError: there is nothing to choose.
    """

    def __init__(self, words: Sequence[str], trials: int, seed: int):
        fixed, dimensions = read_space(words)
        jobs = []
        for number in range(trials):
            generator = Stream(seed, number)
            jobs.append([*fixed, *(f"{d.key}={d.draw(generator)}" for d in dimensions)])
        super().__init__(jobs)


class Tpe(Source):
    """Jobs chosen by how those before them went: Optuna's tree-structured Parzen estimator.

    (Bergstra et al. 2011, "Algorithms for hyper-parameter optimization"; Akiba et al. 2019,
    "Optuna".) With several jobs at once the choice also depends on which of them ends first.

    Args:
        words, trials: as of :class:`Random`.
        seed: of Optuna's own draws.
        maximize: which objective is better, as far as that is known: see :meth:`aim`.
        startup: so many jobs are drawn at random first, and none is pruned before as many ended.
        pruning: prune a job whose best objective so far is worse than the median of those of the
            others at the same step (Optuna's ``MedianPruner``).

    Raises:
        UsageError: Optuna is not installed, or as :class:`Random`.
    """

    def __init__(
        self, words: Sequence[str], trials: int, seed: int, maximize: bool, startup: int,
        pruning: bool,
    ):  # fmt: skip
        super().__init__(())
        self._optuna = _optuna()
        self._fixed, self._dimensions = read_space(words)
        self._distributions = {each.key: self._distribution(each) for each in self._dimensions}
        pruners = self._optuna.pruners
        self._study = self._optuna.create_study(
            direction="maximize" if maximize else "minimize",
            sampler=self._optuna.samplers.TPESampler(seed=seed, n_startup_trials=startup),
            pruner=pruners.MedianPruner(startup) if pruning else pruners.NopPruner(),
        )
        self._maximize, self._sign = maximize, 1
        self._trials: list[Any] = []  # Optuna's, by the job's number
        self._ended: set[int] = set()  # of which the study has learned
        self._pruned: set[int] = set()
        self.total = trials
        self.course: list[list[Any]] = []

    def _distribution(self, dimension: Dimension) -> Any:
        kinds = self._optuna.distributions
        if isinstance(dimension, Choice):
            return kinds.CategoricalDistribution(dimension.values)
        if dimension.whole:
            return kinds.IntDistribution(int(dimension.low), int(dimension.high), dimension.log)
        return kinds.FloatDistribution(dimension.low, dimension.high, dimension.log)

    def ahead(self, past: Record | None) -> list[list[str]]:
        """Return the jobs of a sweep that is resumed; others are chosen when there is room.

        The study goes through all that it went through: what it draws next, and what it prunes,
        depends on each draw, value and end before, and on their order.
        """
        jobs: list[list[str]] = []
        if past is None:
            return jobs
        for event, number, *step in past.course:
            job = past.jobs[number]
            if event == "asked":
                jobs.append(self.next() or [])
                drawn = [word for word in jobs[-1][len(self._fixed) :] if "${" not in word]
                if odd := [word for word in drawn if word not in job["overrides"]]:
                    raise ValueError(f"{odd[0]} of job {number}; another Optuna may draw otherwise")
            elif event == "pruned":
                self._hear(number, [each for each in past.values(number) if each[0] <= step[0]])
                self._prune(number, *step)
            else:
                if number not in self._pruned:
                    self._hear(number, past.values(number))
                outcome = Outcome(OK, job["objective"], pruned=bool(job.get("pruned")))
                self.report(number, outcome)
        for number, job in enumerate(past.jobs):
            if number in self._ended | self._pruned:
                continue
            if job["status"] == "FINISHED":
                self._hear(number, past.values(number))
            else:
                any(self.judge(number, *each) for each in past.values(number))
        return jobs

    def next(self) -> list[str] | None:
        """Return the overrides of the next job, None after the last."""
        if len(self._trials) == self.total:
            return None
        trial = self._study.ask(self._distributions)
        self.course.append(["asked", len(self._trials)])
        self._trials.append(trial)
        return [*self._fixed, *(f"{d.key}={_text(d, trial)}" for d in self._dimensions)]

    def aim(self, mode: str) -> None:
        """Hear which objective is better, ``max`` or ``min``.

        A study has one direction from its beginning: where it turns out to be the other, it is
        given the negatives of all values.
        """
        self._sign = 1 if (mode == "max") == self._maximize else -1

    def judge(self, number: int, step: int, value: float) -> bool:
        """Say whether to prune job ``number`` at an objective of ``value``."""
        if number not in self._pruned:  # else: how many more values come is the clock's
            self._hear(number, [(step, value)])
            if self._trials[number].should_prune():
                self._prune(number, step)
        return number in self._pruned

    def _hear(self, number: int, values: Sequence[tuple[int, float]]) -> None:
        heard = self._study.get_trials(deepcopy=False)[number].intermediate_values
        for step, value in values:
            if step not in heard:  # a job that is resumed repeats some
                self._trials[number].report(self._sign * value, step)

    def _prune(self, number: int, step: int) -> None:
        self._pruned.add(number)
        self.course.append(["pruned", number, step])

    def report(self, number: int, outcome: Outcome) -> None:
        """Learn from how job ``number`` ended: nothing where it failed, and may be run again."""
        states, trial = self._optuna.trial.TrialState, self._trials[number]
        if number in self._ended:  # under an earlier command
            return
        if outcome.pruned:
            self._study.tell(trial, state=states.PRUNED)
        elif outcome.objective is None or not math.isfinite(outcome.objective) or outcome.exit_code:
            self._study.tell(trial, state=states.FAIL)
            return
        else:
            self._study.tell(trial, self._sign * outcome.objective)
        self._ended.add(number)
        self.course.append(["ended", number])


def _text(dimension: Dimension, trial: Any) -> str:
    value = trial.params[dimension.key]
    return dimension.text(value) if isinstance(dimension, Interval) else str(value)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise UsageError("hydra/sweeper", "Optuna is not installed", "optuna",
                         hint="pip install 'dtrain[search]' or "
                         "hydra/sweeper=random") from None  # fmt: skip
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
