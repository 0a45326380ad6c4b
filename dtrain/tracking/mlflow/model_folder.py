"""An exported model as a folder that MLflow loads and serves.

``MLmodel``            signature, flavors, requirements: written by MLflow
``model/``             the SavedModel
``export.json``        what dtrain knows of it: step, digest, deviation from Keras
``sample.npz``         examples with Keras' outputs
``input_example.json`` one of them, for MLflow's own page and its check
``code/``              what loads it, so that dtrain need not be installed
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from dtrain.errors import DamagedFile
from dtrain.files import writing
from dtrain.host.packages import version
from dtrain.run import exports
from dtrain.run.exports import Record, Tensor
from dtrain.run.samples import Sample
from dtrain.tracking.mlflow.store import import_models

#: In which the SavedModel is.
FOLDER = "model"
_PACKAGES = ("mlflow", "tensorflow", "numpy")
#: The module that loads a model; its source goes along.
_LOADER = Path(__file__).with_name("loader.py")
#: Examples of the input example, at most.
_EXAMPLES = 2


def write(
    version_folder: Path, record: Record, folder: Path, run_id: str, model: Any
) -> list[tuple[Path, str]]:
    """Write a model as MLflow has it, but for what lies in the export as it is.

    Args:
        version_folder: ``FOLDER/NAME/<step>`` of the export.
        record: its ``export.json``.
        folder: to be made.
        run_id: of MLflow.
        model: MLflow's logged model that the folder is of.

    Returns:
        Files of the export, with the folder of the model that each belongs to.

    Raises:
        DamagedFile: the export is not what its record says.
        OSError: it cannot be written.
    """
    pyfunc, models, _ = import_models()
    found = exports.files(version_folder, "savedmodel")
    kept = record["formats"].get("savedmodel")
    if kept is None or found != kept["files"]:
        raise DamagedFile(version_folder, f"holds other files than {exports.RECORD} says")
    source = _LOADER.read_bytes()
    # Models of several versions of dtrain may be loaded by one process.
    loader = f"dtrain_model_{hashlib.sha256(source).hexdigest()[:12]}"
    code = folder.with_name(f"{loader}.py")
    writing.write_bytes(code, source)
    described = models.Model(
        artifact_path=model.artifact_location, model_uuid=model.model_id, run_id=run_id,
        model_id=model.model_id,
    )  # fmt: skip
    described.add_flavor("tensorflow", saved_model_dir=FOLDER, model_type="tf2-module")
    requirements = [f"{name}=={number}" for name in _PACKAGES if (number := version(name))]
    pyfunc.save_model(
        str(folder), loader_module=loader, code_paths=[str(code)], mlflow_model=described,
        signature=signature(record), input_example=_example(version_folder, record),
        pip_requirements=requirements,
    )  # fmt: skip
    writing.unlink(code)
    parts = [(name, str(Path(FOLDER, name).parent)) for name in found]
    parts += [(n, "") for n in (exports.RECORD, exports.SAMPLE) if (version_folder / n).is_file()]
    files = [path for path in folder.rglob("*") if path.is_file()]
    files += [version_folder / name for name, _ in parts]
    written = models.Model.load(str(folder))
    written.model_size_bytes = sum(path.stat().st_size for path in files)
    written.save(str(folder / "MLmodel"))
    return [(version_folder / name, place) for name, place in parts]


def signature(record: Record) -> Any:
    """Return MLflow's signature of a model.

    A single input has no name there: MLflow then takes its array as well as a DataFrame.
    """
    _, models, types = import_models()
    inputs, outputs = record["signature"]["inputs"], record["signature"]["outputs"]

    def schema(tensors: list[Tensor]) -> Any:
        named = len(tensors) > 1
        return types.Schema(
            [
                types.TensorSpec(_dtype(each), _shape(each), each["name"] if named else None)
                for each in tensors
            ]
        )

    return models.ModelSignature(schema(inputs), schema(outputs))


def _dtype(tensor: Tensor) -> np.dtype[Any]:
    """Return the type of an array that MLflow takes."""
    if tensor["dtype"] == "string":
        # Of one text each any array will do; of several MLflow asks for NumPy's own texts.
        return np.dtype(object if len(tensor["shape"]) == 1 else str)
    try:
        return np.dtype(tensor["dtype"])
    except TypeError:  # that of a type that NumPy has not
        return np.dtype("float32")


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(-1 if length is None else length for length in tensor["shape"])


def _example(folder: Path, record: Record) -> Any:
    """Return a few examples as MLflow takes them; None where the export has kept none."""
    path = folder / exports.SAMPLE
    if not path.is_file():
        return None
    sample = Sample.load(path)
    rows = sample.rows or min(_EXAMPLES, len(sample))
    found = {
        each["name"]: _plain(sample.inputs[each["name"]][:rows], _dtype(each))
        for each in record["signature"]["inputs"]
    }
    return next(iter(found.values())) if len(found) == 1 else found


def _plain(value: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    if value.dtype.kind != "O":
        return value
    texts = [each.decode(errors="replace") for each in value.reshape(-1).tolist()]
    return np.asarray(texts, dtype).reshape(value.shape)
