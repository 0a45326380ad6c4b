"""Writes ``docs/reference.md``, the ends of two other pages, and the schemas of editors.

``python -m tests.reference`` makes them of the dataclasses of the configuration, of ``conf/``, of
the parsers of the commands, of the table of other tools' names, and of what the strategies of each
backend can do. ``tests/test_reference.py``
fails where a file is not what this gives.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import os
import re
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from dtrain import errors
from dtrain.cli import registry
from dtrain.config import help as key_help
from dtrain.config import schema, suggest
from dtrain.config.fields import typed
from dtrain.config.help import Help
from dtrain.host import commands
from dtrain.host.frameworks import FRAMEWORKS
from dtrain.sweep import options as searches
from tests import editor, warm
from tests.options import CONF, Option, nested, options

DOCS = schema.folder("conf").parent / "docs"
#: Sections of the configuration that are no groups, and what each is in a title.
SECTIONS = {name: kind for name, kind in schema.sections().items() if name not in schema.GROUPS}
SWEEPERS = {"grid": searches.Grid, "random": searches.Random, "optuna": searches.Optuna}
TABLE = "| key | default | accepted | what it is |\n|---|---|---|---|"
INTRODUCTION = """\
# Reference

Every configuration key, option, command and exit code of this version.
`python -m dtrain --help KEY` prints the entry of one key. [Configuration](configuration.md)
explains groups, keys and files; [editors and shells](editors.md) can complete the keys.

A key with the default `???` must be set. An option without its own table has only the keys listed
for all options of its group. Options called `custom` take the parameters of the function that they
name. A reference such as `${oc.env:NAME}` can be used for any value.
"""
NAMES = "## Names"
ABOUT_NAMES = """\

If you type one of these names, the message gives the dtrain name. `VALUE` stands for what you
typed.
"""
ABILITIES = "## Abilities\n"
ABOUT_ABILITIES = """\
What a strategy can do on a backend:

- *optimizers*: several optimizers in one model;
- *own variables*: variables of the framework beside those of Keras, such as `tf.Variable`;
- *unfreeze*: `finetune.unfreeze`, which changes what is trained in the middle of a run;
- *in order*: a step begins when the one before has ended;
- *exchange*: replicas can gather and reduce in the middle of a step (`dtrain.replicas`).
"""
COLUMNS = {
    "several_optimizers": "optimizers", "plain_variables": "own variables", "retraces": "unfreeze",
    "sequential": "in order", "exchanges": "exchange",
}  # fmt: skip
EXIT_CODES = {
    errors.OK: "done",
    errors.FAILED: "training, or the command, has failed",
    errors.USAGE: "the configuration or the usage is wrong, and nothing was started",
    errors.INTERRUPTED: "interrupted after a checkpoint: continue with `resume=`",
}


def main() -> None:
    """Write all files."""
    for path, text in files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(DOCS.parent))


def files() -> dict[Path, str]:
    """Return the text of each file that is generated."""
    made = {DOCS / "schemas" / f"{name}.json": text for name, text in editor.texts().items()}
    made |= {DOCS / "coming-from.md": names(), DOCS / "backends.md": backends()}
    return {DOCS / "reference.md": page(), **made}


def backends() -> str:
    """Return the page about backends, with the tables of strategies and of keys at its end."""
    written = (DOCS / "backends.md").read_text(encoding="utf-8").partition(ABILITIES)[0]
    having = {name: warm.call(abilities, 1, {}, backend=name) for name in FRAMEWORKS}
    rows = []
    for path in sorted((CONF / "strategy").glob("*.yaml")):
        target = yaml.safe_load(path.read_text())["_target_"].rpartition(".")[2]
        rows += [
            [f"`{path.stem}`", f"`{name}`", *("yes" if able[each] else "-" for each in COLUMNS)]
            for name in FRAMEWORKS if (able := having[name].get(target)) is not None
        ]  # fmt: skip
    head = ["`strategy=`", "`backend=`", *COLUMNS.values()]
    keys = [
        line
        for name, framework in FRAMEWORKS.items()
        for line in (
            f"\n### Keys that {framework.title} does not read\n",
            *_lines(
                ["key", "value", "why"],
                [
                    [f"`{key}`", f"`{value}`", why]
                    for key, (value, why) in schema.UNREAD[name].items()
                ],
            ),
        )
    ]
    return "\n".join([
        written + ABILITIES, ABOUT_ABILITIES, *_lines(head, rows),
        *keys, "",
    ])  # fmt: skip


def abilities() -> dict[str, dict[str, bool]]:
    """Return what each strategy of a backend can do; in a process of that backend."""
    from dtrain.task import backends, strategies

    names = backends.module().STRATEGIES
    return {name: dataclasses.asdict(getattr(strategies, name).abilities) for name in names}


def _lines(head: list[str], rows: list[list[str]]) -> list[str]:
    """Return the lines of a table."""
    return [f"| {' | '.join(each)} |" for each in (head, ["---"] * len(head), *rows)]


def names() -> str:
    """Return the page about other tools, with the tables of their names at its end."""
    written = (DOCS / "coming-from.md").read_text(encoding="utf-8").partition(NAMES)[0]
    parts = [written + NAMES, ABOUT_NAMES]
    for tool, rows in suggest.tools().items():
        lines = [f"| `{theirs}` | {_ours(way, ours)} |"
                 for theirs, row in rows.items() for way, ours in row.items()]  # fmt: skip
        parts += [f"### {tool}\n", "\n".join(["| there | here |", "|---|---|", *lines]) + "\n"]
    lines = [f"| `{theirs}` | {_ours(way, f'python -m dtrain {ours}'.strip())} |"
             for theirs, row in suggest.tables()["command"].items()
             for way, ours in row.items()]  # fmt: skip
    parts += ["### Commands\n", "\n".join(["| there | here |", "|---|---|", *lines]) + "\n"]
    return "\n".join(parts)


def _ours(way: str, text: str) -> str:
    """Return what is typed here as code, and a clause as text with its links."""
    if way == "typed":
        return f"`{text}`"
    return re.sub(r"\bdocs/([\w-]+\.md)", r"[\1](\1)", text)


def page() -> str:
    """Return the page of the reference."""
    parts = [INTRODUCTION, "## The whole\n", _table(schema.Config, "")]
    for group in schema.GROUPS:
        parts += _group(group)
    for name, kind in SECTIONS.items():
        about = key_help.help_of(name).help
        parts += [f"## {name}\n", _sentence(about), _table(kind, name)]
    parts += _sweepers()
    parts += _commands()
    parts += ["## Exit codes\n", "| code | meaning |\n|---|---|\n" + "\n".join(
        f"| {code} | {text} |" for code, text in EXIT_CODES.items()
    ) + "\n"]  # fmt: skip
    tree = (errors.__doc__ or "").split("\n\n", 1)[1].rstrip()
    parts += ["The errors that end in them:\n", f"```text\n{tree}\n```"]
    return "\n".join(parts) + "\n"


def _group(group: str) -> list[str]:
    found = options(group)
    about = key_help.help_of(group).help
    listed = "\n".join(
        f"| `{option.name}`{' (default)' * (number == 0)} | {_cell(option.about)} |"
        for number, option in enumerate(found)
    )
    parts = [f"## {group}\n", _sentence(about), f"| option | what it is |\n|---|---|\n{listed}\n"]
    prefix = group.replace("/", ".")
    beside = {option.name for option in found if option.kind in schema.SINKS.values()}
    all_keys = [
        _keys(option, prefix) for option in found if option.kind and option.name not in beside
    ]
    common = {
        key: given for key, given in all_keys[0].items()
        if all(keys.get(key) == given for keys in all_keys)
    } if all_keys else {}  # fmt: skip
    if common:
        title = f"Keys of every option of `{group}`"
        names = {key.removeprefix(f"{prefix}.") for key in common}
        if any(option.kind is None and not names <= set(option.values) for option in found):
            title += " that is not `custom`"
        parts += [f"{title}:\n", _rows(common)]
    if len(found) > 2:
        several = _of_several(group, found, common)
        if several:
            parts += [f"Keys of several options of `{group}`:\n", _rows(several)]
        common |= several
    for option in found:
        own = {k: v for k, v in _keys(option, prefix).items() if not _is_said(k, v, common)}
        first = _first_of_kind(option, found)
        if first is not option:
            alike = _keys(first, prefix)
            own = {key: given for key, given in own.items() if alike[key] != given}
        if own:
            parts.append(f"### {group}={option.name}\n")
            if first is not option:
                parts.append(f"The keys of `{group}={first.name}`, of which these differ:\n")
            parts.append(_rows(own))
    return parts


def _of_several(group: str, found: list[Option], common: dict[str, Help]) -> dict[str, Help]:
    """Return the keys that two options or more have alike, with those options in their help."""
    having: dict[tuple[str, Help], list[str]] = {}
    for option in found:
        for key, given in _keys(option, group.replace("/", ".")).items():
            if common.get(key) != given:
                having.setdefault((key, given), []).append(option.name)
    rows: dict[str, Help] = {}
    for (key, given), names in having.items():
        if len(names) > 1 and key not in rows:
            rows[key] = given._replace(help=f"{given.help} Of {', '.join(names)}.")
    return rows


def _is_said(key: str, given: Help, common: dict[str, Help]) -> bool:
    """Say whether a table above has a key with the same default and help."""
    above = common.get(key)
    return above is not None and above[:2] == given[:2] and above.help.startswith(given.help)


def _first_of_kind(option: Option, options: list[Option]) -> Option:
    """Return the option with the same schema whose file says the least: others differ from it."""
    alike = [each for each in options if each.kind is option.kind]
    return min(alike, key=lambda each: sum(value is not None for value in each.values.values()))


def _keys(option: Option, prefix: str) -> dict[str, Help]:
    """Return the help of each key of an option, with the default that its file gives."""
    if option.kind is None:
        return {}
    if option.kind in schema.SINKS.values():  # in a node of its own
        prefix = f"{prefix}.{option.name}"
    inside = nested(option.kind)
    found: dict[str, Help] = {}
    for name, given in key_help.described(option.kind, prefix).items():
        if name == "_target_":
            continue
        if name in inside:
            values = option.values.get(name, {})
            for sub, text in key_help.described(inside[name], f"{prefix}.{name}").items():
                found[f"{prefix}.{name}.{sub}"] = _with_default(text, sub, values)
        else:
            made = _with_default(given, name, option.values)
            if name in option.of_model:
                about = (
                    f"{made.help} Built-in models have their own, in conf/{option.group}/{name}/."
                )
                made = made._replace(help=about)
            if name == "name" and made.default == option.name:
                made = made._replace(default="OPTION")  # the same row in every table
            found[f"{prefix}.{name}"] = made
    return found


def _with_default(given: Help, name: str, values: dict[str, Any]) -> Help:
    return given._replace(default=_typed(values[name])) if name in values else given


def _typed(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_typed(each)}" for name, each in value.items()) + "}"
    return typed(value)


def _sweepers() -> list[str]:
    parts = ["## hydra/sweeper\n", "What a sweep (`-m`) tries: see [sweeps](sweeps.md).\n"]
    above: dict[str, Help] = {}
    for name, kind in SWEEPERS.items():  # each has the keys of those before it
        rows = {
            f"hydra.sweeper.{key}": given
            for key, given in key_help.described(kind, "hydra.sweeper").items()
            if key != "_target_"
        }
        parts.append(f"### hydra/sweeper={name}\n")
        if above:
            parts.append("Those above, and:\n")
        parts.append(_rows({k: v for k, v in rows.items() if k not in above}))
        above |= rows
    return parts


def _table(kind: type, prefix: str) -> str:
    """Return the table of a section, with the defaults that ``conf/config.yaml`` gives."""
    values = yaml.safe_load((CONF / "config.yaml").read_text(encoding="utf-8"))
    values = values[prefix] if prefix else {"name": values["name"]}  # others are groups, sections
    found = key_help.described(kind, prefix)
    return _rows({
        f"{prefix}.{name}".lstrip("."): _with_default(given, name, values)
        for name, given in found.items()
    })  # fmt: skip


def _rows(keys: dict[str, Help]) -> str:
    lines = [
        f"| `{key}` | {_default(given)} | {_cell(given.accepted)} | {_cell(given.help)} |"
        for key, given in keys.items()
    ]
    return "\n".join([TABLE, *lines]) + "\n"


def _default(given: Help) -> str:
    if given.default is None:
        return "" if given.accepted.endswith(".KEY=VALUE") else "`???`"
    return f"`{given.default}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "\n"


def _commands() -> list[str]:
    parts = [
        "## Commands\n",
        f"```text\n{registry.overview().split('groups and their', 1)[0]}```\n",
    ]
    for name in commands.names():
        parts += [f"### {name}\n", f"```text\n{_usage(name)}\n```\n"]
    return parts


def _usage(name: str) -> str:
    """Return what ``python -m dtrain NAME --help`` prints on a terminal of 100 columns."""
    command = importlib.import_module(f"dtrain.cli.commands.{name}").main
    printed = io.StringIO()
    wide = mock.patch.dict(os.environ, {"COLUMNS": "100"})
    with wide, contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        command(["--help"])
    return printed.getvalue().strip()


if __name__ == "__main__":
    sys.exit(main())
