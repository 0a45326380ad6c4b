"""Every key of the schema, with values that it cannot have: made from the schema itself."""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import math
import sys
from typing import Any

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dtrain.config import check, data_forms, objective, schema
from dtrain.config.node import seconds
from dtrain.config.schema import strategies
from dtrain.config.presets import launchers
from dtrain.config.ranges import Each, Form, Range, rule
from dtrain.errors import UsageError
from tests.test_schema import GIVEN, node

#: Where the fields of each class stand, and the overrides that put them there.
PLACES: dict[type, tuple[str, tuple[str, ...]]] = {
    schema.Config: ("", ()),
    strategies.Mesh: ("strategy.mesh", ("strategy=hybrid",)),
    **{
        kind: (key, ())
        for key, kind in {
            "hardware": schema.Hardware, "trainer": schema.Trainer,
            "checkpoint": schema.Checkpointing,
            "sweep": schema.Sweep, "init": schema.Init, "finetune": schema.FineTuning,
        }.items()
    },
}  # fmt: skip
#: Options that have the schema of another name.
OPTIONS = {
    "strategy=Strategy": "strategy=mirrored",
    "strategy=MultiWorker": "strategy=multiworker",
    "strategy=ParameterServer": "strategy=ps",
    "strategy=FullySharded": "strategy=fsdp",
    "strategy=MeshStrategy": "strategy=hybrid",
    "strategy=LayerPlacement": "strategy=layer_placement",
    "strategy=Tpu": "strategy=tpu",
    "launcher=launcher": "launcher=local",
    "action=action": "action=train",
    "debug=debug": "debug=one_batch",
    "tracking=tracking": "tracking=mlflow",
}
for _group, _kinds in schema.SCHEMAS.items():
    for _name, _kind in _kinds.items():
        _word = OPTIONS.get(f"{_group}={_name}", f"{_group}={_name}")
        PLACES[_kind] = (_group.replace("/", "."), (_word, *GIVEN.get(_word, ())))

FIELDS = [
    pytest.param(kind, field, id=f"{kind.__name__}.{field.name}")
    for kind in PLACES
    for field in dataclasses.fields(kind)
]
NUMBERS: list[Any] = [math.nan, math.inf, -math.inf, 10**30, -(10**30)]
TEXTS: list[Any] = ["", " ", "a\nb", "a\0b", "x" * 10**6, "\x1b[31m", "a\u2028b"]
NODES: list[Any] = [[], {}, [1], {"a": 1}]


#: Forms of nodes of which any text is one.
NAMES = (data_forms.ARRAYS, data_forms.COLUMNS, data_forms.PATHS)
#: What is wrong elsewhere, and one of these forms.
RIGHT: list[tuple[Form, list[Any]]] = [
    (forms.DURATION, [3]),
    (objective.STOPPING, [3]),
    (forms.LOSS, [{"a": None}]),
    (forms.METRICS, [[], [[]], {"a": []}, {"a": None}]),
    (forms.LOSS_WEIGHTS, [[3], {"a": 1}, {"a": None}]),
    (data_forms.WEIGHTS, [{"a": 1}]),
    (data_forms.SKIP_ROWS, [3, [3]]),
    (launchers.POD_SPEC, [{"a": 1}, {"a": None}, {"a": []}]),
    (launchers.OPTIONS, [{"a": 1}]),
]


@functools.cache
def base(words: tuple[str, ...]) -> Any:
    return node(*words)


def wrong(kind: type, field: dataclasses.Field[Any]) -> list[Any]:
    """Return values of other kinds, out of range, huge and empty."""
    found, text = rule(field), str(field.type)
    first = text.split(" | ")[0]
    bad: list[Any] = [] if "None" in text or first == "Any" else [None]
    if first in ("int", "float"):
        assert isinstance(found, Range), f"{kind.__name__}.{field.name} has no range"
        bad += ["x", "", True, *NODES, *NUMBERS]
        bad += [math.nextafter(found.low, -math.inf), math.nextafter(found.high, math.inf)]
        if first == "int":
            bad += [found.low - 1, found.high + 1, 1.5]
        bad += [found.low] * found.above + [found.high] * found.below
    elif first == "str":
        assert isinstance(found, Form), f"{kind.__name__}.{field.name} has no form"
        bad += [each for each in TEXTS if each != " " or field.name != "separator"]
        bad += NODES
    elif first.startswith("list"):
        assert isinstance(found, Each), f"{kind.__name__}.{field.name} has no rule for its items"
        items: list[Any] = [None, "", "a\0", {"a": 1}, [[]]]
        # What a shell takes, it says; and a column may have any name.
        items += ["("] * (field.name not in ("setup", "inputs"))
        items += [] if text.startswith("list[str]") else NUMBERS  # which are texts there
        bad += ["x", 3, math.nan, True, {"a": 1}, *([item] for item in items)]
        bad += [[1] * 5000] * (field.name != "inputs")  # a table may have as many columns
        bad += [[]] if found.least else []
        if isinstance(found.rule, Range):
            bad += [[found.rule.low - 1], [found.rule.high + 1], ["x"], [1.5], [True]]
    elif isinstance(found, Each):  # of texts and numbers
        bad += ["x", 3, math.nan, True, {"a": 1}, [None], [{"a": 1}], [[[]]], [], [1] * 5000]
    elif first == "Any":
        assert isinstance(found, Form), f"{kind.__name__}.{field.name} has no form"
        right = next((values for form, values in RIGHT if form == found), [])
        several: list[Any] = [3, math.nan, "", [], [3], {"a": 1}, [[]], {"a": None}, {"a": []}]
        bad += [each for each in several if each not in right]
        bad += [True, "x" * 10**6, *([] if found in NAMES else ["a b"])]
    elif first == "Switch":
        bad += ["maybe", "True", "", 0, 1, 0.5, math.nan, [], *NODES]
    elif first == "bool":
        bad += ["maybe", "", 0.5, math.nan, *NODES]
    elif isinstance(field.default, enum.Enum) or isinstance(
        getattr(sys.modules[kind.__module__], first, None), enum.EnumType
    ):
        bad += ["nothing", "", 99, math.nan, *NODES]
    else:
        assert field.name in {place for place, _ in PLACES.values()} | {"mesh"}
        bad += [3, "x", [], math.nan]
    return bad


@pytest.mark.parametrize(("kind", "field"), FIELDS)
def test_no_wrong_value_is_taken(kind: type, field: dataclasses.Field[Any]) -> None:
    prefix, words = PLACES[kind]
    key = f"{prefix}.{field.name}" if prefix else field.name
    given = wrong(kind, field)
    assert len(given) >= 4
    config = copy.deepcopy(base(words))  # once: a copy takes longer than a check
    for value in given:
        try:
            OmegaConf.update(config, key, value, merge=False)
        except OmegaConfBaseException:
            continue  # another kind: Hydra refuses it as this does
        with pytest.raises(UsageError) as caught:
            values.check(config)
            pytest.fail(f"{key}={value!r} was taken")
        text = str(caught.value)
        assert text.startswith(key), text
        assert "\n" not in text
        assert len(text) < 1000


@pytest.mark.parametrize(("kind", "field"), FIELDS)
def test_the_bounds_are_taken(kind: type, field: dataclasses.Field[Any]) -> None:
    prefix, words = PLACES[kind]
    key = f"{prefix}.{field.name}" if prefix else field.name
    found, text = rule(field), str(field.type)
    good: list[Any] = [None] if "None" in text else []
    if isinstance(found, Range):
        low = math.nextafter(found.low, math.inf) if found.above else found.low
        high = math.nextafter(found.high, -math.inf) if found.below else found.high
        good += [int(low), int(high)] if text.startswith("int") else [low, high]
    elif field.name in ("units", "filters", "size") and isinstance(found, Each):
        assert isinstance(found.rule, Range)
        bounds = [int(found.rule.low), int(found.rule.high)]
        good += [(bounds * found.least)[: max(found.least, 1)], bounds]
    config = copy.deepcopy(base(words))
    for value in good:
        OmegaConf.update(config, key, value, merge=False)
        values.check(config)


def test_every_schema_has_its_place() -> None:
    known = {kind for group in schema.SCHEMAS.values() for kind in group.values()}
    assert known <= set(PLACES)
    for kind in PLACES:
        for field in dataclasses.fields(kind):
            assert wrong(kind, field)


def test_a_node_without_a_schema_is_held_to_that_of_its_target() -> None:
    words = ("model=custom", "model._target_=dtrain.models.mlp")
    for added in ("+model.units=[-1]", "+model.units=8", "+model.dropout=x", "+model.l2=nan"):
        with pytest.raises(UsageError, match=added.partition("=")[0].lstrip("+")):
            values.check(node(*words, added))


@pytest.mark.parametrize(
    "value", [math.nan, [1, math.inf], {"a": {"b": -math.inf}}, 2**63, "a\0b", "x" * 10**6]
)
def test_values_of_arguments_that_nobody_knows(value: Any) -> None:
    config = node("model=custom", "model._target_=mine.build")
    OmegaConf.update(config, "model.width", value, force_add=True)
    with pytest.raises(UsageError, match=r"^model\.width"):
        values.check(config)


def test_nesting_ends() -> None:
    config, value = node("model=custom", "model._target_=mine.build"), {"a": 1}
    for _ in range(40):
        value = {"a": value}  # type: ignore[dict-item]
    OmegaConf.update(config, "model.width", value, force_add=True)
    with pytest.raises(UsageError, match="is nested more than"):
        values.check(config)
