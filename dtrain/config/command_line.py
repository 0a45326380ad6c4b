"""Words and options of a command line: what is no override and no option, and what was meant."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shlex
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from dtrain.config import schema, suggest
from dtrain.config.help import is_switch
from dtrain.config.overrides import parse
from dtrain.config.suggest import Advice
from dtrain.config.tree import flatten
from dtrain.errors import ALONE, UsageError, nearest, refuse

_FORM = "KEY=VALUE, or GROUP=OPTION, as one word"
_HELP = "python -m dtrain --help"
#: What stands behind ``--shell-completion``; shells themselves ask by ``query``.
_SHELLS = re.compile(r"(install|uninstall|query)=(bash|zsh|fish)")


def check(words: Sequence[str]) -> None:
    """Refuse words that are no overrides, and say which override was meant.

    Args:
        words: the command line, without its options.

    Raises:
        UsageError: for the first one found.
    """
    for position, word in enumerate(words):
        (sign, name, value), rest = parse(word), words[position + 1 :]
        if value is None and "~" not in sign:
            raise refusal(word, rest, words[:position][-1:])
        is_apart = value == "" and rest and "=" not in rest[0]
        if is_apart or (value and value.startswith("=")):
            raise refusal(word, rest)
        if not name.strip():
            refuse(word, "has no key", accepted=_FORM, typed=_HELP)


def notes(words: Sequence[str]) -> list[str]:
    """Return a line on each key that was typed twice: the last one counts, as everywhere in Hydra.

    Args:
        words: the command line as it was typed.
    """
    values: dict[str, str] = {}
    lines = []
    for word in words:
        sign, name, value = parse(word)
        if value is None or name.startswith("-") or sign == "~":
            continue
        if values.setdefault(name, value) != value:
            lines.append(
                f"note: {name}={values[name]} is typed, and {word} behind it, which counts"
            )
        values[name] = value
    return lines


def refusal(
    word: str, rest: Sequence[str] = (), before: Sequence[str] = (),
    problem: str = "is not KEY=VALUE", accepted: str = _FORM,
) -> UsageError:  # fmt: skip
    """Return what to raise for a word that is neither a command nor an override.

    Args:
        word: as it was typed.
        rest: what stands behind it.
        before: the override in front of it, if there is one.
        problem: what is wrong with it where it is none of those that are known.
        accepted: what may stand there.
    """
    behind = [*takewhile(lambda each: "=" not in each.strip("=") and each[:1] != "-", rest)]
    advice = _of_path(word)
    if advice is None and word.startswith("{"):
        with contextlib.suppress(ValueError):
            overrides = flatten(json.loads(word)).items()
            advice = {"typed": " ".join(suggest.quoted(*each) for each in overrides)}
    advice = advice or _of_words(" ".join([word, *behind]))
    if not advice and before:
        advice = _of_words(" ".join([*before, word, *behind]))
        problem += f"; is it of {parse(before[0]).name}?" if advice else ""
    return UsageError(word, problem, accepted=accepted, **(advice or {"hint": _HELP}))


def _of_path(word: str) -> Advice | None:
    """Return what to type for a run, a sweep, or a file; None of what is none."""
    path = Path(word)
    if (path / "command.json").is_file():
        return {"typed": f"resume={word}"}
    if (path / "sweep.json").is_file():
        return {"typed": f"sweep.resume={word}"}
    if path.is_dir():
        return {"typed": f"python -m dtrain compare {word}"}
    if path.suffix.lower() in (".yaml", ".yml"):
        return suggest.of_preset(word)
    if path.suffix.lower() == ".py":
        return {"hint": f"model=custom model._target_={path.stem}.NAME, of a function in it"}
    overrides = suggest.of_file(word)
    return {"typed": overrides} if overrides and "=" not in word else None


def _of_words(text: str) -> Advice:
    """Return the override that several words, or one without a value, are."""
    key = re.split(r"[\s:=]", text, maxsplit=1)[0]
    value = re.sub(r"[\s:=]*", "", text[len(key) :], count=1)
    key = key.strip("'\"")
    if not value and is_switch(key):
        value = "true"
    if not value and not suggest.is_key(key) and key not in suggest.rows():
        heads = (each.split("=", 1)[0] for each in suggest.rows() if each.endswith(f"={key}"))
        groups = [group for group in schema.GROUPS if key in schema.options(group)]
        return next(filter(None, (suggest.assigned(each, key) for each in (*groups, *heads))), {})
    if not value:
        return suggest.known(key, suggest.VALUE)
    return several(key, re.sub(r"\s*,\s*", ",", value)) or suggest.known(key, value)


def several(key: str, values: str) -> Advice:
    """Return what to type for values with commas or blanks between them."""
    if not suggest.is_key(key) or not re.search(r"[,\s]", values):
        return {}
    singles = re.split(r"[,\s]+", values)
    for each in (values if values[:1] in "[{" else f"[{','.join(singles)}]", values):
        if suggest.is_taken(key, each):
            return {"typed": suggest.quoted(key, each)}
    if all(suggest.is_taken(key, each) for each in singles):
        return {"typed": f"-m {key}={','.join(singles)}"}
    return {}


# -- options of Hydra's, which a training has --------------------------------------------------

_ACCEPTED = "--help, --version, --cfg, --info, -m, -q, --config-dir, and overrides (KEY=VALUE)"
#: What to type for an option that is nearly one of these.
_OPTIONS: dict[str, Advice] = {
    "--help": {"typed": _HELP},
    "--version": {"typed": "python -m dtrain --version"},
    "--cfg/-c": {"typed": "--cfg job"},
    "--multirun": {"hint": "-m KEY=VALUE,VALUE"},
    "--config-dir": {"hint": "--config-dir FOLDER"},
}


def parsed(arguments: list[str]) -> argparse.Namespace:
    """Return the options and the overrides of a command line.

    Raises:
        UsageError: there is no such option, or it lacks its value.
    """
    from hydra._internal.utils import get_args_parser  # not above: it takes time

    parser = argparse.ArgumentParser(
        add_help=False, allow_abbrev=False, exit_on_error=False, parents=[get_args_parser()]
    )
    try:
        options, unknown = parser.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        option, value = str(error.argument_name), _behind("-c", arguments)
        if value.endswith((".yaml", ".yml")):
            raise of_file("-c", value) from None
        if option == "--cfg/-c" and (group := next(filter(schema.GROUPS.get, arguments), None)):
            refuse("--cfg", "prints all, or a package of it", group, accepted="job, hydra, all",
                   typed=f"--cfg job --package {group}")  # fmt: skip
        refuse(option, error.message, accepted=_ACCEPTED,
               **_OPTIONS.get(option.split("/-cd")[0], {"typed": _HELP}))  # fmt: skip
    for word in unknown:
        if word.startswith("-"):
            raise _no_option(word.partition("=")[0], _behind(word, arguments))
    options.overrides += unknown  # those behind an option that stands between overrides
    return options


def check_options(options: argparse.Namespace) -> None:
    """Refuse options of Hydra's that dtrain does not have, and those that do not go together.

    Raises:
        UsageError: for the first one found.
    """
    if path := options.config_path:  # another would stand in the place of dtrain's own
        refuse("--config-path", "dtrain's own conf stays, and another is beside it", path,
               accepted="--config-dir FOLDER",
               typed=f"--config-dir {shlex.quote(path)}")  # fmt: skip
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
                      accepted=_ACCEPTED, **suggest.of_preset(value or "NAME"))  # fmt: skip


def _behind(option: str, arguments: list[str]) -> str:
    """Return the value of an option that is not known, or an empty text."""
    names, name = [each.partition("=")[0] for each in arguments], option.partition("=")[0]
    place = names.index(name) if name in names else 0
    typed, behind = arguments[place], arguments[place + 1 : place + 2]
    if "=" not in typed and behind and behind[0][:1] != "-" and "=" not in behind[0]:
        return behind[0]
    return typed.partition("=")[2]


def _no_option(name: str, value: str) -> UsageError:
    if name == "--config":
        return of_file(name, value)
    key, near = name.lstrip("-").replace("-", "_"), nearest(name, _OPTIONS)
    advice = suggest.known(key, value or suggest.VALUE) if near is None else _OPTIONS[near]
    return UsageError(name, "there is no such option", value or ALONE, accepted=_ACCEPTED,
                      **(advice or {"typed": _HELP}))  # fmt: skip
