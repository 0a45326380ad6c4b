from __future__ import annotations

import pytest

from dtrain import errors


def test_usage_error_says_what_was_given_and_what_to_type() -> None:
    error = errors.UsageError("a.b", [1], "is a list", "a number", "a.b=1")
    assert str(error) == "a.b=[1]: is a list; accepted: a number; type: a.b=1"
    assert error.key == "a.b"


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
