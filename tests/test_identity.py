"""What a run is: the same for the same numbers, another for others."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dtrain.config import tree
from dtrain.run import identity
from tests.configs import parsed
from tests.test_schema import EXPERIMENTS, composed

FILE = Path("config.yaml")
RUN = ("model=mlp", "dataset=synthetic", "trainer.callbacks=[{_target_:keras.callbacks.History}]")


@functools.cache
def identified(*overrides: str) -> tuple[dict[str, str], str]:
    config = composed(*RUN, *overrides)
    return identity.fingerprints(config), identity.config_hash(config)


def changed(*overrides: str) -> set[str]:
    """Return the keys whose fingerprint the overrides change; one hash of all changes with them."""
    (before, one), (after, other) = identified(), identified(*overrides)
    assert before.keys() == after.keys() == set(identity.fixed())
    found = {key for key in before if before[key] != after[key]}
    assert (one != other) == bool(found)
    return found


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("model.units=[8]", "model"),
        ("+model.extra=1", "model"),
        ("dataset.noise=2", "dataset"),
        ("dataset.augment={_target_:dtrain.augment.flip}", "dataset"),
        ("trainer.batch_size=8", "trainer.batch_size"),
        ("trainer.steps_per_epoch=8", "trainer.steps_per_epoch"),
        ("optimizer.learning_rate=0.1", "optimizer"),
        ("optimizer/schedule=cosine", "optimizer"),
        ("seed=1", "seed"),
        ("trainer.loss=mse", "trainer.loss"),
        ("trainer.gradient_reduction=sum", "trainer.gradient_reduction"),
        ("trainer.metrics=[mae]", "trainer.metrics"),
        ("trainer.callbacks=[]", "trainer.callbacks"),
        ("hardware.precision=mixed_float16", "hardware.precision"),
    ],
)
def test_each_part_has_a_hash_of_its_own(override: str, key: str) -> None:
    assert changed(override) == {key}


def test_what_does_not_change_the_numbers_is_not_in_it() -> None:
    others = (
        "trainer.epochs=99", "strategy=mirrored", "strategy=multiworker", "hardware=cpu",
        "hardware.devices=1", "tracking=none", "checkpoint.keep=9", "launcher=inline",
        "name=x", "output_dir=/x",
        "objective=loss", "objective_mode=min", "resume=x", "fork=x", "dry_run=true",
        "trainer.log_every_steps=3", "trainer.validation_freq=3", "trainer.deterministic=true",
    )  # fmt: skip
    assert changed(*others) == set()


@pytest.mark.parametrize(
    "words", [RUN, ["hardware.precision=mixed_float16"], *([e] for e in EXPERIMENTS)]
)
def test_the_file_of_a_run_has_the_same(words: Sequence[str], tmp_path: Path) -> None:
    """Enumerations are names there, and there are no types."""
    config = composed(*words)
    (tmp_path / "config.yaml").write_text(tree.to_yaml(config))
    read = tree.read(tmp_path / "config.yaml")
    assert identity.fingerprints(read) == identity.fingerprints(config)
    assert identity.config_hash(read) == identity.config_hash(config)


def model(**values: Any) -> str:
    node = parsed({"model": values.pop("of", None) or values}, FILE)
    return identity.fingerprints(node)["model"]


def test_what_a_hash_is_of() -> None:
    assert model(a=1, b=2) == model(b=2, a=1)
    assert model(a=[1, 2]) != model(a=[2, 1])
    assert model(a=float("nan")) == model(a=float("nan"))
    assert model(a=None) != model(a="None")
    assert model(of={0: 1, "a": {1.5: 2, True: 3}}) != model(of={0: 1, "a": {1.5: 2, True: 4}})
    assert model(a=1) == model(a=1) != model(a=True)
    nothing = identity.fingerprints(parsed({}, FILE))
    assert set(nothing) == set(identity.fixed())
    assert nothing["model"] == nothing["optimizer"] == identity._hash(None)


def test_a_value_is_plain() -> None:
    config = composed(*RUN)
    assert identity.value(config, "hardware.precision") == "float32"
    assert identity.value(config, "trainer.metrics") == ["auto"]
    assert identity.value(config, "dataset")["_target_"] == "dtrain.datasets.synthetic"
    assert identity.value(config, "no.such.key") is None


def test_another_process_finds_the_same() -> None:
    """Where sets and texts are in another order."""
    code = (
        "import json; from tests.configs import parsed; "
        "from dtrain.run import identity; "
        "c = parsed({'model': {'b': 'x', 'a': [1.5, None]}, 'seed': 3}); "
        "print(json.dumps(identity.fingerprints(c)))"
    )
    ours = identity.fingerprints(parsed({"model": {"a": [1.5, None], "b": "x"}, "seed": 3}, FILE))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60,
        env={**os.environ, "PYTHONHASHSEED": "7"},
    )  # fmt: skip
    assert json.loads(done.stdout) == ours


@pytest.mark.parametrize(
    ("backend", "packages"), [("tensorflow", {"tensorflow"}), ("jax", {"jax", "jaxlib"})]
)
def test_versions(backend: str, packages: set[str]) -> None:
    versions = identity.versions(backend)
    assert set(versions) == {"dtrain", "keras", "numpy", *packages}
    assert all(text[0].isdigit() for text in versions.values())
