"""Exported models: which files a format has, ``export.json``, and how a version appears.

A version is the folder ``FOLDER/NAME/<step>/``, as TensorFlow Serving looks for it: a SavedModel
lies in it, and the files of other formats beside that. It is made aside and appears by one rename.
"""

import dataclasses
import hashlib
import os
from pathlib import Path
from typing import NotRequired, TypedDict

from dtrain.errors import refuse
from dtrain.files import reading, writing
from dtrain.files.fields import Json
from dtrain.run import schemas
from dtrain.run.folder import read_json, write_json

RECORD = "export.json"
#: A few of the examples that it was compared on, with Keras' outputs (:mod:`dtrain.run.samples`).
SAMPLE = "sample.npz"
#: The signature of a SavedModel that TensorFlow Serving calls.
SIGNATURE = "serving_default"
#: Largest deviation from Keras of what is exported in float32.
LIMIT = 1e-5
#: Examples that an exported model is compared on, at most.
EXAMPLES = 256


@dataclasses.dataclass(frozen=True)
class Format:
    """One way to write a model down.

    Attributes:
        files: its files and folders in that of a version; the last one makes it complete.
        packages: distributions that convert a model of Keras' and run it; None: it has no such.
        limit: largest deviation from Keras of what is kept.
        of_modules: those for plain modules of PyTorch's; None: it has no such.
    """

    files: tuple[str, ...]
    packages: tuple[str, ...] | None = ()
    limit: float = LIMIT
    of_modules: tuple[str, ...] | None = None


FORMATS = {
    "savedmodel": Format(("assets", "variables", "fingerprint.pb", "saved_model.pb")),
    "onnx": Format(
        ("model.onnx",), ("tf2onnx", "onnxruntime"), of_modules=("onnxscript", "onnxruntime")
    ),
    "litert": Format(("model.tflite",), ("ai-edge-litert",)),
    # With weights of fewer bits, and numbers of float32 between the layers.
    "litert_float16": Format(("model_float16.tflite",), ("ai-edge-litert",), limit=1e-2),
    "litert_int8": Format(("model_int8.tflite",), ("ai-edge-litert",), limit=1e-1),
    "keras": Format(("model.keras",)),
    "weights": Format(("model.weights.h5",)),
    "pt2": Format(("model.pt2",), None, of_modules=()),
    "safetensors": Format(("model.safetensors",), None, of_modules=()),
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
    encoding: NotRequired[Json | None]
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
        own = self.record
        if own is not None and (own["digest"], own["weights"]) != (digest, weights):
            refuse("name", f"{self.path} holds an export of other weights", self.path.parent.name,
                   accepted="a name of its own for each model, or another folder")  # fmt: skip

    def publish(self, record: Record) -> None:
        """Let what is aside appear; what is there already stays.

        Args:
            record: of the formats that are aside.

        Raises:
            OSError: it cannot be written.
        """
        if self.record is None:
            write_json(self.aside / RECORD, record, lasting=True)
            writing.rename(self.aside, self.path)
            return
        for name in record["formats"]:
            # ORDER: what makes a format complete comes last, and what names it after that.
            for part in FORMATS[name].files:
                if (self.aside / part).exists():
                    writing.remove(self.path / part)  # of an export that was killed here
                    writing.rename(self.aside / part, self.path / part)
        formats = {**self.record["formats"], **record["formats"]}
        write_json(self.path / RECORD, {**self.record, "formats": formats}, lasting=True)
        writing.remove(self.aside)


def read(path: Path) -> Record:
    """Return the record of the version at ``path``.

    Raises:
        UsageError: it is no export.
    """
    found = read_json(path / RECORD) if path.is_dir() else None
    if found is None:
        refuse("folder", f"is there, and no export of dtrain (it has no {RECORD})", path,
               accepted="another name or folder")  # fmt: skip
    return schemas.check(found, Record, path / RECORD)


def files(folder: Path, name: str) -> dict[str, File]:
    """Return the files of a format below ``folder``, with sizes and checksums."""
    tops = [folder / part for part in FORMATS[name].files]
    found: dict[str, File] = {}
    for path in sorted(each for top in tops for each in (top, *top.rglob("*")) if each.is_file()):
        with os.fdopen(reading.open_read(path), "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = path.stat().st_size
        found[path.relative_to(folder).as_posix()] = {"bytes": size, "sha256": digest}
    return found
