from __future__ import annotations

import enum
import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from dtrain import targets
from dtrain.cluster import Cluster, Task
from dtrain.errors import UsageError

SOURCE = """
import os
from os import system as imported

class Made:
    def __init__(self, **given):
        self.given = given

    @classmethod
    def other(cls, a):
        return cls(other=a)

def make(a, b=2, *, input_shape=None, classes=None):
    return {"a": a, "b": b, "input_shape": input_shape, "classes": classes}

def needs(first, second):
    return first, second

NUMBER = 3
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Offer trusted modules of a person's own: ``tmine``, and two that cannot be imported."""
    (tmp_path / "tmine.py").write_text(SOURCE)
    (tmp_path / "tbroken.py").write_text("import tabsent.module\n")
    (tmp_path / "tsyntax.py").write_text("def f(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("DTRAIN_TRUST", "tmine,tbroken,tsyntax,tnowhere")
    yield
    sys.modules.pop("tmine", None)


def refusal(call: Any, *arguments: Any) -> str:
    with pytest.raises(UsageError) as caught:
        call(*arguments)
    return str(caught.value)


def test_plain() -> None:
    colour = enum.Enum("colour", "red")
    node = OmegaConf.create({"a": 1, "b": ["${a}", {"c": colour.red}]})
    assert targets.plain(node) == {"a": 1, "b": [1, {"c": "red"}]}
    assert type(targets.plain(node)["b"]) is list
    assert targets.plain(5) == 5


@pytest.mark.parametrize(
    ("variable", "extra"),
    [(None, []), ("", []), (" a , b.c,,", ["a", "b.c"])],
)
def test_trusted(variable: str | None, extra: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DTRAIN_TRUST", raising=False)
    if variable is not None:
        monkeypatch.setenv("DTRAIN_TRUST", variable)
    assert targets.trusted() == ["dtrain", "keras", *extra]


def test_check_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTRAIN_TRUST", "tnowhere.inner")
    before = set(sys.modules)
    names = ["keras.Nothing", "dtrain.nothing.at_all", "tnowhere.inner.f"]
    targets.check({"a": [{"_target_": name, "b": "_target_"} for name in names], "c": None})
    assert set(sys.modules) == before


#: (node, the key that the message names, its value, what to type)
UNTRUSTED = {
    "top": ({"m": {"_target_": "os.system"}}, "m._target_", "os.system", "DTRAIN_TRUST=os "),
    "list": (
        {"a": [0, {"b": {"_target_": "os.path.join"}}]},
        "a[1].b._target_",
        "os.path.join",
        "DTRAIN_TRUST=os ",
    ),
    "argument": (
        {"m": {"_target_": "keras.Model", "x": {"_target_": "eval.it"}}},
        "m.x._target_",
        "eval.it",
        "DTRAIN_TRUST=eval ",
    ),
    "like a trusted one": (
        {"m": {"_target_": "kerasx.f"}}, "m._target_", "kerasx.f", "DTRAIN_TRUST=kerasx "
    ),
    "bare": ({"m": {"_target_": "keras"}}, "m._target_", "keras", "m._target_=keras."),
    "empty": ({"m": {"_target_": ""}}, "m._target_", "", "m._target_=keras."),
    "number": ({"m": {"_target_": 3}}, "m._target_", "3", "m._target_=keras."),
    "none": ({"m": {"_target_": None}}, "m._target_", "None", "m._target_=keras."),
}  # fmt: skip


@pytest.mark.parametrize("case", UNTRUSTED)
def test_check_refuses(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DTRAIN_TRUST", raising=False)
    node, key, value, typed = UNTRUSTED[case]
    message = refusal(targets.check, node)
    assert message.startswith(f"{key}={value}: "), message
    assert "dtrain, keras" in message
    assert f"type: {typed}" in message


def test_check_names_a_target_at_the_top() -> None:
    assert refusal(targets.check, {"_target_": "os.system"}).startswith("_target_=os.system: ")


def test_check_keeps_what_is_trusted_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTRAIN_TRUST", "tmine")
    message = refusal(targets.check, {"m": {"_target_": "other.f"}})
    assert "type: DTRAIN_TRUST=tmine,other " in message


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dtrain.cluster.Task", Task),
        ("dtrain.cluster.Cluster.from_json", Cluster.from_json),
        ("tmine.Made.other", None),
    ],
)
def test_locate(name: str, expected: Any) -> None:
    found = targets.locate(name, "m._target_")
    assert found == (expected or sys.modules["tmine"].Made.other)


#: (target, parts of the message)
NOT_FOUND = {
    "typing error": (
        "dtrain.cluster.Cluser",
        ["'Cluser' does not exist", "dtrain.cluster.Cluster"],
    ),
    "of a module": ("dtrain.clusters.Task", ["'clusters' does not exist"]),
    "nothing near": ("dtrain.cluster.zzz", ["'zzz' does not exist", "type: "]),
    "inside a class": ("tmine.Made.othr", ["'othr' does not exist", "=tmine.Made.other"]),
    "absent package": ("tnowhere.f", ["'tnowhere' does not exist"]),
    "empty part": ("dtrain..Task", ["'' does not exist"]),
    "no function": ("tmine.NUMBER", ["cannot be called", "type: m._target_="]),
    "a module": ("dtrain.cluster", ["cannot be called"]),
    "not trusted": ("tother.f", ["'tother' is not trusted", "type: DTRAIN_TRUST="]),
}


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize("case", NOT_FOUND)
def test_locate_refuses(case: str) -> None:
    target, parts = NOT_FOUND[case]
    message = refusal(targets.locate, target, "m._target_")
    assert message.startswith(f"m._target_={target}: "), message
    assert not [part for part in parts if part not in message], message


def test_the_nearest_name_replaces_the_wrong_part_alone() -> None:
    message = refusal(targets.locate, "dtrain.cluster.cluster", "m._target_")
    assert message.endswith("type: m._target_=dtrain.cluster.Cluster"), message


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    "target", ["dtrain.targets.os.system", "tmine.os.system", "tmine.imported"]
)
def test_a_trusted_module_does_not_lend_its_trust(target: str) -> None:
    message = refusal(targets.locate, target, "m._target_")
    assert message.startswith("m._target_="), message
    assert "is not trusted" in message and "type: DTRAIN_TRUST=" in message


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    "target",
    [
        "dtrain.targets.os.system.__call__",
        "tmine.imported.__call__",
        "tmine.os.__dict__.update",
        "tmine.Made.__subclasses__",
    ],
)
def test_special_methods_are_no_way_out(target: str) -> None:
    assert "is not trusted" in refusal(targets.locate, target, "m._target_")


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    ("target", "kind", "text"),
    [("tbroken.f", ModuleNotFoundError, "tabsent"), ("tsyntax.f", SyntaxError, "invalid syntax")],
)
def test_errors_in_a_persons_own_module_are_seen(
    target: str, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        targets.locate(target, "m._target_")


@pytest.mark.usefixtures("mine")
def test_instantiate_calls_nested_targets() -> None:
    task = {"_target_": "dtrain.cluster.Task", "role": "chief", "index": 0, "devices": 1}
    node = {"_target_": "tmine.Made", "a": [1, task], "b": {"c": task, "d": [[task]]}, "e": None}
    made = Task("chief", 0, 1)
    given = targets.instantiate(node, "m").given
    assert given == {"a": [1, made], "b": {"c": made, "d": [[made]]}, "e": None}
    assert node["a"] == [1, task], "the configuration was changed"


@pytest.mark.usefixtures("mine")
def test_instantiate_binds_a_partial() -> None:
    node = {"_target_": "tmine.make", "_partial_": True, "b": {"_target_": "tmine.Made"}}
    bound = targets.instantiate(node, "m", classes=10, other=1)
    assert isinstance(bound, functools.partial)
    assert type(bound.keywords["b"]).__name__ == "Made"
    assert bound(1)["a"] == 1 and bound(1)["classes"] == 10
    assert targets.instantiate({**node, "_partial_": False, "a": 1}, "m")["a"] == 1


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, 10), ({"classes": None}, 10), ({"classes": 5}, 5), ({"classes": 0}, 0)],
)
def test_derived_arguments_fill_what_is_left_out(given: dict[str, Any], expected: int) -> None:
    node = {"_target_": "tmine.make", "a": 1, **given}
    made = targets.instantiate(node, "m", classes=10, unknown=1)
    assert made == {"a": 1, "b": 2, "input_shape": None, "classes": expected}
    assert "classes" not in targets.instantiate({"_target_": "tmine.Made"}, "m", classes=1).given


#: (node, parts of the message)
WRONG = {
    "typing error": (
        {"_target_": "tmine.make", "a": 1, "clases": 5},
        ["m.clases=5: ", "tmine.make", "'clases'", "a, b, input_shape, classes", "m.classes=..."],
    ),
    "missing": ({"_target_": "tmine.needs"}, ["'first'", "first, second", "type: m.first=..."]),
    "in an argument": (
        {"_target_": "tmine.Made", "x": [{"_target_": "tmine.needs", "secnd": 1}]},
        ["m.x[0].secnd=1: ", "type: m.x[0].second=..."],
    ),
    "special": ({"_target_": "tmine.needs", "self": 1}, ["m.self=1: ", "first, second"]),
}


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments(case: str) -> None:
    node, parts = WRONG[case]
    message = refusal(targets.instantiate, node, "m")
    assert not [part for part in parts if part not in message], message


@pytest.mark.usefixtures("mine")
def test_the_missing_argument_is_named() -> None:
    message = refusal(targets.instantiate, {"_target_": "tmine.needs", "first": 1}, "m")
    assert message.startswith("m.second=None: ") and message.endswith("type: m.second=..."), message


@pytest.mark.usefixtures("mine")
def test_wrong_arguments_of_a_partial() -> None:
    node = {"_target_": "tmine.make", "_partial_": True, "clases": 1}
    message = refusal(targets.instantiate, node, "m")
    assert message.startswith("m.clases=1: ") and message.endswith("m.classes=..."), message


def test_a_callable_without_a_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTRAIN_TRUST", "builtins")
    assert targets.instantiate({"_target_": "builtins.dict", "a": 1}, "m", classes=2) == {"a": 1}


@pytest.mark.task
def test_everything_public_in_keras_can_be_named() -> None:
    import keras

    groups = "activations callbacks initializers layers losses metrics optimizers"
    for group in groups.split():
        module = getattr(keras, group)
        names = [n for n in dir(module) if not n.startswith("_") and callable(getattr(module, n))]
        assert names
        for name in names:
            found = targets.locate(f"keras.{group}.{name}", "m._target_")
            assert found is getattr(module, name)
    node = {
        "_target_": "keras.optimizers.SGD",
        "learning_rate": {
            "_target_": "keras.optimizers.schedules.ExponentialDecay",
            "initial_learning_rate": 0.5,
            "decay_steps": 1,
            "decay_rate": 0.5,
        },
    }
    assert float(targets.instantiate(node, "optimizer").learning_rate) == 0.5


#: Arguments of Keras' own functions, and the key that the sentence begins with.
REFUSED_BY_KERAS = [
    ("callbacks.EarlyStopping", {"patience": "x"}, "key.patience"),
    ("callbacks.EarlyStopping", {"patience": {"a": 1}}, "key.patience"),
    ("callbacks.EarlyStopping", {"restore_best_weights": "yes"}, "key.restore_best_weights"),
    ("layers.Dense", {"units": -1}, "key"),
    ("layers.Dense", {"units": 3, "activation": "nope"}, "key"),
    ("layers.Dropout", {"rate": 7}, "key"),
    ("optimizers.Adam", {"clipnorm": 1.0, "clipvalue": 1.0}, "key"),
]


@pytest.mark.task
@pytest.mark.parametrize(("name", "given", "key"), REFUSED_BY_KERAS)
def test_an_error_of_keras_is_one_of_the_values(name: str, given: dict, key: str) -> None:
    with pytest.raises(UsageError) as caught:
        targets.instantiate({"_target_": f"keras.{name}", **given}, "key")
    assert str(caught.value).startswith(f"{key}=")
    assert "\n" not in str(caught.value)


@pytest.mark.task
def test_values_that_keras_takes() -> None:
    for node in (
        {"_target_": "keras.callbacks.EarlyStopping", "patience": 3, "min_delta": 1e-3},
        {"_target_": "keras.layers.MaxPooling2D", "pool_size": 2, "strides": [2, 2]},
        {"_target_": "keras.callbacks.ModelCheckpoint", "filepath": "x.keras", "verbose": True},
        {"_target_": "keras.layers.Dropout", "rate": 0},
    ):
        assert targets.instantiate(node, "key") is not None


def test_an_error_of_a_users_own_function_stays_what_it_is(mine: None) -> None:
    with pytest.raises(ZeroDivisionError), targets.blame("model", {"a": 1}, "mine.build"):
        1 / 0  # noqa: B018
    for own in (OSError, MemoryError):
        with pytest.raises(own), targets.blame("model", {"a": 1}, "keras.Model"):
            raise own
