"""Where the jobs of a sweep come from: listed, or drawn by a search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dtrain.data.draws import Stream
from dtrain.errors import OK, UsageError
from dtrain.run.outcome import Outcome
from dtrain.sweep.space import Choice, Dimension, Interval, read
from dtrain.sweep.state import Record


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
        """Hear of a new value of a job's objective, and say whether to give the job up."""
        return False

    def report(self, number: int, outcome: Outcome) -> None:
        """Hear how a job ended."""


class Random(Source):
    """Jobs drawn without regard to one another, so all are known before the first runs.

    (Bergstra and Bengio 2012, "Random search for hyper-parameter optimization".)

    Args:
        words: of the command line, in Hydra's grammar (:mod:`dtrain.sweep.space`).
        trials: how many jobs.
        seed: of the draws; job n is a function of the seed and n alone.

    Raises:
        UsageError: there is nothing to choose.
    """

    def __init__(self, words: Sequence[str], trials: int, seed: int):
        fixed, dimensions = read(words)
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
        startup: so many jobs are drawn at random first, and none is given up before as many ended.
        pruning: give a job up whose best objective so far is worse than the median of those of the
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
        self._fixed, self._dimensions = read(words)
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
        """Say whether to give job ``number`` up at an objective of ``value``."""
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
