"""Forms of nodes and texts: what a key may hold, and what it may not."""

from __future__ import annotations

import math
from typing import Any

import pytest
import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError

from dtrain.config.fields import Form
from dtrain.config.schema.datasets import (
    ColumnNames,
    Features,
    Files,
    Images,
    Members,
    Pad,
    Weights,
)  # fmt: skip
from dtrain.config.schema.training import Loss, Metrics

PATHS, COLUMNS, IMAGES, PAD, MEMBERS, WEIGHTS, LOSS, METRICS, FEATURES = (
    Files, ColumnNames, Images, Pad, Members, Weights, Loss, Metrics, Features
)  # fmt: skip
NODE = {"_target_": "keras.losses.Huber"}
GOOD: list[tuple[Any, list[Any]]] = [
    (PATHS, ["a.csv", "shards/*.parquet", "with space.csv", ["a", "b"]]),
    (COLUMNS, ["age", "with space", ["a", "b"], {"a": "x", "b": ["y", "z"], "c": {"d": "e"}}]),
    (IMAGES, [{"image": [64, 64, 3]}, {"a": [1, 1, 1], "b": [16384, 1, 3]}]),
    (PAD, [
        {"tokens": {"length": 128}}, {"a.b": {"buckets": [8, 16], "value": -1}},
        {0: {"length": 1, "value": 0.5}}, {"x": {"length": 3, "value": "[PAD]"}},
        {"x": {"length": 3, "value": ""}}, {"x": {"length": 3, "value": True}},
    ]),
    (MEMBERS, [{"a": {"_target_": "dtrain.datasets.digits"}}]),
    (WEIGHTS, [{"a": 1}, {"a": 0.25, "b": 1e-9}]),
    (LOSS, [
        "mse", NODE, ["mse", None, NODE], {"a": "mse", "b": NODE, "c": None},
        {"_target_": "mine.loss", "weight": {"deep": 1}},
    ]),
    (METRICS, [
        "accuracy", NODE, [], ["accuracy", NODE], [["accuracy"], [NODE, "auc"], []],
        {"a": "accuracy", "b": ["auc", NODE], "c": NODE, "d": None, "e": []},
    ]),
    (FEATURES, [{"x": {"dtype": "float32"}, "y": {"dtype": "int64", "shape": [None, 2]}}]),
]  # fmt: skip
BAD: list[tuple[Any, list[Any]]] = [
    (PATHS, [
        3, "", [], ["a", ""],
        ["a", 3], "a\nb", {"a": "b"},
    ]),
    (COLUMNS, [
        3, [], {}, [["a"]],
        {"a": 1}, {"a": {"b": []}}, {1: "a"},
    ]),
    (IMAGES, [
        {}, [64, 64, 3], {"a": [64, 64]},
        {"a": [0, 1, 3]}, {"a": ["x", 1, 3]},
        {"a": [64.5, 64, 3]},
    ]),
    (PAD, [
        128, {}, {"a": None},
        {"a": 128},
        {"a": {}},
        {"a": {"length": 1, "buckets": [1]}},
        {"a": {"length": 0}}, {"a": {"length": 1.5}},
        {"a": {"buckets": []}}, {"a": {"buckets": 8}},
        {"a": {"length": 1, "pad": 2}},
        {"a": {"length": 1, "value": math.nan}},
        {"a": {"length": 1, "value": None}},
        {"a": {"length": 1, "value": [1]}},
        {"a": {"length": True}}, {"": {"length": 1}},
        {True: {"length": 1}},
    ]),
    (MEMBERS, [
        {}, [NODE], {"a": 3},
        {"a": {"path": "x"}}, {"a": None},
    ]),
    (WEIGHTS, [
        [1, 2], {}, {"a": 0},
        {"a": -1}, {"a": math.inf},
        {"a": None}, {"a": "x"},
    ]),
    (LOSS, [
        {}, [], {"a": 3}, "a b",
        {"a": {"weight": 1}}, {"a": ["mse"]},
        {3: "mse"},
    ]),
    (METRICS, [
        3, {}, [3], "a b",
        {"a": {"b": "mse"}}, [{"a": "mse"}],
        ["mse"] * 1001, [[["mse"]] * 1001],
    ]),
    (FEATURES, [
        {}, {"a": {"dtype": "int32"}},
        {"a": {"dtype": "int64", "shape": {}}},
    ]),
]  # fmt: skip


def checked(form: Any, value: Any) -> Any:
    return TypeAdapter(form, config=ConfigDict(strict=True, allow_inf_nan=False)).validate_python(
        value
    )


@pytest.mark.parametrize(("form", "value"), [(f, v) for f, values in GOOD for v in values])
def test_what_is_taken(form: Any, value: Any) -> None:
    checked(form, value)


@pytest.mark.parametrize(("form", "value"), [(f, v) for f, values in BAD for v in values])
def test_what_is_not(form: Any, value: Any) -> None:
    with pytest.raises(ValidationError):
        checked(form, value)


@pytest.mark.parametrize("form", [form for form, _ in GOOD])
def test_every_form_has_an_example_of_itself(form: Any) -> None:
    [mark] = [each for each in form.__metadata__ if isinstance(each, Form)]
    assert mark.example is not None
    checked(form, yaml.safe_load(mark.example.replace("NAME", "name")))
