"""Every exception that dtrain raises on purpose, in one tree, and the exit codes they end in.

DtrainError
├── UsageError        the configuration or the usage is wrong            exit 2
│   └── DamagedFile       a file of a run cannot be used                  exit 2
├── TrainingError     training started and failed                        exit 1
│   ├── NonFiniteLoss     the loss is NaN or infinite
│   ├── CheckpointError   a checkpoint could not be written or read
│   ├── DataError         an example cannot be read
│   └── CheckFailed       what debug=NAME checks does not hold
├── NotPromoted       the condition of a promotion does not hold          exit 1
└── Interrupted       the user or a scheduler asked the run to stop       exit 75
    └── NothingSaved      and there is no checkpoint to resume from      exit 1
"""

from __future__ import annotations

import contextlib
import copy
import difflib
import errno
import importlib
import json
import os
import re
import shlex
import traceback
from collections.abc import Iterable
from typing import Any, NoReturn

from dtrain import secrets

OK = 0
FAILED = 1
USAGE = 2
ENDED_EARLY = 73  # of a task, by its launcher: something ended its process with exit code 0
PORT_TAKEN = 74  # of a task, to its launcher: another process has its port
INTERRUPTED = 75  # EX_TEMPFAIL of sysexits.h: try the same command again
#: What is added to the exit code of a task's process: one without it is of no task that was done,
#: but of ``os._exit`` in the user's code, or of a library.
OF_TASK = 100
_LONGEST = 500  # characters of a value that a message shows whole
_LISTED = 8  # names of what is accepted, in front of what to type
#: How like a name has to be: below it most are of other things.
_NEAR = 0.66
_WORDS = re.compile(r"[\W_]+")
#: Names that Hydra reads as keys of a mapping, and texts that it reads as other values.
_NAME = re.compile(r"[A-Za-z_][\w./%?|+-]*(?: [\w./%?|+-]+)*|0|[1-9]\d*", re.A)
_VALUES = ("null", "true", "false", "nan", "inf")
#: Value of what was typed without one.
ALONE = object()
_LINE, _LINES = 4000, 200  # characters of a line of a message, and lines of it
#: Files of dtrain's and IPython's.
_OF_OTHERS = re.compile(rf"{re.escape(os.path.dirname(__file__))}/|.*/IPython/")
#: Colours and such.
_STYLE = re.compile(r"\x1b\[[\d;]*m")


class DtrainError(Exception):
    """Base of all of dtrain's own exceptions."""

    exit_code = FAILED

    def __reduce__(self) -> tuple[Any, ...]:
        # Not by the constructor's arguments: the text is made of them.
        return _same, (type(self), str(self), vars(self))

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows: where the user's own code is, and the sentence."""
        found = traceback.TracebackException.from_exception(self)
        own = [each for each in found.stack if not _OF_OTHERS.match(each.filename)]
        found.stack = traceback.StackSummary.from_list(own)
        return "".join(found.format(chain=False)).splitlines()


class UsageError(DtrainError):
    """The configuration or the usage is wrong; nothing was started.

    Args:
        key: the configuration key, such as ``trainer.batch_size``.
        why: it is refused, as a clause ("must be at least 1").
        value: what was given; :data:`ALONE` where ``key`` is all that was typed.
        accepted: what is accepted instead; None: what the key's field takes.
        typed: what to type in its place, as it stands.
        hint: advice, in the place of that.
    """

    exit_code = USAGE

    def __init__(
        self, key: str, why: str, value: object = ALONE, *,
        accepted: str | None = None, typed: str | None = None, hint: str | None = None,
    ):  # fmt: skip
        if accepted is None:
            accepted, default = _of_field(key)
            typed = typed or (default if hint is None else None)
        head = key if value is ALONE else f"{key}={value}"
        value = "" if value is ALONE else value
        advice = f"type: {typed}" if typed else hint and f"hint: {hint}"
        parts = [part for part in (accepted and f"accepted: {accepted}", advice) if part]
        if str(accepted).count(", ") >= _LISTED:  # what to type is not to be looked for
            parts.reverse()
        text = "; ".join([f"{head}: {why}", *parts])
        if secrets.is_secret(value, key):
            text = text.replace(str(value), secrets.HIDDEN)
        elif len(str(value)) > _LONGEST:
            text = text.replace(str(value), shortened(secrets.mask(str(value))))
        super().__init__(printable(secrets.mask(text)))
        self.key = key

    def of_key(self, key: str) -> UsageError:
        """Return the same error of another key that takes the same values."""
        made = copy.copy(self)
        made.args = (str(self).replace(f"{self.key}=", f"{key}="),)
        made.key = key
        return made


def refuse(key: str, why: str, value: object = ALONE, **words: str | None) -> NoReturn:
    """Raise a :class:`UsageError`, whose arguments these are."""
    raise UsageError(key, why, value, **words)


def _of_field(key: str) -> tuple[str | None, str | None]:
    """Return what a key of the configuration accepts, and its default as it is typed."""
    # By name: what is said here is known above. A process that refuses nothing does not import it.
    fields = importlib.import_module("dtrain.config.help")
    if key not in set(fields.keys()):
        return None, None
    described = fields.help_of(key)
    return described.accepted, described.default and f"{key}={described.default}"


class DamagedFile(UsageError):
    """A file of a run or a sweep cannot be used: damaged, of a wrong type, not a regular file.

    Args:
        path: of the file.
        problem: what is wrong with it, as a clause.
        field: where in the file, such as ``jobs[3].folder``; None for the whole of it.
    """

    def __init__(self, path: object, problem: str, field: str | None = None):
        place = f"{path}: {field}" if field else str(path)
        Exception.__init__(self, printable(secrets.mask(f"{place} {problem}")))
        self.key = field or str(path)


class TrainingError(DtrainError):
    """Training started and could not continue."""


class NonFiniteLoss(TrainingError):
    """The loss became NaN or infinite while ``trainer.terminate_on_nan`` is on."""


class CheckpointError(TrainingError):
    """A checkpoint could not be written, or none that is sound could be read."""


class DataError(TrainingError):
    """An example, or a file of examples, cannot be read.

    Before training it is reported as a :class:`UsageError`, of exit code 2.

    Args:
        place: the file, and where in it: ``FILE, row 17, column 'age'``.
        problem: what is wrong there, as a clause.
    """

    def __init__(self, place: str, problem: str):
        super().__init__(printable(secrets.mask(f"{place}: {problem}")))
        self.place, self.problem = place, problem


class CheckFailed(TrainingError):
    """What ``debug=NAME`` checks does not hold.

    Args:
        found: what was found, a clause or more.
        hint: what to look at or to do.
    """

    def __init__(self, found: str, hint: str):
        super().__init__(printable(secrets.mask(f"{found}; hint: {hint}")))


class NotPromoted(DtrainError):
    """The condition of a promotion does not hold: the alias stays where it is."""


class Interrupted(DtrainError):
    """The run was asked to stop (SIGINT, SIGTERM) and has saved its state."""

    exit_code = INTERRUPTED


class NothingSaved(Interrupted):
    """The run was asked to stop, and its state is one that is not saved (NaN)."""

    exit_code = FAILED


def _same(kind: type[DtrainError], text: str, attributes: dict[str, Any]) -> DtrainError:
    """Return an exception of another process."""
    made = kind.__new__(kind, text)
    vars(made).update(attributes)
    return made


def behind(error: BaseException) -> DtrainError | None:
    """Return ``error``, or the one that it was raised from, where that is one of dtrain's own.

    AutoGraph wraps what is raised inside a ``tf.function`` of a user's.
    """
    found: BaseException | None = error
    while found is not None and not isinstance(found, DtrainError):
        found = found.__cause__ or found.__context__
    return found


def nearest(name: str, names: Iterable[str], cutoff: float = _NEAR) -> str | None:
    """Return the one of ``names`` that is most like ``name``, or None if none is near.

    Near is a name of the same words in any order (``accuracy_val``), the only one that begins so
    (``acc``), and one that differs in few letters. Small letters and capitals are the same.

    Args:
        name: as it was typed.
        names: those that there are.
        cutoff: how near, from 0 to 1, the same.
    """
    lower = {each.lower(): each for each in names}
    typed = name.lower()
    words = sorted(_WORDS.split(typed))
    same = [each for each in lower if sorted(_WORDS.split(each)) == words]
    begun = [each for each in lower if len(typed) > 2 and each.startswith(typed)]
    close = difflib.get_close_matches(typed, lower, n=1, cutoff=cutoff)
    found = same or (begun if len(begun) == 1 else close)
    return lower[found[0]] if found else None


def typed(key: str, value: Any) -> str:
    """Return an override as it is typed into a shell, whatever letters a column's name has.

    Args:
        key: of the configuration.
        value: a text, a list of texts, or texts by name. Hydra reads names in ASCII alone: others
            stand in quotes, as JSON.
    """
    if isinstance(value, dict):
        is_plain = all(_NAME.fullmatch(n) and n.lower() not in _VALUES for n in value)
        shown = "{" + ", ".join(f"{n}: {quoted(each)}" for n, each in value.items()) + "}"
        shown = shown if is_plain else quoted(json.dumps(value, ensure_ascii=False))
    else:
        shown = quoted(value) if isinstance(value, str) else f"[{','.join(map(quoted, value))}]"
    override = f"{key}={shown}"
    return shlex.quote(override)


def quoted(value: str) -> str:
    """Return a text as Hydra reads it: a backslash is one unless it stands before a quote."""
    if re.fullmatch(r"[A-Za-z_][\w./-]*", value, re.A) and value.lower() not in _VALUES:
        return value
    ends = r'(?<!\\)(\\*)("|\Z)'
    return '"' + re.sub(ends, lambda m: m[1] * 2 + ('\\"' if m[2] else ""), value) + '"'


def shortened(text: str) -> str:
    """Return ``text``, or its beginning and its length where a message cannot show all of it."""
    return text if len(text) <= _LONGEST else f"{text[:100]}... ({len(text)} characters)"


def readable(text: str) -> str:
    """Return ``text`` without what no terminal shows in a useful way: the rest of endless lines."""
    lines = text.split("\n")
    return "\n".join(
        line if len(line) <= _LINE else f"{line[:_LINE]}... ({len(line)} characters)"
        for line in lines[:_LINES]
    )


def of_a_name(error: OSError) -> str | None:
    """Return what is wrong with the path that the system has refused, None if it is not the path.

    Raised by a look at whether it is there, long before anything is opened.
    """
    if error.errno not in (errno.ENAMETOOLONG, errno.ELOOP):
        return None
    path = shortened(str(error.filename))
    return printable(secrets.mask(f"{path} cannot be a path: {error.strerror}"))


def describe(error: BaseException) -> str:
    """Return the type of an error, and its message if it has one that can be had."""
    message = ""
    with contextlib.suppress(Exception):  # of a __str__ of the user's
        message = str(error)
    if message.startswith("Exception encountered when calling "):  # what a layer of Keras raised
        message = " ".join(message.partition("Arguments received by ")[0].split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def printable(text: str) -> str:
    """Return ``text`` without characters that would act on a terminal, which show as escapes."""
    return "".join(
        char if char.isprintable() or char in "\n\t" else repr(char)[1:-1] for char in text
    )


def unstyled(text: str) -> str:
    """Return ``text`` without the colours that libraries, as Keras, give to their messages."""
    return _STYLE.sub("", text)
