"""The help of keys: what ``--help KEY``, the reference and editors' schemas are made of."""

from __future__ import annotations

import ast
import functools
import inspect
from typing import Literal, NamedTuple, get_args, get_origin

from dtrain.config import schema
from dtrain.config.fields import Group, accepted, keyed, typed
from dtrain.errors import refuse


class Help(NamedTuple):
    """The help of one key.

    Attributes:
        default: as it is typed; None where the user has to give a value.
        accepted: the values, in words.
        help: a sentence or more.
        scope: what the key decides.
    """

    default: str | None
    accepted: str
    help: str
    scope: str


def help_of(key: str) -> Help:
    """Return the help of a key, such as ``trainer.batch_size``, ``model.units`` or ``strategy``.

    A key that several options of a group have is that of the group's default option, where it has
    it, else of the first one that has it.

    Args:
        key: dotted.

    Raises:
        UsageError: no option has such a key.
    """
    group, _, name = key.replace("/", ".").rpartition(".")
    for kind in schema.kinds(group):
        if name in described(kind, group):
            return described(kind, group)[name]
    refuse("--help", "there is no such key", key, accepted="the keys that --cfg job prints",
           typed="python -m dtrain --cfg job")  # fmt: skip


@functools.cache
def keys() -> tuple[str, ...]:
    """Return all keys that have a help: of the whole and of every option of every group."""
    inner = [group.replace("/", ".") for group in schema.SCHEMAS]
    inner += [f"tracking.{name}" for name in schema.SINKS]
    return tuple(dict.fromkeys(
        f"{group}.{name}".lstrip(".")
        for group in ("", *schema.sections(), *inner, "strategy.mesh")
        for kind in schema.kinds(group) for name in keyed(kind)
    ))  # fmt: skip


@functools.cache
def described(kind: type[Group], group: str) -> dict[str, Help]:
    """Return the help of each field of a model that stands at ``group``, ``""`` for the top."""
    keys = zip(keyed(kind), kind.model_fields, strict=True)
    return {key: _help(kind, name, f"{group}.{key}".lstrip(".")) for key, name in keys}


def is_switch(key: str) -> bool:
    """Say whether the values of a key are true and false."""
    return key in keys() and help_of(key).accepted == "true or false"


def _help(kind: type[Group], name: str, key: str) -> Help:
    field, sentence = kind.model_fields[name], sentences(kind)[name]
    scope, group = schema.scope_of(kind, name).of, key.replace(".", "/")
    if group in schema.GROUPS:
        return Help(schema.GROUPS[group], ", ".join(schema.options(group)), sentence, scope)
    if key in schema.sections():
        return Help(None, f"{key}.KEY=VALUE", sentence, scope)
    default = field.default
    if isinstance(default, Group):
        default = schema.defaults(type(default))
    shown = None if field.is_required() else typed(default)
    return Help(shown, accepted(field.annotation, tuple(field.metadata)), sentence, scope)


@functools.cache
def sentences(kind: type[Group]) -> dict[str, str]:
    """Return the sentence below each field of a model, those that it inherits as well."""
    texts = {"target_": "Function or class that the option is of."}
    for each in reversed(kind.__mro__):
        if issubclass(each, Group):
            texts |= _of_file(inspect.getsourcefile(each) or "").get(each.__name__, {})
    return {name: texts[name] for name in kind.model_fields}


@functools.cache
def _of_file(path: str) -> dict[str, dict[str, str]]:
    """Return the sentences of all classes of a file, by class and field."""
    with open(path, encoding="utf-8") as file:
        body = ast.parse(file.read()).body
    texts: dict[str, dict[str, str]] = {}
    for node in body:
        if isinstance(node, ast.ClassDef):
            own = texts.setdefault(node.name, {})
            for field, below in zip(node.body, node.body[1:], strict=False):
                if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                    name, sentence = ast.unparse(field.target), ast.literal_eval(below.value)
                    own[name] = " ".join(sentence.split())
    return texts


def values_of(key: str) -> list[str]:
    """Return the values of a key of which there are few; none of others."""
    group, _, name = key.rpartition(".")
    for kind in schema.kinds(group):
        field = kind.model_fields.get(name)
        parts = [] if field is None else [field.annotation, *get_args(field.annotation)]
        literals = [each for each in parts if get_origin(each) is Literal]
        if literals:
            return [str(value) for value in get_args(literals[0])]
    return []
