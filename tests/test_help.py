"""The help of keys: ``--help KEY``, the reference, editors."""

from __future__ import annotations

import pytest

from dtrain.config import schema
from dtrain.config.help import help_of, keys, sentences
from dtrain.config.node import Plain
from dtrain.sweep import options
from tests.test_schema import KINDS

SCOPES = {"data", "numbers", "length", "host", "record", "command"}


@pytest.mark.parametrize("kind", [*KINDS, options.Optuna], ids=lambda kind: kind.__name__)
def test_every_field_has_help_and_a_scope(kind: Plain) -> None:
    texts = sentences(kind)
    assert set(texts) == set(kind.model_fields)
    assert all(text.endswith(".") for text in texts.values())
    assert {schema.scope_of(kind, name).of for name in kind.model_fields} <= SCOPES


def test_every_key_can_be_asked_for() -> None:
    assert {"seed", "trainer", "trainer.epochs", "strategy.mesh.model", "model.units",
            "optimizer.schedule.alpha", "sweep.parallel"} <= set(keys())  # fmt: skip
    for key in keys():
        assert help_of(key).accepted and help_of(key).help, key


def test_help_has_what_a_user_types() -> None:
    assert help_of("trainer.batch_size") == (
        "64", "a whole number from 1 to 1000000000", "Examples of a step, over all replicas.",
        "data",
    )  # fmt: skip
    assert help_of("hardware.kind")[:2] == ("auto", "auto, cpu, gpu, tpu")
    assert help_of("dataset.path").default is None
    assert help_of("model")[:2] == ("cnn", "cnn, custom, mlp, resnet, transformer, wide_deep")
    assert "cosine" in help_of("optimizer/schedule").accepted
    assert help_of("model.dropout").default == "0.25"  # of the default option, the CNN
