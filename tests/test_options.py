"""Keys of every dataset: divided from those of its function, and which of them make another run."""

from __future__ import annotations

import pytest

from dtrain.config import schema
from dtrain.config.schema import datasets
from dtrain.data import options
from dtrain.data.options import OnError, Options, Shuffle
from dtrain.run import identity
from tests.test_schema import composed

NODE = {"_target_": "dtrain.datasets.digits", "validation_split": 0.2, "split_seed": 0}


def test_a_node_is_divided() -> None:
    assert options.divided({**NODE, **schema.defaults(datasets.Dataset)}) == (NODE, Options())
    given = {
        "shuffle": "blocks", "window": 3, "on_error": "skip", "balance": True, "workers": 2,
        "pad": {"x": {"length": 3}}, "augment": {"_target_": "dtrain.augment.shift_flip"},
        "accept_changes": True,
    }  # fmt: skip
    made = {**given, "shuffle": Shuffle.blocks, "on_error": OnError.skip}
    assert options.divided({**NODE, **given}) == (NODE, Options(**made))
    assert options.divided({"_target_": "x", "shuffle": None})[1].shuffle is Shuffle.auto


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
