"""The one place that checks a configuration: what Hydra has composed, against the models.

:func:`settle` makes of it a configuration in order: resolved, checked, in memory. Of values that no
model knows, in nodes of a user's own, it is known only that no number is NaN, infinite or beyond 64
bits, and that texts and nesting end.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Union, get_args, get_origin

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from dtrain.config import private, schema, suggest, targets, tree, trust
from dtrain.config.fields import Form, Group, Plain, accepted, bound, key_of, keyed, typed
from dtrain.config.schema.running import TRAIN, NoTracker
from dtrain.config.suggest import Advice
from dtrain.data.files import is_address
from dtrain.errors import ALONE, UsageError, nearest, refuse
from dtrain.files import addresses

#: What is wrong, by pydantic's type of an error; all others say it themselves.
_SAYS = {
    "extra_forbidden": "there is no such key",
    "missing": "has no value yet",
    "int_type": "is not a whole number",
    "int_from_float": "is not a whole number",
    "float_type": "is not a number",
    "finite_number": "is not a finite number",
    "bool_type": "is neither true nor false",
    "bool_parsing": "is neither true nor false",
    "int_parsing": "is not a whole number",
    "float_parsing": "is not a number",
    "string_type": "is not a text",
    "list_type": "is not a list",
    "dict_type": "is no mapping",
    "model_type": "is no mapping of keys",
    "model_attributes_type": "is no mapping of keys",
    "literal_error": "is not one of these",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be above {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be below {lt}",
    "too_short": "has {actual_length} items",
    "too_long": "has {actual_length} items",
    "string_too_long": "is longer than {max_length} characters",
    "form": "{why}",
    "value_error": "{error}",
}
#: A word in an example for which a user has another.
_PLACEHOLDER = re.compile(r"\b[A-Z]{3,}\b")
#: Names of pydantic's for the parts of a union; those of a mapping have brackets.
_LABELS = ("str", "int", "float", "bool", "constrained-str", "constrained-int", "constrained-float",
           "EarlyStopping", "SplitColumn")  # fmt: skip
_CHARACTERS = 100_000  # of a text that no model knows
_DEPTH = 32  # of nodes in nodes
_NAMED = 1000  # characters of a value that may stand for another
_INTEGER = 2**63
#: Groups of which the controller reads keys: those that a user's own option leaves out are added.
_READ = ("strategy", "launcher", "tracking")
#: Groups whose functions check what they are given beside the keys that are known here.
_OF_FUNCTIONS = ("model", "dataset", "optimizer", "optimizer.schedule")


def settle(composed: DictConfig) -> tree.Config:
    """Resolve a configuration that Hydra has composed, and refuse what is wrong with it.

    Args:
        composed: is resolved in place.

    Raises:
        UsageError: it has a key that nothing reads, a reference to what is not there, or a value
            that its key does not take.
    """
    if HydraConfig.initialized():
        alone = OmegaConf.is_missing(composed.tracking, "_target_")
        several = {} if alone and not tree.trackers(composed.tracking) else {"tracking": "[]"}
        schema.refuse_left_out({**several, **HydraConfig.get().runtime.choices})
    tree.check_sizes(composed)
    try:
        private.resolve(composed)
    except OmegaConfBaseException:
        tree.check_references(composed)  # finds the key, which the exception does not say
        raise
    check(composed)
    plain = targets.plain(composed)
    trust.check(plain)
    targets.check_names(plain)
    config = tree.typed(composed)
    if is_address(config.output_dir):
        config.output_dir = str(addresses.local(config.output_dir, "output_dir"))
    config.output_dir = str(Path(config.output_dir).absolute())
    if config.debug["_target_"] == TRAIN:  # the file of a training has no such group
        config.debug = None  # type: ignore[assignment] # a group that is composed is never None
    return config


def _settle_trackers(composed: DictConfig) -> None:
    """Say that trackers which stand in nodes of their own stand beside none."""
    node: Plain = composed.get("tracking")
    open_still = isinstance(node, DictConfig) and OmegaConf.is_missing(node, "_target_")
    if open_still and tree.trackers(node):
        node["_target_"] = schema.target_of(NoTracker)


def check(composed: DictConfig) -> None:
    """Refuse keys that there are not, and values that their keys do not take.

    What a model makes of a value, 1.0 of 1, stands in ``composed`` afterwards.

    Args:
        composed: resolved, but for references to secrets.

    Raises:
        UsageError: for the first one found.
    """
    _settle_trackers(composed)
    if missing := sorted(OmegaConf.missing_keys(composed)):
        key = next((each for each in missing if each.endswith("_target_")), missing[0])
        refuse(key, "has no value yet", accepted=_accepted_at(composed, key), hint=f"{key}=VALUE")
    plain = targets.plain(composed)
    if "model" not in plain:
        refuse("--config-name", "the file has none of dtrain's keys",
               accepted="defaults: [config, _self_] at its beginning",
               hint="python -m dtrain --cfg job without it")  # fmt: skip
    if plain.keys() - schema.Config.model_fields.keys():
        check_node(composed, "", schema.Config)
    for key in schema.Config.model_fields:
        if key in schema.sections():
            check_node(composed, key, schema.sections()[key])
        elif key in schema.SCHEMAS:
            _check_open(composed, key, key)
    check_node(composed, "", schema.Config)
    _finite(plain, "", 0)


def _check_open(composed: DictConfig, key: str, group: str) -> None:
    """Check a node of an open group against the model of its function."""
    value: Plain = OmegaConf.select(composed, key)
    if not isinstance(value, DictConfig) or "_target_" not in value:
        refuse(key, "is not a node with _target_", typed(targets.plain(value)),
               accepted="a group, or a node with _target_",
               hint=f"{group}=OPTION; in a preset, - override /{group}: OPTION")  # fmt: skip
    kind = schema.kind_of(group, value)
    if kind is not None:
        names_here, target = {str(name) for name in value}, str(value["_target_"])
        ours = schema.target_of(kind) == target or target.startswith("dtrain.")
        plan = OmegaConf.select(value, "plan._target_", default="dtrain.")
        ours &= str(plan).startswith("dtrain.")  # one of a user's own may have keys, too
        whole = ours and (keyed(kind).keys() <= names_here or key not in _OF_FUNCTIONS)
        inner = tree.trackers(value) if key == "tracking" else []
        check_node(composed, key, kind, whole=whole, fill=key in _READ, besides=inner)
        for name in inner:
            _check_open(composed, f"tracking.{name}", "tracking")
    if isinstance(value.get("schedule"), DictConfig) and key == "optimizer":
        _check_open(composed, "optimizer.schedule", "optimizer/schedule")
    for name in value.get("members") or () if key == "dataset" else ():
        if isinstance(value["members"][name], DictConfig):
            _check_open(composed, f"dataset.members.{name}", "dataset")


def check_node(
    composed: DictConfig, key: str, kind: type[Group], whole: bool = True, fill: bool = True,
    besides: Collection[str] = (),
) -> None:  # fmt: skip
    """Refuse what is wrong with one node.

    Args:
        composed: the whole.
        key: where the node stands, ``""`` for the whole.
        kind: its model.
        whole: it has no keys but those of the model.
        fill: a key that it lacks gets its default.
        besides: names in it that are nodes by themselves.

    Raises:
        UsageError: for the first one found.
    """
    value: Plain = OmegaConf.select(composed, key)
    if not isinstance(value, DictConfig):
        refuse(key, "is a group of keys", typed(targets.plain(value)), accepted=accepted(kind),
               hint=f"{key}.KEY=VALUE")  # fmt: skip
    plain = {name: each for name, each in targets.plain(value).items() if name not in besides}
    names = {key_of(name, field): name for name, field in kind.model_fields.items()}
    checked = plain if whole else {name: each for name, each in plain.items() if name in names}
    try:
        made = kind.model_validate(checked)
    except ValidationError as error:
        errors = [each for each in error.errors() if whole or fill or each["type"] != "missing"]
        if errors:
            first = min(errors, key=lambda each: (each["type"] == "missing", -len(each["loc"])))
            raise refusal(kind, key, first, composed) from None
        return
    for name, field in names.items():
        read = getattr(made, field)
        if name not in plain and fill and key:
            OmegaConf.update(composed, f"{key}.{name}", read, force_add=True)
        elif type(read) is float and type(plain.get(name)) is int:
            value[name] = read


def refusal(
    kind: type[Group], key: str, error: ErrorDetails, composed: DictConfig | None = None
) -> UsageError:
    """Return the sentence for what is wrong with a value.

    Args:
        kind: a model.
        key: where it stands.
        error: of pydantic.
        composed: the configuration, in which references stand for secrets.
    """
    parts = [part for part in error["loc"] if part not in _LABELS and "[" not in str(part)]
    path = key
    for part in parts:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    what = error["type"]
    facts = {name: bound(each) for name, each in error.get("ctx", {}).items()}
    why = _SAYS.get(what, error["msg"]).format(**facts)
    value: Plain = ALONE if what == "missing" else _shown(path, error["input"], composed)
    if what == "extra_forbidden":
        having = sorted(keyed(_at(kind, parts[:-1])[0]))
        advice = suggest.meant(path, str(value), [each for each in having if each != "_target_"])
        advice = advice or {"hint": f"the command without {path}"}
        return UsageError(path, why, value, accepted=", ".join(having), **advice)
    field, top = _at(kind, parts)[1], f"{key}.{parts[0]}" if key else str(parts[0])
    words = accepted(field.annotation, tuple(field.metadata)) if field else "a value"
    whole = error["input"] if composed is None else targets.plain(OmegaConf.select(composed, top))
    names = words.rpartition(" each ")[2].removesuffix(", or null").split(", ")
    if what == "literal_error":  # it may be one of several kinds that are accepted
        names = re.findall("'(.*?)'", facts["expected"])
    advice = _advice(kind, parts, top, whole, _near(whole, error["input"], names))
    return UsageError(path, why, value, accepted=words, **advice)


def _near(whole: Plain, wrong: Plain, names: list[str]) -> Plain:
    """Return a value, or a list or mapping of such, with the name that is meant by a wrong one.

    Args:
        whole: the value.
        wrong: it, or what is wrong in it.
        names: that are accepted; None is returned where none of them is near.
    """
    near = nearest(wrong, names) if isinstance(wrong, str) and " " not in "".join(names) else None
    if near is None or whole == wrong:
        return near
    if isinstance(whole, Mapping):
        return {name: near if each == wrong else each for name, each in whole.items()}
    return [near if each == wrong else each for each in whole] if isinstance(whole, list) else None


def _advice(
    kind: type[Group], parts: list[int | str], top: str, value: Plain, near: Plain = None
) -> Advice:
    """Return what to type: the value that is meant, the key's default, or an example.

    Args:
        kind: a model.
        parts: of it, that lead to what is wrong.
        top, value: the key that the first of them is, and the whole value of it.
        near: the value that is meant, if it is known.
    """
    field = _at(kind, parts[:1])[1]
    if field is not None and isinstance(field.default, Group) and parts[1:]:
        inner = value.get(parts[1]) if isinstance(value, Mapping) else None
        return _advice(type(field.default), parts[1:], f"{top}.{parts[1]}", inner)
    text = typed(value)
    if len(text) <= _NAMED and (advice := suggest.corrected(top, text)):
        return advice
    if near is not None:
        return {"typed": suggest.quoted(top, typed(near))}
    forms = (each for each in ([] if field is None else _marks(field)) if isinstance(each, Form))
    example = next((each.example for each in forms), None)
    if field is None or (field.is_required() and example is None):
        return {"hint": f"{top}=VALUE"}
    if example is None or not (field.is_required() or field.default is None):
        example = typed(field.default)
    whole = f"{top}={example}"
    way = "hint" if _PLACEHOLDER.search(example) else "typed"
    return {way: f"'{whole}'" if set(whole) & set("[{ ") else whole}


def _marks(field: FieldInfo) -> list[Plain]:
    """Return what stands beside the type of a field, that of ``X | None`` included."""
    inner = [part for each in get_args(field.annotation) if get_origin(each) is Annotated
             for part in get_args(each)]  # fmt: skip
    return [*field.metadata, *inner]


def _at(kind: type[Group], parts: list[int | str]) -> tuple[type[Group], FieldInfo | None]:
    """Return the model and the field that the parts of a place lead to, as far as models go."""
    last = None
    for part in parts:
        if (field := keyed(kind).get(str(part))) is not None:
            last, kind = field, _inner(field.annotation) or kind
    return kind, last


def _inner(annotation: Plain) -> type[Group] | None:
    """Return the model in a type, such as in ``list[Factor] | None``."""
    if isinstance(annotation, type) and not get_args(annotation) and issubclass(annotation, Group):
        return annotation
    origin: Plain = get_origin(annotation)
    if origin in (Annotated, Union, UnionType, list):
        return next(filter(None, map(_inner, get_args(annotation))), None)
    return None


def _accepted_at(composed: DictConfig, key: str) -> str:
    """Return what a key takes that has no value yet."""
    if key.endswith("_target_"):
        return "the dotted name of a function or class, such as mine.build"
    parent, _, name = key.rpartition(".")
    node = OmegaConf.select(composed, parent) if parent in schema.SCHEMAS else {}
    own = schema.kind_of(parent, node) if parent in schema.SCHEMAS else None
    for kind in (own, *schema.kinds(parent)):
        if kind is not None and (field := _at(kind, [name])[1]) is not None:
            return accepted(field.annotation, tuple(field.metadata))
    return "a value"


def _shown(path: str, value: Plain, composed: DictConfig | None) -> str:
    """Return a value for a message: the reference that stands for a secret, and never too long."""
    if composed is not None:
        written = tree.at(OmegaConf.to_container(composed, resolve=False), path)
        value = written if isinstance(written, str) and "${" in written else value
    text = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in typed(value))
    return text if len(text) <= 200 else f"{text[:199]}…"


def _finite(value: Plain, key: str, depth: int) -> None:
    """Check a value that no model may know."""
    problem = None
    if depth > _DEPTH:
        problem, value = f"is nested more than {_DEPTH} deep", "..."
    elif isinstance(value, Mapping):
        for name, each in value.items():
            _finite(each, f"{key}.{name}" if key else str(name), depth + 1)
    elif isinstance(value, list | tuple):
        for position, each in enumerate(value):
            _finite(each, f"{key}[{position}]", depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        problem = "is not a number" if math.isnan(value) else "is infinite"
    elif isinstance(value, int) and not -_INTEGER <= value < _INTEGER:
        problem, value = "does not fit into 64 bits", f"{str(value)[:40]}"
    elif isinstance(value, str) and len(value) > _CHARACTERS:
        problem, value = f"is {len(value):,} characters long", f"{value[:40]}..."
    elif isinstance(value, str) and "\0" in value:
        problem, value = "holds the character NUL", value.replace("\0", "\\0")
    elif isinstance(value, bytes):
        problem, value = "is binary", "..."
    if problem is not None:
        refuse(key, problem, value, accepted="finite numbers and texts", hint=f"{key}=VALUE")
