"""The configuration: every preset composes, every key is typed, every key is read."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf, open_dict

from dtrain.config import check, schema, targets, tree, trust
from dtrain.config.schema import datasets
from dtrain.data.holdout import Holdout
from dtrain.data.options import Options
from dtrain.run import strategy_plan
from tests import warm
from tests.strategies import OF_TENSORFLOW

CONF = schema.folder("conf")
PRESETS = sorted(
    f"{path.parent.relative_to(CONF)}={path.stem}"
    for path in CONF.rglob("*.yaml")
    if path.parent != CONF and path.parent.name != "rules"  # which follow the model
)
EXPERIMENTS = sorted(f"experiment={p.stem}" for p in schema.folder("experiments").glob("*.yaml"))
#: What presets leave to the user.
GIVEN = {
    "model=custom": ["model._target_=keras.applications.MobileNetV2"],
    "optimizer=custom": ["optimizer._target_=keras.optimizers.Lion"],
    "dataset=custom": ["dataset._target_=dtrain.datasets.digits"],
    "dataset=mixture": ["dataset.members={a:{_target_:dtrain.datasets.digits}}"],
    "dataset=tfds": ["dataset.builder=x"],
    **{f"dataset={name}": ["dataset.path=x"] for name in ("csv", "npz", "npy", "image_folder")},
    **{
        f"dataset={name}": ["dataset.path=x", "dataset.target=y", *more]
        for name, *more in (
            ("json",), ("table",), ("parquet",), ("arrow",), ("huggingface",),
            ("tfrecord", "dataset.features={x:{dtype:float32},y:{dtype:int64,shape:[]}}"),
            ("array_record", "dataset.features={a:{dtype:int64}}"),
        )
    },
}  # fmt: skip


#: All models of groups.
KINDS = list(dict.fromkeys(
    kind
    for group in ("", *schema.sections(), "strategy.mesh", *schema.SCHEMAS)
    for kind in schema.kinds(group)
) | dict.fromkeys(schema.SINKS.values()))  # fmt: skip


def composed(*overrides: str) -> tree.Config:
    """Return what code reads."""
    return tree.typed(node(*overrides))


def checked(config: Any) -> None:
    """Check what was composed."""
    check.check(config)
    trust.check(targets.plain(config))


def node(*overrides: str) -> Any:
    """Return what Hydra composes."""
    schema.register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        words = [schema.option_as_text(override) for override in overrides]
        whole = compose("config", words, return_hydra_config=True)
        HydraConfig.instance().set_config(whole)
        with open_dict(whole):
            del whole["hydra"]  # which took a copy of it
        OmegaConf.resolve(whole)
        return whole


@pytest.mark.parametrize("preset", [*PRESETS, *EXPERIMENTS])
def test_every_preset_composes_and_passes_the_checks(preset: str) -> None:
    checked(node(preset, *GIVEN.get(preset, [])))


def parameters(targets: list[str]) -> dict[str, dict[str, Any]]:
    """Return the default of each parameter of functions and classes; "???" where it has none."""

    def defaults(target: str) -> Iterator[tuple[str, Any]]:
        for each in inspect.signature(trust.locate(target, "key")).parameters.values():
            if each.name == "holdout":
                yield from dataclasses.asdict(Holdout()).items()
            else:
                yield each.name, "???" if each.default is each.empty else each.default

    return {target: dict(defaults(target)) for target in targets}


#: What a preset chooses although Keras' default is another.
CHOSEN = {"keras.optimizers.SGD.momentum": 0.0, "keras.optimizers.Adafactor.epsilon_1": 1e-30}
#: Parameters that the schema leaves to the dataset, the schedule, or the rest of the optimizer.
FILLED_IN = ("input_shape", "classes", "learning_rate", "total_steps", "steps_per_epoch")


def test_presets_have_the_keys_and_defaults_of_their_functions() -> None:
    kinds = {
        schema.target_of(kind) or "": schema.defaults(kind)
        for group in ("model", "dataset", "optimizer", "optimizer/schedule")
        for kind in schema.SCHEMAS[group].values()
    }
    found = warm.call(parameters, 1, {"targets": list(kinds)})
    differing = {}
    for target, fields in kinds.items():
        theirs = found[target]
        options = {f.name for f in dataclasses.fields(Options)} - set(theirs)
        keys = set(fields) - {"_target_", "schedule"} - options
        left_out = {"kwargs", "fitted", "encoding"} - keys
        left_out |= set(FILLED_IN[2:]) if "schedules" in target else set()
        left_out |= {"encoding"} if ".models." in target else set()
        left_out |= {"name"} if target.startswith("keras.") else set()
        assert keys == set(theirs) - left_out, target
        for key in keys:
            value = theirs[key]
            value = list(value) if isinstance(value, tuple) else getattr(value, "name", value)
            if value != fields[key] and (value != "???" or key not in FILLED_IN):
                differing[f"{target}.{key}"] = value
    assert differing == CHOSEN


def test_options_of_every_dataset_have_the_defaults_of_the_code() -> None:
    of_code = {each.name: each.default for each in dataclasses.fields(Options)}
    shown = {name: getattr(default, "name", default) for name, default in of_code.items()}
    assert schema.defaults(datasets.Dataset) == shown


#: Keys that name what the option is.
NAMED = ("_target_", "name", "plan", "rules")


def differing(preset: str) -> list[str]:
    """Return the keys whose default in ``conf/`` is not that of the schema."""
    group, _, _ = preset.partition("=")
    composed = OmegaConf.select(node(preset, *GIVEN.get(preset, [])), group.replace("/", "."))
    if composed is None or preset.endswith("=custom"):
        return []
    kind = schema.sections().get(group) or schema.kind_of(group, composed)
    assert kind is not None
    written = targets.plain(composed)
    ours = {key: value for key, value in schema.defaults(kind).items() if key not in NAMED}
    return [key for key, value in ours.items() if value not in ("???", written[key])]


#: What an option is chosen for, and what it leaves to the user.
WANTED = {
    **{f"dataset={name}": ["target", "format"] for name in ("arrow", "json", "parquet")},
    "dataset=csv": ["format"],
    "dataset=table": ["target"], "strategy=hybrid": ["mesh"], "strategy=model_parallel": ["mesh"],
    "hardware=cpu": ["kind"], "hardware=gpu": ["kind"], "hardware=tpu": ["kind", "precision"],
}  # fmt: skip


@pytest.mark.parametrize("preset", PRESETS)
def test_a_default_in_conf_is_that_of_the_schema(preset: str) -> None:
    assert differing(preset) == WANTED.get(preset, [])


def test_defaults_at_the_top_of_conf_are_those_of_the_schema() -> None:
    ours = {key: value for key, value in schema.defaults(schema.Config).items() if value != "???"}
    assert {key: value for key, value in targets.plain(node()).items() if key in ours} == ours


@pytest.mark.parametrize("name", OF_TENSORFLOW)
def test_keys_of_a_strategy_are_for_the_plan_or_for_its_class(name: str) -> None:
    config = composed(f"strategy={name}")
    target = config.strategy._target_
    rest = set(strategy_plan.options(config)) - {"_target_"}
    takes = set(warm.call(parameters, 1, {"targets": [target]})[target])
    assert rest == takes - {"devices", "cluster", "task"}


def test_defaults_of_conf_are_complete() -> None:
    """Every key of the schemas stands, with its comment, where a user looks for it."""
    for group, option in (("hardware", "auto"), ("trainer", "default"), ("tracking", "mlflow")):
        written = OmegaConf.load(CONF / group / f"{option}.yaml")
        assert set(written) - {"defaults"} == set(schema.defaults(schema.kinds(group)[0]))
