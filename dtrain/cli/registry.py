"""The registry of commands: what each works on, the words that it takes, and the one boundary.

``--help`` of all of them, of a key, and ``--version`` are answered here, too, composing nothing.

A command is a function ``main`` in a module of ``dtrain/cli/commands``, which is found by
its name; the module's docstring is its help. ``python -m dtrain NAME TARGET WORD=VALUE ...`` calls
``main(target, options, overrides)``, with those of the three that the command takes.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

from pydantic import ValidationError

import dtrain
from dtrain import errors
from dtrain.config import help, project, schema, suggest
from dtrain.config.fields import Group, Options, accepted, key_of, typed
from dtrain.config.overrides import parse
from dtrain.config.schema.running import Action
from dtrain.errors import DtrainError, UsageError, nearest, refuse
from dtrain.files.addresses import is_far
from dtrain.host import answer, commands
from dtrain.host.frameworks import FRAMEWORKS
from dtrain.host.packages import version
from dtrain.job import latest

_WIDTH = 100
#: What asks for help, and where a folder of presets follows.
_HELP, _CONFIG_DIR = ("-h", "--help"), ("-cd", "--config-dir")


class Target(NamedTuple):
    """What a command works on.

    Attributes:
        word: it is called in messages.
        help: what it is.
        is_run: a run folder, or something of one: ``latest`` and addresses stand for it.
        several: there may be more than one.
    """

    word: str
    help: str
    is_run: bool = True
    several: bool = False


RUN = Target("RUN", "a run folder, or RUN/checkpoints/STEP; latest: the newest run")
RUNS = Target("RUN", "a run, a sweep, a folder of such, or an id in MLflow; latest: the newest run",
              several=True)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Command:
    """A command: called with its words, it returns an exit code.

    Attributes:
        name: of it, and of its module.
        work: does it: given the target (the targets, where there may be several), the options, and
            the overrides, each where it takes some.
        about: its help.
        on: what it works on; None: nothing.
        options: its words. Those of an :class:`~dtrain.config.schema.running.Action` are keys of a
            configuration, and handed on as overrides of it.
        overrides: the groups whose overrides it takes, ``()`` for all; None: it takes none.
        writes: it adds to the folder of its run.
    """

    name: str
    work: Callable[..., int]
    about: str
    on: Target | None
    options: type[Group]
    overrides: tuple[str, ...] | None
    writes: bool

    def __call__(self, words: Iterable[str]) -> int:
        """Run the command line ``words``, and return its exit code; what ends it is printed."""
        what: object = self.name
        try:
            words = list(words)
            if any(word in _HELP for word in words):
                print(self.help())
                return errors.OK
            far: list[str] = []
            if self.on is not None and self.on.is_run:
                words, far = latest.resolved(words, ("",)), list(filter(is_far, words))
            if far:
                from dtrain.job import remote  # with the clients of object stores

                words = remote.arguments(words, ("",))
            targets, options, overrides = self.parse(words)
            what = targets[0] if targets else self.name
            if far and (getattr(options, "follow", False) or "action.follow=true" in overrides):
                for place, word in zip(targets, far, strict=True):
                    remote.refuse_copy(Path(place), word)
            first = [] if self.on is None else [targets] if self.on.several else targets
            own = [] if options is None else [options]
            more = [] if self.overrides is None else [overrides]
            code = int(self.work(*first, *own, *more))
            if far and self.writes and not all([remote.push(Path(each)) for each in targets]):
                code = code or errors.FAILED
            return code
        except (DtrainError, OSError) as error:
            return report(error, what)
        except KeyboardInterrupt:
            print("stopped", file=sys.stderr)
            return errors.FAILED

    def parse(self, words: Iterable[str]) -> tuple[list[str], Group | None, list[str]]:
        """Sort the words of a command line.

        Returns:
            (targets; options, None where they are overrides or there are none; overrides and
            options of Hydra's).

        Raises:
            UsageError: one is none of these, a value is not accepted, or the target is missing.
        """
        targets: list[str] = []
        values: dict[str, str] = {}
        rest: list[str] = []
        remaining = iter(words)
        for word in remaining:
            sign, name, value = parse(word)
            key = name.lstrip("-").replace("-", "_") if name.startswith("--") else name
            is_path = is_far(word) or os.path.exists(word)
            if self.overrides is not None and name in _CONFIG_DIR:
                rest += [word] if value is not None else [word, next(remaining, "")]
            elif key in self.keys and not sign and (value is not None or key != name):
                values[key] = self._value(key, value, remaining).strip("'\"")
            elif not word.startswith("-") and (value is None or (is_path and not targets)):
                targets.append(word)
            elif name.startswith("--") and value is None:
                self._refuse(f"{word}={next(remaining, '')}")
            elif name.startswith("-") or not self._takes(name):
                self._refuse(word)
            else:
                rest.append(word)
        self._check(targets)
        if self.options is Options or issubclass(self.options, Action):
            return targets, None, [*rest, *(f"action.{key}={values[key]}" for key in values)]
        try:
            return targets, self.options.model_validate(values), rest
        except ValidationError as error:
            from dtrain.config import check  # with Hydra: only what is wrong needs it

            raise check.refusal(self.options, "", error.errors()[0]) from None

    @property
    def keys(self) -> list[str]:
        """The words that it takes."""
        return list(self._fields)

    @functools.cached_property
    def _fields(self) -> dict[str, str]:
        """The fields of its words, by the words."""
        fields = {key_of(*each): each[0] for each in self.options.model_fields.items()}
        set_by_command = ("_target_", "run")  # of an action
        return {key: name for key, name in fields.items() if key not in set_by_command}

    def _accepted(self, key: str) -> str:
        field = self.options.model_fields[self._fields[key]]
        return accepted(field.annotation, tuple(field.metadata))

    def _value(self, key: str, value: str | None, remaining: Iterator[str]) -> str:
        """Return the value of an option: behind ``=``, or the next word; a switch has none."""
        if value is not None:
            return value
        field = self.options.model_fields[self._fields[key]]
        return "true" if field.annotation is bool else next(remaining, "")

    def _takes(self, name: str) -> bool:
        groups, head = self.overrides, re.split(r"[./]", name)[0]
        is_own = head in (self.name, "action")  # the keys of an action are words here
        return groups is not None and not is_own and (not groups or head in groups)

    def _check(self, targets: list[str]) -> None:
        """Refuse a target that is missing, or empty, and what is one too many."""
        usage = self.usage()
        if self.on is None or (targets[1:] and not self.on.several):
            for word in targets[0 if self.on is None else 1 :]:
                self._refuse(word)
        elif not targets:
            refuse(self.on.word, "is missing", accepted=usage, hint=latest.hint(self.name))
        elif "" in targets:  # a variable of the shell that is not set
            refuse(self.on.word, "is empty", "", accepted=self.on.help,
                   hint=latest.hint(self.name))  # fmt: skip

    def _refuse(self, word: str) -> NoReturn:
        """Refuse a word, and say what is near."""
        _, name, value = parse(word)
        key, value = name.lstrip("-").replace("-", "_"), value or suggest.VALUE
        row = suggest.tables().get(f"option of {self.name}", {}).get(key, {})
        near = nearest(key.rpartition(".")[2], self.keys)
        advice = {"typed": f"{row['typed']}={value}"} if "typed" in row else row
        if not advice and near is not None:
            advice = {"hint" if value is suggest.VALUE else "typed": f"{near}={value}"}
        elif not advice and self.overrides == ():
            advice = suggest.known(key, value)
        elif not advice and self.overrides is not None:
            advice = {"hint": f"the command without {word}"}
        words = ", ".join(f"{each}=" for each in self.keys)
        if self.overrides is not None:
            words += f", overrides of {', '.join(self.overrides) or 'a training'}"
        refuse(word if value is suggest.VALUE else name, f"is no word of {self.name}",
               errors.ALONE if value is suggest.VALUE else value,
               accepted=words.lstrip(", ") or self.usage(),
               **(advice or {"hint": f"python -m dtrain {self.name} --help"}))  # fmt: skip

    def values_of(self, key: str) -> list[str]:
        """Return the values of a word of which there are few; none of others."""
        values = re.split(r", (?:or )?| or ", self._accepted(key)) if key in self._fields else []
        return [each for each in values if re.fullmatch(r"[\w.-]+", each)]

    def usage(self) -> str:
        """Return what is typed."""
        target = "" if self.on is None else f" {self.on.word}{' ...' * self.on.several}"
        words = " [WORD=VALUE ...]" if self.keys else ""
        keys = "" if self.overrides is None else " [KEY=VALUE ...]"
        return f"python -m dtrain {self.name}{target}{words}{keys}"

    def help(self) -> str:
        """Return the help: what is typed, what it does, its words with what they accept."""
        does = commands.summary(self.name).does
        more = self.about.partition("\n")[2].strip("\n")
        lines = [f"usage: {self.usage()}", "", f"{does[0].upper()}{does[1:]}.", "", more, ""]
        if self.on is not None:
            lines.append(f"  {self.on.word:<16}{self.on.help}")
        for key, name in self._fields.items():
            default = typed(self.options.model_fields[name].default)
            text = f"{help.sentences(self.options)[name]} Accepted: {self._accepted(key)}; "
            lines += textwrap.wrap(f"  {f'{key}=':<16}{text}default: {default}.", _WIDTH,
                                   subsequent_indent=" " * 18)  # fmt: skip
        if self.overrides is not None:
            groups = f"of {', '.join(self.overrides)}" if self.overrides else "as of a training"
            lines.append(f"  {'KEY=VALUE':<16}overrides {groups}")
            lines.append(f"  {'--config-dir':<16}a folder with presets of your own")
        return "\n".join(lines)


def command(
    on: Target | None = None, options: type[Group] = Options,
    overrides: tuple[str, ...] | None = None, writes: bool = False,
) -> Callable[[Callable[..., int]], Command]:  # fmt: skip
    """Return what makes a command of a function ``main``; see :class:`Command`."""

    def make(work: Callable[..., int]) -> Command:
        name = work.__module__.rpartition(".")[2]
        about = sys.modules[work.__module__].__doc__ or ""
        return Command(name, work, about, on, options, overrides, writes)

    return make


def complete(line: str) -> tuple[list[str], bool]:
    """Return what a shell may put in the place of the last word of a command line.

    Args:
        line: as far as it is typed.

    Returns:
        (names of commands, or words and values of the command that is typed; whether these are all:
        of a training Hydra completes the keys).
    """
    *before, last = line.split(" ")
    words = [word for word in before if word not in ("", "python", "-m", "dtrain")]
    if not words:
        return [name for name in commands.names() if name.startswith(last)], False
    if words[0] not in commands.names():
        return [], False
    command: Command = importlib.import_module(f"dtrain.cli.commands.{words[0]}").main
    key, sign, _ = last.partition("=")
    candidates = [f"{key}={each}" for each in command.values_of(key)] if sign else command.keys
    return [each if sign else f"{each}=" for each in candidates if each.startswith(last)], True


def report(error: Exception, what: object) -> int:
    """Print what went wrong, and return the exit code.

    Args:
        error: what ended a command.
        what: it works on, for an error that names no file.
    """
    if isinstance(error, DtrainError):
        text, code = str(error), error.exit_code
    elif isinstance(error, OSError) and (wrong := errors.of_a_name(error)) is not None:
        text, code = wrong, errors.USAGE
    else:
        place = getattr(error, "filename", None) or what
        reason = getattr(error, "strerror", None) or error
        text, code = errors.printable(f"{place}: {reason}"), errors.FAILED
    answer.error(text, getattr(error, "key", None))
    return code


# --- help of all commands, of groups and of keys

_EXPERIMENT = "experiment"
_HEAD = """\
usage: python -m dtrain [COMMAND] [GROUP=OPTION | KEY=VALUE ...]

Trains one Keras experiment on any distribution strategy, and records it.
Without a command it trains. An override selects an option of a group, or changes a key.

commands:
{commands}

options:
  --help [KEY]                this, or the type, default and accepted values of one key
  --version                   the versions of dtrain, its backends and Keras
  --cfg job                   print the configuration instead of training
  --multirun, -m              run all combinations of a=1,2 b=3,4: a sweep
  --quiet, -q                 of a training, print its end and errors alone
  --config-dir FOLDER         presets of your own, FOLDER/GROUP/OPTION.yaml
  --config-name NAME          begin with FOLDER/NAME.yaml, which has defaults: [config, _self_]
  --info, --shell-completion  as in every Hydra application

groups and their options (* is the default):
"""
_EXAMPLES = """
examples:
  python -m dtrain strategy=mirrored trainer.epochs=5
  python -m dtrain -m strategy=one_device,mirrored optimizer.learning_rate=0.001,0.01
  python -m dtrain resume=outputs/DATE/TIME_NAME
"""


def answer_help(arguments: list[str]) -> int:
    """Answer ``--help`` or ``--version`` and return the exit code.

    Args:
        arguments: of the command line.
    """
    if "--version" in arguments:
        print(f"dtrain {dtrain.__version__}")
        for name in (*FRAMEWORKS, "keras"):
            installed = version(name)
            if installed is not None or name in ("tensorflow", "keras"):  # others are extras
                print(f"{name} {installed or 'is not installed'}")
        return errors.OK
    try:
        folder = project.config_dir(arguments)
        keys = [word for word in arguments if not word.startswith("-") and word != folder]
        print(_keys(keys) if keys else overview(folder))
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return errors.OK


def _keys(keys: list[str]) -> str:
    """Return help, accepted values and default of each key."""
    lines = []
    documented = help.keys()
    for key in (parse(argument).name for argument in keys):
        if key.replace("/", ".") not in documented and (hint := suggest.of_help(key)) is not None:
            refuse("--help", "there is no such key", key, accepted="the keys that --cfg job prints",
                   typed=hint)  # fmt: skip
        entry = help.help_of(key)
        facts = {"accepted": entry.accepted, "default": entry.default, "decides": entry.scope}
        lines.append(f"{key}: {entry.help}")
        for name, text in facts.items():
            if text is None:
                continue
            fact = f"  {name:<10}{text}"
            lines += textwrap.wrap(fact, _WIDTH, subsequent_indent=" " * 12)
    return "\n".join(lines)


def overview(config_dir: str | None = None) -> str:
    """Return the commands, the options, and the groups with those of a folder of presets."""
    lines = []
    for group, options in _groups(config_dir).items():
        lines.append(f"  {group}")
        for option, path in sorted(options.items()):
            mark = "*" if schema.GROUPS.get(group) == option else " "
            lines.append(f"  {mark} {option:<18}{_first_comment(path)}"[:_WIDTH].rstrip())
    summaries = map(commands.summary, commands.names())
    head = _HEAD.format(commands="\n".join(f"  {each.usage:<30}{each.does}" for each in summaries))
    return head + "\n".join(lines) + "\n" + _EXAMPLES.rstrip()


def _groups(config_dir: str | None) -> dict[str, dict[str, Path]]:
    """Return the file of each option of each group, the user's own presets among them."""
    roots = [schema.folder("conf"), *([Path(config_dir)] if config_dir else [])]
    files = {
        group: {path.stem: path for root in roots for path in (root / group).glob("*.yaml")}
        for group in [*schema.GROUPS, _EXPERIMENT]
    }
    for path in schema.folder("experiments").glob("*.yaml"):
        files[_EXPERIMENT].setdefault(path.stem, path)
    return files


def _first_comment(path: Path) -> str:
    """Return the first line of comment of a file that is not for Hydra."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    comments = (line.removeprefix("#").strip() for line in lines if line.startswith("#"))
    return next((errors.printable(text) for text in comments if not text.startswith("@")), "")
