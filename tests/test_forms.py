"""Forms of nodes and texts: what a key may hold, and a clause about what it may not."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import yaml

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
    each.__metadata__[0]
    for each in (Files, ColumnNames, Images, Pad, Members, Weights, Loss, Metrics, Features)
)
NODE = {"_target_": "keras.losses.Huber"}
GOOD: list[tuple[Form, list[Any]]] = [
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
BAD: list[tuple[Form, list[tuple[Any, str]]]] = [
    (PATHS, [
        (3, "is not a text"), ("", "is empty"), ([], "has 0 items"), (["a", ""], "is empty"),
        (["a", 3], "3 is not a text"), ("a\nb", "cannot be printed"), ({"a": "b"}, "not a text"),
    ]),
    (COLUMNS, [
        (3, "is not a text"), ([], "has 0 items"), ({}, "is empty"), ([["a"]], "not a text"),
        ({"a": 1}, "a: 1 is not a text"), ({"a": {"b": []}}, "has 0 items"), ({1: "a"}, "1: a"),
    ]),
    (IMAGES, [
        ({}, "is empty"), ([64, 64, 3], "is no mapping"), ({"a": [64, 64]}, "has 2 items"),
        ({"a": [0, 1, 3]}, "at least 1"), ({"a": ["x", 1, 3]}, "is not a number"),
        ({"a": [64.5, 64, 3]}, "64.5 is not a whole number"),
    ]),
    (PAD, [
        (128, "is no mapping"), ({}, "is empty"), ({"a": None}, "is no mapping"),
        ({"a": 128}, "has other keys than length"),
        ({"a": {}}, "has not one of length and buckets"),
        ({"a": {"length": 1, "buckets": [1]}}, "has not one of"),
        ({"a": {"length": 0}}, "at least 1"), ({"a": {"length": 1.5}}, "is not a whole number"),
        ({"a": {"buckets": []}}, "has 0 items"), ({"a": {"buckets": 8}}, "is not a list"),
        ({"a": {"length": 1, "pad": 2}}, "has other keys"),
        ({"a": {"length": 1, "value": math.nan}}, r"wrong value \(is not a number"),
        ({"a": {"length": 1, "value": None}}, "is not a number"),
        ({"a": {"length": 1, "value": [1]}}, "is not a number"),
        ({"a": {"length": True}}, "is not a number"), ({"": {"length": 1}}, "is empty"),
        ({True: {"length": 1}}, "is not a text"),
        ({"a": {"length": 1, "value": "a\0"}}, "cannot be printed"),
    ]),
    (MEMBERS, [
        ({}, "is empty"), ([NODE], "is no mapping"), ({"a": 3}, "a: 3 is not a node"),
        ({"a": {"path": "x"}}, "has no _target_"), ({"a": None}, "is no mapping"),
    ]),
    (WEIGHTS, [
        ([1, 2], "is no mapping"), ({}, "is empty"), ({"a": 0}, "must be above 0"),
        ({"a": -1}, "must be above 0"), ({"a": math.inf}, "is not a number"),
        ({"a": None}, "is no mapping"), ({"a": "x"}, "is not a number"),
    ]),
    (LOSS, [
        ({}, "is empty"), ([], "is empty"), ({"a": 3}, "a: 3 is not a node"), ("a b", "not a name"),
        ({"a": {"weight": 1}}, "has no _target_"), ({"a": ["mse"]}, "is not a node"),
        ({3: "mse"}, "is not a text"),
    ]),
    (METRICS, [
        (3, "is not a node"), ({}, "is empty"), ([3], "3 is not a node"), ("a b", "is not a name"),
        ({"a": {"b": "mse"}}, "has no _target_"), ([{"a": "mse"}], "has no _target_"),
        (["mse"] * 1001, "names 1,001 metrics"), ([[["mse"]] * 1001], "names 1,001 metrics"),
    ]),
    (FEATURES, [
        ({}, "is empty"), ({"a": {"dtype": "int32"}}, "is none of string, int64"),
        ({"a": {"dtype": "int64", "shape": {}}}, r"wrong shape \(is not a list"),
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("form", "value"), [(f, v) for f, values in GOOD for v in values])
def test_what_is_taken(form: Form, value: Any) -> None:
    assert form.problem(value) is None


@pytest.mark.parametrize(
    ("form", "value", "text"), [(f, v, text) for f, values in BAD for v, text in values]
)
def test_what_is_not(form: Form, value: Any, text: str) -> None:
    problem = form.problem(value)
    assert problem is not None
    assert re.search(text, problem), problem
    assert len(problem) < 200


@pytest.mark.parametrize("form", [form for form, _ in GOOD])
def test_every_form_has_an_example_of_itself(form: Form) -> None:
    assert form.example is not None
    assert form.problem(yaml.safe_load(form.example.replace("NAME", "name"))) is None
