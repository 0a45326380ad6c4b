"""Hydra's and OmegaConf's errors, said in one sentence with what to type.

Hydra's own advice for a misspelt group (``+modle=cnn``) would silently train something else.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dtrain.config import command_line, schema, suggest
from dtrain.config.fields import typed
from dtrain.config.help import help_of
from dtrain.config.other_tools import VALUES
from dtrain.config.overrides import parse
from dtrain.config.search_space import number
from dtrain.errors import DtrainError, UsageError, nearest

_ERRORS = (HydraException, OmegaConfBaseException)
#: Hydra's own launcher and sweeper: no choice, they know nothing of jobs of several processes.
_BASIC = "basic"
#: So many values of a key that has several are looked at: each takes a composition.
_VALUES = 20


def explain(error: Exception, arguments: list[str]) -> DtrainError:
    """Find the override that is wrong and say what would be right.

    Args:
        error: what Hydra or OmegaConf raised.
        arguments: the command line.

    Returns:
        A :class:`UsageError` where the culprit is found, else the error's own text.
    """
    known = command_line.parsed(arguments)
    try:
        overrides = _parse(known.overrides)
    except UsageError as found:
        return found
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(schema.folder("conf")), version_base="1.3"):
        chosen = (o.get_value_element_as_str() for o in overrides if o.key_or_group == "action")
        choices = Choices(known.config_dir, next(chosen, "train"))
        for override in overrides:  # groups first: which keys exist depends on them
            problem = choices.check_group(override)
            if problem is not None:
                return problem
        problem = choices.check_keys(overrides)
        if problem is not None:
            return problem
        return (
            _of_preset(error, known.config_dir, choices.groups)
            or _of_command(_first_line(error), overrides)
            or DtrainError(_first_line(error))
        )


def _of_command(text: str, overrides: list[Override]) -> UsageError | None:
    """Return what is wrong where each override is right by itself."""
    several = re.match(r"Ambiguous value for argument '(.+)'", text)
    if several is not None:
        given = parse(several[1])
        return UsageError(
            given.name, "has several values, and only a sweep (-m) takes these", given.value or "",
            accepted="one value, a list in brackets, or a sweep",
            typed=suggest.several(given.name, given.value or "", swept=False),
        )  # fmt: skip
    added = re.match(r"Could not override '([^'@]+)'", text)
    own = [each for each in overrides if added is not None and each.key_or_group == added[1]]
    if own:
        value = own[0].get_value_element_as_str()
        return UsageError(own[0].key_or_group, "is no group that a run has, and is not added",
                          value,
                          accepted="a group of dtrain, or one of --config-dir with + in front",
                          typed=f"+{own[0].key_or_group}={value}")  # fmt: skip
    missing = re.match(r"Missing mandatory value: ([\w.]+)$", text)
    if missing is not None:
        key, accepted = missing[1], "a value"
        if key.endswith("._target_"):
            accepted = "the dotted name of a function or class, such as mine.build"
        return UsageError(key, "has no value yet", accepted=accepted, hint=f"{key}=VALUE")
    return None


def _parse(words: list[str]) -> list[Override]:
    parser = OverridesParser.create()
    overrides: list[Override] = []
    for word in words:
        given = parse(word)
        try:
            override = parser.parse_override(word)
        except HydraException:
            key = f"{given.sign}{given.name}".rstrip(":")
            hint = f"{key}=VALUE"
            if given.value is not None and given.value[:1] in ("[", "{"):
                hint = f"the whole in quotes, which the shell takes: '{key}={given.value[0]}...'"
            elif given.value is not None:
                hint = f"'{key}=\"VALUE\"', in quotes"
            raise UsageError(key, "cannot be read", given.value or "",
                             accepted="KEY=VALUE in Hydra's grammar",
                             hint=hint) from None  # fmt: skip
        if override.is_sweep_override():  # each job's own value
            number(override)
            key, drawn = override.get_key_element(), override.value()
            values: Iterable[Any] = (
                [drawn.start] if isinstance(drawn, IntervalSweep)
                else islice(override.sweep_string_iterator(), _VALUES)
            )  # fmt: skip
            overrides += [parser.parse_override(f"{key}={single}") for single in values]
        else:
            overrides.append(override)
    return overrides


class Choices:
    """What the configuration groups offer. Use inside ``initialize_config_dir``.

    Args:
        folder: of ``--config-dir``, or None.
        action: what the command does.
    """

    def __init__(self, folder: str | None, action: str = "train"):
        self.action = action
        loader = GlobalHydra.instance().config_loader()
        top = [name for name in loader.list_groups("") if name not in ("schema", "hydra")]
        nested = [f"optimizer/{name}" for name in loader.list_groups("optimizer")]
        nested += ["hydra/launcher", "hydra/sweeper"]
        self.groups: dict[str, list[str]] = {
            name: [option for option in loader.get_group_options(name) if option != _BASIC]
            for name in [*top, *nested]
        }
        self._search: list[str] = []
        if folder is not None:
            path = Path(folder).absolute()
            self._search = [f"hydra.searchpath=['file://{path}']"]
            for file in path.rglob("*.yaml"):
                group = str(file.parent.relative_to(path))
                self.groups.setdefault(group, []).append(file.stem)

    def _compose(self, overrides: list[str]) -> DictConfig:
        return compose("config", [*self._search, *overrides], return_hydra_config=True)

    def check_group(self, override: Override) -> UsageError | None:
        """Say what is wrong with ``group=option``, where this is one."""
        key, value = override.key_or_group, _raw(override)
        if "." in key or (key.startswith("hydra") and key not in self.groups):
            return None
        names = sorted({*self.groups, *schema.Config.model_fields})
        if key not in names:
            meant = suggest.meant(key, value, names) or "python -m dtrain --help"
            if self._has_action_key(key):
                meant = f"action.{key}={value}"
            return UsageError(key, "there is no such group or key", value,
                              accepted=", ".join(names), typed=meant)  # fmt: skip
        options = sorted(self.groups.get(key, []))
        if key not in self.groups or value == "null" or value in options:
            return None
        near = nearest(value, options)
        right = near and f"{key}={near}"
        if key == "experiment":
            right = right or suggest.of_preset(value)
        else:
            right = suggest.corrected(key, value) or right
        return UsageError(key, "there is no such option", value, accepted=", ".join(options),
                          hint=right or "one of these")  # fmt: skip

    def _has_action_key(self, name: str) -> bool:
        """Whether the command's own action has such a key."""
        kind = schema.SCHEMAS["action"].get(self.action)
        return kind is not None and name in kind.model_fields

    def check_keys(self, overrides: list[Override]) -> UsageError | None:
        """Say what is wrong with the first ``a.b=value`` that is, given the groups chosen."""
        chosen = [o.input_line for o in overrides if o.key_or_group in self.groups and o.input_line]
        try:
            config = self._compose(chosen)
        except _ERRORS:
            return None  # the groups themselves do not compose: not a key's fault
        rounds: list[list[Override]] = []  # of a key that has several values one in each
        seen: dict[str, int] = {}
        for override in overrides:
            key = override.key_or_group
            if key not in self.groups:
                seen[key] = seen.get(key, 0) + 1
                rounds += [[] for _ in range(seen[key] - len(rounds))]
                rounds[seen[key] - 1].append(override)
        for each in rounds:
            found = self._first_wrong(chosen, each)
            if found is not None:
                return self._wrong_key(config, *found)
        return None

    def _first_wrong(
        self, chosen: list[str], overrides: list[Override]
    ) -> tuple[Override, BaseException] | None:
        """Return the first of ``overrides`` that does not compose, and why, by halves."""
        good, bad, cause = 0, len(overrides) + 1, None
        tried = len(overrides)  # all of them: most often none is wrong
        while bad - good > 1:
            words = [override.input_line or "" for override in overrides[:tried]]
            try:
                self._compose([*chosen, *words])
                good = tried
            except _ERRORS as error:
                bad, cause = tried, error.__cause__ or error
            tried = (good + bad) // 2
        return None if cause is None else (overrides[bad - 1], cause)

    def _wrong_key(
        self, config: DictConfig, override: Override, cause: BaseException
    ) -> UsageError | None:
        key, value = override.key_or_group, _raw(override)
        parent, _, name = key.rpartition(".")
        node = OmegaConf.select(config, parent) if parent else config
        if not OmegaConf.is_config(node) and key.startswith("hydra"):
            return None  # Hydra's own text is better
        if not OmegaConf.is_config(node):
            head, names = key.split(".")[0], sorted(str(k) for k in config if k != "hydra")
            hint = suggest.meant(key, value)
            above, _, own = parent.rpartition(".")
            around = OmegaConf.select(config, above) if above else config
            if name == "_target_" and OmegaConf.is_config(around) and own in around:
                hint = suggest.quoted(parent, f"{{_target_:{value}}}")
            elif hint is None and (near := nearest(head, names)):
                hint = f"{near}{key[len(head) :]}={value}"
            return UsageError(key, f'there is no group "{parent}"', value,
                              accepted=", ".join(names),
                              typed=hint or "python -m dtrain --help")  # fmt: skip
        names = sorted(str(k) for k in node)
        if name not in names and not override.is_add():
            return UsageError(
                key, "there is no such key", value, accepted=", ".join(names),
                typed=_right(parent, name, value, [each for each in names if each != "_target_"]),
            )  # fmt: skip
        plain: Any = OmegaConf.to_container(node, resolve=False)  # references need a job
        return _wrong_value(override, value, _first_line(cause), plain.get(name))


def _wrong_value(override: Override, value: str, text: str, default: Any) -> UsageError:
    """Return what is wrong with a value of a key that there is.

    Args:
        override: with the key.
        value: of it.
        text: what OmegaConf says.
        default: the value that the key has.
    """
    key = override.key_or_group
    if text.startswith("Could not append"):
        return UsageError(key, "is a key already, which no + adds", value, accepted=f"{key}=VALUE",
                          hint=suggest.assigned(key, value) or f"{key}=VALUE")  # fmt: skip
    try:
        range_of = help_of(key)
    except UsageError:
        range_of = None
    if "does not support deletion" in text:
        optional = range_of is not None and "null" in range_of.accepted
        none = f"{key}=null" if optional else None
        return UsageError(
            f"~{key}", "cannot be left out", accepted=f"{key}=VALUE",
            hint=VALUES.get(f"{key}=null") or none or f"the command without ~{key}, for the "
            "default",
        )  # fmt: skip
    accepted = _accepted(text)
    problem = f"has the wrong type ({text})"
    right = suggest.corrected(key, value)
    options = re.search(r"expected one of \[(.*?)\]", text)
    if options is not None:
        near = nearest(value, options[1].split(", "))
        right = right or (near and f"{key}={near}")
        return UsageError(key, "is not one of these", value, accepted=accepted,
                          hint=right or "one of these")  # fmt: skip
    if accepted == "whole numbers":
        problem = "is not a whole number"
        with contextlib.suppress(ValueError, OverflowError):
            whole = float(value)
            right = f"{key}={int(whole)}" if whole.is_integer() else right
    elif accepted == "a list: [A,B]":
        problem, right = "is not a list", _as_list(key, value, default)
    elif "of type 'list'" in text:
        problem, right = "is a list", suggest.several(key, value.strip("[]"), swept=True)
    elif isinstance(default, dict):
        problem, right = "is a group of keys", f"{key}.KEY=VALUE"
    elif "is not Optional" in text:
        problem = "is no value of this key"
    if accepted in ("whole numbers", "a value of the default's type") and range_of is not None:
        accepted = range_of.accepted
    return UsageError(key, problem, value, accepted=accepted,
                      typed=right or f"{key}={typed(default)}")  # fmt: skip


def _as_list(key: str, value: str, default: Any) -> str | None:
    """Return the override of a list where something else was typed."""
    if key == "trainer.callbacks":
        return suggest.assigned(key, value)
    if value.startswith("{"):  # names that stand for columns
        value = ",".join(re.findall(r":\s*([\w.]+)", value))
    number = len(default) if isinstance(default, list) and "," not in value else 1
    return f"'{key}=[{','.join([value] * max(number, 1))}]'" if value else None


def _raw(override: Override) -> str:
    """Return the value of an override as it was typed, without quotes."""
    return (parse(override.input_line or "").value or "").strip("'\"")


def _right(parent: str, name: str, value: str, names: list[str]) -> str:
    """Return what to type in the place of ``PARENT.NAME=VALUE``, a key that there is not.

    Args:
        parent, name, value: as they were typed.
        names: of the keys that the parent has.
    """
    key = f"{parent}.{name}" if parent else name
    if not names:  # a function of one's own may take what no file has: it is added
        return f"+{key}={value}"
    help_of = parent if parent in schema.sections() else ""
    return suggest.meant(key, value, names) or f"python -m dtrain --help {help_of}".strip()


def _first_line(error: BaseException) -> str:
    """Return the first line of a message, without OmegaConf's block of detail."""
    lines = str(error).strip().split("\n")
    text = lines[0]
    if text.endswith("composing config:") and len(lines) > 1:  # what is wrong comes after it
        text += f" {lines[1]}"
    return re.sub(r"\s+", " ", text)[:500] or type(error).__name__


# -- Hydra's errors about a preset or an experiment ---------------------------------------------

#: OmegaConf's names of types, and ours.
_TYPES = {"Integer": "whole numbers", "Float": "numbers", "bool": "true or false"}


def _of_preset(
    error: Exception, folder: str | None, options: Mapping[str, list[str]]
) -> UsageError | None:
    """Return what is wrong in a file, None where the error is about something else.

    Args:
        error: of Hydra.
        folder: of ``--config-dir``, or None.
        options: of each group.
    """
    found = re.match(r"In '([^']+)': (.*)", str(error), re.S)
    if found is None:
        return None
    file, text = found[1], found[2]
    group = file.rpartition("/")[0]
    missing = re.match(r"Could not find '([^'@]+)", text)
    if missing is not None:
        return _no_option(_place(file, folder), group, missing[1], options)
    unmatched = re.match(r"Could not override '([^'@]+)", text)
    if unmatched is not None and unmatched[1] in options:  # Hydra puts it below its own folder
        return _no_package(_place(file, folder), group)
    if unmatched is not None:
        name = unmatched[1].removeprefix(f"{group}/")
        near = nearest(name, options)
        return _of_place(
            _place(file, folder),
            f"its defaults override {unmatched[1]}, which is no group",
            ", ".join(sorted(options)),
            f"- override /{near or 'GROUP'}: OPTION in its defaults",
        )
    unknown = re.search(r"Key '([^']+)' not in '(\w+)'\s+full_key: (\S+)", text)
    if unknown is not None:
        return _no_key(file, folder, unknown[1], unknown[2], unknown[3])
    option = re.search(r"is not a subclass of \w+\. value: (\w+)", text)
    if option is not None:
        holding = [name for name, known in options.items() if option[1] in known]
        return _of_place(
            _place(file, folder),
            f"gives a group the value {option[1]}, and a group has options",
            "an option, in the list of defaults",
            f"- override /{holding[0] if holding else 'GROUP'}: {option[1]} in its defaults",
        )
    wrong = re.search(r"composing config:\n(.+?)\s+full_key: (\S+)", text)
    if wrong is not None:
        return _of_place(
            _place(file, folder),
            f"its {wrong[2]} has the wrong type ({wrong[1]})",
            _accepted(wrong[1]),
            f"python -m dtrain --help {wrong[2]}",
        )
    return None


def _accepted(text: str) -> str:
    """Read from OmegaConf's message which values it would take."""
    options = re.search(r"expected one of \[(.*?)\]", text)
    if options:
        return options.group(1)
    kind = re.search(r"converted to (\w+)|not a valid (bool)", text)
    if kind is None and "ListConfig" in text:
        return "a list: [A,B]"
    if kind is None:
        return "a value of the default's type"
    name = kind.group(1) or kind.group(2)
    return _TYPES.get(name, name)


def _no_option(
    place: tuple[str, str], group: str, name: str, options: Mapping[str, list[str]]
) -> UsageError:
    of, _, option = name.rpartition("/")
    inner = of.removeprefix(f"{group}/")
    if of not in options and inner in options:
        return _of_place(
            place,
            f"its defaults look for {name}, as there is no override before {inner}",
            f"options of groups, after the word override and with a slash: override /{inner}",
            f"- override /{inner}: {option} in its defaults",
        )
    known = sorted(options.get(of, []))
    near = nearest(option, known) or "OPTION"
    own = f"- {near} in its defaults" if of == group else f"{of}={near}"
    if of and (of != group or not place[1]):
        place = (of, option)
    return _of_place(
        place, f"there is no option {name}", ", ".join(known) or "options of a group", own
    )


def _no_key(file: str, folder: str | None, key: str, kind: str, whole: str) -> UsageError:
    group, names = file.split("/")[0], suggest.keys_of_type(kind)
    parent = whole.rpartition(".")[0]
    if kind == "Config" and key == group:
        return _no_package(_place(file, folder), group)
    right = suggest.meant(f"{parent}.{key}" if parent else key, suggest.VALUE, names) or ""
    right = right.removesuffix(f"={suggest.VALUE}")
    return _of_place(
        _place(file, folder),
        f"has {whole}, and there is no such key",
        ", ".join(names),
        f"{right} in its place" if right else "the file without it",
    )


def _no_package(place: tuple[str, str], group: str) -> UsageError:
    return _of_place(
        place,
        f"its keys are read as keys of the group {group}, which has none",
        "keys of the whole configuration",
        "# @package _global_ as its first line",
    )


def _of_place(place: tuple[str, str], why: str, accepted: str, hint: str) -> UsageError:
    return UsageError(place[0], why, place[1], accepted=accepted, hint=hint)


def _place(file: str, folder: str | None) -> tuple[str, str]:
    """Return what stands before and behind the ``=`` of a message about a file."""
    path = Path(folder or "", f"{file}.yaml")
    if folder is not None and path.is_file():
        return "--config-dir", str(path)
    group, _, option = file.rpartition("/")
    return group or "config", option
