"""The zoo: models as users have them, on one device and on several, beside Keras' own ``fit``."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

NAMES = sorted(
    path.stem
    for path in (Path(__file__).parent / "zoo").glob("*.py")
    if path.stem not in ("__init__", "data", "parts")
)
#: Strategy and its devices, beside one_device.
SEVERAL = {
    "mirrored 2": ("Mirrored", 2),
    "mirrored 4": ("Mirrored", 4),
    "central 2": ("CentralStorage", 2),
}
STEPS = 40
#: Of a number of a step, relative to its size and to 1.
CLOSE = 1e-5


def configured(name: str) -> Any:
    from tests.test_steps import settings

    of = importlib.import_module(f"tests.zoo.{name}")
    return settings(
        model={"_target_": f"tests.zoo.{name}.model"},
        dataset={"_target_": f"tests.zoo.data.{getattr(of, 'DATA', 'points')}"},
        optimizer={"_target_": "keras.optimizers.SGD", "learning_rate": 0.05, "momentum": 0.9},
        trainer=getattr(of, "TRAINER", {"loss": "mse", "metrics": []}),
    )


def trained(name: str, kind: str, devices: int) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Return the numbers of each step, and those of a validation after them."""
    import keras

    from dtrain.task import build
    from tests.test_steps import prepare

    keras.utils.clear_session()
    model, _, steps, splits = prepare(kind, devices, configured(name))
    found = [steps.results(steps.train(1)) for _ in range(STEPS)]
    if not build.evaluates(model):
        return found, {}
    full, rest = divmod(len(splits.validation), steps.evaluation_examples)
    sums = steps.evaluate(full, rest)
    return found, steps.results(sums)


def worst(found: dict[str, float], expected: dict[str, float]) -> tuple[float, str]:
    assert found.keys() == expected.keys()
    return max(
        ((abs(found[k] - v) / max(1.0, abs(v)), k) for k, v in expected.items()),
        default=(0.0, ""),
    )


@pytest.mark.task(devices=4)
@pytest.mark.parametrize("name", NAMES)
def test_replicas_agree(name: str) -> None:
    one, validation = trained(name, "OneDevice", 1)
    differ = []
    for what, (kind, devices) in SEVERAL.items():
        found, validated = trained(name, kind, devices)
        for step, (a, b) in enumerate(zip(found, one, strict=True)):
            if (of := worst(a, b))[0] > CLOSE:
                differ.append((what, f"step {step}", *of, a, b))
                break
        if (of := worst(validated, validation))[0] > CLOSE:
            differ.append((what, "validation", *of, validated, validation))
    assert not differ, "\n".join(map(str, differ))
