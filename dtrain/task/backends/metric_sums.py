"""What metrics add up to, to the same bits however many steps one call ran."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping

import numpy as np


class Sums:
    """What metrics have added up over some steps.

    Metric states are kept as sums on the host, in float64, and never across steps in TensorFlow's
    variables: a long float32 sum loses digits, and several strategies cannot update one variable
    from many replicas. So the state of a metric must add up, as that of every Keras metric does;
    of one that does not, the results are averaged
    (:mod:`dtrain.task.backends.unsummed`).

    How many steps run in one call depends on the clock. Sums must not: they are made one step
    after the other, in this order, so that two runs of the same steps have the same bits.

    Args:
        states: one array for each metric variable of the model.
        returned: what the steps returned by name, each value times the rows it stands for.
        examples: how many examples (rows) in all.
        steps: how many training steps.
    """

    def __init__(
        self, states: Iterable[np.ndarray] = (), returned: Mapping[str, float] | None = None,
        examples: int = 0, steps: int = 0,
    ):  # fmt: skip
        self.states = [np.asarray(state, np.float64) for state in states]
        self.returned = dict(returned or {})
        self.examples = examples
        self.steps = steps
        #: What each step added, as (states, returned) with the step as first axis; None:
        #: nothing is known of single steps.
        self._by_step: _Known | None = None

    @classmethod
    def of_steps(
        cls, states: Iterable[np.ndarray], returned: Mapping[str, np.ndarray], examples: int,
        steps: int,
    ) -> Sums:  # fmt: skip
        """Return the sums over ``k`` steps, of which each is known.

        Args:
            states: for each metric variable ``[k, *shape]``.
            returned: by name ``[k]``.
            examples, steps: as of the class.
        """
        sums = cls([], {}, examples, steps)
        sums._by_step = [np.asarray(s, np.float64) for s in states], dict(returned)
        sums._accumulate(*sums._by_step)
        return sums

    def add(self, other: Sums) -> None:
        """Add ``other`` to this one, in place, step by step where its steps are known."""
        self._by_step = None
        self._accumulate(*other._steps())
        self.examples += other.examples
        self.steps += other.steps

    def append(self, other: Sums) -> None:
        """Add ``other``, and keep what is known of each step."""
        behind = other._steps()
        if self.examples == 0:
            before = behind
        else:
            states, returned = self._steps()
            before = (
                [np.concatenate(pair) for pair in zip(states, behind[0], strict=True)],
                {name: np.concatenate([returned[name], behind[1][name]]) for name in returned},
            )
        self.add(other)
        self._by_step = before

    def split(self, borders: Iterable[int]) -> Iterator[Sums]:
        """Yield the sums between the borders, steps counted from 0, each of as many examples.

        Without a border that is this object, of which nothing need be known of single steps.
        """
        edges = [0, *borders, self.steps]
        if len(edges) == 2:
            yield self
            return
        states, returned = self._steps()
        for first, last in itertools.pairwise(edges):
            yield Sums.of_steps(
                [state[first:last] for state in states],
                {name: values[first:last] for name, values in returned.items()},
                self.examples * (last - first) // self.steps,
                last - first,
            )

    def _steps(self) -> _Known:
        if self._by_step is not None:
            return self._by_step
        returned = {name: np.array([value]) for name, value in self.returned.items()}
        return [state[None] for state in self.states], returned

    def _accumulate(self, states: list[np.ndarray], returned: dict[str, np.ndarray]) -> None:
        self.states = [
            _running(self.states[i] if self.states else np.zeros(state.shape[1:]), state)
            for i, state in enumerate(states)
        ] or self.states
        for name, values in returned.items():
            start = np.array(self.returned.get(name, 0.0))
            self.returned[name] = float(_running(start, values))


_Known = tuple[list[np.ndarray], dict[str, np.ndarray]]


def _running(start: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Add ``steps`` ``[k, ...]`` to ``start`` ``[...]``, in order."""
    if len(steps) == 1:
        return np.asarray(start + steps[0])
    # Not np.sum, which adds in pairs.
    return np.asarray(np.cumsum(np.concatenate([start[None], steps]), axis=0)[-1])
