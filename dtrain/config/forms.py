"""Forms of strings and of nodes: which names, paths, addresses, patterns a key may have."""

from __future__ import annotations

import importlib.metadata
import math
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from omegaconf import MISSING

from dtrain.config.ranges import LARGE, MANY, Each, Form, Range, formed, short

_CHARACTERS = 4096  # of a path or an address
_NAME_BYTES = 200  # of a folder's name, which gets the time before it; file systems take 255
_METRICS = 1000
_CLASSES = 100_000  # that trainer.class_weight may name
_FILES = 1_000_000  # files or columns that one key may name
_ELEMENTS = 2**40  # elements of one example
_FEATURE, _DTYPES = {"dtype", "shape"}, ("string", "int64", "float32")
_STORES = ("sqlite", "postgresql", "mysql", "mssql", "http", "https", "databricks", "uc")


def _words(value: Any, most: int) -> str | None:
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
    problem = _words(value, _NAME_BYTES)
    if problem is not None:
        return problem
    if "/" in value or "\\" in value or value.startswith((".", "-", "~")) or value != value.strip():
        return "is not the name of a folder"
    if len(value.encode()) > _NAME_BYTES:
        return f"is {len(value.encode())} bytes long, of at most {_NAME_BYTES}"
    return None


def _dotted(value: Any) -> str | None:
    problem = _words(value, _CHARACTERS)
    if problem is None and not all(part.isidentifier() for part in str(value).split(".")):
        return "is not the dotted name of a function or class"
    return problem


def _metric(value: Any) -> str | None:
    problem = _words(value, 200)
    if problem is None and not re.fullmatch(r"[\w./: -]+", value):
        return "has characters that a metric's name cannot have"
    return problem


def _separator(value: Any) -> str | None:
    if not isinstance(value, str) or len(value) != 1:
        return "is not one character"
    if value in "\n\r\0\"'." or value.isalnum():
        return "cannot stand between columns"
    return None


def _regular(value: Any) -> str | None:
    problem = _words(value, 1000)
    if problem is not None:
        return problem
    try:
        re.compile(value)
    except (re.error, RecursionError, OverflowError) as error:
        return f"is no regular expression ({error})"
    return None


def _store(value: Any) -> str | None:
    """Say why MLflow would not take ``value`` as the address of a tracking store."""
    problem = _words(value, _CHARACTERS)
    if problem is not None:
        return problem
    scheme, colon, rest = value.partition(":")
    scheme = scheme.partition("+")[0]
    if not colon and value not in ("databricks", "uc"):
        return "has no scheme: MLflow keeps no runs in plain files any more"
    if scheme == "file":
        return "MLflow keeps no runs in plain files any more"
    if scheme not in _STORES and scheme not in _plugins():
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


def _plugins() -> set[str]:
    return {found.name for found in importlib.metadata.entry_points(group="mlflow.tracking_store")}


def _node(value: Any) -> str | None:
    if not isinstance(value, dict):
        return "is not a node with _target_"
    if "_target_" not in value:
        return "has no _target_"
    return None


def _named(value: Any) -> str | None:
    """Say why Keras has no loss or metric of such a name, as far as its form goes."""
    if isinstance(value, str):
        fits = re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,99}", value)
        return None if fits else "is not a name that Keras can have"
    return _node(value)


def _loss(value: Any) -> str | None:
    if isinstance(value, dict) and "_target_" not in value:
        return _by_output(value, _named)
    if not isinstance(value, list):
        return _named(value)
    if not value:
        return "is empty"
    items = (each for each in value if each is not None)  # an output without a loss
    return next((problem for each in items if (problem := _named(each))), None)


def _by_output(value: dict[Any, Any], why: Callable[[Any], str | None]) -> str | None:
    """Say why ``value`` is no mapping from names of outputs; null is of an output without it."""
    if not value:
        return "is empty"
    for name, each in value.items():
        problem = _words(name, 1000) or (None if each is None else why(each))
        if problem is not None:
            return f"{short(name)}: {short(each)} {problem}"
    return None


def _metrics(value: Any) -> str | None:
    if isinstance(value, dict):
        return _by_output(value, _metrics)
    if not isinstance(value, list):
        return _named(value)
    if len(value) > _METRICS:
        return f"names {len(value):,} metrics"
    for each in value:
        problem = _metrics(each) if isinstance(each, list) else _named(each)
        if problem is not None:
            return f"{short(each)} {problem}"
    return None


def _weights(value: Any) -> str | None:
    if isinstance(value, dict):
        return _by_output(value, Range(-LARGE, LARGE).problem)
    if not isinstance(value, list) or not value:
        return "is no list of weights, and no mapping from outputs to them"
    return next((f"{short(v)} {p}" for v in value if (p := Range(-LARGE, LARGE).problem(v))), None)


def _members(value: Any) -> str | None:
    if not isinstance(value, dict) or not value:
        return "is no mapping from names to datasets"
    return _by_output(value, _node)


def _pad(value: Any) -> str | None:
    if not isinstance(value, dict) or not value:
        return "is no mapping from inputs to lengths"
    for name, given in value.items():
        problem = _words(name, 1000)
        if problem is not None:
            return f"{short(name)} {problem}"
        if not isinstance(given, dict) or not given.keys() <= {"length", "buckets", "value"}:
            return f"{short(name)}: {short(given)} has other keys than length, buckets and value"
        if ("length" in given) == ("buckets" in given):
            return f"{short(name)}: {short(given)} has not one of length and buckets"
        sizes = given["buckets"] if "buckets" in given else [given["length"]]
        if not isinstance(sizes, list) or not sizes:
            return f"{short(name)}: {short(sizes)} is no list of lengths"
        problem = next((p for n in sizes if (p := Range(1, MANY).problem(n))), None)
        if problem is not None or not all(isinstance(n, int) for n in sizes):
            return f"{short(name)}: {short(sizes)} {problem or 'is not a whole number'}"
        if not isinstance(given.get("value", 0), int | float | str):
            return f"{short(name)}: {short(given['value'])} cannot fill a row"
    return None


def _features(value: Any) -> str | None:
    """Say why ``value`` cannot declare the features of ``tf.train.Example``."""
    if not isinstance(value, dict) or not value:
        return "is no mapping from features to their types"
    for name, given in value.items():
        problem = _words(name, 1000)
        if problem is not None:
            return f"{short(name)} {problem}"
        if not isinstance(given, dict) or "dtype" not in given or not given.keys() <= _FEATURE:
            return f"{short(name)}: {short(given)} is not a dtype, and perhaps a shape"
        if given["dtype"] not in _DTYPES:
            return f"{short(name)}: {short(given['dtype'])} is none of {', '.join(_DTYPES)}"
        shape = [] if given.get("shape") is None else given["shape"]
        if not isinstance(shape, list) or len(shape) > 8:
            return f"{short(name)}: {short(shape)} is no shape"
        sizes = shape[1:] if shape[:1] == [None] else shape  # null is a length that differs
        for size in sizes:
            problem = Range(1, MANY).problem(size)
            if problem is not None or not isinstance(size, int):
                return f"{short(name)}: {short(shape)} {problem or 'is not of whole numbers'}"
        if math.prod(sizes) > _ELEMENTS:
            return f"{short(name)}: {short(shape)} makes an example of {math.prod(sizes):,} numbers"
    return None


def _class_weight(value: Any) -> str | None:
    if not isinstance(value, dict):
        return "is no mapping from classes to weights"
    if not 1 <= len(value) <= _CLASSES:
        return f"names {len(value):,} classes"
    for name, weight in value.items():
        if isinstance(name, bool) or not isinstance(name, int) or Range(0, MANY).problem(name):
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
            if name in item and Range(-64, 4096).problem(item[name]) is not None:
                return f"{name}: {short(item[name])} is no number that a {name} can have"
            if name in item and not isinstance(item[name], int):
                return f"{name}: {short(item[name])} is not a whole number"
    return None


def _paths(value: Any) -> str | None:
    if not isinstance(value, list):
        return _words(value, _CHARACTERS)
    if not 1 <= len(value) <= _FILES:
        return f"names {len(value):,} files"
    return next((f"{short(v)} {p}" for v in value if (p := _words(v, _CHARACTERS))), None)


def _columns(value: Any) -> str | None:
    """Say why ``value`` cannot name columns: one, a list of them, or such by names of inputs."""
    if isinstance(value, dict):
        if not 1 <= len(value) <= _FILES:
            return f"has {len(value):,} names"
        for name, part in value.items():
            problem = _words(name, 1000) or _columns(part)
            if problem is not None:
                return f"{short(name)}: {short(part)} {problem}"
        return None
    if isinstance(value, list):
        if not 1 <= len(value) <= _FILES:
            return f"names {len(value):,} columns"
        return next((f"{short(v)} {p}" for v in value if (p := _words(v, 1000))), None)
    return _words(value, 1000)


def _images(value: Any) -> str | None:
    if not isinstance(value, dict) or not value:
        return "is no mapping from columns to sizes"
    for name, size in value.items():
        problem = _words(name, 1000)
        if problem is not None:
            return f"{short(name)} {problem}"
        if not isinstance(size, list) or len(size) != 3:
            return f"{short(name)}: {short(size)} is not height, width and channels"
        problem = next((p for n in size if (p := Range(1, 16_384).problem(n))), None)
        if problem is not None:
            return f"{short(name)}: {short(size)} {problem}"
    return None


def _size(shape: list[Any]) -> str | None:
    elements = math.prod(shape)
    return f"makes an example of {elements:,} numbers" if elements > _ELEMENTS else None


def _trace(steps: list[Any]) -> str | None:
    return None if steps[0] < steps[1] else "is not a first and a later last step"


def _choice(*values: str) -> Form:
    return Form(
        " or ".join(values), lambda v: None if v in values else "is none of them", values[0]
    )


def text(most: int = 1000) -> Form:
    """Return the form of any text of one line, up to so many characters."""
    return Form("a text of one line", lambda value: _words(value, most))


FILE_NAME = Form("the name of a folder, up to 200 characters, without /", _file_name, "run")
PATH = Form("a path", lambda value: _words(value, _CHARACTERS))
PATHS = Form("a path, a pattern such as shards/*.parquet, or a list of them", _paths, "FILE")
COLUMNS = Form("a column, a list of columns, or columns by name", _columns, "COLUMN")
ARRAYS = Form("the name of an array, a list of such, or names by input or output", _columns, "NAME")
IMAGES = Form("sizes of images by column", _images, "{image: [64, 64, 3]}")
DOTTED = Form("the dotted name of a function or class", _dotted)
METRIC = Form("the name of a metric", _metric, "val_loss")
SEPARATOR = Form("one character", _separator, "';'")
STORE = Form(
    f"null, or an address of {', '.join(_STORES)}", _store, "http://HOST:PORT"
)  # fmt: skip
TOKENS = _choice("bytes", "characters")
NODE = Form("a node with _target_", _node)
LOSS = Form("a name of keras.losses, or a node with _target_ (or a list or mapping of them, one "
            "for each output)", _loss, "{_target_: keras.losses.Huber}")  # fmt: skip
METRICS = Form("a name of keras.metrics or a node with _target_, a list of them, or such by output",
               _metrics, "[accuracy]")  # fmt: skip
LOSS_WEIGHTS = Form("null, or numbers: a list of them, or by output", _weights, "{NAME: 1.0}")
MEMBERS = Form("nodes with _target_, by name", _members,
               "{a: {_target_: dtrain.datasets.digits}}")  # fmt: skip
PAD = Form("null, or lengths by input", _pad, "{tokens: {length: 128}}")
FEATURES = Form(
    "types of features by name; null in a shape is a length that differs", _features,
    "{image: {dtype: string}, label: {dtype: int64}, x: {dtype: float32, shape: [8]}}",
)  # fmt: skip
INDEX = _choice("cache", "beside")
DECODE = _choice("example", "npy", "bytes")
CACHE = _choice("none", "memory", "disk")
CLASS_WEIGHT = Form(
    "null, or weights by the number of the class", _class_weight, "{0: 1.0, 1: 3.0}"
)
CALLBACKS = Each(NODE, 0, 1000, "[]")
PATTERNS = Each(Form("a regular expression", _regular), 0, 1000, "[]")
PLACEMENT = Form("auto, or a list of rules", _rules, "auto")
TRACE = Each(Range(0, MANY), 2, 2, "[20,25]", _trace)
SHAPE = Each(Range(1, 2**31 - 1), 1, 8, "[28,28,1]", _size)
IMAGE_SIZE = Each(Range(1, 16_384), 2, 2, "[64,64]")


def widths(least: int, most: int, example: str) -> Each:
    """Return the rule of a list of widths of layers: at least ``least`` of at most ``most``."""
    return Each(Range(1, most), least, 1000, example)


def target(default: str = MISSING) -> Any:
    """Return the field ``_target_``."""
    return formed(default, DOTTED)
