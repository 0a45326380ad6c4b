"""``--help KEY``: every key of the schema has a type, a default, and a line of help."""

from __future__ import annotations

import dataclasses

import pytest

from dtrain.config import schema, suggest
from dtrain.config.schema import strategies
from dtrain.config.presets import datasets, models, optimizers
from dtrain.controller.sweep import options
from dtrain.errors import UsageError

CLASSES = sorted(
    (
        kind
        for module in (schema, models, datasets, optimizers, strategies, options)
        for kind in vars(module).values()
        if isinstance(kind, type)
        and dataclasses.is_dataclass(kind)
        and kind.__module__ == module.__name__
    ),
    key=lambda kind: kind.__name__,
)


@pytest.mark.parametrize("kind", CLASSES)
def test_every_field_has_one_line_of_help_and_every_line_a_field(kind: type) -> None:
    assert set(groups.lines(kind)) == {field.name for field in dataclasses.fields(kind)}
    assert [name for name, text in groups.lines(kind).items() if not text.endswith(".")] == []


@pytest.mark.parametrize("key", groups.keys())
def test_every_key_can_be_asked_for(key: str) -> None:
    found = groups.help_of(key)
    assert found.type and found.accepted and found.help


def test_keys_are_of_the_whole_of_sections_and_of_options() -> None:
    known = groups.keys()
    assert {"seed", "trainer", "trainer.epochs", "strategy.mesh.model", "model.units",
            "optimizer.schedule.alpha", "sweep.parallel"} <= set(known)  # fmt: skip


def test_help_has_what_a_user_types() -> None:
    assert groups.help_of("trainer.batch_size") == (
        "whole number", "64", "1 to 1000000000", "examples of a step, over all replicas."
    )  # fmt: skip
    assert groups.help_of("hardware.kind")[:3] == (
        "one of several names", "auto", "auto, cpu, gpu, tpu"
    )  # fmt: skip
    assert groups.help_of("trainer.steps_per_epoch").default == "null"
    assert groups.help_of("trainer.callbacks").type == "list"
    assert groups.help_of("trainer.metrics")[:2] == ("any value", "auto")
    assert groups.help_of("dataset.path").default is None
    assert groups.help_of("checkpoint").accepted == "checkpoint.KEY=VALUE"


def test_a_group_lists_its_options() -> None:
    found = groups.help_of("model")
    assert found[:3] == ("group", "cnn", "cnn, custom, mlp, resnet, transformer, wide_deep")
    assert groups.help_of("optimizer/schedule") == groups.help_of("optimizer.schedule")
    assert "cosine" in groups.help_of("optimizer.schedule").accepted


def test_the_default_option_of_a_group_answers_for_its_key() -> None:
    assert groups.help_of("model.dropout").default == "0.25"  # of the CNN
    assert groups.help_of("optimizer.momentum").type == "number"  # of SGD alone


def test_an_unknown_key_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="there is no such key"):
        groups.help_of("trainer.epoch")
    for key in ("trainer.epoch", "max_epochs", "epochs"):
        assert suggest.of_help(key) == "python -m dtrain --help trainer.epochs"
    assert suggest.of_help("lr") == "python -m dtrain --help optimizer.learning_rate"
    assert suggest.of_help("mirrored") == "python -m dtrain --help strategy"
    assert suggest.of_help("zzzqq") is None
