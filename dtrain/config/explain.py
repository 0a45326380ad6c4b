"""Each override by itself: whether there is such a group, option or key, and what Hydra says.

Hydra's own advice for a misspelt group (``+modle=cnn``) would silently train something else.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dtrain.config import command_line, guard, schema, suggest
from dtrain.config.help import help_of, keys
from dtrain.config.overrides import parse
from dtrain.config.suggest import Advice
from dtrain.errors import DtrainError, UsageError, nearest, refuse

#: Hydra's own launcher and sweeper: no choice, they know nothing of jobs of several processes.
_BASIC = "basic"
#: So many values of a key that has several are looked at.
_VALUES = 20
#: Most jobs of a sweep, and most values of a key: each job is composed before the first runs.
MOST = 10_000
_PRESET = ("# @package _global_ as the first line of a preset, and in its defaults lines such as "
           "- override /model: mlp")  # fmt: skip
_HELP = {"typed": "python -m dtrain --help"}


def check(arguments: list[str]) -> None:
    """Refuse words of a command that are no overrides, groups and options that there are not.

    Args:
        arguments: the command line, without the program's name.

    Raises:
        UsageError: for the first one found, or for a file that is no preset.
    """
    options = command_line.parsed(arguments)
    if options.shell_completion:
        return
    command_line.check(options.overrides)
    overrides = _overrides(options.overrides)
    guard.check_presets(options.config_dir, overrides)
    if any(each.key_or_group == "hydra.searchpath" for each in overrides):
        return  # options are in packages and folders, too, that Hydra looks into
    groups = _groups(guard.loader(options.config_dir))
    for override in overrides:
        _check_group(override, groups)


def explain(error: Exception, arguments: list[str]) -> DtrainError:
    """Find the override that does not compose and say what would be right.

    Args:
        error: what Hydra or OmegaConf raised.
        arguments: the command line.

    Returns:
        A ``UsageError`` where one is found, else the error's own text.
    """
    options = command_line.parsed(arguments)
    loader = guard.loader(options.config_dir)
    try:
        overrides, groups = _overrides(options.overrides), _groups(loader)
        chosen = [each.input_line or "" for each in overrides if each.key_or_group in groups]
        try:
            tree = loader.load_configuration("config", chosen, RunMode.RUN)
        except (HydraException, OmegaConfBaseException) as wrong:
            _check_added(overrides, groups)
            return _of_file(wrong)
        for override in overrides:
            if override.key_or_group not in groups:
                _check_key(tree, override)
        for word in options.overrides:
            _check_single(word)
        for override in overrides:
            if override.key_or_group.startswith("hydra."):
                refuse(override.key_or_group, "does not compose so", _raw(override),
                       accepted="hydra.run.dir, hydra.sweep.dir, hydra.mode, hydra.sweeper",
                       hint=f"the command without {override.key_or_group}")  # fmt: skip
    except DtrainError as refused:
        return refused
    return _of_file(error)


def _overrides(words: Iterable[str]) -> list[Override]:
    return [single for word in words for single in _singles(word)]


def _singles(word: str) -> Iterator[Override]:
    """Yield an override, for each of its values where it has several.

    Raises:
        UsageError: it is not in Hydra's grammar.
    """
    parser, typed = OverridesParser.create(), parse(word)
    try:
        override = parser.parse_override(word)
    except HydraException:
        problem = "cannot be read"
        if word[:1] in ("'", '"'):
            typed, problem = parse(word.strip("'\"")), "is in quotes that the shell has not taken"
        key, value = f"{typed.sign}{typed.name}", typed.value or ""
        name = key.strip("\u2014\u2013")  # dashes, which editors of text make of "--"
        advice = suggest.drawn(key, value) or suggest.known(name, value)
        if value[:1] in ("[", "{"):
            advice = {"hint": f"the whole in quotes, which the shell takes: '{key}={value[0]}...'"}
        advice = advice or {"hint": f"'{key}=\"VALUE\"', in quotes"}
        refuse(key, problem, value, accepted="KEY=VALUE in Hydra's grammar", **advice)
    if not override.is_sweep_override():
        yield override
        return
    number(override)
    drawn = override.value()
    values: Iterable[object] = (
        [drawn.start] if isinstance(drawn, IntervalSweep)
        else islice(override.sweep_string_iterator(), _VALUES)
    )  # fmt: skip
    for single in values:
        yield parser.parse_override(f"{override.get_key_element()}={single}")


def _groups(loader: guard.Loader, above: str = "") -> dict[str, list[str]]:
    """Return the options of all groups, a user's own among them."""
    groups: dict[str, list[str]] = {}
    for name in loader.list_groups(above):
        group = f"{above}/{name}".lstrip("/")
        options = loader.get_group_options(group)
        groups[group] = sorted(each for each in options if each != _BASIC)
        groups |= _groups(loader, group)
    return groups


def _check_group(override: Override, groups: dict[str, list[str]]) -> None:
    """Refuse ``GROUP=OPTION`` where there is no such group or option."""
    group, value = override.key_or_group, _raw(override)
    if override.is_delete() or (group in schema.GROUPS and value == "null"):
        _check_left_out(override)
    elif group in groups and value != "null":
        for option in value.strip("[]").split(","):
            if option.strip("'\" ") not in groups[group]:
                _refuse_option(group, option, groups[group])
    elif "." not in group and group not in groups and not override.is_add():
        names = sorted({*(each for each in groups if not each.startswith("hydra")),
                        *schema.Config.model_fields})  # fmt: skip
        if group not in names:
            dotted = group.replace("/", ".")
            advice = suggest.known(dotted, value) or suggest.meant(dotted, value, names)
            refuse(group, "there is no such group or key", value, accepted=", ".join(names),
                   **(advice or _HELP))  # fmt: skip


def _check_added(overrides: Iterable[Override], groups: Collection[str]) -> None:
    """Refuse a group of the user's own that no list of defaults has, and that is not added."""
    for override in overrides:
        group, value = override.key_or_group, _raw(override)
        is_own = group in groups and group not in (*schema.GROUPS, *schema.OWN_GROUPS)
        if is_own and not group.startswith("hydra") and not override.is_add():
            refuse(group, "is no group that a run has, and is not added", value,
                   accepted="a group of dtrain, or one of --config-dir with + in front",
                   typed=f"+{group}={value}")  # fmt: skip


def _check_left_out(override: Override) -> None:
    """Refuse ``~KEY`` and ``GROUP=null``: what is in dtrain's own files is a choice."""
    group = override.key_or_group
    schema.refuse_left_out({**schema.GROUPS, group: None})
    if group in keys():
        default = {"typed": f"{group}={help_of(group).default}"}
        refuse(f"~{group}", "cannot be left out", accepted=f"{group}=VALUE",
               **suggest.rows().get(f"{group}=null", default))  # fmt: skip


def _refuse_option(group: str, option: str, options: list[str]) -> None:
    if group == "experiment":
        advice = suggest.of_preset(option)
        near = None if "typed" in advice else nearest(option, options)
    else:
        advice = suggest.corrected(group, option)
        near = None if advice else nearest(option, options)
    if near is not None or len(options) == 1:
        advice = {"typed": f"{group}={near or options[0]}"}
    refuse(group, "there is no such option", option, accepted=", ".join(options),
           **(advice or {"hint": "one of these"}))  # fmt: skip


def _check_key(tree: DictConfig, override: Override) -> None:
    """Refuse ``a.b=value`` where the groups that are chosen have no such key."""
    if override.is_force_add():  # also keys of a user's own, project.NAME
        return
    key, value = override.key_or_group, _raw(override)
    parent, _, name = key.rpartition(".")
    node = OmegaConf.select(tree, parent) if parent else tree
    if not isinstance(node, DictConfig):
        advice = _inside(parent, name, value) or _of_group(tree, key, value)
        refuse(key, f'there is no group "{parent}"', value,
               accepted=", ".join(sorted(str(each) for each in tree if each != "hydra")),
               **(advice or _HELP))  # fmt: skip
    if override.is_add():
        if name in {*node}:
            refuse(key, "is a key already, which no + adds", value, accepted=f"{key}=VALUE",
                   **(suggest.assigned(key, value) or {"hint": f"{key}=VALUE"}))  # fmt: skip
    elif name not in (names := sorted(str(each) for each in node)):
        others = [each for each in names if each != "_target_"]
        advice = suggest.meant(key, value, others)
        if _is_open(node, parent) and key not in suggest.rows() and not nearest(name, others):
            advice = {"typed": f"+{suggest.quoted(key, value)}"}
        help_of_it = f"{_HELP['typed']} {parent if parent in schema.sections() else ''}".strip()
        refuse(key, "there is no such key", value, accepted=", ".join(names),
               **(advice or {"typed": help_of_it}))  # fmt: skip


def _is_open(node: DictConfig, group: str) -> bool:
    """Say whether a node is of a function of one's own, which may take what no file has."""
    targets = [schema.target_of(kind) for kind in schema.kinds(group)]
    target = str(node.get("_target_") if "_target_" in {*node} else "dtrain.")
    return target not in targets and not target.startswith(("dtrain.", "hydra_plugins."))


def _inside(parent: str, name: str, value: str) -> Advice:
    """Return the override of a key whose value is a list, or a mapping that is not there yet."""
    for each in (f"[{value}]", f"{{{name}:{value}}}"):
        if parent in keys() and suggest.is_taken(parent, each):
            return {"typed": suggest.quoted(parent, each)}
    return {}


def _of_group(tree: DictConfig, key: str, value: str) -> Advice:
    """Return the override of a key whose group is misspelt, or is not there."""
    head, _, rest = key.partition(".")
    near = nearest(head, [str(each) for each in tree])
    return suggest.meant(key, value) or (
        {"typed": suggest.quoted(f"{near}.{rest}", value)} if near and near != head else {}
    )


def _check_single(word: str) -> None:
    """Refuse several values of a key, which only a sweep has."""
    key, value = parse(word).name, parse(word).value or ""
    if OverridesParser.create().parse_override(word).is_sweep_override():
        refuse(key, "has several values, and only a sweep (-m) takes these", value,
               accepted="one value, a list in brackets, or a sweep",
               **(command_line.several(key, value) or {"hint": f"-m {key}={value}"}))  # fmt: skip


def _of_file(error: Exception) -> DtrainError:
    """Return Hydra's own sentence of a file whose defaults are wrong, and how they are written."""
    text = " ".join(str(error).split())[:500] or type(error).__name__
    if not text.startswith("In '"):
        return DtrainError(text)
    return DtrainError(f"{text}; hint: {_PRESET}")


def _raw(override: Override) -> str:
    """Return the value of an override as it was typed, without quotes."""
    return (parse(override.input_line or "").value or "").strip("'\"")


# -- keys with several values, of a sweep ---------------------------------------------------------


def check_grid(overrides: Sequence[Override]) -> None:
    """Refuse more combinations than a sweep may have, before they are made.

    Raises:
        UsageError: there are more than :data:`MOST`, or none.
    """
    counts = {o.get_key_element(): number(o) for o in overrides if o.is_discrete_sweep()}
    total = math.prod(counts.values())
    if total > MOST:
        typed = " x ".join(f"{count:,} of {key}" for key, count in counts.items())
        raise _too_many(max(counts, key=lambda key: counts[key]), "...", f"{typed} are {total:,}")


def number(override: Override) -> int:
    """Count the values of a key without expanding them; an interval or a pattern counts as one.

    Raises:
        UsageError: there are more than :data:`MOST`, or none.
    """
    key, value = override.get_key_element(), override.value()
    try:
        if isinstance(value, ChoiceSweep):
            count = len(value.list)
        elif isinstance(value, RangeSweep):
            count = sum(1 for _ in islice(value.range(), MOST + 1))
        else:
            return 1
    except (ArithmeticError, ValueError, HydraException):
        count = 0
    text = override.get_value_string()
    if count > MOST:
        raise _too_many(key, text, f"more than {MOST:,} values are")
    if count == 0:
        refuse(key, "has no value in it", text, accepted="at least one value",
               typed=f"'{key}=range(0,3)'")  # fmt: skip
    return count


def _too_many(key: str, value: object, found: str) -> UsageError:
    return UsageError(key, f"{found} more than a sweep can have", value,
                      accepted=f"up to {MOST:,} jobs in all; or hydra/sweeper=random, which draws",
                      typed="hydra/sweeper=random hydra.sweeper.trials=20")  # fmt: skip
