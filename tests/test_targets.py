from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dtrain import errors
from dtrain.config import targets, trust
from dtrain.errors import UsageError
from dtrain.run.cluster import Cluster

SOURCE = """
import functools
import os
from os import system as imported
from dtrain import datasets
from dtrain.config import targets, trust

class Made:
    def __init__(self, **given):
        self.given = given

    @classmethod
    def other(cls, a): return cls(other=a)

def make(a, b=2, *, input_shape=None, classes=None):
    return {"a": a, "b": b, "input_shape": input_shape, "classes": classes}

def takes_none(): return 1
def needs(first, second): return first, second

@functools.wraps(datasets.synthetic)
def data(**options): return "data"

bound = functools.partial(dict, a=3)
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


@pytest.mark.parametrize(
    ("variable", "trusted", "others"),
    [
        ("", "", "mine.f"), ("a", "a.f", "ab.f"),
        (" a , b.c,,", "a.f b.c.f b.c", "b.f"),
        # All of Keras is not trusted by one word: a part of it is.
        ("keras,dtrain", "", "keras.utils.get_file dtrain.run.folder.write_text"),
        ("keras.utils", "keras.utils.get_file", "keras.saving.load_model"),
        ("keras.src", "keras.src.utils.get_file", "keras.saving.load_model"),
    ],
)  # fmt: skip
def test_a_variable_trusts_packages_and_parts_of_them(
    variable: str, trusted: str, others: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DTRAIN_TRUST", variable)
    assert all(map(trust.is_trusted, trusted.split()))
    assert not any(map(trust.is_trusted, others.split()))


def test_check_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTRAIN_TRUST", "tnowhere.inner")
    before = set(sys.modules)
    trust.check({
        "model": {"_target_": "keras.applications.Nothing", "b": "_target_"},
        "dataset": {"_target_": "tnowhere.inner.f"}, "optimizer": None, "name": "_target_",
        "trainer": {"metrics": ["a", {"_target_": "keras.metrics.Nothing"}]},
    })  # fmt: skip
    assert set(sys.modules) == before


#: Of dtrain and of Keras, where a thing of another kind is meant: a place and a name.
ELSEWHERE: dict[str, list[Any]] = {
    "model": [
        "os.system", "keras", "", 3, None, "keras.layers.Bidirectional",
        "dtrain.job.folders.remove", "dtrain.run.folder.write_text",
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
    "dataset.augment": ["keras.utils.get_file", "dtrain.augment.tf.io.write_file"],
    "strategy": ["dtrain.task.backends.tensorflow.base.Strategy", "dtrain.models.mlp"],
    "launcher": ["dtrain.launchers.local.Process", "keras.Model", "kerasx.f"],
    "hardware.kind": ["keras.layers.Dense"],
    "optimizer": ["keras.metrics.Mean", "keras.optimizers.get"],
    "optimizer.schedule": ["keras.optimizers.Adam"], "trainer.loss": ["keras.metrics.Mean"],
    "trainer.metrics[0]": ["keras.metrics.deserialize", "keras.Model", "keras.losses.Huber"],
    "trainer.callbacks[0]": [
        "keras.callbacks.RemoteMonitor", "keras.callbacks.LambdaCallback", "keras.metrics.Mean",
        "keras.callbacks.OrbaxCheckpoint",
    ],
    "sweep": ["keras.Model"], "tracking.uri": ["keras.Model"], "name": ["keras.Model"],
    "model.layers[0]": ["keras.layers.Dense"],
}  # fmt: skip
OBJECT = {"module": "os", "class_name": "system", "config": {}}
#: As arguments of a model.
INNER = [
    "keras.layers.Lambda", "keras.layers.TFSMLayer", "keras.layers.TorchModuleWrapper",
    "keras.layers.JaxLayer", "keras.layers.deserialize", "keras.layers.Dense.from_config",
    "keras.callbacks.ModelCheckpoint", "keras.utils.get_file", "keras.saving.load_model",
    "dtrain.datasets.npz", "dtrain.job.folders.remove", "keras.Lambda", "keras.layers._x",
    "os.path.join", "timeit.it",
]  # fmt: skip


@pytest.mark.parametrize(
    ("place", "name"), [(place, name) for place, names in ELSEWHERE.items() for name in names]
)
def test_a_place_takes_its_own_kind(place: str, name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTRAIN_TRUST", "mine,keras,dtrain")
    message = refusal(trust.check, {"_target_": name}, place, False, False)
    assert message.startswith(f"{place}._target_={name}: ")


@pytest.mark.parametrize(
    ("key", "node"),
    [
        ("trainer.metrics[0][0]", {"trainer": {"metrics": [[OBJECT]]}}),
        ("model.layers[0]", {"model": {"_target_": "keras.Sequential", "layers": [OBJECT]}}),
    ],
)
def test_keras_own_way_to_write_an_object_is_refused(key: str, node: Any) -> None:
    message = refusal(trust.check, node)
    assert message.startswith(f"{key}=...: ") and f": {key}={{_target_:" in message


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
def test_a_callback_writes_below_the_run_folder(path: Any, inside: bool) -> None:
    node = {"_target_": "keras.callbacks.ModelCheckpoint", "filepath": path}
    config = {"trainer": {"callbacks": [node, {"_target_": "keras.callbacks.TensorBoard"}]}}
    if inside:
        trust.check(config)
        return
    key = errors.printable(f"trainer.callbacks[0].filepath={path}: a")
    assert refusal(trust.check, config).startswith(key)


def test_a_trusted_callback_writes_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTRAIN_TRUST", "keras.callbacks.CSVLogger")
    node = {"_target_": "keras.callbacks.CSVLogger", "filename": "/x/y.csv"}
    trust.check({"trainer": {"callbacks": [node]}})


#: (target, parts of the message)
NOT_FOUND = [
    ("tmine.clusters.Task", "'clusters' does not exist"),
    ("tmine.zzz", "'zzz' does not exist.*hint: "),
    ("tmine.Made.othr", "'othr' does not exist.*=tmine.Made.other"),
    ("tnowhere.f", "there is no module 'tnowhere'.*MODULE.py"),
    ("tmine..Task", "'' does not exist"),
    ("tmine.NUMBER", "cannot be called.*hint: m._target_="),
    ("dtrain.run.cluster.Task", "is no public name.*DTRAIN_TRUST=tmine,"),
    ("dtrain.datasets.digit", r"is no public name.*dtrain\.datasets\.\*"),
    ("tother.f", "'tother' is not trusted.*hint: DTRAIN_TRUST=tmine,.*,tother "),
    ("tmine", "is not the dotted name"),
    ("tmine.make.__call__", "is a special name"),
    ("tmine.imported.__call__", "is a special name"),
    ("tmine.os.__dict__.update", "is a special name"),
    ("tmine.Made.__subclasses__", "is a special name"),
    ("tmine.made", "type: m._target_=tmine.Made"),
    # A trusted module does not lend its trust to what it imports.
    ("tmine.os.system", "is not trusted.*hint: DTRAIN_TRUST="),
    ("tmine.os.path.join", "is not trusted.*hint: DTRAIN_TRUST="),
    ("tmine.imported", "is not trusted.*hint: DTRAIN_TRUST="),
    ("tmine.targets.bind", "is dtrain's own .*which tmine only imports.*hint: m._target_=dtrain"),
]


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(("target", "said"), NOT_FOUND)
def test_a_name_that_may_not_be_called_is_refused(target: str, said: str) -> None:
    assert re.match(
        rf"m\._target_={re.escape(target)}: .*{said}", refusal(trust.locate, target, "m._target_")
    )


@pytest.mark.usefixtures("mine")
def test_what_a_module_makes_of_others_is_its_own() -> None:
    """A function that wraps one of dtrain's, and one with arguments bound."""
    assert targets.instantiate({"_target_": "tmine.data"}, "dataset") == "data"
    assert targets.instantiate({"_target_": "tmine.bound", "b": 4}, "model") == {"a": 3, "b": 4}


def test_a_part_of_dtrain_can_be_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTRAIN_TRUST", "dtrain.run.cluster")
    assert trust.locate("dtrain.run.cluster.Cluster.from_json", "m._target_") == Cluster.from_json
    assert "not trusted" in refusal(trust.locate, "dtrain.run.cluster.dataclasses.field", "m")


@pytest.mark.usefixtures("mine")
def test_errors_in_a_persons_own_module_are_seen() -> None:
    for target, error in (("tbroken.f", ModuleNotFoundError), ("tsyntax.f", SyntaxError)):
        with pytest.raises(error, match=r"tabsent|invalid syntax"):
            trust.locate(target, "m._target_")


@pytest.mark.usefixtures("mine")
def test_instantiate_calls_nested_targets() -> None:
    task = {"_target_": "tmine.needs", "first": 1, "second": 2}
    node = {"_target_": "tmine.Made", "a": [1, task], "b": {"c": task, "d": [[task]]}, "e": None}
    given = targets.instantiate(node, "m").given
    assert given == {"a": [1, (1, 2)], "b": {"c": (1, 2), "d": [[(1, 2)]]}, "e": None}
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
def test_derived_arguments_fill_what_is_left_out() -> None:
    node = {"_target_": "tmine.make", "a": 1}
    for classes, expected in ((None, 10), (5, 5), (0, 0)):
        made = targets.instantiate({**node, "classes": classes}, "m", classes=10, unknown=1)
        assert made == {"a": 1, "b": 2, "input_shape": None, "classes": expected}
    assert targets.instantiate(node, "m", classes=10)["classes"] == 10
    assert targets.instantiate(node, "m", b=None)["b"] == 2, "None fills no default"
    assert "classes" not in targets.instantiate({"_target_": "tmine.Made"}, "m", classes=1).given


#: (node, the key and what is said of it)
WRONG = [
    ({"_target_": "tmine.make", "a": 1, "clases": 5},
     r"m\.clases=5: .*tmine.make.*'clases'.*a, b, input_shape, classes.*type: \+m\.classes=5"),
    ({"_target_": "tmine.needs"}, r".*'first'.*first, second.*hint: \+m\.first=VALUE"),
    ({"_target_": "tmine.needs", "first": 1}, r"m\.second=None: .*\+m\.second=VALUE"),
    ({"_target_": "tmine.make", "_partial_": True, "clases": 1},
     r"m\.clases=1: .*type: \+m\.classes=1"),
    ({"_target_": "tmine.Made", "x": [{"_target_": "tmine.needs", "secnd": 1}]},
     r"m\.x\[0\]\.secnd=1: .*hint: second:1 in m\.x\[0\]"),
    ({"_target_": "tmine.needs", "self": 1}, r"m\.self=1: .*first, second"),
    ({"_target_": "tmine.takes_none", "a": 1},
     r"m\.a=1: .*accepted: no arguments; hint: the command without m\.a"),
]  # fmt: skip


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(("node", "said"), WRONG)
def test_a_wrong_argument_is_refused_with_those_that_there_are(node: Any, said: str) -> None:
    assert re.match(said, refusal(targets.instantiate, node, "m"))


def test_a_callable_without_a_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTRAIN_TRUST", "builtins")
    assert targets.instantiate({"_target_": "builtins.dict", "a": 1}, "m", classes=2) == {"a": 1}


@pytest.mark.task
def test_an_error_of_keras_is_one_of_the_values() -> None:
    for name, given, key in (
        ("callbacks.EarlyStopping", {"patience": "x"}, "key.patience"),
        ("callbacks.EarlyStopping", {"restore_best_weights": "yes"}, "key.restore_best_weights"),
        ("layers.Dense", {"units": 3, "activation": "nope"}, "key"),
        ("layers.Dropout", {"rate": 7}, "key"),
        ("optimizers.Adam", {"clipnorm": 1.0, "clipvalue": 1.0}, "key"),
    ):  # fmt: skip
        message = refusal(targets.instantiate, {"_target_": f"keras.{name}", **given}, "key")
        assert message.startswith(f"{key}=") and "\n" not in message
    for name, given in (
        ("callbacks.EarlyStopping", {"patience": 3, "min_delta": 1e-3}),
        ("layers.MaxPooling2D", {"pool_size": 2, "strides": [2, 2]}),
        ("callbacks.ModelCheckpoint", {"filepath": "x.keras", "verbose": True}),
        ("layers.Dropout", {"rate": 0}),
    ):  # fmt: skip
        assert targets.instantiate({"_target_": f"keras.{name}", **given}, "key") is not None


def test_an_error_of_a_users_own_function_stays_what_it_is(mine: None) -> None:
    with pytest.raises(ZeroDivisionError), targets.blame("model", {"a": 1}, "mine.build"):
        1 / 0  # noqa: B018
    for own in (OSError, MemoryError):
        with pytest.raises(own), targets.blame("model", {"a": 1}, "keras.Model"):
            raise own
