"""``python -m dtrain --help [KEY]`` and ``--version``: answered without composing anything."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import dtrain
from dtrain import errors
from dtrain.config import project, schema, suggest
from dtrain.config.help import help_of, keys
from dtrain.config.overrides import parse
from dtrain.errors import UsageError, refuse
from dtrain.host import commands
from dtrain.host.frameworks import FRAMEWORKS
from dtrain.host.packages import version

_WIDTH = 100
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


def main(arguments: list[str]) -> int:
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
        asked = [word for word in arguments if not word.startswith("-") and word != folder]
        print(_keys(asked) if asked else overview(folder))
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return errors.OK


def _keys(asked: list[str]) -> str:
    """Return what is known of each key."""
    lines = []
    for key in (parse(argument).name for argument in asked):
        if key.replace("/", ".") not in keys() and (hint := suggest.of_help(key)) is not None:
            refuse("--help", "there is no such key", key, accepted="the keys that --cfg job prints",
                   typed=hint)  # fmt: skip
        entry = help_of(key)
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
