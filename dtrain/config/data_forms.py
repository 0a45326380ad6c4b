"""Forms of the keys of datasets: files, columns, features, lengths, members."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any

import yaml

from dtrain.config.forms import CHARACTERS, NODE, by_name, choice, one_or_list, size, text, words
from dtrain.config.ranges import LARGE, MANY, Each, Form, Range

_FILES = 1_000_000  # files or columns that one key may name
_KINDS = ("number", "boolean", "date", "category", "text", "skip")
#: Dates as ``strptime`` reads them.
_FORM = re.compile(r"[^\n%]{0,50}(%[aAbBdfHIjmMpSyYzZ][^\n%]{0,50}){1,20}")
_DTYPES = ("string", "int64", "float32")
_SIZES = Each(Range(1, MANY, whole=True), 1, 1000, "")


def _of_names(
    names: str, values: str, why: Callable[[Any], str | None], places: bool = False
) -> Callable[[Any], str | None]:
    """Return what says why a value is no mapping from names, of which none has null."""

    def problem(value: Any) -> str | None:
        if not isinstance(value, dict) or None in value.values():
            return f"is no mapping from {names} to {values}"
        return by_name(value, why, places)

    return problem


def _separator(value: Any) -> str | None:
    if value == "tab":
        return None
    if not isinstance(value, str) or len(value) != 1:
        return "is not one character"
    if value in "\n\r\0\"'." or value.isalnum():
        return "cannot stand between columns"
    return None


def _encoding(value: Any) -> str | None:
    try:
        "".encode(value)
    except (LookupError, TypeError, ValueError):
        return "is no encoding of texts that Python knows"
    return None


def _padding(value: Any) -> str | None:
    if not isinstance(value, dict) or not value.keys() <= {"length", "buckets", "value"}:
        return "has other keys than length, buckets and value"
    if ("length" in value) == ("buckets" in value):
        return "has not one of length and buckets"
    problem = _SIZES.problem(value["buckets"] if "buckets" in value else [value["length"]])
    if problem is not None:
        return f"has wrong lengths ({problem})"
    filling = value.get("value", 0)
    if isinstance(filling, str):
        problem = words(filling, 1000) if filling else None
    elif not isinstance(filling, bool):
        problem = Range(-LARGE, LARGE).problem(filling)
    return problem and f"has a wrong value ({problem})"


def _feature(value: Any) -> str | None:
    """Say why ``value`` cannot declare a feature of ``tf.train.Example``."""
    if not isinstance(value, dict) or not {"dtype"} <= value.keys() <= {"dtype", "shape"}:
        return "is not a dtype, and perhaps a shape"
    if value["dtype"] not in _DTYPES:
        return f"has a dtype that is none of {', '.join(_DTYPES)}"
    shape = [] if value.get("shape") is None else value["shape"]
    if isinstance(shape, list) and shape[:1] == [None]:  # a length that differs
        shape = shape[1:]
    problem = Each(_SIZES.rule, 0, 8, "", size).problem(shape)
    return problem and f"has a wrong shape ({problem})"


def _columns(value: Any) -> str | None:
    """Say why ``value`` cannot name columns: one, a list of them, or such by names of inputs."""
    if isinstance(value, dict):
        return _of_names("names", "columns", _columns)(value)
    return _NAMES.problem(value)


def _split_by(value: Any) -> str | None:
    if isinstance(value, str):
        return None if value in ("random", "classes") else "is neither random nor classes"
    if not isinstance(value, dict) or not {"by"} <= value.keys() <= {"by", "ordered"}:
        return "is not {by: COLUMN}"
    if not isinstance(value.get("ordered", True), bool):
        return "has no true or false for ordered"
    return words(value["by"], 1000)


def _cell(value: Any) -> str | None:
    is_cell = isinstance(value, str | int | float) and not isinstance(value, bool)
    return None if is_cell and len(str(value)) <= 1000 else "is no text, and no number"


def _kind(value: Any) -> str | None:
    fits = value in _KINDS or (isinstance(value, str) and _FORM.fullmatch(value))
    return None if fits else f"is none of {', '.join(_KINDS)}"


def _kinds(value: Any) -> str | None:
    if isinstance(value, str):
        with contextlib.suppress(yaml.YAMLError):
            value = yaml.safe_load(value)
    return _of_names("columns", "kinds", _kind, places=True)(value)


_NAMES = one_or_list("", text(), _FILES, "")
PATHS = one_or_list(
    "a path, a pattern such as shards/*.parquet, or a list of them", text(CHARACTERS), _FILES,
    "FILE",
)  # fmt: skip
COLUMNS = Form("a column, a list of columns, or columns by name", _columns, "COLUMN")
ARRAYS = Form("the name of an array, a list of such, or names by input or output", _columns, "NAME")
IMAGES = Form(
    "sizes of images by column",
    _of_names("columns", "sizes", Each(Range(1, 16_384, whole=True), 3, 3, "").problem),
    "{image: [64, 64, 3]}",
)
SPLIT_BY = Form("random, classes, or {by: COLUMN}", _split_by, "classes")
ENCODING = Form("an encoding that Python knows", _encoding, "cp1252")
SKIP_ROWS = one_or_list(
    "a number of lines, or a list of the numbers of lines", Range(1, LARGE), 1000, "1"
)
QUOTE = choice('"', "'", "none")
SEPARATOR = Form("one character, or tab", _separator, "';'")
TOKENS = choice("bytes", "characters")
MEMBERS = Form(
    "nodes with _target_, by name", _of_names("names", "datasets", NODE.problem),
    "{a: {_target_: dtrain.datasets.digits}}",
)  # fmt: skip
WEIGHTS = Form(
    "null, or numbers above 0 by name",
    _of_names("names", "weights", Range(0, LARGE, above=True).problem), "{NAME: 1.0}",
)  # fmt: skip
#: Of several inputs without names the places are numbers.
PAD = Form(
    "null, or lengths by input", _of_names("inputs", "lengths", _padding, places=True),
    "{tokens: {length: 128}}",
)  # fmt: skip
FEATURES = Form(
    "types of features by name; null in a shape is a length that differs",
    _of_names("features", "types", _feature),
    "{image: {dtype: string}, label: {dtype: int64}, x: {dtype: float32, shape: [8]}}",
)  # fmt: skip
KINDS = Form("kinds or forms by column", _kinds, "{city: category, note: text, id: skip}")
CELLS = Each(Form("a text or a number", _cell, "'?'"), 1, 1000, "['?', -999]")
FORMAT = choice("parquet", "arrow", "csv", "json")
CACHE = choice("none", "memory", "disk")
IMAGE_SIZE = Each(Range(1, 16_384), 2, 2, "[64,64]")
