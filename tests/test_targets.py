from __future__ import annotations

import enum
import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from dtrain import datasets, errors
from dtrain.config import targets, trust
from dtrain.controller.launchers import Local
from dtrain.errors import UsageError
from dtrain.run.cluster import Cluster

SOURCE = """
import os
from os import system as imported
from dtrain.config import targets, trust

class Made:
    def __init__(self, **given):
        self.given = given

    @classmethod
    def other(cls, a):
        return cls(other=a)

def make(a, b=2, *, input_shape=None, classes=None):
    return {"a": a, "b": b, "input_shape": input_shape, "classes": classes}

def takes_none():
    return 1


def needs(first, second):
    return first, second

NUMBER = 3
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Offer trusted modules of a user's own: ``tmine``, and two that cannot be imported."""
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
    ("variable", "target", "trusted"),
    [
        ("", "mine.f", False),
        (" a , b.c,,", "a.f", True),
        (" a , b.c,,", "b.c.f", True),
        (" a , b.c,,", "b.c", True),
        (" a , b.c,,", "b.f", False),
        ("a", "ab.f", False),
        # All of Keras is not trusted by one word: a part of it is.
        ("keras,dtrain", "keras.utils.get_file", False),
        ("keras,dtrain", "dtrain.run.folder.write_text", False),
        ("keras.utils", "keras.utils.get_file", True),
        ("keras.src", "keras.src.utils.get_file", True),
        ("keras.src", "keras.saving.load_model", False),
    ],
)
def test_trusted(
    variable: str, target: str, trusted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DTRAIN_TRUST", variable)
    assert trust.is_trusted(target) is trusted


def test_check_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTRAIN_TRUST", "tnowhere.inner")
    before = set(sys.modules)
    trust.check({
        "model": {"_target_": "keras.applications.Nothing", "b": "_target_"},
        "dataset": {"_target_": "tnowhere.inner.f"}, "optimizer": None, "name": "_target_",
        "trainer": {"metrics": ["a", {"_target_": "keras.metrics.Nothing"}]},
    })  # fmt: skip
    assert set(sys.modules) == before


PLACED = "DTRAIN_TRUST="
#: (node, the key that the message names, its value, what to type)
UNTRUSTED = {
    "alone": ({"_target_": "os.system"}, "_target_", "os.system", "the configuration without"),
    "top": ({"model": {"_target_": "os.system"}}, "model._target_", "os.system", f"{PLACED}os "),
    "list": (
        {"trainer": {"callbacks": [0, {"_target_": "os.path.join"}]}},
        "trainer.callbacks[1]._target_", "os.path.join", f"{PLACED}os ",
    ),
    "argument": (
        {"model": {"_target_": "keras.Model", "x": [{"y": {"_target_": "timeit.it"}}]}},
        "model.x[0].y._target_", "timeit.it", f"{PLACED}timeit ",
    ),
    "like a trusted one": (
        {"launcher": {"_target_": "kerasx.f"}}, "launcher._target_", "kerasx.f",
        f"{PLACED}kerasx ",
    ),
    "bare": ({"model": {"_target_": "keras"}}, "model._target_", "keras", "model._target_=keras."),
    "empty": ({"model": {"_target_": ""}}, "model._target_", "", "model._target_=keras."),
    "number": ({"model": {"_target_": 3}}, "model._target_", "3", "model._target_=keras."),
    "none": ({"model": {"_target_": None}}, "model._target_", "None", "model._target_=keras."),
    "nothing is called there": (
        {"hardware": {"kind": {"_target_": "keras.layers.Dense"}}},
        "hardware.kind._target_", "keras.layers.Dense", "the configuration without",
    ),
    "of Keras' own making": (
        {"model": {"_target_": "keras.layers.Bidirectional"}},
        "model._target_", "keras.layers.Bidirectional", f"{PLACED}keras.layers.Bidirectional ",
    ),
    "an object of any module": (
        {"trainer": {"metrics": [[{"module": "os", "class_name": "system", "config": {}}]]}},
        "trainer.metrics[0][0]", "...", "trainer.metrics[0][0]={_target_:",
    ),
    "an object in an argument": (
        {"model": {"_target_": "keras.Sequential", "layers": [{"class_name": "x", "config": {}}]}},
        "model.layers[0]", "...", "model.layers[0]={_target_:",
    ),
    "an address": (
        {"model": {"_target_": "keras.Sequential", "layers": [
            {"_target_": "keras.layers.StringLookup", "vocabulary": "gs://bucket/x"}]}},
        "model.layers[0].vocabulary", "gs://bucket/x", f"{PLACED}keras.layers.StringLookup ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", UNTRUSTED)
def test_check_refuses(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DTRAIN_TRUST", raising=False)
    node, key, value, typed = UNTRUSTED[case]
    message = refusal(trust.check, node)
    assert message.startswith(f"{key}={value}: "), message
    assert f": {typed}" in message


#: Of dtrain and of Keras, where a thing of another kind is meant: a place and a name.
ELSEWHERE = {
    "model": [
        "dtrain.controller.folders.remove", "dtrain.run.folder.write_text",
        "dtrain.files.writing.write_new", "dtrain.models.layers.Lambda",
        "dtrain.host.forkserver.Process", "dtrain.models.mlp.__call__",
        "keras.models.load_model", "keras.saving.load_model", "keras.models.Model.from_config",
        "keras.Model.__init__.__globals__.x", "keras.src.utils.python_utils.func_load",
        "keras.utils.get_file", "keras.src.utils.file_utils.rmtree",
        "keras.src.utils.file_utils.copy", "keras.config.enable_unsafe_deserialization",
        "keras.Sequential.load_weights", "keras._tf_keras.keras.models.load_model",
        "keras.applications.os.remove", "keras.models.model_from_json", "keras.layers.Dense",
    ],
    "dataset": [
        "dtrain.datasets.existing_file", "dtrain.datasets.gzip.open",
        "keras.utils.image_dataset_from_directory", "dtrain.data.text.text",
    ],
    "dataset.augment": [
        "keras.utils.get_file", "dtrain.augment.tf.io.write_file",
    ],
    "strategy": [
        "dtrain.task.backends.tensorflow.base.Strategy", "dtrain.models.mlp",
    ],
    "launcher": [
        "dtrain.controller.launchers.local.Process", "keras.Model",
    ],
    "optimizer": [
        "keras.metrics.Mean", "keras.optimizers.get",
    ],
    "optimizer.schedule": [
        "keras.optimizers.Adam",
    ],
    "trainer.loss": [
        "keras.metrics.Mean",
    ],
    "trainer.metrics[0]": [
        "keras.metrics.deserialize", "keras.Model", "keras.losses.Huber",
    ],
    "trainer.callbacks[0]": [
        "keras.callbacks.RemoteMonitor", "keras.callbacks.LambdaCallback", "keras.metrics.Mean",
        "keras.callbacks.OrbaxCheckpoint",
    ],
    "sweep": [
        "keras.Model",
    ],
    "tracking.uri": [
        "keras.Model",
    ],
    "name": [
        "keras.Model",
    ],
    "model.layers[0]": [
        "keras.layers.Dense",
    ],
}  # fmt: skip
#: As arguments of a model.
INNER = [
    "keras.layers.Lambda", "keras.layers.TFSMLayer", "keras.layers.TorchModuleWrapper",
    "keras.layers.JaxLayer", "keras.layers.deserialize", "keras.layers.Dense.from_config",
    "keras.callbacks.ModelCheckpoint", "keras.utils.get_file", "keras.saving.load_model",
    "dtrain.datasets.npz", "dtrain.controller.folders.remove", "keras.Lambda", "keras.layers._x",
]  # fmt: skip


@pytest.mark.parametrize(
    ("place", "name"), [(place, name) for place, names in ELSEWHERE.items() for name in names]
)
def test_a_place_takes_its_own_kind(place: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTRAIN_TRUST", "mine,keras,dtrain")
    message = refusal(trust.check, {"_target_": name}, place, False, False)
    assert message.startswith(f"{place}._target_={name}: ")


@pytest.mark.parametrize("name", INNER)
def test_an_argument_is_no_way_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTRAIN_TRUST", "mine")
    node = {"_target_": "mine.build", "x": [{"_target_": name}]}
    assert refusal(trust.check, {"model": node}).startswith(f"model.x[0]._target_={name}: ")
    assert refusal(targets.instantiate, {**node, "_target_": "keras.Sequential"}, "trainer.loss")


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        ("best.keras", True), ("a/b/{epoch:02d}-{val_loss:.2f}.keras", True), (".hidden", True),
        ("/etc/x", False), ("../x", False), ("a/../../x", False), ("./x", False), ("a//b", False),
        ("", False), (None, False), (3, False), ("~/x", False), ("a\\b", False), ("a\0", False),
        ("{epoch.__class__.__doc__[3]}", False), ("{epoch:/>9}", False), ("{epoch!r:.>3}", False),
        ("{{x}", False), ("{a[b]}", False), ("{epoch:.>2}/x", False),
    ],
)  # fmt: skip
def test_paths_below_the_run_folder(path: Any, inside: bool) -> None:
    assert trust.is_inside(path) is inside
    node = {"_target_": "keras.callbacks.ModelCheckpoint", "filepath": path}
    config = {"trainer": {"callbacks": [node]}}
    if inside:
        trust.check(config)
    else:
        assert refusal(trust.check, config).startswith(
            errors.printable(f"trainer.callbacks[0].filepath={path}: a")
        )


def test_a_trusted_callback_writes_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTRAIN_TRUST", "keras.callbacks.CSVLogger")
    node = {"_target_": "keras.callbacks.CSVLogger", "filename": "/x/y.csv"}
    trust.check({"trainer": {"callbacks": [node]}})


def test_a_default_that_writes_is_inside() -> None:
    trust.check({"trainer": {"callbacks": [{"_target_": "keras.callbacks.TensorBoard"}]}})


def test_check_keeps_what_is_trusted_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTRAIN_TRUST", "tmine")
    message = refusal(trust.check, {"model": {"_target_": "yaml.f"}})
    assert "hint: DTRAIN_TRUST=tmine,yaml " in message


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dtrain.datasets.digits", datasets.digits),
        ("dtrain.controller.launchers.Local", Local),
        ("tmine.Made.other", None),
    ],
)
def test_locate(name: str, expected: Any) -> None:
    found = trust.locate(name, "m._target_")
    assert found == (expected or sys.modules["tmine"].Made.other)


#: (target, parts of the message)
NOT_FOUND = {
    "of a module": ("tmine.clusters.Task", ["'clusters' does not exist"]),
    "nothing near": ("tmine.zzz", ["'zzz' does not exist", "hint: "]),
    "inside a class": ("tmine.Made.othr", ["'othr' does not exist", "=tmine.Made.other"]),
    "absent package": ("tnowhere.f", ["there is no module 'tnowhere'", "MODULE.py"]),
    "empty part": ("tmine..Task", ["'' does not exist"]),
    "no function": ("tmine.NUMBER", ["cannot be called", "hint: m._target_="]),
    "of dtrain": ("dtrain.run.cluster.Task", ["is no public name", "DTRAIN_TRUST=tmine,"]),
    "a typing error": ("dtrain.datasets.digit", ["is no public name", "dtrain.datasets.*"]),
    "not trusted": ("tother.f", ["'tother' is not trusted", "hint: DTRAIN_TRUST="]),
    "a bare name": ("tmine", ["is not the dotted name"]),
    "a special name": ("tmine.make.__call__", ["is a special name"]),
    "of what is imported": ("tmine.imported.__call__", ["is a special name"]),
    "of a module's": ("tmine.os.__dict__.update", ["is a special name"]),
    "of a class": ("tmine.Made.__subclasses__", ["is a special name"]),
    "the wrong part alone": ("tmine.made", ["type: m._target_=tmine.Made"]),
}


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize("case", NOT_FOUND)
def test_locate_refuses(case: str) -> None:
    target, parts = NOT_FOUND[case]
    message = refusal(trust.locate, target, "m._target_")
    assert message.startswith(f"m._target_={target}: "), message
    assert not [part for part in parts if part not in message], message


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("tmine.os.system", "is not trusted"), ("tmine.imported", "is not trusted"),
        ("tmine.os.path.join", "is not trusted"),
        (
            "tmine.targets.bind",
            "is dtrain's own (dtrain.config.targets), which tmine only imports",
        ),
    ],
)  # fmt: skip
def test_a_trusted_module_does_not_lend_its_trust(target: str, problem: str) -> None:
    message = refusal(trust.locate, target, "m._target_")
    assert message.startswith("m._target_="), message
    assert problem in message
    hint = "DTRAIN_TRUST=" if "is not trusted" in problem else "m._target_=dtrain.NAME"
    assert f"hint: {hint}" in message


def test_what_a_module_makes_of_others_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function that wraps one of dtrain's, and one with arguments bound."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "twraps.py").write_text(
        "import functools\nfrom dtrain import datasets\n\n"
        "@functools.wraps(datasets.synthetic)\ndef data(**options):\n    return 'data'\n\n"
        "bound = functools.partial(dict, a=3)\n"
    )
    monkeypatch.setenv("DTRAIN_TRUST", "twraps")
    assert targets.instantiate({"_target_": "twraps.data"}, "dataset") == "data"
    assert targets.instantiate({"_target_": "twraps.bound", "b": 4}, "model") == {"a": 3, "b": 4}


def test_a_part_of_dtrain_can_be_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTRAIN_TRUST", "dtrain.run.cluster")
    assert trust.locate("dtrain.run.cluster.Cluster.from_json", "m._target_") == Cluster.from_json
    assert "not trusted" in refusal(trust.locate, "dtrain.run.cluster.dataclasses.field", "m")


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    ("target", "kind", "text"),
    [("tbroken.f", ModuleNotFoundError, "tabsent"), ("tsyntax.f", SyntaxError, "invalid syntax")],
)
def test_errors_in_a_persons_own_module_are_seen(
    target: str, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        trust.locate(target, "m._target_")


@pytest.mark.usefixtures("mine")
def test_instantiate_calls_nested_targets() -> None:
    task = {"_target_": "tmine.needs", "first": 1, "second": 2}
    node = {"_target_": "tmine.Made", "a": [1, task], "b": {"c": task, "d": [[task]]}, "e": None}
    made = (1, 2)
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
    assert targets.instantiate(node, "m", b=None)["b"] == 2, "None fills no default"
    assert "classes" not in targets.instantiate({"_target_": "tmine.Made"}, "m", classes=1).given


#: (node, parts of the message)
WRONG = {
    "typing error": (
        {"_target_": "tmine.make", "a": 1, "clases": 5},
        [
            "m.clases=5: ",
            "tmine.make",
            "'clases'",
            "a, b, input_shape, classes",
            "type: +m.classes=5",
        ],
    ),
    "missing": ({"_target_": "tmine.needs"}, ["'first'", "first, second", "hint: +m.first=VALUE"]),
    "one of two": ({"_target_": "tmine.needs", "first": 1}, ["m.second=None: ", "+m.second=VALUE"]),
    "of a partial": (
        {"_target_": "tmine.make", "_partial_": True, "clases": 1},
        ["m.clases=1: ", "type: +m.classes=1"],
    ),
    "in an argument": (
        {"_target_": "tmine.Made", "x": [{"_target_": "tmine.needs", "secnd": 1}]},
        ["m.x[0].secnd=1: ", "hint: second:1 in m.x[0]"],
    ),
    "special": ({"_target_": "tmine.needs", "self": 1}, ["m.self=1: ", "first, second"]),
    "none": (
        {"_target_": "tmine.takes_none", "a": 1},
        ["m.a=1: ", "accepted: no arguments; hint: the command without m.a"],
    ),
}


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments(case: str) -> None:
    node, parts = WRONG[case]
    message = refusal(targets.instantiate, node, "m")
    assert not [part for part in parts if part not in message], message


def test_a_callable_without_a_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTRAIN_TRUST", "builtins")
    assert targets.instantiate({"_target_": "builtins.dict", "a": 1}, "m", classes=2) == {"a": 1}


@pytest.mark.task
def test_a_schedule_in_an_optimizer() -> None:
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
