"""What was meant by a key or a value that there is not: a near one, or one of other tools."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection
from pathlib import Path

from dtrain.config import kinds, schema
from dtrain.config.fields import Group, key_of
from dtrain.config.help import help_of, keys
from dtrain.config.other_tools import KEYS, VALUES
from dtrain.errors import UsageError, nearest

#: What is typed for a value that is not known.
VALUE = "VALUE"
#: The same column, by what the datasets call it.
_TWINS = {"label": "target", "target": "label"}
#: Values that switch something off.
_OFF = ("false", "no", "none", "null", "0")
#: Options of ``dataset`` by the end of a file's name.
_FORMATS = {
    ".csv": "csv", ".tsv": "csv", ".npz": "npz", ".npy": "npy", ".parquet": "parquet",
    ".arrow": "arrow", ".feather": "arrow", ".json": "json", ".jsonl": "json",
    ".ndjson": "json", ".tfrecord": "tfrecord", ".tar": "huggingface",
    ".array_record": "array_record", ".txt": "text",
}  # fmt: skip
#: Keys that take a list beside other values.
_LISTS = ("trainer.metrics", "trainer.loss", "dataset.path", "dataset.inputs", "dataset.target")


def meant(key: str, value: str, names: Collection[str] = ()) -> str | None:
    """Return what to type in the place of ``KEY=VALUE``; None where nothing is near.

    Args:
        key, value: as they were typed.
        names: of the keys that stand beside it.
    """
    parent, _, name = key.rpartition(".")
    group = parent.replace(".", "/")
    if (twin := _TWINS.get(name)) in names:
        return assigned(f"{parent}.{twin}", value)
    for theirs in (key, name, f"{key.split('.')[0]}."):
        if theirs in KEYS:
            return _filled(KEYS[theirs], value)
    if name in ("name", "type") and group in schema.GROUPS:
        return assigned(group, value)
    if name == "path" and (found := of_file(value)):
        return found
    if options := options_with(group, name):
        return f"{key} is a key of {group}={', '.join(options)}"
    everywhere = _by_name()
    near = nearest(name, names)
    if name not in everywhere and near is not None:
        return assigned(f"{parent}.{near}" if parent else near, value)
    places = (assigned(each, value) for each in keys_named(name)[:3])
    return " or ".join(filter(None, places)) or None


def known(key: str, value: str) -> str | None:
    """Return ``KEY=VALUE`` where there is such a key, else what is meant by it."""
    return assigned(key, value) if is_key(key) else meant(key, value)


def is_key(name: str) -> bool:
    """Say whether there is such a key or group."""
    return name in (*keys(), *schema.GROUPS, "experiment")


def is_named(name: str) -> bool:
    """Say whether there is a key of such a name, here or in another tool, in whatever group."""
    return is_key(name) or name in _by_name() or name in KEYS


def assigned(key: str, value: str) -> str | None:
    """Return ``KEY=VALUE`` as it is typed, with a value that the key has; None where none is near.

    Args:
        key: that there is: of a group its name.
        value: as it was typed.
    """
    theirs = VALUES.get(f"{key}={value.lower()}")
    if theirs is not None:
        return _filled(theirs, value)
    if value == VALUE:
        return f"{key}={value}"
    if key == "trainer.callbacks":
        return callbacks(value)
    if key in schema.GROUPS:
        options = schema.options(key)
        found = of_file(value) if key == "dataset" and value not in options else None
        near = value if value in options else nearest(value, options)
        return found or (near and f"{key}={near}")
    return quoted(key, value)


def corrected(key: str, value: str) -> str | None:
    """Return what was meant by a value that a key does not take; None where nothing is near.

    Args:
        key: that there is.
        value: as it was typed.
    """
    group = key.replace(".", "/")  # a dot is typed for the slash
    found = assigned(group if group in schema.GROUPS else key, value)
    return None if found == quoted(key, value) else found


def of_help(key: str) -> str | None:
    """Return the help that was meant by ``--help KEY``; None where nothing is near."""
    ours = KEYS.get(key.rpartition(".")[2], "")
    found = re.match(r"[\w./]+$|['\w./ -]*?(?=([\w./]+)=)", ours)
    named = [found[1] or found[0]] if found else []
    near = nearest(key, keys())
    named += keys_named(key.rpartition(".")[2]) or ([near] if near else [])
    named += [group for group in schema.GROUPS if key in schema.options(group)]
    return f"python -m dtrain --help {named[0]}" if named else None


def _filled(ours: str, value: str) -> str | None:
    """Return the right side of a row of the table, for a value."""
    if "=" not in ours and " " not in ours:
        return assigned(ours, value)
    if value.lower() in _OFF and VALUE not in ours:
        return "the command without it"
    return ours.replace(VALUE, value)


def quoted(key: str, value: str) -> str:
    """Return an override as a shell takes it."""
    return shlex.quote(f"{key}={value}")


def of_file(path: str) -> str | None:
    """Return overrides that read a file of data; None of what is none."""
    name = re.sub(r"\.(gz|bz2|zip|xz|zst)$", "", path)
    found = _FORMATS.get(Path(name).suffix.lower())
    return None if found is None else f"dataset={found} {quoted('dataset.path', path)}"


def of_preset(path: str) -> str:
    """Return what to type for an experiment that is no option: the path or name of a YAML file."""
    file = Path(path).with_suffix(".yaml")
    for folder in (file.parent.parent, *map(Path, (".", "presets", "conf", "configs"))):
        if (folder / "experiment" / file.name).is_file():
            return f"--config-dir {shlex.quote(str(folder))} experiment={file.stem}"
    return f"--config-dir FOLDER experiment={file.stem}, of FOLDER/experiment/{file.name}"


def callbacks(value: str) -> str | None:
    """Return the override of callbacks that were given by names alone, ``[A,B]`` or one."""
    if "{" in value:
        return None
    known = {each.lower().replace("_", ""): each for each in kinds.CALLBACKS}
    nodes = []
    for name in value.strip("[]'\" ").split(","):
        of_keras = known.get(name.strip("'\" ").rpartition(".")[2].lower().replace("_", ""))
        target = f"keras.callbacks.{of_keras}" if of_keras else name.strip("'\" ")
        if "." not in target:
            return None
        nodes.append(f"{{_target_:{target}}}")
    return f"'trainer.callbacks=[{','.join(nodes)}]'"


def several(key: str, values: str, swept: bool) -> str:
    """Return what to type for values with commas between them.

    Args:
        key: that they are of.
        values: with commas.
        swept: a sweep was asked for.
    """
    values = re.sub(r"\s*,\s*", ",", values)
    sweep = f"-m {quoted(key, values)}"
    return f"'{key}=[{values}]', or {sweep} for a sweep" if takes_list(key) and not swept else sweep


def takes_list(key: str) -> bool:
    """Say whether a list is among the values of a key."""
    try:
        return key in _LISTS or help_of(key).accepted.startswith("a list")
    except UsageError:
        return False


def _by_name() -> dict[str, list[str]]:
    """Return all keys, by their last parts; of a group its name."""
    known: dict[str, list[str]] = {}
    for key in keys():
        if key.startswith(("debug.", "action.")):
            continue
        if (group := key.replace(".", "/")) in schema.GROUPS:
            key = group
        known.setdefault(re.split(r"[./]", key)[-1], []).append(key)
    return known


def keys_named(name: str) -> list[str]:
    """Return the keys whose last part is, or is most like, ``name``; none where none is near.

    Args:
        name: without a dot, such as ``epochs``.
    """
    known = _by_name()
    near = name if name in known else nearest(name, known, cutoff=0.75)  # there are many
    found = [] if near is None else known[near]
    # What stands alone, as a group does, is meant before what stands below one.
    return [key for key in found if "." not in key] or found


def options_with(group: str, name: str) -> list[str]:
    """Return the options of a group that have a key ``name``."""
    schemas = schema.SCHEMAS.get(group, {})
    having = {each for each, kind in schemas.items() if name in _fields(kind)}
    found = []
    for path in sorted((schema.folder("conf") / group).glob("*.yaml")):
        of_file = re.search(rf"^  - /schema/{group}/(\w+)@_here_$", path.read_text(), re.M)
        if of_file is not None and of_file[1] in having:
            found.append(path.stem)
    return found


def keys_of_type(name: str) -> list[str]:
    """Return the keys of a dataclass of the configuration, by its name as OmegaConf prints it."""
    known = [kind for options in schema.SCHEMAS.values() for kind in options.values()]
    known += [kind for group in ("", *schema.sections()) for kind in schema.kinds(group)]
    found = next((kind for kind in known if kind.__name__ == name), None)
    return [] if found is None else sorted(_fields(found))


def _fields(kind: type[Group]) -> set[str]:
    return {key_of(name, field) for name, field in kind.model_fields.items()}
