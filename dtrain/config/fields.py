"""What the fields of the configuration are made of: the base of its groups, scopes, ranges, forms.

A field is ``epochs: Annotated[int, within(1, MANY), scope("length")] = 25`` with a sentence below
it, its help. pydantic checks it; :func:`accepted` says in words what it takes.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self, Union, get_args, get_origin

from annotated_types import Interval, Len
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    model_validator,
)  # fmt: skip
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from dtrain.config.node import Plain as Plain

#: Largest count of anything (steps, epochs, examples): what is far below the 64 bits of TensorFlow.
MANY = 10**9
#: Largest seed: TensorFlow takes 31 bits.
SEED = 2**31 - 1
#: Longest time of any kind, in seconds: a year.
YEAR = 31_536_000
#: Largest width of a layer, and number of classes.
WIDE = 2**24
#: Largest clipping norm, scale and the like: far below where float32 ends.
LARGE = 1e12


@dataclasses.dataclass(frozen=True)
class Scope:
    """What a key decides.

    Attributes:
        of: ``data`` (which examples a step sees) and ``numbers`` may not change in a run that is
            resumed; ``length`` (how long, how often, what is done) and ``host`` may; ``record`` is
            where a run is written down; ``command`` is of how it is started.
        marks: ``once``: of one command, and not of what it began; ``call``: what a call of the
            Python API says by itself; ``training``: without a meaning for a command on a run;
            ``sweep``: one for all jobs of a sweep; ``strategy``: another strategy has its own.
    """

    of: str
    marks: tuple[str, ...] = ()


def scope(of: str, *marks: str) -> Scope:
    """Return the scope of a field, where it is not that of its group."""
    return Scope(of, marks)


class Group(BaseModel):
    """Base of all groups: an unknown key is refused, and no value is converted.

    A configuration at run time is a tree (:mod:`dtrain.config.tree`) that these classes have
    checked, and whose types they are.
    """

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, defer_build=True, allow_inf_nan=False,
        populate_by_name=False,
    )  # fmt: skip
    #: Of its fields that have none of their own.
    group_scope: ClassVar[Scope | None] = None

    def __init_subclass__(
        cls, scope: Scope | str | None = None, target: str | None = None, **options: Plain
    ):
        """Take the scope of the fields, and what a node of this group calls, from the head."""
        super().__init_subclass__(**options)
        if scope is not None:
            cls.group_scope = Scope(scope) if isinstance(scope, str) else scope
        if target is not None:
            cls.__annotations__ = {"target_": Target, **cls.__annotations__}
            cls.target_ = target  # type: ignore[attr-defined] # of those that have one

    if TYPE_CHECKING:  # of the tree

        def replaced(self, **values: Plain) -> Self:
            """Return a node with other values under some names."""

        def __setattr__(self, name: str, value: Plain) -> None: ...


class Options(Group, scope="command"):
    """Base of the words that a command takes: texts of a command line, read by their types."""

    model_config = ConfigDict(strict=False)

    @model_validator(mode="before")
    @classmethod
    def _read(cls, values: Plain) -> Plain:
        """Read null, and lists, which may stand without brackets."""
        texts: dict[str, Plain] = {
            key: None if text == "null" else text for key, text in values.items()
        }
        for name, field in cls.model_fields.items():
            key, kinds = key_of(name, field), (field.annotation, *get_args(field.annotation))
            text = texts.get(key)
            if isinstance(text, str) and any(get_origin(kind) is list for kind in kinds):
                texts[key] = [part.strip() for part in text.strip("[]").split(",")]
        return texts


def within(low: float, high: float, *, above: bool = False, below: bool = False) -> Interval:
    """Return a range of numbers: of which ``low`` (``above``) or ``high`` (``below``) is none."""
    return Interval(**{"gt" if above else "ge": low, "lt" if below else "le": high})


Count = Annotated[int, within(1, MANY)]
Index = Annotated[int, within(0, MANY)]
Number = Annotated[int, within(1, 10_000)]
Width = Annotated[int, within(1, WIDE)]
Seed = Annotated[int, within(0, SEED)]
Fraction = Annotated[float, within(0, 1, below=True)]
Share = Annotated[float, within(0, 1, above=True)]
Positive = Annotated[float, within(0, LARGE, above=True)]
Amount = Annotated[float, within(0, LARGE)]
Seconds = Annotated[float, within(0, YEAR)]


@dataclasses.dataclass(frozen=True)
class Form:
    """Texts or nodes of one form.

    Attributes:
        accepted: what they are, in words.
        problem: returns why a value is none of them, None where it is one; None of what its type
            says.
        example: one of them, as it is typed.
    """

    accepted: str
    problem: Callable[[Plain], str | None] | None = None
    example: str | None = None

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Return what pydantic checks a value by."""
        if self.problem is None:
            return handler(source)
        return core_schema.no_info_plain_validator_function(
            self.checked, json_schema_input_schema=core_schema.any_schema()
        )

    def why_not(self, value: Plain) -> str | None:
        """Return why a value is of another form."""
        return None if self.problem is None else self.problem(value)

    def checked(self, value: Plain) -> Plain:
        """Return the value.

        Raises:
            PydanticCustomError: it is of another form.
        """
        if (why := self.why_not(value)) is not None:
            raise PydanticCustomError("form", "{why}", {"why": why})
        return value


def items(least: int, most: int) -> Len:
    """Return how many items a list may have."""
    return Len(least, most)


# -- forms that several groups use --------------------------------------------------------------

CHARACTERS = 4096  # of a path or an address
_NAME_BYTES = 200  # of a folder's name, which gets the time before it; file systems take 255


def line_problem(value: Plain, most: int = 1000) -> str | None:
    """Say why ``value`` cannot stand in one line of at most so many characters."""
    if not isinstance(value, str):
        return "is not a text"
    if not value.strip():
        return "is empty"
    if len(value) > most:
        return f"is {len(value):,} characters long, of at most {most:,}"
    bad = next((c for c in value if not c.isprintable()), None)
    return bad and f"holds the character U+{ord(bad):04X}, which cannot be printed"


def line(most: int = 1000) -> Form:
    """Return the form of any text of one line."""
    return Form("a text of one line", lambda value: line_problem(value, most))


def matching(accepted: str, pattern: str, why: str, most: int, example: str | None = None) -> Form:
    """Return the form of a text of at most ``most`` characters that a pattern fits."""

    def problem(value: Plain) -> str | None:
        return line_problem(value, most) or (None if re.fullmatch(pattern, value) else why)

    return Form(accepted, problem, example)


def regex_problem(value: Plain) -> str | None:
    """Say why ``value`` is no regular expression."""
    problem = line_problem(value)
    try:
        return problem or (re.compile(value) and None)
    except (re.error, RecursionError, OverflowError) as error:
        return f"is no regular expression ({error})"


def node_problem(value: Plain) -> str | None:
    """Say why ``value`` is no node that names a function or class."""
    if not isinstance(value, dict):
        return "is not a node with _target_"
    return None if "_target_" in value else "has no _target_"


def mapping_problem(value: Plain, why: Callable[[Plain], str | None]) -> str | None:
    """Say why ``value`` is no mapping from names; null is of an output that has none.

    Args:
        value: anything.
        why: says why a value of it is none.
    """
    if not isinstance(value, dict):
        return "is no mapping"
    if not value:
        return "is empty"
    for name, each in value.items():
        problem = line_problem(name) or (None if each is None else why(each))
        if problem is not None:
            return f"{short(name)}: {short(each)} {problem}"
    return None


Line = Annotated[str, line()]
Path = Annotated[str, Form("a path", lambda value: line_problem(value, CHARACTERS))]
Regex = Annotated[str, Form("a regular expression", regex_problem, "'^block_'")]
Patterns = Annotated[list[Regex], items(0, 1000)]
_NODE = Form("a node with _target_", node_problem, "{_target_: MODULE.NAME}")
Node = Annotated[Plain, _NODE]
#: Of ``target_``, which is required where a group has no function of its own.
Target = Annotated[
    str, Field(alias="_target_"),
    matching("the dotted name of a function or class", r"[^\W\d]\w*(\.[^\W\d]\w*)*",
             "is not the dotted name of a function or class", CHARACTERS),
]  # fmt: skip


Shape = Annotated[
    list[Annotated[int, within(1, 2**31 - 1)]], items(1, 8), AfterValidator(lambda s: _elements(s))
]
Metric = Annotated[
    str, matching("the name of a metric", r"[\w./: -]+",
                  "has characters that a metric's name cannot have", 200, "val_loss"),
]  # fmt: skip


def _file_name(value: Plain) -> str | None:
    if (problem := line_problem(value, _NAME_BYTES)) is not None:
        return problem
    if "/" in value or "\\" in value or value.startswith((".", "-", "~")) or value != value.strip():
        return "is not the name of a folder"
    length = len(value.encode())
    return f"is {length} bytes long, of at most {_NAME_BYTES}" if length > _NAME_BYTES else None


FileName = Annotated[
    str, Form("the name of a folder, up to 200 characters, without /", _file_name, "run")
]


def _elements(shape: list[int]) -> list[int]:
    if math.prod(shape) > 2**40:
        raise ValueError(f"makes an example of {math.prod(shape):,} numbers")
    return shape


# -- what a field accepts, in words --------------------------------------------------------------

_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false",
          type(None): "null", dict: "a mapping"}  # fmt: skip


def accepted(annotation: Plain, marks: tuple[object, ...] = ()) -> str:
    """Return in words what values an annotation takes.

    Args:
        annotation: a type.
        marks: what stands beside it in ``Annotated``.
    """
    origin: Plain = get_origin(annotation)
    if origin is Annotated:
        inner, *more = get_args(annotation)
        return accepted(inner, (*more, *marks))
    form = next((each for each in marks if isinstance(each, Form)), None)
    if form is not None:
        return form.accepted
    arguments = get_args(annotation)
    if origin in (Union, types.UnionType):
        parts = dict.fromkeys(accepted(each, marks) for each in arguments)
        return ", or ".join(parts)
    if origin is Literal:
        return ", ".join(map(str, arguments))
    if origin is list:
        size = next((each for each in marks if isinstance(each, Len)), None)
        number = "" if size is None else f" of {size.min_length} to {size.max_length}"
        if size is not None and size.min_length == size.max_length:
            number = f" of {size.max_length}"
        return f"a list{number}, each {accepted(*arguments)}"
    if isinstance(annotation, type) and issubclass(annotation, Group):
        return f"a mapping with {', '.join(keyed(annotation))}"
    span = next((each for each in marks if isinstance(each, Interval)), None)
    words = _WORDS.get(annotation, "a value")
    return words if span is None else f"{words} {bounds(span)}"


def bounds(span: Interval) -> str:
    """Return a range in words."""
    low = f"from {bound(span.ge)}" if span.gt is None else f"above {bound(span.gt)}"
    high = f"to {bound(span.le)}" if span.lt is None else f"up to but not {bound(span.lt)}"
    return f"{low} {high}"


def key_of(name: str, field: FieldInfo) -> str:
    """Return the name of a field as it is typed."""
    return str(field.alias or name)


def keyed(kind: type[Group]) -> dict[str, FieldInfo]:
    """Return the fields of a model by their names as they are typed."""
    return {key_of(name, field): field for name, field in kind.model_fields.items()}


def typed(value: Plain) -> str:
    """Return a value as it is typed in an override."""
    if value is None or isinstance(value, bool):
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, list):
        return f"[{','.join(map(typed, value))}]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{typed(each)}" for name, each in value.items()) + "}"
    return str(value)


def short(value: Plain) -> str:
    """Return a value as text, of 60 characters at most."""
    text = str(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def bound(number: Plain) -> str:
    """Return a number as it is typed, and anything else as text."""
    if not isinstance(number, int | float):
        return str(number)
    if float(number).is_integer() and abs(number) < 1e15:
        return str(int(number))
    return f"{number:g}"
