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
)
from dtrain.config.schema.training import Loss, Metrics

NODE = {"_target_": "keras.losses.Huber"}
GOOD: list[tuple[Any, list[Any]]] = [
    (Files, ["a.csv", "shards/*.parquet", "with space.csv", ["a", "b"]]),
    (ColumnNames, ["age", "with space", ["a", "b"], {"a": "x", "b": ["y", "z"], "c": {"d": "e"}}]),
    (Images, [{"image": [64, 64, 3]}, {"a": [1, 1, 1], "b": [16384, 1, 3]}]),
    (Pad, [
        {"tokens": {"length": 128}}, {"a.b": {"buckets": [8, 16], "value": -1}},
        {0: {"length": 1, "value": 0.5}}, {"x": {"length": 3, "value": "[PAD]"}},
        {"x": {"length": 3, "value": ""}}, {"x": {"length": 3, "value": True}},
    ]),
    (Members, [{"a": {"_target_": "dtrain.datasets.digits"}}]),
    (Weights, [{"a": 1}, {"a": 0.25, "b": 1e-9}]),
    (Loss, [
        "mse", NODE, ["mse", None, NODE], {"a": "mse", "b": NODE, "c": None},
        {"_target_": "mine.loss", "weight": {"deep": 1}},
    ]),
    (Metrics, [
        "accuracy", NODE, [], ["accuracy", NODE], [["accuracy"], [NODE, "auc"], []],
        {"a": "accuracy", "b": ["auc", NODE], "c": NODE, "d": None, "e": []},
    ]),
    (Features, [{"x": {"dtype": "float32"}, "y": {"dtype": "int64", "shape": [None, 2]}}]),
]  # fmt: skip
BAD: list[tuple[Any, list[Any]]] = [
    (Files, [3, "", [], ["a", ""], ["a", 3], "a\nb", {"a": "b"}]),
    (ColumnNames, [3, [], {}, [["a"]], {"a": 1}, {"a": {"b": []}}, {1: "a"}]),
    (Images, [
        {}, [64, 64, 3], *({"a": a} for a in ([64, 64], [0, 1, 3], ["x", 1, 3], [64.5, 64, 3])),
    ]),
    (Pad, [
        128, {}, {"": {"length": 1}}, {True: {"length": 1}},
        *({"a": a} for a in (
            None, 128, {}, {"length": 1, "buckets": [1]}, {"length": 0}, {"length": 1.5},
            {"buckets": []}, {"buckets": 8}, {"length": 1, "pad": 2}, {"length": True},
        )),
        *({"a": {"length": 1, "value": value}} for value in (math.nan, None, [1])),
    ]),
    (Members, [{}, [NODE], {"a": 3}, {"a": {"path": "x"}}, {"a": None}]),
    (Weights, [[1, 2], {}, *({"a": a} for a in (0, -1, math.inf, None, "x"))]),
    (Loss, [{}, [], {"a": 3}, "a b", {"a": {"weight": 1}}, {"a": ["mse"]}, {3: "mse"}]),
    (Metrics, [
        3, {}, [3], "a b", {"a": {"b": "mse"}}, [{"a": "mse"}],
        ["mse"] * 1001, [[["mse"]] * 1001],
    ]),
    (Features, [{}, {"a": {"dtype": "int32"}}, {"a": {"dtype": "int64", "shape": {}}}]),
]  # fmt: skip


def checked(form: Any, value: Any) -> None:
    strict = ConfigDict(strict=True, allow_inf_nan=False)
    TypeAdapter(form, config=strict).validate_python(value)


@pytest.mark.parametrize(("form", "good"), GOOD)
def test_what_a_form_takes_and_its_own_example(form: Any, good: list[Any]) -> None:
    [mark] = [each for each in form.__metadata__ if isinstance(each, Form)]
    assert mark.example is not None
    for value in (*good, yaml.safe_load(mark.example.replace("NAME", "name"))):
        checked(form, value)


@pytest.mark.parametrize(("form", "value"), [(f, v) for f, values in BAD for v in values])
def test_what_a_form_does_not_take(form: Any, value: Any) -> None:
    with pytest.raises(ValidationError):
        checked(form, value)
