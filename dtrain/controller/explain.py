"""Hydra's and OmegaConf's errors, said in one sentence with what to type.

Hydra's own advice for a misspelt group (``+modle=cnn``) would silently train something else.
"""

from __future__ import annotations

import itertools
import re

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dtrain.controller import schema
from dtrain.errors import DtrainError, UsageError, nearest


def explain(error: Exception, arguments: list[str]) -> DtrainError:
    """Find the override that is wrong and say what would be right.

    Args:
        error: what Hydra or OmegaConf raised.
        arguments: the command line.

    Returns:
        A :class:`UsageError` where the culprit is found, else the error's own words.
    """
    words = [word for word in arguments if not word.startswith("-") and "=" in word]
    if "--config-dir" in arguments:  # its value is no override
        words = [w for w in words if w != arguments[arguments.index("--config-dir") + 1]]
    parser = OverridesParser.create()
    overrides = []
    for word in words:
        try:
            override = parser.parse_override(word)
            if override.is_sweep_override():  # each job's own value
                key = override.get_key_element()
                singles = [f"{key}={v}" for v in override.sweep_string_iterator()]
                overrides += [parser.parse_override(single) for single in singles]
            else:
                overrides.append(override)
        except (HydraException, OverrideParseException):
            return UsageError(
                word.split("=")[0], word.partition("=")[2], "cannot be read",
                "KEY=VALUE in Hydra's grammar", f"'{word.split('=')[0]}=\"VALUE\"', in quotes",
            )  # fmt: skip
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(schema.folder("conf")), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        search = loader.get_search_path()
        for folder in _folders(arguments):
            search.append("command-line", f"file://{folder}")
        # Groups first: which keys exist depends on them.
        groups = {g for g in loader.list_groups("") if g not in ("schema", "hydra")}
        groups |= {f"optimizer/{g}" for g in loader.list_groups("optimizer")}
        for override in overrides:
            found = _check_group(override, groups, loader)
            if found is not None:
                return found
        good = [o.input_line for o in overrides if o.key_or_group in groups and o.input_line]
        for override in overrides:
            if override.key_or_group not in groups:
                found = _check_key(override, good, groups)
                if found is not None:
                    return found
    return DtrainError(_plain(error))


def _folders(arguments: list[str]) -> list[str]:
    return [b for a, b in itertools.pairwise(arguments) if a == "--config-dir"]


def _check_group(override: Override, groups: set[str], loader: object) -> UsageError | None:
    key, value = override.key_or_group, override.get_value_element_as_str()
    if "." in key or key.startswith("hydra"):
        return None
    top = set(schema.Config.__dataclass_fields__)
    if key not in groups and key not in top:
        near = nearest(key, groups | top) or "strategy"
        return UsageError(key, value, "there is no such group or key",
                          ", ".join(sorted(groups | top)), f"{near}={value}")  # fmt: skip
    if key not in groups or value == "null":
        return None
    options = [o for o in loader.get_group_options(key)]  # type: ignore[attr-defined]
    if value not in options:
        near = nearest(value, options) or options[0]
        return UsageError(
            key, value, "there is no such option", ", ".join(options), f"{key}={near}"
        )
    return None


def _check_key(override: Override, good: list[str], groups: set[str]) -> UsageError | None:
    """Check one ``a.b=value`` against the configuration that the groups compose."""
    line, key = override.input_line or "", override.key_or_group
    value = override.get_value_element_as_str()
    try:
        config = compose("config", good, return_hydra_config=False)
    except (HydraException, OmegaConfBaseException):
        return None
    try:
        compose("config", [*good, line])
        return None
    except (HydraException, OmegaConfBaseException) as error:
        parent, _, name = key.rpartition(".")
        node = OmegaConf.select(config, parent) if parent else config
        if not OmegaConf.is_config(node):
            head = key.split(".")[0]
            names = [str(k) for k in config]
            near = nearest(head, names) or "trainer"
            return UsageError(key, value, f"there is no {parent}", ", ".join(sorted(names)),
                              f"{near}{key[len(head):]}={value}")  # fmt: skip
        names = [str(k) for k in node]
        if name not in names and not override.is_add():
            whole = ".".join(filter(None, (parent, nearest(name, names) or names[0])))
            return UsageError(key, value, "there is no such key",
                              ", ".join(sorted(names)), f"{whole}={value}")  # fmt: skip
        return UsageError(
            key, value, _reason(error), _accepted(key), f"{key}={_example(config, key)}"
        )


def _reason(error: Exception) -> str:
    cause = error.__cause__ or error
    text = _plain(cause)
    return "has the wrong type (" + text + ")"


def _accepted(key: str) -> str:
    names = {"hardware.kind": schema.Kind, "hardware.precision": schema.Precision,
             "objective_mode": schema.Mode}  # fmt: skip
    if key in names:
        return ", ".join(member.name for member in names[key])
    return "a value of the type of its default"


def _example(config: object, key: str) -> str:
    value = OmegaConf.select(config, key)  # type: ignore[arg-type]
    return str(getattr(value, "name", value))


def _plain(error: BaseException) -> str:
    """Return the first line of a message, without OmegaConf's block of detail."""
    return re.sub(r"\s+", " ", str(error).strip().split("\n")[0])
