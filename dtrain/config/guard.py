"""Hydra, with a look at all that it has composed before it makes anything of it.

Hydra calls what its own part of a configuration names (callbacks, handlers of logging, launcher,
sweeper), imports packages on its search path, and sets variables of the environment; a preset, an
experiment or a run folder can say so. dtrain needs none of it. Every configuration leaves
:class:`Loader`: for a run, a job of a sweep, ``--cfg``, ``--info`` and ``--help``.
"""

from __future__ import annotations

import copy
import importlib.util
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from dtrain.config import command_line, private, schema, tree, trust
from dtrain.config.overrides import CONFIG_NAME, of_sources, parse
from dtrain.errors import DamagedFile, UsageError, refuse
from dtrain.files.reading import read_plain

NAME = "dtrain"
_SILENT = {"version": 1, "root": None, "disable_existing_loggers": False}
_PLUGIN = "hydra_plugins.dtrain_sweep."
_LAUNCHER = {"_target_": f"{_PLUGIN}SweepLauncher"}
_SWEEPERS = {f"{_PLUGIN}{name}Sweeper" for name in ("Grid", "Random", "Optuna")}
#: ``hydra.run.dir`` and ``hydra.sweep.dir`` where the user says nothing, as ``conf/config.yaml``.
_DIRS = {
    "run": "${output_dir}/${now:%Y-%m-%d}/${now:%H-%M-%S}_${name}",
    "sweep": "${output_dir}/multirun/${now:%Y-%m-%d}/${now:%H-%M-%S}_${name}",
}
#: Keys below ``hydra`` that have one value here: it, and what does what another would.
_FIXED: dict[str, tuple[Any, str]] = {
    "output_subdir": (None, "the run folder's config.yaml and command.json"),
    "callbacks": ({}, "trainer.callbacks"),
    "hydra_logging": (_SILENT, "the run folder's logs/"),
    "job_logging": (_SILENT, "the run folder's logs/"),
    "verbose": (False, "the run folder's logs/"),
    "launcher": (_LAUNCHER, "hydra/launcher=dtrain"),
    "sweep.subdir": ("${hydra.job.num}", "hydra.sweep.dir=FOLDER"),
    "job.name": (NAME, "name=NAME"),
    "job.chdir": (None, "cd FOLDER before the command"),
    "job.id": ("???", "name=NAME"),
    "job.num": ("???", "name=NAME"),
    "job.env_set": ({}, "NAME=VALUE in front of the command"),
    "job.env_copy": ([], "NAME=VALUE in front of the command"),
    "runtime.output_dir": ("???", "hydra.run.dir=FOLDER"),
}
#: A value that is a reference, and may become anything.
_WHOLE = re.compile(r"\$\{.*\}", re.DOTALL)
#: Those that Hydra fills in, and those that are obeyed.
_FREE = (
    "mode", "sweeper", "overrides", "runtime", "help", "hydra_help", "job", "run", "sweep", "env",
    "searchpath",
)  # fmt: skip


class _Repository(ConfigRepository):
    """Hydra's. It is copied to compose, and its sources, which never change, hold all schemas."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Repository:
        copied = copy.copy(self)
        copied.sources = list(self.sources)
        return copied


class Loader(ConfigLoaderImpl):
    """Hydra's, which lets no configuration pass that would run anything."""

    def __init__(self, config_search_path: ConfigSearchPath):
        super().__init__(config_search_path)
        self.repository = _Repository(config_search_path)

    def load_configuration(
        self, config_name: str | None, overrides: list[str], *args: Any, **kwargs: Any
    ) -> DictConfig:
        """Compose a configuration.

        Raises:
            UsageError: it would have Hydra do what dtrain does not let a configuration do.
        """
        check_overrides(overrides)
        config = super().load_configuration(config_name, overrides, *args, **kwargs)
        check(config, overrides)
        return config

    def get_group_options(self, group_name: str, *args: Any, **kwargs: Any) -> list[str]:
        """Return the options of a group, or the groups in it, that a user may choose."""
        found = super().get_group_options(group_name, *args, **kwargs)
        return [name for name in found if group_name or name != "schema"]


def check_overrides(overrides: list[str]) -> None:
    """Refuse what Hydra obeys while it composes, of a run folder that is none of the user's."""
    for each in OverridesParser.create().parse_overrides(of_sources(overrides)):
        key, value = each.key_or_group, each.value()
        private.check_named(key, value, f"{each.input_line} in the command, if it may be read")
        places = value if isinstance(value, list) else [value]
        for place in places if key != CONFIG_NAME else ():
            scheme, _, name = str(place).partition("://")
            top = name.partition(".")[0]
            package = importlib.util.find_spec(top) if scheme == "pkg" else None
            if package is None and not (scheme == "file" and os.path.isdir(name)):
                refuse(key, "is neither a folder nor an installed package", place,
                       accepted="a list of file:///FOLDER and pkg://PACKAGE.FOLDER",
                       hint=f"{key}=[file:///FOLDER]")  # fmt: skip


def check(config: DictConfig, overrides: list[str]) -> None:
    """Refuse a composed configuration whose part for Hydra is not dtrain's.

    Args:
        config: as Hydra composed it; nothing in it is resolved.
        overrides: that it was composed with.

    Raises:
        UsageError: naming the first key that is wrong.
    """
    part: Any = OmegaConf.to_container(config.hydra, resolve=False, enum_to_str=True)
    chosen = str(config.hydra.runtime.choices.get("hydra/launcher"))
    if part.get("launcher") != _LAUNCHER and chosen != NAME:
        refuse("hydra/launcher", "cannot give each job its own process, cores and GPUs", chosen,
               accepted=NAME, typed="hydra/launcher=dtrain")  # fmt: skip
    for key, (value, instead) in _FIXED.items():
        present = tree.select(part, key)
        if present != value and not (value is None and present is False):
            raise _refusal(key, present, instead)
    for key in part:
        if key not in _FIXED and key not in _FREE:
            raise _refusal(key, part[key], "the configuration without it")
    noted = [*part["overrides"]["hydra"], *part["overrides"]["task"]]
    if sorted(noted) != sorted(overrides):
        raise _refusal("overrides", noted, "the overrides on the command line")
    if part.get("mode") == RunMode.MULTIRUN.name and is_chosen(config, "run"):
        refuse("hydra.run.dir", "is the folder of one run, and a sweep has many",
               part["run"]["dir"], accepted="hydra.sweep.dir",
               hint="hydra.sweep.dir=FOLDER")  # fmt: skip
    _check_sweeper(config)


def run_folder(output_dir: str) -> tuple[str, bool]:
    """Return the folder of the run that Hydra has composed, and whether the user has chosen it.

    Args:
        output_dir: of its configuration.

    Raises:
        UsageError: as of :func:`dtrain.config.private.reserved_in`.
        OmegaConfBaseException: it refers to what is not there.
    """
    settings = HydraConfig.get()
    chosen = is_chosen(HydraConfig.instance().cfg, "run")
    reserved = None if chosen else private.reserved_in(output_dir)
    return (str(settings.run.dir), chosen) if reserved is None else (str(reserved), True)


def is_chosen(config: Any, kind: str) -> bool:
    """Say whether the user has chosen the folder of a ``run`` or a ``sweep``."""
    chosen: Any = OmegaConf.to_container(config.hydra[kind], resolve=False)
    return bool(chosen["dir"] != _DIRS[kind])


def _refusal(key: str, value: Any, instead: str) -> UsageError:
    return UsageError(f"hydra.{key}", "dtrain does not do what this key of Hydra's says", value,
                      accepted="hydra.mode, hydra.run.dir, hydra.sweep.dir, hydra.sweeper",
                      hint=instead)  # fmt: skip


def _check_sweeper(config: DictConfig) -> None:
    """Refuse a sweeper that is not ours, and nodes below it, which Hydra would call."""
    node = config.hydra.sweeper
    plain: Any = OmegaConf.to_container(node, resolve=False)
    target = plain.get("_target_") if isinstance(plain, dict) else plain
    # A plugin that is installed, and that the user has chosen; or one that is trusted.
    chosen = str(target).startswith("hydra_plugins.") and trust.command().owns("hydra.sweeper")
    may_be_called = target in _SWEEPERS or trust.is_trusted(str(target))
    if not may_be_called and not (chosen and trust.is_installed(str(target))):
        refuse("hydra/sweeper", "is neither dtrain's nor a plugin that is installed", target,
               accepted="grid, random, optuna", typed="hydra/sweeper=grid")  # fmt: skip
    for name, value in plain.items():
        is_call = name.startswith("_") or (name == "params" and not _is_flat(value))
        if name != "_target_" and is_call:
            raise _refusal(f"sweeper.{name}", value, "values: numbers, and overrides as text")


def _is_flat(params: Any) -> bool:
    """Say whether parameters are plain values by their names: no node that would be called."""
    if not isinstance(params, dict):
        return params is None
    return not any(
        isinstance(value, dict | list) or str(name).startswith("_") or _WHOLE.fullmatch(str(value))
        for name, value in params.items()
    )


def loader(config_dir: str | None) -> Loader:
    """Return what composes from ``conf/`` and a folder of presets.

    Raises:
        UsageError: it is no folder.
    """
    # Plugins are looked for here: the current directory is not among the places.
    path = create_config_search_path(str(schema.folder("conf")))
    if config_dir is not None:
        folder = os.path.abspath(config_dir)
        if not os.path.isdir(folder):
            refuse("--config-dir", "is no folder", folder, accepted="a folder of presets",
                   hint="--config-dir FOLDER")  # fmt: skip
        path.prepend("command-line", f"file://{folder}", SearchPathQuery(provider="schema"))
    return Loader(path)


def run(arguments: list[str], command: Any) -> None:
    """Do what a command line says.

    Args:
        arguments: without the program's name.
        command: called with the configuration of one job; ``hydra_plugins.dtrain_sweep`` calls its
            ``sweep``.

    Raises:
        UsageError: an option is none of dtrain's, or the configuration is refused.
        HydraException, OmegaConfBaseException: it does not compose.
    """
    version.setbase("1.3")
    options = command_line.parsed(arguments)
    command_line.check_options(options)
    names = [value for _, key, value in map(parse, options.overrides) if key == CONFIG_NAME]
    name = (names[-1] if names else None) or "config"
    composing = loader(options.config_dir)
    if not composing.repository.config_exists(name):
        refuse("--config-name", "there is no such file in the folder of presets", name,
               accepted="NAME of FOLDER/NAME.yaml, which begins with defaults: [config, _self_]",
               hint=f"--config-dir FOLDER --config-name {name}")  # fmt: skip
    GlobalHydra.instance().clear()
    hydra = Hydra(NAME, composing)
    GlobalHydra.instance().initialize(hydra)
    words = {"config_name": name, "overrides": options.overrides}
    try:
        if options.cfg:
            hydra.show_cfg(**words, cfg_type=options.cfg, package=options.package,
                           resolve=options.resolve)  # fmt: skip
        elif options.info:
            hydra.show_info(options.info, **words)
        elif options.shell_completion:
            hydra.shell_completion(**words)
        else:
            config = None if options.multirun else _compose_one(hydra, words)
            if config is None:
                words["overrides"].append("hydra.mode=MULTIRUN")
                hydra.multirun(**words, task_function=command)
            else:
                _run_one(config, command)
    finally:
        GlobalHydra.instance().clear()


def _compose_one(hydra: Hydra, words: dict[str, Any]) -> DictConfig | None:
    """Return the configuration of one job; None where it says that it is of many.

    Hydra composes it once to look at its mode, and once more.
    """
    try:
        config = hydra.compose_config(**words, run_mode=RunMode.RUN)
    except Exception:
        if hydra.get_mode(**words) == RunMode.MULTIRUN:
            return None
        raise
    if config.hydra.mode == RunMode.MULTIRUN:
        return None
    with read_write(config.hydra):
        config.hydra.mode = RunMode.RUN
    return config


def _run_one(config: DictConfig, command: Any) -> None:
    """Do one job. Hydra's own would make the run's folder before anything is checked."""
    HydraConfig.instance().set_config(config)
    try:
        job = copy.deepcopy(config)
        with open_dict(job):
            del job["hydra"]
        command(job)
    finally:
        HydraConfig.instance().cfg = None


# -- the YAML files of --config-dir that a command chooses, looked at before Hydra reads them ------
#
# Hydra answers a damaged one with a traceback, one that includes itself with a full stack, and one
# whose aliases multiply with all of the memory. Here each ends in a sentence with its file.

#: Most files that one preset leads to, each counted as often as it is named: Hydra composes it so.
FILES = 1000
DEPTH = 32


def check_presets(config_dir: str | None, overrides: Iterable[Override]) -> None:
    """Refuse files that are no presets.

    Args:
        config_dir: the folder of presets, if there is one.
        overrides: which choose options of groups.

    Raises:
        DamagedFile: naming file and line.
    """
    numbers: dict[Path, int] = {}
    for override in () if config_dir is None else overrides:
        key, value = override.key_or_group, parse(override.input_line or "").value or ""
        options = (
            [] if "." in key else [each.strip(" '\"") for each in value.strip("[]").split(",")]
        )
        for name in [value] if key == CONFIG_NAME else [f"{key}/{each}" for each in options]:
            _check_file(Path(str(config_dir)), Path(str(config_dir), name), (), numbers)


def _check_file(
    folder: Path, place: Path, above: tuple[Path, ...], numbers: dict[Path, int]
) -> int:
    """Check a file and those that its defaults name, and return how many they all are.

    Args:
        folder: of all presets.
        place: of the file, without its ending; where none is, it is one of dtrain's own.
        above: the files that led here.
        numbers: of those that were looked at.
    """
    path = place.with_name(f"{place.name.removesuffix('.yaml')}.yaml")
    if path in above:
        names = " -> ".join(str(each.relative_to(folder)) for each in (*above, path))
        raise DamagedFile(path, f"has defaults that lead back to it ({names})")
    if path.is_file() and path not in numbers:
        if len(above) > DEPTH:
            raise DamagedFile(path, f"is led to by more than {DEPTH} presets")
        named = _defaults(folder, path, read_plain(path, aliases=True).get("defaults", []))
        number = 1 + sum(_check_file(folder, each, (*above, path), numbers) for each in named)
        if number > FILES:
            raise DamagedFile(path, f"has defaults that lead to more than {FILES:,} files")
        numbers[path] = number
    return numbers.get(path, 1)


def _defaults(folder: Path, path: Path, defaults: Any) -> Iterator[Path]:
    """Yield the places of the options that a list of defaults names."""
    if not isinstance(defaults, list):
        raise DamagedFile(path, "has defaults that are no list")
    for item in defaults:
        if isinstance(item, list):
            raise DamagedFile(path, "has a default that is no name of a preset")
        for head, named in item.items() if isinstance(item, dict) else [("", item)]:
            for option in named if isinstance(named, list) else [named]:
                if isinstance(option, list | dict):
                    raise DamagedFile(path, "has a default that is no name of a preset")
                group = (str(head).split() or [""])[-1].partition("@")[0]
                below = folder if f"{group}{option}".startswith("/") else path.parent
                yield below / group.strip("/") / str(option).partition("@")[0].strip("/")
