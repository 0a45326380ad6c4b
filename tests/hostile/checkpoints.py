"""Checkpoints that lie, with checksums that fit: whoever forges one can compute them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
from collections.abc import Callable, Iterable
from typing import Any

from tests.hostile import forge
from tests.hostile.harness import Case, Place

_ALL = ("checkpoint", "resume", "fork", "checkpoint one", "checkpoint folder", "fork dry")
#: The one before is taken, or the folder is refused; a listing says which is damaged.
_CODES = {"checkpoint": (1, 2), "checkpoint one": (1, 2), "checkpoint folder": (1, 2)}
_ANY = (0, 1, 2)


def sealed(manifest: dict[str, Any]) -> str:
    """Return a manifest as a writer would have written it: with a checksum that fits."""
    whole = json.dumps({**manifest, "sha256": None}, sort_keys=True)
    manifest["sha256"] = hashlib.sha256(whole.encode()).hexdigest()
    return json.dumps(manifest, indent=1)


def _manifest(change: Callable[[dict[str, Any]], Any]) -> Callable[[Place], None]:
    def build(place: Place) -> None:
        path = place.stopped / "checkpoints" / "2" / "manifest.json"
        manifest = json.loads(path.read_text())
        path.write_text(sealed(change(manifest) or manifest))

    return build


def _state(data: bytes) -> Callable[[Place], None]:
    """Put a file of arrays in the place of the state, and its checksum into the manifest."""

    def build(place: Place) -> None:
        folder = place.stopped / "checkpoints" / "2"
        (folder / "state.safetensors").write_bytes(data)
        about = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["files"]["state.safetensors"] = about
        manifest.pop("digest", None)  # as of an older version
        (folder / "manifest.json").write_text(sealed(manifest))

    return build


def _arrays(header: Any, data: bytes = b"\0" * 64, length: int | None = None) -> bytes:
    """Return a file of arrays with that header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def _one(**change: Any) -> dict[str, Any]:
    return {"a": {"dtype": "F64", "shape": [8], "data_offsets": [0, 64], **change}}


_STATES: dict[str, bytes] = {
    "nothing": b"",
    "half a length": b"\x01\x02",
    "a header of 2**63 bytes": _arrays({}, length=1 << 63),
    "a header of 2**64 - 1 bytes": _arrays({}, length=(1 << 64) - 1),
    "a header beyond its end": _arrays({}, length=1000),
    "no header": _arrays(b"", b""),
    "a header that is no JSON": _arrays(b"\xff\xff"),
    "a header of deep lists": _arrays(b"[" * 100_000),
    "a header that is a list": _arrays([]),
    "an unknown type": _arrays(_one(dtype="OBJECT")),
    "a type that is a list": _arrays(_one(dtype=["F64"])),
    "a negative shape": _arrays(_one(shape=[-8])),
    "a shape that overflows": _arrays(_one(shape=[1 << 62, 8])),
    "a shape of a product that overflows": _arrays(_one(shape=[1 << 32, 1 << 32, 2])),
    "a shape that is too large": _arrays(_one(shape=[1 << 40])),
    "a shape of nulls": _arrays(_one(shape=[None])),
    "offsets that are swapped": _arrays(_one(data_offsets=[64, 0])),
    "negative offsets": _arrays(_one(data_offsets=[-64, 0])),
    "offsets beyond its end": _arrays(_one(data_offsets=[0, 1 << 50])),
    "offsets that overlap": _arrays({**_one(), "b": _one()["a"]}),
    "a hole between arrays": _arrays({**_one(), "b": {**_one()["a"], "data_offsets": [80, 144]}},
                                     b"\0" * 144),
    "more behind its end": _arrays(_one(), b"\0" * 640),
}  # fmt: skip
_NAMES: dict[str, bytes] = {
    "a name that leads above": _arrays({"../../../../x": _one()["a"]}),
    "a name with escapes": _arrays({"\x1b[31mx\x1b[0m\r\n": _one()["a"]}),
    "arrays twice": _arrays(b'{"a":{"dtype":"F64","shape":[8],"data_offsets":[0,64]},'
                            b'"a":{"dtype":"F64","shape":[8],"data_offsets":[0,64]}}'),
    "an empty name": _arrays({"": _one()["a"]}),
    "a long name": _arrays({"x" * 100_000: _one()["a"]}),
    "100,000 empty arrays": _arrays(
        {str(n): {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for n in range(100_000)},
        b""),
}  # fmt: skip


def _set(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        node = manifest
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = value

    return change


_MANIFESTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "files above": _set("files", "../../config.yaml", value={"bytes": 1, "sha256": "0" * 64}),
    "no files": _set("files", value={}),
    "files that are a list": _set("files", value=[]),
    "bytes below nothing": _set("files", "state.safetensors", "bytes", value=-1),
    "bytes that are a text": _set("files", "state.safetensors", "bytes", value="1"),
    "huge bytes": _set("files", "state.safetensors", "bytes", value=10**400),
    "a checksum that is a list": _set("files", "state.safetensors", "sha256", value=[]),
    "another digest": _set("digest", value="0" * 64),
    "a digest that is a table": _set("digest", value={}),
    "types of the system": _set("dtypes", value={"a": "__builtins__"}),
    "types by a path": _set("dtypes", value={"a": "os.system"}),
    "unknown types": _set("dtypes", value={"a": "float3"}),
    "types of no array": _set("dtypes", value={"zzz": "bfloat16"}),
    "types of another size": _set("dtypes", value={"a": "bfloat16"}),
    "types that are lists": _set("dtypes", value={"a": ["bfloat16"]}),
    "another step": _set("step", value=99),
    "a step below nothing": _set("step", value=-2),
    "a step that is a text": _set("step", value="2\x1b[31m"),
    "a step of 400 digits": _set("step", value=10**400),
    "a step that is null": _set("step", value=None),
    "a fraction of a step": _set("step", value=2.5),
}
#: Parts of a checkpoint that the controller does not read and the task does.
_METAS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a table of nothing": _set("meta", value={}),
    "an objective that is a text": _set("meta", "objective", value="\x1b[31mhigh"),
    "an objective that is a table": _set("meta", "objective", value={"a": 1}),
    "an objective of 400 digits": _set("meta", "objective", value=10**400),
    "a configuration that is a list": _set("meta", "config", value=[1]),
    "a configuration of lists": _set("meta", "config", value={"model": [1], "seed": {}}),
    "values with escapes": _set("meta", "x\x1b[2J", value="\x1b]0;x\x07"),
    "a value of a megabyte": _set("meta", "x", value="x" * (1 << 20)),
}


def _pointer(step: Any, sealed: bool = True) -> Callable[[Place], None]:
    def build(place: Place) -> None:
        checksum = hashlib.sha256(f"latest {step}".encode()).hexdigest()
        text = json.dumps({"step": step, "sha256": checksum if sealed else "0" * 64})
        (place.stopped / "checkpoints" / "latest").write_text(text + "\n")

    return build


def _pointer_text(text: bytes) -> Callable[[Place], None]:
    return lambda place: _discard((place.stopped / "checkpoints" / "latest").write_bytes(text))


def _discard(_: object) -> None:
    """Make a function of no result of one with any."""


def _copied(*names: str) -> Callable[[Place], None]:
    """Copy a checkpoint that is in order to other names."""

    def build(place: Place) -> None:
        for name in names:
            folder = place.stopped / "checkpoints"
            shutil.copytree(folder / "2", folder / name)

    return build


def _thousands(place: Place) -> None:
    folder = place.stopped / "checkpoints"
    for step in range(3, 5003):
        (folder / str(step)).mkdir()
        for name in ("manifest.json", "state.safetensors"):
            os.link(folder / "2" / name, folder / str(step) / name)


def _link_at(name: str, kind: str = "a link to a file elsewhere") -> Callable[[Place], None]:
    def build(place: Place) -> None:
        path = place.stopped / "checkpoints" / name
        path.mkdir()
        forge.replace(path, kind, place)

    return build


def _huge_state(place: Place) -> None:
    """A state of 10 GB of which the manifest knows the size."""
    folder = place.stopped / "checkpoints" / "2"
    with (folder / "state.safetensors").open("wb") as file:
        file.truncate(forge.HUGE)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["state.safetensors"]["bytes"] = forge.HUGE
    (folder / "manifest.json").write_text(sealed(manifest))


def _deep_manifest(place: Place) -> None:
    (place.stopped / "checkpoints" / "2" / "manifest.json").write_bytes(
        b'{"files": {}, "dtypes": {}, "meta": ' + b"[" * 100_000
    )


def _unreadable(path: str) -> Callable[[Place], None]:
    return lambda place: (place.stopped / path).chmod(0)


_ROOT = "root reads files whatever their mode" if os.geteuid() == 0 else None


_POINTERS: dict[str, bytes] = {
    "deep lists": b"[" * 100_000,
    "a long number": b'{"step": 1' + b"0" * 10**5,
    "NUL bytes": b"\0" * 100,
    "a list": b"[2]",
    "no UTF-8": b"\xff",
    "nothing": b"",
    "a path": b"../../../canary\n",
}


def _cases() -> Iterable[Case]:
    for what, data in _STATES.items():
        yield Case(f"the state holds {what}", _state(data), _ALL, (0, 2), exits=_CODES)
    for what, data in _NAMES.items():
        yield Case(f"the state holds {what}", _state(data), _ALL, _ANY)
    for what, change in _MANIFESTS.items():
        exits = {} if what in ("files above",) else _CODES
        yield Case(f"the manifest holds {what}", _manifest(change), _ALL, _ANY, exits=exits)
    for what, change in _METAS.items():
        yield Case(f"what is saved beside the arrays is {what}", _manifest(change), _ALL, _ANY)
    for step in (99, -1, 0, 10**18, 10**400, 1.5, "2", None, [2], {"a": 2}, True):
        yield Case(f"the pointer names step {step!r:.20}", _pointer(step), _ALL, _ANY)
    yield Case("the pointer has another checksum", _pointer(2, False), _ALL, (0, 2),
               exits={"checkpoint": (1,), "checkpoint folder": (1,)})  # fmt: skip
    for what, text in _POINTERS.items():
        yield Case(f"the pointer holds {what}", _pointer_text(text), _ALL, (0, 2),
                   exits={"checkpoint": (1, 2), "checkpoint folder": (1, 2)})  # fmt: skip
    for name in (
        "007",
        "-1",
        "1e3",
        "+3",
        " 3",
        "3 ",
        "\u0663",
        "3.0",
        "9" * 30,
        "3\n",
        "\x1b[31m3",
        ".tmp-9",
        ".old-9",
        ".tmp-latest",
        "latest.2",
    ):
        yield Case(f"a checkpoint is called {name!r:.20}", _copied(name), _ALL, _ANY)
    for name in ("3", ".tmp-9", ".old-9", "9" * 25):
        yield Case(f"{name:.9} is a link elsewhere", _link_at(name), _ALL, _ANY)
        yield Case(f"{name:.9} is a pipe", _link_at(name, "a pipe"), _ALL, _ANY)
    yield Case("5,000 checkpoints", _thousands, _ALL, _ANY, slow=True)
    yield Case("a state of 10 GB", _huge_state, _ALL, _ANY, exits=_CODES, slow=True)
    yield Case("a deep manifest", _deep_manifest, _ALL, (0, 2), exits=_CODES)
    yield Case("a state that nobody may read", _unreadable("checkpoints/2/state.safetensors"),
               _ALL, (0, 2), exits=_CODES, skip=_ROOT)  # fmt: skip
    yield Case("checkpoints that nobody may read", _unreadable("checkpoints"), _ALL, _ANY,
               skip=_ROOT)  # fmt: skip


CASES = [*_cases()]
