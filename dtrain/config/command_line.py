"""Words and options of a command line: what is no override and no option, and what was meant."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from dtrain.config import other_tools, schema, suggest
from dtrain.config.help import is_switch
from dtrain.config.overrides import Override, parse
from dtrain.errors import ALONE, UsageError, nearest, refuse

#: What stands behind ``--shell-completion``; shells themselves ask by ``query``.
_SHELLS = re.compile(r"(install|uninstall|query)=(bash|zsh|fish)")
_FORM = "KEY=VALUE, or GROUP=OPTION"
_CLOSING = {"[": "]", "{": "}", "(": ")"}


def check(words: Sequence[str], swept: bool = False) -> None:
    """Refuse words that are no overrides, and say which override was meant.

    Args:
        words: the command line, without its options.
        swept: a sweep was asked for.

    Raises:
        UsageError: for the first one found.
    """
    for position, word in enumerate(words):
        given, rest = parse(word), words[position + 1 :]
        joined = _joined(word, rest)
        if joined is not None:
            raise _with_blanks(parse(joined), joined, swept)
        if given.value is None and "~" not in given.sign:
            raise refusal(word, rest, parse(words[position - 1]) if position else None)
        value = given.value or ""
        if value.startswith("=") and (value := value.strip("= ")):
            hint = suggest.known(given.name, value) or suggest.quoted(given.name, value)
            refuse(word, "has more than one =", accepted=_FORM, typed=hint)
        if not given.name.strip():
            refuse(word, "has no key", accepted=_FORM, typed="python -m dtrain --help")


def _joined(word: str, rest: Sequence[str]) -> str | None:
    """Return an override of which a shell has made several words; None where none was."""
    following = [*rest[: next((i for i, each in enumerate(rest) if "=" in each.strip("=")),
                              len(rest))]]  # fmt: skip
    _, equals, value = word.partition("=")
    if not equals and rest and rest[0].startswith("="):
        behind = rest[0] if rest[0] != "=" else "=" + "".join(rest[1:2])
        return word + behind if behind != "=" else None
    if equals and not value and following:
        return word + following[0]
    if value and (opened := _open(value)):
        for end in range(1, len(rest) + 1):
            whole = " ".join([word, *rest[:end]])
            if not _open(whole.partition("=")[2]):
                return whole
        return None if opened else word
    parts = [word]
    for each in following if value else ():
        if not (parts[-1].endswith(",") or each.startswith(",")):
            break
        parts.append(each)
    return " ".join(parts) if len(parts) > 1 else None


def _open(value: str) -> bool:
    """Whether a bracket is not closed."""
    return any(value.count(left) > value.count(right) for left, right in _CLOSING.items())


def _with_blanks(override: Override, text: str, swept: bool) -> UsageError:
    key, value = override.name, (override.value or "").strip()
    if value[:1] in _CLOSING:
        problem, hint = "is several words to the shell", suggest.quoted(key, value)
    elif "," in value:
        problem, hint = "has a blank at a comma", suggest.several(key, value, swept)
    else:
        problem, hint = "has a blank at the =", suggest.quoted(key, value)
        hint = suggest.known(key, value) or hint
    return UsageError(text, problem, accepted=f"{_FORM} as one word", typed=hint)


def refusal(
    word: str,
    rest: Sequence[str] = (),
    before: Override | None = None,
    problem: str = "is not KEY=VALUE",
    accepted: str = _FORM,
) -> UsageError:
    """Return what to raise for a word that is neither a command nor an override.

    Args:
        word: as it was typed.
        rest: what stands behind it.
        before: the override in front of it.
        problem: what is wrong with it where it is none of those that are known.
        accepted: what may stand there.
    """
    key, _, value = word.partition(":")
    behind = value or None
    if not value:
        behind = rest[0] if rest and "=" not in rest[0] and not rest[0].startswith("-") else None
    suffix = Path(word).suffix.lower()
    hint = None
    if (Path(word) / "command.json").is_file():
        problem, hint = "is a run folder", f"resume={word}"
    elif (Path(word) / "sweep.json").is_file():
        problem, hint = "is the folder of a sweep", f"sweep.resume={word}"
    elif Path(word).is_dir():
        problem, hint = "is a folder", f"python -m dtrain compare {word}"
    elif suffix in (".yaml", ".yml"):
        problem, hint = "is a file, and no override", suggest.of_preset(word)
    elif suffix == ".py":
        problem = "is a file, and no override"
        hint = f"model=custom model._target_={Path(word).stem}.NAME, of a function in it"
    elif suggest.of_file(word):
        problem, hint = "is a file, and no override", suggest.of_file(word)
    elif word.startswith("{"):
        problem, hint = "is JSON", _of_json(word)
    elif before is not None and before.value and suggest.takes_list(before.name):
        values = f"{before.value.strip('[]')},{word}"
        problem += f"; is it of {before.name}?"
        hint = f"'{before.name}=[{values}]'"
    else:
        alone = "true" if is_switch(key) else suggest.VALUE
        hint = suggest.known(key, behind or alone) if behind or suggest.is_named(key) else None
        options = [f"{group}={word}" for group in schema.GROUPS if word in
                   (*schema.options(group), *_theirs(group))]  # fmt: skip
        meant = (suggest.assigned(*each.split("=", 1)) for each in options)
        hint = hint or " or ".join(dict.fromkeys(filter(None, meant)))
    return UsageError(word, problem, accepted=accepted, hint=hint or "python -m dtrain --help")


def _theirs(group: str) -> list[str]:
    """Return other tools' names of options of a group."""
    heads = (each.split("=", 1) for each in other_tools.VALUES)
    return [value for key, value in heads if key == group]


def _of_json(word: str) -> str | None:
    """Return the overrides that a JSON object is."""
    try:
        found = json.loads(word)
    except ValueError:
        return None
    return " ".join(_flat("", found)) or None


def _flat(key: str, value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [text for name, each in value.items()
                for text in _flat(f"{key}.{name}".lstrip("."), each)]  # fmt: skip
    text = value if isinstance(value, str) else re.sub(r'"', "", json.dumps(value))
    return [suggest.quoted(key, text)]


# -- options of Hydra's, which a training has --------------------------------------------------

_ACCEPTED = "--help, --version, --cfg, --info, -m, --config-dir, and overrides (KEY=VALUE)"
#: What to type for an option that is nearly one of these.
_HINTS = {
    "--help": "python -m dtrain --help",
    "--version": "python -m dtrain --version",
    "--multirun": "-m KEY=VALUE,VALUE",
    "--config-dir": "--config-dir FOLDER",
}


class _Parser(argparse.ArgumentParser):
    arguments: list[str]

    def error(self, message: str) -> NoReturn:
        file = re.search(r"ambiguous option: (--\w+)|argument (--cfg)/-c: invalid choice", message)
        if file is not None:
            option = file[1] or "-c"
            raise of_file(option, _behind(option, self.arguments))
        option = re.match(r"argument (--?[\w-]+)\S*: (.*)", message)
        key, problem = (option[1], option[2]) if option else ("options", message)
        refuse(key, problem, "", accepted=_ACCEPTED, typed="python -m dtrain --help")


def parsed(arguments: list[str]) -> argparse.Namespace:
    """Return the options and the overrides of a command line.

    Raises:
        UsageError: there is no such option, or it lacks its value.
    """
    from hydra._internal.utils import get_args_parser  # not above: it takes time

    parser = _Parser(add_help=False, parents=[get_args_parser()])
    parser.arguments = arguments
    options, unknown = parser.parse_known_args(arguments)
    wrong = [word for word in unknown if word.startswith("-")]
    if wrong:
        raise _refusal(wrong[0], arguments)
    options.overrides += unknown  # those behind an option that stands between overrides
    return options


def check_options(options: argparse.Namespace) -> None:
    """Refuse options of Hydra's that dtrain does not have, and those that do not go together.

    Raises:
        UsageError: for the first one found.
    """
    for name in ("config_name", "config_path"):
        if value := getattr(options, name):
            raise of_file(f"--{name.replace('_', '-')}", value)
    for name in ("experimental_rerun", "hydra_help", "help"):
        if value := getattr(options, name):
            refuse(f"--{name.replace('_', '-')}", "is Hydra's, and dtrain does not have it",
                   value, accepted=_ACCEPTED,
                   hint="--config-dir FOLDER, and --cfg all to see the configuration")  # fmt: skip
    if options.shell_completion and not any(map(_SHELLS.fullmatch, options.overrides)):
        refuse("--shell-completion", "is for no shell", " ".join(options.overrides),
               accepted="install=SHELL or uninstall=SHELL, of bash, zsh or fish",
               typed="--shell-completion install=bash")  # fmt: skip
    modes = [options.run, options.multirun, options.cfg is not None, options.info is not None,
             bool(options.shell_completion)]  # fmt: skip
    if sum(modes) > 1 or (options.resolve and not options.cfg):
        refuse("options", "do not go together",
               " ".join(sorted(name for name, value in vars(options).items() if value is True)),
               accepted="one of --run, --multirun, --cfg, --info; --resolve with --cfg",
               typed="--cfg job --resolve")  # fmt: skip


def of_file(option: str, value: str) -> UsageError:
    """Return what to raise for an option that other tools read a file of keys by."""
    return UsageError(option, "is no option: a file of keys is an experiment", value or ALONE,
                      accepted=_ACCEPTED, typed=suggest.of_preset(value or "NAME"))  # fmt: skip


def _behind(option: str, arguments: list[str]) -> str:
    """Return the value of an option that is not known, or an empty text."""
    typed = next(word for word in arguments if word.startswith(option))
    _, _, value = typed.partition("=")
    behind = arguments[arguments.index(typed) + 1 :]
    if not value and behind and not behind[0].startswith("-") and "=" not in behind[0]:
        return behind[0]
    return value


def _refusal(option: str, arguments: list[str]) -> UsageError:
    name, value = option.partition("=")[0], _behind(option, arguments)
    key = name.lstrip("-").replace("-", "_")
    hint = suggest.known(key, value or suggest.VALUE)
    if (near := nearest(name, _HINTS)) is not None:
        hint = _HINTS[near]
    return UsageError(name, "there is no such option", value or ALONE, accepted=_ACCEPTED,
                      typed=hint or "python -m dtrain --help")  # fmt: skip
