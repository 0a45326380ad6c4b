"""What was measured of one model, its data and this machine: a file in the cache.

It is data, and read strictly: only known keys, each with a value of its kind.
"""

from __future__ import annotations

import copy
import hashlib
import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from dtrain.config.schema import Config, Precision
from dtrain.controller.resources.devices import machine
from dtrain.data import cache
from dtrain.errors import DamagedFile
from dtrain.files import fields, reading, writing
from dtrain.host import processors
from dtrain.run import identity

#: The option of the group ``hardware``.
OPTION = "tuned"
#: Of the files; another one is not read.
VERSION = 1
_MOST = 10_000  # devices, threads and readers that a file may name
_BYTES = 1 << 16
#: Keys that a file has a value for.
Values = TypedDict(
    "Values",
    {
        "hardware.devices": Annotated[int, fields.between(1, _MOST)] | None,
        "hardware.intra_op_threads": Annotated[int, fields.between(1, _MOST)] | None,
        "hardware.onednn": bool,
        "hardware.precision": Literal["float32", "mixed_bfloat16", "mixed_float16"],
        "hardware.jit_compile": bool,
        "dataset.workers": Annotated[int, fields.between(0, _MOST)] | None,
    },
)
KEYS: tuple[str, ...] = tuple(Values.__annotations__)
PRECISION = "hardware.precision"


class File(TypedDict):
    """Contents of a file."""

    version: Annotated[int, fields.between(VERSION, VERSION)]
    of: dict[str, Any]
    values: Values


def subject(config: Config) -> dict[str, Any]:
    """Return what a measurement is of: model, data, what computes them, and on what machine.

    Args:
        config: settled.
    """
    found = {key: identity.value(config, key) for key in ("model", "dataset")}
    found["optimizer"] = config.optimizer.get("_target_")  # of whose values none costs time
    text = json.dumps(found, sort_keys=True, default=str)
    here = machine()
    return {
        "machine": {"processor": processors.processor() or platform.machine(),
                    "cores": here.cores, "gpus": here.gpus,
                    "gpu": next(iter(processors.gpus()), "")},
        "versions": identity.versions(config.backend),
        "kind": config.hardware.kind.name,
        "model": str(config.model.get("_target_")),
        "strategy": config.strategy.name,
        "batch_size": config.trainer.batch_size,
        "digest": hashlib.sha256(text.encode()).hexdigest()[:16],
    }  # fmt: skip


def path_of(config: Config) -> Path:
    """Return where the file for a configuration is, or would be."""
    text = json.dumps(subject(config), sort_keys=True)
    return cache.folder() / OPTION / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


def write(config: Config, setting: Mapping[str, Any]) -> Path:
    """Keep a setting for later runs, and return where.

    Args:
        config: of the plain setting.
        setting: what differs from it; keys that are none of :data:`KEYS` are left out.

    Raises:
        OSError: it cannot be written.
    """
    values: dict[str, Any] = {}
    for key in KEYS:
        head, _, name = key.partition(".")
        group: Any = getattr(config, head)
        plain = group.get(name) if head == "dataset" else getattr(group, name)
        values[key] = setting.get(key, getattr(plain, "name", plain))
    path = path_of(config)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = {"version": VERSION, "of": subject(config), "values": values}
    writing.write_bytes(path, f"{json.dumps(found, indent=1)}\n".encode(), lasting=True)
    return path


def read(path: Path) -> dict[str, Any] | None:
    """Return the values of a file, None where there is none.

    Raises:
        DamagedFile: it is none that ``tune`` writes.
        OSError: it cannot be read.
    """
    found = reading.read_json(path, _BYTES)
    if found is None:
        return None
    fields.check(found, File, path, "")
    values: dict[str, Any] = found["values"]
    unknown = sorted(values.keys() - set(KEYS))
    if unknown:
        raise DamagedFile(path, "is not known here", f"values.{unknown[0]}")
    return values


def put(config: Config, setting: Mapping[str, Any]) -> None:
    """Change a configuration to have a setting.

    Args:
        config: its sections are replaced where they change, and not changed themselves.
        setting: values by key.
    """
    for key, value in setting.items():
        head, _, name = key.partition(".")
        if head == "dataset":
            config.dataset = config.dataset.replaced(**{name: value})
            continue
        # Not by `dataclasses.replace`, which would read references, and so write secrets down.
        section = copy.copy(getattr(config, head))
        setattr(section, name, Precision[value] if key == PRECISION else value)
        setattr(config, head, section)


def typed(value: Any) -> str:
    """Return a value as it is typed in an override."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
