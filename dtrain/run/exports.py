"""Exported models: which files a format has, ``export.json``, and how a version appears.

A version is the folder ``FOLDER/NAME/<step>/``, as TensorFlow Serving looks for it: a SavedModel
lies in it, and the files of other formats beside that. It is made aside and appears by one rename.
"""

import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NotRequired, TypedDict

from dtrain.errors import UsageError
from dtrain.files import locks, reading, writing
from dtrain.run import schemas
from dtrain.run.folder import read_json, write_json

RECORD = "export.json"
#: A few of the examples that it was compared on, with Keras' outputs (:mod:`dtrain.run.samples`).
SAMPLE = "sample.npz"
#: Locked while a command works in its folder.
LOCK = ".lock"
#: Largest deviation from Keras of what is exported in float32.
LIMIT = 1e-5
#: Examples that an exported model is compared on, at most.
EXAMPLES = 256


@dataclasses.dataclass(frozen=True)
class Format:
    """One way to write a model down.

    Attributes:
        files: its files and folders in that of a version; the last one makes it complete.
        packages: distributions that convert and run it.
        served: whether it is run as it is, without Keras.
        limit: largest deviation from Keras of what is kept.
    """

    files: tuple[str, ...]
    packages: tuple[str, ...] = ()
    served: bool = True
    limit: float = LIMIT


FORMATS = {
    "savedmodel": Format(("assets", "variables", "fingerprint.pb", "saved_model.pb")),
    "onnx": Format(("model.onnx",), ("tf2onnx", "onnxruntime")),
    "litert": Format(("model.tflite",), ("ai-edge-litert",)),
    # With weights of fewer bits, and numbers of float32 between the layers.
    "litert_float16": Format(("model_float16.tflite",), ("ai-edge-litert",), limit=1e-2),
    "litert_int8": Format(("model_int8.tflite",), ("ai-edge-litert",), limit=1e-1),
    "keras": Format(("model.keras",), served=False),
    "weights": Format(("model.weights.h5",), served=False),
}


class Tensor(TypedDict):
    """One input or output.

    ``columns`` are those of the training's table that an input is made of, side by side.
    """

    name: str
    dtype: str
    shape: list[int | None]
    columns: NotRequired[list[str]]


class Signature(TypedDict):
    """What goes in, and what comes out."""

    inputs: list[Tensor]
    outputs: list[Tensor]


class File(TypedDict):
    """One file of a format."""

    bytes: schemas.Count
    sha256: str


class Exported(TypedDict):
    """One format of a version."""

    bytes: schemas.Count
    files: dict[str, File]
    deviation: float
    limit: float
    latency_ms: NotRequired[dict[str, float]]
    versions: dict[str, str | None]


class Record(TypedDict):
    """``export.json``."""

    step: schemas.Count
    digest: str | None
    weights: str
    run: str
    data: NotRequired[str]
    signature: Signature
    classes: NotRequired[list[str]]
    examples: schemas.Count
    formats: dict[str, Exported]


class Version:
    """The folder of one version of a model, there already or to come.

    Args:
        path: ``FOLDER/NAME/<step>``.
    """

    def __init__(self, path: Path):
        self.path = path
        self.aside = writing.aside(path)
        #: What is there already; None where nothing is.
        self.record: Record | None = None
        if path.exists():
            self.record = read(path)

    def check(self, digest: str | None, weights: str) -> None:
        """Refuse to add to a version that is of another model.

        Args:
            digest: of the checkpoint.
            weights: ``raw`` or ``ema``.

        Raises:
            UsageError: it is.
        """
        if self.record is None:
            return
        if (self.record["digest"], self.record["weights"]) != (digest, weights):
            raise UsageError(
                "name", self.path.parent.name, f"{self.path} holds an export of other weights",
                "a name of its own for each model, or another folder", "name=ANOTHER",
            )  # fmt: skip

    def publish(self, record: Record) -> None:
        """Let what is aside appear; what is there already stays.

        Args:
            record: of the formats that are aside.

        Raises:
            OSError: it cannot be written.
        """
        if self.record is None:
            write_json(self.aside / RECORD, record, lasting=True)
            flush(self.aside)
            writing.rename(self.aside, self.path)
        else:
            flush(self.aside)
            for name in record["formats"]:
                # ORDER: what makes a format complete comes last, and what names it after that.
                for part in FORMATS[name].files:
                    if (self.aside / part).exists():
                        writing.remove(self.path / part)  # of an export that was killed here
                        writing.rename(self.aside / part, self.path / part)
            if (self.aside / SAMPLE).exists() and not (self.path / SAMPLE).exists():
                writing.rename(self.aside / SAMPLE, self.path / SAMPLE)
            formats = {**self.record["formats"], **record["formats"]}
            write_json(self.path / RECORD, {**self.record, "formats": formats}, lasting=True)
            writing.remove(self.aside)
        writing.sync(self.path.parent)


def read(path: Path) -> Record:
    """Return the record of the version at ``path``.

    Raises:
        UsageError: it is no export.
    """
    found = read_json(path / RECORD) if path.is_dir() else None
    if found is None:
        raise UsageError(
            "folder", path, f"is there, and no export of dtrain (it has no {RECORD})",
            "another name or folder", "name=ANOTHER",
        )  # fmt: skip
    return schemas.check(found, Record, path / RECORD)


def files(folder: Path, name: str) -> dict[str, File]:
    """Return the files of a format below ``folder``, with sizes and checksums."""
    found: dict[str, File] = {}
    for part in FORMATS[name].files:
        top = folder / part
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.is_file():
                sha256 = hashlib.sha256()
                with os.fdopen(reading.open_read(path), "rb") as file:
                    while piece := file.read(1 << 20):
                        sha256.update(piece)
                name_in = path.relative_to(folder).as_posix()
                found[name_in] = {"bytes": path.stat().st_size, "sha256": sha256.hexdigest()}
    return found


def remove(folder: Path, names: Sequence[str]) -> None:
    """Remove the files of formats from ``folder``."""
    for name in names:
        for part in FORMATS[name].files:
            writing.remove(folder / part)


def flush(folder: Path) -> None:
    """Flush all that is below ``folder`` to the disk."""
    for place, _, names in os.walk(folder):
        for name in names:
            descriptor = reading.open_read(Path(place, name))
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        writing.sync(Path(place))


def lock(folder: Path) -> int:
    """Take ``folder``, made where it is not there, for this process.

    What a killed command has left there is removed.

    Returns:
        The descriptor to close when the work is done.

    Raises:
        UsageError: another process has it.
        OSError: it cannot be made or written.
    """
    with contextlib.suppress(FileExistsError):
        writing.make_folder(folder)
    descriptor = writing.open_lock(folder / LOCK)
    if not locks.take(descriptor):
        os.close(descriptor)
        raise UsageError(
            "folder", folder, "another command exports to it", "one command at a time",
            "the same command when that has ended, or another folder",
        )  # fmt: skip
    writing.remove_leftovers(folder)
    return descriptor


def unlock(folder: Path, descriptor: int) -> None:
    """Let others have ``folder`` again; it goes where this process made it and nothing is in it.

    Args:
        folder: of :func:`lock`.
        descriptor: that it returned.
    """
    with contextlib.suppress(ValueError, OSError):  # another process made it
        if os.listdir(folder) == [LOCK]:
            writing.discard(folder)
    os.close(descriptor)
