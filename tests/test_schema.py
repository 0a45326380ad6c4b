"""The configuration: every preset composes, every key is typed, every key is read."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf, open_dict

from dtrain import datasets
from dtrain.config import load, schema, targets, values
from dtrain.run import strategy_plan
from tests import warm

CONF = schema.folder("conf")
PRESETS = sorted(
    f"{path.parent.relative_to(CONF)}={path.stem}"
    for path in CONF.rglob("*.yaml")
    if path.parent != CONF and path.parent.name != "rules"  # which follow the model
)
EXPERIMENTS = sorted(f"experiment={p.stem}" for p in schema.folder("experiments").glob("*.yaml"))
#: What presets leave to the person.
GIVEN = {
    "model=custom": ["model._target_=keras.applications.MobileNetV2"],
    "dataset=custom": ["dataset._target_=dtrain.datasets.digits"],
    "dataset=csv": ["dataset.path=x.csv"],
    "dataset=npz": ["dataset.path=x.npz"],
    "dataset=image_folder": ["dataset.path=x"],
}


def composed(*overrides: str) -> schema.Config:
    """Return what code reads."""
    return load.typed(node(*overrides))


def checked(config: Any) -> None:
    """Check what was composed."""
    values.check(config)
    targets.check(targets.plain(config))


def node(*overrides: str) -> Any:
    """Return what Hydra composes."""
    schema.register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        whole = compose("config", list(overrides), return_hydra_config=True)
        HydraConfig.instance().set_config(whole)
        with open_dict(whole):
            del whole["hydra"]  # which took a copy of it
        OmegaConf.resolve(whole)
        return whole


@pytest.mark.parametrize("preset", [*PRESETS, *EXPERIMENTS])
def test_every_preset_composes_and_passes_the_checks(preset: str) -> None:
    config = node(preset, *GIVEN.get(preset, []))
    checked(config)
    schema.refuse_unknown(config)


def test_there_are_presets() -> None:
    assert {"strategy=mirrored", "optimizer/schedule=cosine", "launcher=inline"} <= set(PRESETS)
    assert EXPERIMENTS


@pytest.mark.parametrize("name", schema.SCHEMAS["dataset"])
def test_dataset_schemas_are_their_functions(name: str) -> None:
    fields = {f.name for f in dataclasses.fields(schema.SCHEMAS["dataset"][name])}
    assert fields - {"_target_", "augment"} == set(
        inspect.signature(getattr(datasets, name)).parameters
    )


def parameters(targets: list[str]) -> dict[str, list[str]]:
    from dtrain.config.targets import locate

    return {t: list(inspect.signature(locate(t, "key")).parameters) for t in targets}


def test_the_other_schemas_are_their_functions() -> None:
    kinds = {
        kind()._target_: {f.name for f in dataclasses.fields(kind)} - {"_target_"}
        for group in ("model", "optimizer", "optimizer/schedule")
        for kind in schema.SCHEMAS[group].values()
    }
    found = warm.call(parameters, 1, {"targets": list(kinds)})
    derived = {"learning_rate", "total_steps", "steps_per_epoch"}
    for target, fields in kinds.items():
        takes = set(found[target])
        if "optimizers" in target:
            assert fields - {"schedule"} <= takes
            assert takes - fields <= {"name", "kwargs"}
        elif "schedules" in target:
            assert fields == takes - derived
        else:
            assert fields == takes


@pytest.mark.parametrize("name", sorted(path.stem for path in (CONF / "strategy").glob("*.yaml")))
def test_keys_of_a_strategy_are_for_the_plan_or_for_its_class(name: str) -> None:
    config = composed(f"strategy={name}")
    target = config.strategy._target_
    rest = set(strategy_plan.options(config)) - {"_target_"}
    takes = set(warm.call(parameters, 1, {"targets": [target]})[target])
    assert rest == takes - {"devices", "cluster", "task"}


def test_defaults_of_conf_are_complete() -> None:
    """Every key of the schemas stands, with its comment, where a person looks for it."""
    for group in ("hardware", "trainer", "tracking"):
        first = {"hardware": "auto", "trainer": "default", "tracking": "mlflow"}[group]
        written = OmegaConf.load(CONF / group / f"{first}.yaml")
        kind = {"hardware": schema.Hardware, "trainer": schema.Trainer,
                "tracking": schema.Tracking}[group]  # fmt: skip
        assert set(written) - {"defaults"} == {f.name for f in dataclasses.fields(kind)}
