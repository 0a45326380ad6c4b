"""Forms of strings and of nodes: which names, paths, addresses, patterns a key may have."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any
from urllib.parse import urlsplit

from omegaconf import MISSING

from dtrain.config.ranges import LARGE, MANY, YEAR, Each, Form, Range, Rule, formed, short

CHARACTERS = 4096  # of a path or an address
_NAME_BYTES = 200  # of a folder's name, which gets the time before it; file systems take 255
_METRICS = 1000
_REGISTERED = 200  # of the name of a registered model, and of an alias
_CLASSES = 100_000  # that trainer.class_weight may name
ELEMENTS = 2**40  # elements of one example
_STORES = ("sqlite", "postgresql", "mysql", "mssql", "http", "https", "databricks", "uc")


def words(value: Any, most: int) -> str | None:
    """Say why ``value`` cannot stand in one line."""
    if not isinstance(value, str):
        return "is not a text"
    if not value.strip():
        return "is empty"
    if len(value) > most:
        return f"is {len(value):,} characters long, of at most {most:,}"
    bad = next((c for c in value if not c.isprintable()), None)
    if bad is not None:
        return f"holds the character U+{ord(bad):04X}, which cannot be printed"
    return None


def _file_name(value: Any) -> str | None:
    problem = words(value, _NAME_BYTES)
    if problem is not None:
        return problem
    if "/" in value or "\\" in value or value.startswith((".", "-", "~")) or value != value.strip():
        return "is not the name of a folder"
    if len(value.encode()) > _NAME_BYTES:
        return f"is {len(value.encode())} bytes long, of at most {_NAME_BYTES}"
    return None


def _regular(value: Any) -> str | None:
    problem = words(value, 1000)
    if problem is not None:
        return problem
    try:
        re.compile(value)
    except (re.error, RecursionError, OverflowError) as error:
        return f"is no regular expression ({error})"
    return None


def _store(value: Any) -> str | None:
    """Say why MLflow would not take ``value`` as the address of a tracking store."""
    problem = words(value, CHARACTERS)
    if problem is not None:
        return problem
    scheme, colon, rest = value.partition(":")
    scheme = scheme.partition("+")[0]
    if not colon and value not in ("databricks", "uc"):
        return "has no scheme: MLflow keeps no runs in plain files any more"
    if scheme == "file":
        return "MLflow keeps no runs in plain files any more"
    if scheme not in _STORES and scheme not in entry_points(group="mlflow.tracking_store").names:
        return f"MLflow has no store of the scheme {scheme!r}"
    try:
        parts = urlsplit(value)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        return f"is no address ({error})"
    if scheme in ("postgresql", "mysql", "mssql"):
        return _driver(value)
    if scheme in ("http", "https") and not host:
        return "names no host"
    if scheme == "sqlite" and not re.match(r"///[^?]*[^/?]", rest):
        return "names no file"
    return None


def _driver(address: str) -> str | None:
    """Say why SQLAlchemy, with which MLflow reads databases, cannot read this one."""
    from sqlalchemy.engine import make_url

    try:
        make_url(address).get_dialect().import_dbapi()
    except ImportError as error:
        return f"the driver of this database is not installed ({error})"
    except Exception as error:  # of its own, for each way to be no address
        return f"is no address of a database ({' '.join(str(error).split())})"
    return None


def node_problem(value: Any) -> str | None:
    """Say why ``value`` is no node that names a function or class."""
    if not isinstance(value, dict):
        return "is not a node with _target_"
    if "_target_" not in value:
        return "has no _target_"
    return None


def _named(value: Any) -> str | None:
    """Say why Keras has no loss or metric of such a name, as far as its form goes."""
    if isinstance(value, str):
        fits = re.fullmatch(r"(torch(\.[A-Za-z]\w{0,99}){2,3}|[A-Za-z][A-Za-z0-9_]{0,99})", value)
        return None if fits else "is not a name that Keras can have"
    return node_problem(value)


def _loss(value: Any) -> str | None:
    if isinstance(value, dict) and "_target_" not in value:
        return by_name(value, _named)
    if not isinstance(value, list):
        return _named(value)
    if not value:
        return "is empty"
    items = (each for each in value if each is not None)  # an output without a loss
    return next((problem for each in items if (problem := _named(each))), None)


def by_name(
    value: dict[Any, Any], why: Callable[[Any], str | None], places: bool = False
) -> str | None:
    """Say why ``value`` is no mapping from names; null is of an output that has none.

    Args:
        value: a mapping.
        why: says why a value of it is none.
        places: numbers stand for names where there are none.
    """
    if not value:
        return "is empty"
    for name, each in value.items():
        problem = None if places and type(name) is int else words(name, 1000)
        problem = problem or (None if each is None else why(each))
        if problem is not None:
            return f"{short(name)}: {short(each)} {problem}"
    return None


def _metrics(value: Any) -> str | None:
    if isinstance(value, dict) and "_target_" not in value:
        return by_name(value, _metrics_of)
    return _metrics_of(value)


def _metrics_of(value: Any) -> str | None:
    """Say why ``value`` cannot be the metrics of one output: one, or a list of them."""
    if not isinstance(value, list):
        return _named(value)
    if len(value) > _METRICS:
        return f"names {len(value):,} metrics"
    for each in value:
        problem = _metrics_of(each) if isinstance(each, list) else _named(each)
        if problem is not None:
            return f"{short(each)} {problem}"
    return None


def _weights(value: Any) -> str | None:
    factor = Range(-LARGE, LARGE)
    if isinstance(value, dict):
        return by_name(value, factor.problem)
    return Each(factor, 1, _METRICS, "").problem(value)


def _class_weight(value: Any) -> str | None:
    if not isinstance(value, dict):
        return "is no mapping from classes to weights"
    if not 1 <= len(value) <= _CLASSES:
        return f"names {len(value):,} classes"
    for name, weight in value.items():
        if Range(0, MANY, whole=True).problem(name):
            return f"{short(name)} is not the number of a class"
        problem = Range(0, MANY).problem(weight)
        if problem is not None:
            return f"the weight {short(weight)} of class {name} {problem}"
    return None


def _rules(value: Any) -> str | None:
    """Say why ``strategy.rules`` cannot be read: what needs the model is checked by the task."""
    if value == "auto":
        return None
    if not isinstance(value, list):
        return "is no list of rules"
    if not value:
        return "has no rule"
    for item in value:
        pattern = item.get("path", item.get("layer")) if isinstance(item, dict) else None
        if not isinstance(item, dict) or pattern is None or len(item) != 2:
            return f"{short(item)} is no rule"
        problem = _regular(pattern)
        if problem is not None:
            return f"{short(pattern)} {problem}"
        for name in ("split", "gather", "device"):
            problem = Range(-64, 4096, whole=True).problem(item.get(name, 0))
            if problem is not None:
                return f"{name}: {short(item[name])} {problem}"
    return None


def size(shape: list[Any]) -> str | None:
    """Say why an example cannot have a shape."""
    elements = math.prod(shape)
    return f"makes an example of {elements:,} numbers" if elements > ELEMENTS else None


def _trace(steps: list[Any]) -> str | None:
    return None if steps[0] < steps[1] else "is not a first and a later last step"


def _alias(value: Any) -> str | None:
    problem = words(value, _REGISTERED)
    if problem is None and not re.fullmatch(r"[A-Za-z0-9_-]+", value):
        return "has characters other than letters, digits, _ and -"
    if problem is None and re.fullmatch(r"[vV]?\d+|latest", value, re.I):
        return "stands for a version"
    return problem


def _checkpoint(value: Any) -> str | None:
    return None if re.fullmatch(r"best|latest|all|[0-9]{1,18}", str(value)) else "is none"


def _prefix(value: Any) -> str | None:
    if not re.fullmatch(r"\w[\w.-]{0,99}", str(value)):
        return "is not a word of letters, digits, _, - and ."
    if value in ("train", "validation", "val"):
        return "is the name of what training itself records"
    return None


def _predicted(value: Any) -> str | None:
    return None if value in ("argmax", "top_k") else node_problem(value)


def _shard(value: Any) -> str | None:
    match = re.fullmatch(r"(\d{1,5})/(\d{1,5})", str(value), re.ASCII)
    return None if match and int(match[1]) < int(match[2]) else "is no number below another"


def choice(*values: str) -> Form:
    """Return the form of one of several texts."""

    def why(value: Any) -> str | None:
        return None if value in values else "is not one of these"

    return Form(" or ".join(values), why, values[0], values)


def matching(
    accepted: str, pattern: str, problem: str, most: int, example: str | None = None
) -> Form:
    """Return the form of a text of at most ``most`` characters that a pattern fits."""

    def why(value: Any) -> str | None:
        wrong = words(value, most)
        return wrong or (None if re.fullmatch(pattern, value) else problem)

    return Form(accepted, why, example)


def one_or_list(accepted: str, rule: Rule, most: int, example: str) -> Form:
    """Return the form of what follows a rule, or of a list of such."""
    several = Each(rule, 1, most, "")

    def why(value: Any) -> str | None:
        return (several if isinstance(value, list) else rule).problem(value)

    return Form(accepted, why, example)


def text(most: int = 1000) -> Form:
    """Return the form of any text of one line, up to so many characters."""
    return Form("a text of one line", lambda value: words(value, most))


FILE_NAME = Form("the name of a folder, up to 200 characters, without /", _file_name, "run")
CHECKPOINT = Form("best, latest, all, or a step", _checkpoint, "latest")
PREFIX = Form("a word that names the points", _prefix, "test")
REGISTERED = matching(
    "null, or a name of letters, digits, _, -, . and spaces", r"\w[\w. -]*",
    "has characters other than letters, digits, _, -, . and spaces", _REGISTERED, "digits",
)  # fmt: skip
ALIAS = Form("letters, digits, _ and -, not like v3 or latest", _alias, "champion")
PATH = Form("a path", lambda value: words(value, CHARACTERS))
DOTTED = matching(
    "the dotted name of a function or class", r"[^\W\d]\w*(\.[^\W\d]\w*)*",
    "is not the dotted name of a function or class", CHARACTERS,
)  # fmt: skip
METRIC = matching(
    "the name of a metric", r"[\w./: -]+", "has characters that a metric's name cannot have", 200,
    "val_loss",
)  # fmt: skip
STORE = Form(f"null, or an address of {', '.join(_STORES)}", _store, "http://HOST:PORT")
NODE = Form("a node with _target_", node_problem)
OWN = Form(
    "names and values", lambda value: None if isinstance(value, dict) else "is no mapping", "{}"
)
AUGMENT = one_or_list(
    "a node with _target_, or a list of them", NODE, 1000, "[{_target_: keras.layers.RandomFlip}]"
)
LOSS = Form("a name of keras.losses, or a node with _target_ (or a list or mapping of them, one "
            "for each output)", _loss, "{_target_: keras.losses.Huber}")  # fmt: skip
METRICS = Form("a name of keras.metrics or a node with _target_, a list of them, or such by output",
               _metrics, "[accuracy]")  # fmt: skip
LOSS_WEIGHTS = Form("null, or numbers: a list of them, or by output", _weights, "{NAME: 1.0}")
CLASS_WEIGHT = Form(
    "null, or weights by the number of the class", _class_weight, "{0: 1.0, 1: 3.0}"
)
CALLBACKS = Each(NODE, 0, 1000, "[]")
PREDICTED = Form("argmax, top_k, or a node with _target_", _predicted, "argmax")
SHARD = Form("K/N, with K from 0 to N-1", _shard, "0/2")
SPLIT = choice("train", "validation")
LOG = Each(choice("gradient_norm", "weight_norm", "update_ratio"), 0, 3, "[gradient_norm]")
PARTS = Each(choice("inputs", "labels"), 0, 2, "[labels]")
PATTERNS = Each(Form("a regular expression", _regular), 0, 1000, "[]")
PLACEMENT = Form("auto, or a list of rules", _rules, "auto")
TRACE = Each(Range(0, MANY), 2, 2, "[20,25]", _trace)
SHAPE = Each(Range(1, 2**31 - 1), 1, 8, "[28,28,1]", size)


def widths(least: int, most: int, example: str) -> Each:
    """Return the rule of a list of widths of layers: at least ``least`` of at most ``most``."""
    return Each(Range(1, most), least, 1000, example)


def target(default: str = MISSING) -> Any:
    """Return the field ``_target_``."""
    return formed(default, DOTTED)


# -- lengths of time ----------------------------------------------------------------------------

_UNITS = {"d": 86_400, "h": 3600, "m": 60, "s": 1}
_TEXT = re.compile("".join(rf"(?:(\d+(?:\.\d+)?){unit})?" for unit in _UNITS))


def seconds(value: Any) -> float | None:
    """Return how many seconds a value is; None where it is no length of time."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    match = _TEXT.fullmatch(value) if isinstance(value, str) and value else None
    if match is None:
        return None
    return sum(float(n or 0) * of for n, of in zip(match.groups(), _UNITS.values(), strict=True))


def _no_duration(value: Any) -> str | None:
    duration = seconds(value)
    if duration is None:
        return "is no length of time"
    return Range(0, YEAR, above=True).problem(duration)


DURATION = Form("null, or a time: 2h, 90m, 1h30m, or seconds up to a year", _no_duration, "2h")
