from __future__ import annotations

import itertools

import pytest

# dtrain.task imports TensorFlow, hence the marks.


@pytest.mark.task
def test_sums_add_up_in_float64() -> None:
    import numpy as np

    from dtrain.task.backends.metric_sums import Sums

    total = Sums()
    part = Sums([np.array([1.0, 2.0], np.float32), np.float32(3.0)], {"a": 1.5}, 4)
    total.add(part)
    total.add(part)
    assert [state.tolist() for state in total.states] == [[2.0, 4.0], 6.0]
    assert (total.returned, total.examples) == ({"a": 3.0}, 8)
    total.add(Sums([np.zeros(2), np.zeros(())], {"b": 1.0}, 1))
    assert (total.returned, total.examples) == ({"a": 3.0, "b": 1.0}, 9)
    assert (part.states[0].tolist(), part.returned, part.examples) == ([1.0, 2.0], {"a": 1.5}, 4)

    long = Sums([np.array(2.0**24)])  # where float32 stops to count
    long.add(Sums([np.array(1.0, np.float32)]))
    assert long.states[0] == 2**24 + 1


@pytest.mark.task
@pytest.mark.parametrize("how", ["calls", "single steps", "appended"])
def test_the_sums_do_not_depend_on_the_calls(how: str) -> None:
    import numpy as np

    from dtrain.task.backends.metric_sums import Sums

    generator = np.random.default_rng(0)
    # Of sizes so different that float64 rounds at nearly every addition.
    values = generator.standard_normal((200, 2, 3)) * 10.0 ** generator.integers(-9, 9, (200, 1, 1))
    returned = values[:, 0, 0] * 3

    def call(first: int, last: int) -> Sums:
        part = slice(first, last)
        steps = last - first
        return Sums.of_steps([values[part]], {"a": returned[part]}, steps * 8, steps)

    whole = Sums()
    whole.add(call(0, 200))
    other = Sums()
    borders = [0, 1, 2, 17, 64, 65, 130, 199, 200]
    if how == "single steps":
        borders = list(range(201))
    for first, last in itertools.pairwise(borders):
        if how == "appended":
            sums = Sums()
            for step in range(first, last):
                sums.append(Sums([values[step]], {"a": returned[step]}, 8, 1))
            other.add(sums)
        else:
            other.add(call(first, last))
    assert np.array_equal(whole.states[0], other.states[0])
    assert whole.returned == other.returned
    assert (other.examples, other.steps) == (1600, 200)

    in_parts = values[:100].sum(axis=0) + values[100:].sum(axis=0)
    assert not np.array_equal(in_parts, whole.states[0]), "the order does matter for these"
    np.testing.assert_allclose(whole.states[0], in_parts, rtol=1e-9)


@pytest.mark.task
def test_sums_are_split_between_steps() -> None:
    import numpy as np

    from dtrain.task.backends.metric_sums import Sums

    whole = Sums.of_steps([np.arange(10.0).reshape(5, 2)], {"a": np.arange(5.0)}, 40, 5)
    assert list(whole.split([])) == [whole]
    parts = list(whole.split([1, 4]))
    assert [part.steps for part in parts] == [1, 3, 1]
    assert [part.examples for part in parts] == [8, 24, 8]
    assert [part.states[0].tolist() for part in parts] == [[0, 1], [12, 15], [8, 9]]
    assert [part.returned for part in parts] == [{"a": 0.0}, {"a": 6.0}, {"a": 4.0}]
    total = Sums()
    for part in parts:
        total.add(part)
    assert total.states[0].tolist() == whole.states[0].tolist()
    assert (total.returned, total.examples, total.steps) == (whole.returned, 40, 5)
