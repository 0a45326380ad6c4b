"""Hydra, with a look at all that it has composed before it makes anything of it.

Hydra calls what its own part of a configuration names (callbacks, handlers of logging, launcher,
sweeper), imports packages on its search path, and sets variables of the environment; a preset, an
experiment or a run folder can say so. dtrain needs none of it. Every configuration leaves
:class:`Loader`: for a run, a job of a sweep, ``--cfg``, ``--info`` and ``--help``.
"""

from __future__ import annotations

import copy
import os
import re
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
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from dtrain.config import command_line, given, schema, tree, trust
from dtrain.errors import UsageError, refuse

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
    "searchpath": ([], "--config-dir FOLDER"),
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
#: What stands behind ``--shell-completion``; shells themselves ask by ``query``.
_SHELLS = re.compile(r"(install|uninstall|query)=(bash|zsh|fish)")
#: Those that Hydra fills in, and those that are obeyed.
_FREE = (
    "mode", "sweeper", "overrides", "runtime", "help", "hydra_help", "job", "run", "sweep", "env"
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
    """Refuse what Hydra obeys while it composes: a search path, from which it imports."""
    for each in OverridesParser.create().parse_overrides(overrides):
        if each.key_or_group.startswith("hydra.searchpath"):
            raise _refusal("searchpath", each.get_value_string(), "--config-dir FOLDER")


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


def run_folder() -> tuple[str, bool]:
    """Return the folder of the run that Hydra has composed, and whether the user has chosen it.

    Raises:
        OmegaConfBaseException: it refers to what is not there.
    """
    settings = HydraConfig.get()
    chosen = is_chosen(HydraConfig.instance().cfg, "run")
    reserved = None if chosen else given.reserved()
    return (str(settings.run.dir), chosen) if reserved is None else (str(reserved), True)


def is_chosen(config: Any, kind: str) -> bool:
    """Say whether the user has chosen the folder of a ``run`` or a ``sweep``."""
    chosen: Any = OmegaConf.to_container(config.hydra[kind], resolve=False)
    return bool(chosen["dir"] != _DIRS[kind])


def _refusal(key: str, value: Any, instead: str) -> UsageError:
    return UsageError(f"hydra.{key}", "dtrain does not do what this key of Hydra's says", value,
                      accepted="hydra.mode, hydra.run.dir, hydra.sweep.dir, hydra.sweeper",
                      typed=instead)  # fmt: skip


def _check_sweeper(config: DictConfig) -> None:
    """Refuse a sweeper that is not ours, and nodes below it, which Hydra would call."""
    node = config.hydra.sweeper
    plain: Any = OmegaConf.to_container(node, resolve=False)
    target = plain.get("_target_") if isinstance(plain, dict) else plain
    plugin = str(target).startswith("hydra_plugins.") and trust.is_installed(str(target))
    own = plugin and trust.command().owns("hydra.sweeper")
    if target not in _SWEEPERS and not own and not trust.is_trusted(str(target)):
        refuse("hydra/sweeper", "is neither dtrain's nor a plugin that is installed", target,
               accepted="grid, random, optuna", typed="hydra/sweeper=grid")  # fmt: skip
    for name, value in plain.items():
        if name != "_target_" and (name.startswith("_") or (name == "params" and _calls(value))):
            raise _refusal(f"sweeper.{name}", value, "values: numbers, and overrides as text")


def _calls(value: Any) -> bool:
    """Whether a value is or may become a node that is called."""
    if isinstance(value, dict):
        return any(
            isinstance(each, dict | list) or str(name).startswith("_") or _calls(each)
            for name, each in value.items()
        )
    if isinstance(value, list):
        return any(_calls(each) for each in value)
    return isinstance(value, str) and value.startswith("${") and value.endswith("}")


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
    _check_options(options)
    GlobalHydra.instance().clear()
    hydra = Hydra(NAME, loader(options.config_dir))
    GlobalHydra.instance().initialize(hydra)
    given = {"config_name": "config", "overrides": options.overrides}
    try:
        if options.cfg:
            hydra.show_cfg(
                **given, cfg_type=options.cfg, package=options.package, resolve=options.resolve
            )
        elif options.info:
            hydra.show_info(options.info, **given)
        elif options.shell_completion:
            hydra.shell_completion(**given)
        else:
            config = None if options.multirun else _of_one(hydra, given)
            if config is None:
                given["overrides"].append("hydra.mode=MULTIRUN")
                hydra.multirun(**given, task_function=command)
            else:
                _run_one(config, command)
    finally:
        GlobalHydra.instance().clear()


def _of_one(hydra: Hydra, given: dict[str, Any]) -> DictConfig | None:
    """Return the configuration of one job; None where it says that it is of many.

    Hydra composes it once to look at its mode, and once more.
    """
    try:
        config = hydra.compose_config(**given, run_mode=RunMode.RUN)
    except Exception:
        if hydra.get_mode(**given) == RunMode.MULTIRUN:
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


def _check_options(options: Any) -> None:
    for name in ("config_name", "config_path"):
        if value := getattr(options, name):
            raise command_line.of_file(f"--{name.replace('_', '-')}", value)
    for name in ("experimental_rerun", "hydra_help", "help"):
        value = getattr(options, name)
        if value:
            option = f"--{name.replace('_', '-')}"
            refuse(
                option, "is an option of Hydra's that dtrain does not have", value,
                accepted="--help, --cfg, --info, --multirun, --config-dir",
                hint="--config-dir FOLDER, and --cfg all to see the configuration",
            )  # fmt: skip
    if options.shell_completion and not any(map(_SHELLS.fullmatch, options.overrides)):
        refuse("--shell-completion", "is for no shell", " ".join(options.overrides),
               accepted="install=SHELL or uninstall=SHELL, of bash, zsh or fish",
               typed="--shell-completion install=bash")  # fmt: skip
    asked = [options.run, options.multirun, options.cfg is not None, options.info is not None]
    if sum(map(bool, [*asked, options.shell_completion])) > 1 or (
        options.resolve and not options.cfg
    ):
        refuse("options", "do not go together",
               " ".join(sorted(k for k, v in vars(options).items() if v and v is True)),
               accepted="one of --run, --multirun, --cfg, --info; --resolve with --cfg",
               typed="--cfg job --resolve")  # fmt: skip
