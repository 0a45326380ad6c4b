"""Every key of the schema, with values that it cannot have: made from the schema itself."""

from __future__ import annotations

import copy
import functools
import math
from typing import Any

import pytest
from annotated_types import Interval
from omegaconf import OmegaConf
from pydantic import ValidationError

from dtrain.config import check, schema
from dtrain.config.fields import key_of
from dtrain.errors import UsageError
from tests.options import options
from tests.test_schema import GIVEN, KINDS, node

#: Where the fields of each model stand, and the overrides that put them there.
PLACES: dict[Any, tuple[str, tuple[str, ...]]] = {
    schema.Config: ("", ()),
    schema.kinds("strategy.mesh")[0]: ("strategy.mesh", ("strategy=hybrid",)),
    **{kind: (key, ()) for key, kind in schema.sections().items()},
}
for _group, _kinds in schema.SCHEMAS.items():
    _key = _group.replace("/", ".")
    for _option in options(_group):
        _word = f"{_group}={_option.name}"
        PLACES.setdefault(_option.kind, (_key, (_word, *GIVEN.get(_word, ()))))
    for _name, _sink in schema.SINKS.items():  # in a node of their own
        PLACES.setdefault(_sink, (f"tracking.{_name}", (f"tracking=[none,{_name}]",)))
    for _kind in _kinds.values():  # what options have in common
        PLACES.setdefault(_kind, (_key, ()))

#: What no key takes.
NEVER: list[Any] = [math.nan, 10**30, "a\0b", "x" * 10**6, [math.nan], {"a": math.inf}]
#: Keys of nodes whose arguments are for their function to check.
OPEN = ("members", "pod", "extra", "params", "project")
#: Texts of which one without a character is one.
EMPTY = ("as_",)

FIELDS = [
    pytest.param(kind, name, id=f"{kind.__name__}.{name}")
    for kind in KINDS for name, field in kind.model_fields.items()
    if not isinstance(field.default, schema.Group) and key_of(name, field) not in schema.SCHEMAS
]  # fmt: skip


@functools.cache
def base(words: tuple[str, ...]) -> Any:
    return node(*words)


def errors(kind: Any, name: str, value: Any) -> list[str]:
    """Return what is wrong with a value of one field."""
    try:
        kind.model_validate({key_of(name, kind.model_fields[name]): value})
    except ValidationError as error:
        return [str(each["msg"]) for each in error.errors() if each["loc"][0] in (
            name, key_of(name, kind.model_fields[name]))]  # fmt: skip
    return []


@pytest.mark.parametrize(("kind", "name"), FIELDS)
def test_no_wrong_value_is_taken_and_the_bounds_are(kind: Any, name: str) -> None:
    field = kind.model_fields[name]
    assert field.is_required() or not errors(kind, name, field.default)
    if name not in OPEN:
        assert errors(kind, name, {"": [object()]})
    if "str" in str(field.annotation) and name not in OPEN:
        assert errors(kind, name, "") or name in EMPTY
        assert errors(kind, name, "a\nb") and errors(kind, name, [[object()]])
    texts = [field.metadata, *(getattr(a, "__metadata__", ()) for a in _args(field.annotation))]
    span = next((m for marks in texts for m in marks if isinstance(m, Interval)), None)
    if span is None or "list" in str(field.annotation):
        return
    whole = "float" not in str(field.annotation)
    low: Any = span.ge if span.gt is None else math.nextafter(float(str(span.gt)), math.inf)
    high: Any = span.le if span.lt is None else math.nextafter(float(str(span.lt)), -math.inf)
    for value in (low, high):
        assert not errors(kind, name, int(value) if whole else float(value))
    beyond = [low - 1, high + 1, 1.5] if whole else [math.nextafter(low, -math.inf)]
    for value in [*beyond, "x", True, [], {}, {"a": 1}, math.nan, math.inf]:
        assert errors(kind, name, value), value


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_no_key_takes(kind: Any) -> None:
    """Through all that checks a configuration: one sentence, which names the key."""
    prefix, words = PLACES[kind]
    names = [key_of(*each) for each in kind.model_fields.items()
             if not isinstance(each[1].default, schema.Group) and each[0] not in OPEN]  # fmt: skip
    config = copy.deepcopy(base(words))
    for number, name in enumerate([each for each in names if each != "_target_"][-4:]):
        key = f"{prefix}.{name}".lstrip(".")
        value, was = NEVER[number % len(NEVER)], OmegaConf.select(config, key)
        OmegaConf.update(config, key, value, merge=False)
        with pytest.raises(UsageError) as caught:
            check.check(config)
            pytest.fail(f"{key}={value!r} was taken")
        text = str(caught.value)
        assert text.startswith(key) and "\n" not in text and len(text) < 1500, text
        OmegaConf.update(config, key, was, merge=False)


def _args(annotation: Any) -> tuple[Any, ...]:
    return tuple(getattr(annotation, "__args__", ()))


def test_a_node_without_a_schema_is_held_to_that_of_its_target() -> None:
    words = ("model=custom", "model._target_=dtrain.models.mlp")
    for added in ("+model.units=[-1]", "+model.units=8", "+model.dropout=x", "+model.l2=nan"):
        with pytest.raises(UsageError, match=added.partition("=")[0].lstrip("+")):
            check.check(node(*words, added))


DEEP = functools.reduce(lambda inner, _: {"a": inner}, range(40), {"a": 1})


@pytest.mark.parametrize(
    "value", [math.nan, [1, math.inf], {"a": {"b": -math.inf}}, 2**63, "a\0b", "x" * 10**6, DEEP]
)
def test_values_of_arguments_that_nobody_knows(value: Any) -> None:
    config = node("model=custom", "model._target_=mine.build")
    OmegaConf.update(config, "model.width", value, force_add=True)
    with pytest.raises(UsageError, match=r"^model\.width"):
        check.check(config)


def test_a_number_of_a_float_is_one() -> None:
    config = node("optimizer.learning_rate=1")
    check.check(config)
    assert type(config.optimizer.learning_rate) is float
