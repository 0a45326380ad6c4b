"""Keys of a configuration that make another run, and those that do not."""

from __future__ import annotations

import pytest

from dtrain.run import identity
from tests.test_schema import composed


@pytest.mark.parametrize(
    ("words", "makes_another_run"),
    [
        *((word, True) for word in (
            "dataset.shuffle=none", "dataset.window=4", "dataset.balance=true",
            "dataset.pad={x:{length:3}}", "dataset.on_error=skip", "dataset.task=regression",
            "dataset.validation_split=0.3", "trainer.loss_weights={a:2}", "trainer.metrics=mae",
        )),
        ("dataset.workers=2", False), ("dataset.accept_changes=true", False),
    ],
)  # fmt: skip
def test_which_words_make_another_run(words: str, makes_another_run: bool) -> None:
    base, other = (identity.fingerprints(composed(*given)) for given in ((), (words,)))
    assert (base != other) == makes_another_run


def test_a_single_metric_is_a_list_of_one() -> None:
    one, other = (composed(f"trainer.metrics={value}") for value in ("mae", "[mae]"))
    assert identity.fingerprints(one) == identity.fingerprints(other)
