"""The one parser of overrides."""

from __future__ import annotations

import pytest

from dtrain.config.overrides import Override, key_of, parse


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("trainer.epochs=3", Override("", "trainer.epochs", "3")),
        ("+model.weights=null", Override("+", "model.weights", "null")),
        ("++a=", Override("++", "a", "")),
        ("~dataset.cache", Override("~", "dataset.cache", None)),
        ("optimizer/schedule=cosine", Override("", "optimizer/schedule", "cosine")),
        ("name='a=b'", Override("", "name", "'a=b'")),
        ("--multirun", Override("", "--multirun", None)),
        ("=3", Override("", "", "3")),
    ],
)
def test_an_override_is_sign_name_and_value(text: str, expected: Override) -> None:
    found = parse(text)
    assert found == expected
    assert str(found) == text


def test_a_key_has_dots_alone() -> None:
    assert key_of("+optimizer/schedule=cosine") == "optimizer.schedule"
    assert key_of("+ output_dir =x") == "output_dir"
