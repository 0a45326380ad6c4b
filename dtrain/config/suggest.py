"""What was meant by a key or a value that there is not: a near one, or one of other tools.

Words of other tools and of earlier versions, and what is typed here, are in ``other_tools.yaml``.
What is to be typed is tried before it is said: a key takes it, or it is not said.
"""

from __future__ import annotations

import contextlib
import functools
import re
import shlex
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TypeAlias

import yaml

from dtrain.config import schema, trust
from dtrain.config.help import keys, values_of
from dtrain.errors import nearest

#: What a refusal says to do: ``typed`` as it stands, or a ``hint``; nothing where none is near.
Advice: TypeAlias = dict[str, str]
#: Tables of other things than keys.
_OTHERS = ("function", "keyword", "command", "option of ")
#: What is typed for a value that is not known.
VALUE = "VALUE"
#: Values that switch something off.
_OFF = ("false", "no", "none", "null", "0")
#: Options of ``dataset`` by the end of a file's name.
_FORMATS = {
    ".csv": "csv", ".tsv": "csv", ".npz": "npz", ".npy": "npy", ".parquet": "parquet",
    ".arrow": "arrow", ".feather": "arrow", ".json": "json", ".jsonl": "json",
    ".ndjson": "json", ".tfrecord": "tfrecord", ".tar": "huggingface",
    ".array_record": "array_record", ".txt": "text",
}  # fmt: skip


@functools.cache
def tables() -> dict[str, dict[str, Advice]]:
    """Return for each tool what is typed there, and what here; read where something is refused."""
    text = Path(__file__).with_name("other_tools.yaml").read_text(encoding="utf-8")
    return {
        tool: {str(theirs): ours if isinstance(ours, dict) else {"typed": ours}
               for theirs, ours in rows.items()}
        for tool, rows in yaml.safe_load(text).items()
    }  # fmt: skip


def tools() -> dict[str, dict[str, Advice]]:
    """Return the tables of keys, and of values of keys here, by tool."""
    return {tool: rows for tool, rows in tables().items() if not tool.startswith(_OTHERS)}


@functools.cache
def rows() -> dict[str, Advice]:
    """Return what all tools have instead of keys, and of values of keys here."""
    return {theirs: ours for rows in tools().values() for theirs, ours in rows.items()}


def meant(key: str, value: str, names: Collection[str] = ()) -> Advice:
    """Return what to do in the place of ``KEY=VALUE``, a key that there is not.

    Args:
        key, value: as they were typed.
        names: of the keys that stand beside it.
    """
    parent, _, name = key.rpartition(".")
    group, table = parent.replace(".", "/"), rows()
    if (row := table.get(f"{key}={value.lower()}")) is not None:
        return row
    if name == "path" and (overrides := of_file(value)):
        return {"typed": overrides}
    if key not in table and (options := options_with(group, name)):
        return {"hint": f"{group}={' or '.join(options)}, which has {name}"}
    for theirs in (key, name, f"{key.split('.')[0]}."):
        if theirs in table:
            return _filled(table[theirs], value)
    if name in ("name", "type") and group in schema.GROUPS:
        return assigned(group, value)
    near = None if name in _by_name() else nearest(name, names)
    if near and parent and not schema.kinds(parent) and not parent.startswith("hydra"):
        return {"hint": f"{near} in its place"}
    places = keys_named(name)[:3] if near is None else [f"{parent}.{near}".lstrip(".")]
    ways = [text for each in places for text in assigned(each, value).items()]
    return {"hint": " or ".join(text for _, text in ways)} if ways[1:] else dict(ways)


def known(key: str, value: str) -> Advice:
    """Return ``KEY=VALUE`` where there is such a key, else what is meant by it."""
    return assigned(key, value) if is_key(key) else meant(key, value)


def assigned(key: str, value: str, but: str | None = None) -> Advice:
    """Return ``KEY=VALUE`` with a value that the key takes, the typed one or what it stands for.

    Args:
        key: that there is: of a group its name.
        value: as it was typed.
        but: a value that was refused.
    """
    group = key.replace(".", "/")  # a dot is typed for the slash
    but = but if group == key or group not in schema.GROUPS else None
    key = group if group in schema.GROUPS else key
    if (row := rows().get(f"{key}={value.lower()}")) is not None:
        return row
    if key == "dataset" and (overrides := of_file(value)):
        return {"typed": overrides}
    if value != VALUE:
        for each in _readings(key, value):
            if each != but and is_taken(key, each):
                return {"typed": quoted(key, each)}
    return {"hint": f"{key}={VALUE}"} if value == VALUE else {}


def corrected(key: str, value: str) -> Advice:
    """Return what was meant by a value that a key does not take; nothing where nothing is near."""
    return drawn(key, value.strip("'\"")) or assigned(key, value, but=value)


def drawn(key: str, value: str) -> Advice:
    """Return a search for a function that other tools draw values by, such as ``loguniform(``."""
    function, bracket, bounds = value.partition("(")
    row = tables()["function"].get(function) if bracket else None
    ours = row and row["typed"].replace("VALUES", bounds.rstrip(")"))
    return {"typed": f"-m hydra/sweeper=random {quoted(key, ours)}"} if ours else {}


def _readings(key: str, value: str) -> Iterator[str]:
    """Yield what a value may stand for: itself, the nearest of few, a whole number, a list."""
    yield value
    if (callbacks := _callbacks(value)) is not None and key == "trainer.callbacks":
        yield callbacks
    options = schema.options(key) if key in schema.GROUPS else values_of(key)
    if (near := nearest(value, options)) is not None:
        yield near
    with contextlib.suppress(ValueError, OverflowError):
        if (number := float(value)).is_integer():
            yield str(int(number))
    if key in keys() and key not in schema.GROUPS and value[:1] not in "[{":
        yield from (f"[{value}]", f"[{value},{value}]")


def is_taken(key: str, value: str) -> bool:
    """Say whether a key takes a value, or a group has an option, whatever else is chosen."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException
    from pydantic import ValidationError

    if key in schema.GROUPS:
        return value in schema.options(key)
    try:
        override = OverridesParser.create().parse_override(f"{key}={value}")
    except HydraException:
        return False
    parent, _, name = key.rpartition(".")
    if override.is_sweep_override():
        return False
    models = schema.kinds(parent)
    if "${" in value or key == "experiment" or not models:
        return True
    for kind in models:
        try:
            kind.model_validate({name: override.value()})
        except ValidationError as error:
            if any(each["loc"][0] == name for each in error.errors()):
                continue
        return True
    return False


def is_key(name: str) -> bool:
    """Say whether there is such a key or group."""
    return name in keys() or name in (*schema.GROUPS, "experiment")


def is_named(name: str) -> bool:
    """Say whether there is a key of such a name, here or in another tool, in whatever group."""
    return is_key(name) or name in _by_name() or name in rows()


def of_help(key: str) -> str | None:
    """Return the help that was meant by ``--help KEY``; None where nothing is near."""
    ours = [*rows().get(key.rpartition(".")[2], {}).values()]
    named = [each for each in re.findall(r"[\w./]+", " ".join(ours)) if is_key(each)]
    near = nearest(key, keys())
    named += keys_named(key.rpartition(".")[2]) or ([near] if near else [])
    named += [group for group in schema.GROUPS if key in schema.options(group)]
    return f"python -m dtrain --help {named[0]}" if named else None


def _filled(row: Advice, value: str) -> Advice:
    """Return a row of the table, for a value."""
    [(way, ours)] = row.items()
    if way == "typed" and re.fullmatch(r"[\w./]+", ours):
        return assigned(ours, value)
    if way == "typed" and value.lower() in _OFF and VALUE not in ours:
        return {"hint": "the command without it"}
    return {way: ours.replace(VALUE, value)}


def quoted(key: str, value: str) -> str:
    """Return an override as a shell takes it."""
    return shlex.quote(f"{key}={value}")


def of_file(path: str) -> str | None:
    """Return overrides that read a file of data; None of what is none."""
    name = re.sub(r"\.(gz|bz2|zip|xz|zst)$", "", path)
    option = _FORMATS.get(Path(name).suffix.lower())
    return None if option is None else f"dataset={option} {quoted('dataset.path', path)}"


def of_preset(path: str) -> Advice:
    """Return what to type for an experiment that is no option: the path or name of a YAML file."""
    file = Path(path).with_suffix(".yaml")
    for folder in (file.parent.parent, *map(Path, (".", "presets", "conf", "configs"))):
        if (folder / "experiment" / file.name).is_file():
            return {"typed": f"--config-dir {shlex.quote(str(folder))} experiment={file.stem}"}
    place = f"of FOLDER/experiment/{file.name}"
    return {"hint": f"--config-dir FOLDER experiment={file.stem}, {place}"}


def _callbacks(value: str) -> str | None:
    """Return callbacks that were given by names alone, ``[A,B]`` or one, as nodes."""
    of_keras = {each.lower().replace("_", ""): each for each in trust.CALLBACKS}
    nodes = []
    for name in re.split(r"[\[\],'\" ]+", value.strip("[]'\" ")):
        ours = of_keras.get(name.rpartition(".")[2].lower().replace("_", ""))
        nodes.append(f"{{_target_:{f'keras.callbacks.{ours}' if ours else name}}}")
        if "{" in name or (ours is None and "." not in name):
            return None
    return f"[{','.join(nodes)}]"


@functools.cache
def _by_name() -> dict[str, list[str]]:
    """Return all keys, by their last parts; of a group its name."""
    places: dict[str, list[str]] = {}
    for key in keys():
        if not key.startswith(("debug.", "action.")):
            group = key.replace(".", "/")
            key = group if group in schema.GROUPS else key
            places.setdefault(re.split(r"[./]", key)[-1], []).append(key)
    return places


def keys_named(name: str) -> list[str]:
    """Return the keys whose last part is, or is most like, ``name``; none where none is near.

    Args:
        name: without a dot, such as ``epochs``.
    """
    near = name if name in _by_name() else nearest(name, _by_name(), cutoff=0.75)  # there are many
    places = [] if near is None else _by_name()[near]
    # What stands alone, as a group does, is meant before what stands below one.
    return [key for key in places if "." not in key] or places


def options_with(group: str, name: str) -> list[str]:
    """Return the options of a group that have a key ``name``."""
    models = schema.SCHEMAS.get(group, {}).items()
    having = [f"/{group}/{each}@_here_" for each, kind in models if name in kind.model_fields]
    paths = sorted((schema.folder("conf") / group).glob("*.yaml"))
    return [path.stem for path in paths if any(each in path.read_text() for each in having)]
