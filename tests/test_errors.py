from __future__ import annotations

import importlib
import pickle
import shlex
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from dtrain import errors
from dtrain.datasets.tables import declared_kinds
from dtrain.errors import typed


def test_usage_error_says_what_was_given_and_what_to_type() -> None:
    error = errors.UsageError("a.b", "is a list", [1], accepted="a number", typed="a.b=1")
    assert str(error) == "a.b=[1]: is a list; accepted: a number; type: a.b=1"
    assert error.key == "a.b"


def test_the_same_error_of_another_key() -> None:
    error = errors.UsageError("a.path", "is no file", "b", accepted="a file", hint="a.path=FILE")
    other = error.of_key("a.other_path")
    assert str(other) == "a.other_path=b: is no file; accepted: a file; hint: a.other_path=FILE"
    assert (other.key, error.key, type(other)) == ("a.other_path", "a.path", errors.UsageError)
    assert str(pickle.loads(pickle.dumps(other))) == str(other)


@pytest.mark.parametrize(
    ("kind", "parent", "code"),
    [
        (errors.UsageError, errors.DtrainError, 2),
        (errors.TrainingError, errors.DtrainError, 1),
        (errors.NonFiniteLoss, errors.TrainingError, 1),
        (errors.CheckpointError, errors.TrainingError, 1),
        (errors.Interrupted, errors.DtrainError, 75),
    ],
)
def test_tree_and_exit_codes(
    kind: type[errors.DtrainError], parent: type[Exception], code: int
) -> None:
    assert kind.__bases__ == (parent,)
    assert kind.exit_code == code


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mirored", "mirrored"),
        ("default", "default"),
        ("one_devices", "one_device"),
        ("zzz", None),
        ("", None),
    ],
)
def test_nearest(name: str, expected: str | None) -> None:
    assert errors.nearest(name, iter(["mirrored", "one_device", "default"])) == expected
    assert errors.nearest(name, []) is None


def test_a_name_that_is_too_long(tmp_path: Path) -> None:
    name = "x" * 5000
    with pytest.raises(OSError) as caught:
        (tmp_path / name).exists()
    assert str(errors.of_a_name(caught.value)).endswith(" cannot be a path: File name too long")
    assert len(str(errors.of_a_name(caught.value))) < 200
    assert errors.of_a_name(FileNotFoundError(2, "No such file", "a")) is None


def test_a_long_value_is_shortened() -> None:
    error = errors.UsageError("a", "is long", "x" * 5000, accepted="less", typed="a=1")
    assert f"a={'x' * 100}... (5000 characters): is long" in str(error)


@pytest.mark.parametrize(
    "module",
    ["dtrain.cli.commands.compare", "dtrain.cli.commands.sync", "dtrain.cli.commands.checkpoint"],
)
def test_a_path_that_is_typed_and_too_long(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert importlib.import_module(module).main(["x" * 5000]) == errors.USAGE
    assert "cannot be a path: File name too long" in capsys.readouterr().err


def test_endless_lines_are_cut() -> None:
    assert errors.readable("a\nb") == "a\nb"
    cut = errors.readable("x" * 200_000 + "\n" + "\n".join("y" for _ in range(9999)))
    first, *others = cut.splitlines()
    assert first.endswith("... (200000 characters)") and len(first) < 5000
    assert len(others) < 200


def test_what_a_key_takes_is_said_by_its_field() -> None:
    with pytest.raises(errors.UsageError) as caught:
        errors.refuse("trainer.epochs", "is odd", 7)
    assert str(caught.value).startswith("trainer.epochs=7: is odd; accepted: ")
    assert str(caught.value).endswith("; type: trainer.epochs=25")
    assert str(errors.UsageError("no.key", "is odd")) == "no.key: is odd"


def test_what_a_layer_of_keras_raises_is_one_line() -> None:
    head = "Exception encountered when calling Reshape.call()."
    text = f"{head}\n\nThe size is 6.\n\nArguments received by Reshape.call():\n  x=1"
    assert errors.describe(ValueError(text)) == f"ValueError: {head} The size is 6."


def test_exceptions_travel() -> None:
    usage = errors.UsageError("a.b", "is one", 1, accepted="two", typed="a.b=2")
    for error in (usage, errors.DataError("FILE", "is bad"), errors.DamagedFile("a", "is cut")):
        found = pickle.loads(pickle.dumps(error))
        assert type(found) is type(error) and str(found) == str(error)
        assert vars(found) == vars(error)


def test_an_override_is_typed_as_hydra_and_the_shell_read_it() -> None:
    values: list[Any] = [
        "käuft", "y", "a b", 'a"b', "it's", "#x", "1", "true", "a\\\n", ["?", "ä'", "-999"],
        {"a": "skip"}, {"käuft": "skip", "b": "%d/%m/%Y"}, {"it's: #": "text"}, {"null": "number"},
    ]  # fmt: skip
    for value in values:
        [word] = shlex.split(typed("dataset.key", value))
        [override] = OverridesParser.create().parse_overrides([word])
        found = override.value()
        is_kinds = isinstance(value, dict) and isinstance(found, str)
        assert (declared_kinds(found) if is_kinds else found) == value
