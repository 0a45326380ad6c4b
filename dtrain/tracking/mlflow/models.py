"""Models of a run in MLflow: logged, registered as versions, named by aliases; nothing twice.

What is there is found by tags, so that it is found wherever the run's folder is by now, and after
requests that were not answered.

An exported model is written as a folder that MLflow loads and serves:

``MLmodel``            signature, flavors, requirements: written by MLflow
``model/``             the SavedModel, or of a plain module the program of ``torch.export``
``export.json``        what dtrain knows of it: step, digest, deviation from Keras
``sample.npz``         examples with Keras' outputs
``input_example.json`` one of them, for MLflow's own page and its check
``code/``              what loads it, so that dtrain need not be installed
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from dtrain.errors import DamagedFile, NotPromoted, refuse
from dtrain.files import locks, writing
from dtrain.files.fields import Json
from dtrain.host.packages import version
from dtrain.run import exports, registry
from dtrain.run.exports import Record, Tensor
from dtrain.run.folder import RunDir
from dtrain.run.registry import Measured, Model, Promotion
from dtrain.run.samples import Sample
from dtrain.tracking import conditions
from dtrain.tracking.conditions import Condition, Other
from dtrain.tracking.mlflow.store import BATCH, Store, allowed, import_mlflow, import_models

#: MLflow's own tag of a logged model, with its versions.
_VERSIONS = "mlflow.modelVersions"
#: Tag by which a logged model is found again.
_KEY = "dtrain.model"
_FORBIDDEN = re.compile(r"[/:.%\"']")  # in the name of a logged model: MLflow's own rule
#: Beside the run's metrics: what those of a version are of, by the beginning of their names.
_OF_THE_RUN = "val"


class Models:
    """The models of one run.

    Args:
        store: that it is recorded in.
        rundir: its folder.
        run_id: of MLflow.
        dataset: a name of its data.
    """

    def __init__(self, store: Store, rundir: RunDir, run_id: str, dataset: str):
        self._store = store
        self._rundir = rundir
        self._run_id = run_id
        self._dataset = dataset

    def ship(self) -> None:
        """Make MLflow hold all models and versions that the run's folder says it is to hold.

        Raises:
            DamagedFile: an export is not what its record says.
        """
        with self._alone():
            for each in registry.read(self._rundir)["models"]:
                self._ship(each)

    def promote(self, promotion: Promotion) -> str:
        """Let an alias name a model of the run, which becomes a version where it is none.

        Returns:
            A sentence about what was done.

        Raises:
            NotPromoted: the condition does not hold.
            UsageError: the condition is none, or of metrics that the model does not have.
        """
        wanted = conditions.parse(promotion["condition"])
        known = registry.read(self._rundir)["models"]
        [model] = [each for each in known if registry.is_same(each, promotion)]
        measured = registry.measured(self._rundir, model)
        conditions.check_metrics(wanted, measured)
        name, alias = promotion["name"], promotion["alias"]
        with self._alone():
            version = self._ship(model)[name]
            champion = self._named(name, alias)
            there = champion is not None and str(champion.version) == str(version.version)
            for each in wanted:
                if each.alias == alias and there:
                    continue  # it would be compared with itself
                other = self._find_compared(name, each, alias)
                if each.alias is not None and other is None:
                    continue  # the alias that is to be moved names nothing yet
                problem = conditions.failure(each, measured[each.metric], other)
                if problem is not None:
                    raise NotPromoted(f"{alias} of {name} stays: {problem}")
            if there:
                return f"{alias} is version {version.version} of {name} already"
            self._store.call("set_registered_model_alias", name, alias, version.version)
        before = f", and was version {champion.version}" if champion is not None else ""
        return f"{alias} is version {version.version} of {name}{before}: models:/{name}@{alias}"

    def _alone(self) -> AbstractContextManager[Any]:
        """Let no other command look for what this one is about to make."""
        return locks.alone(self._rundir.path / ".models.lock")

    def _ship(self, model: Model) -> Json:
        """Make MLflow hold a model; return its versions by the names that they are under."""
        measured = registry.measured(self._rundir, model)
        logged = self._logged(model)
        self._log_metrics(model, logged, measured)
        tags = _tags(self._rundir, model, measured)
        return {name: self._version(name, model, logged, tags) for name in model["names"]}

    def _logged(self, model: Model) -> Any:
        """Return MLflow's logged model, made where it is not there."""
        run = self._store.call("get_run", self._run_id)
        experiment, key = run.info.experiment_id, f"{model['digest']}:{model['weights']}"
        models = self._store.call("search_logged_models", [experiment], f"tags.`{_KEY}` = '{key}'")
        logged = next((each for each in models if each.source_run_id == self._run_id), None)
        if logged is None:
            tags = {
                _KEY: key, "step": str(model["step"]), "digest": model["digest"],
                "weights": model["weights"],
            }  # fmt: skip
            name = _FORBIDDEN.sub("_", Path(model["path"]).parent.name)
            logged = self._store.call(
                "create_logged_model", experiment, name, source_run_id=self._run_id, tags=tags,
                model_type="pytorch" if self._is_program(model) else "keras",
            )  # fmt: skip
        outputs = run.outputs.model_outputs if run.outputs is not None else []
        if logged.model_id not in [each.model_id for each in outputs]:
            output = import_mlflow().entities.LoggedModelOutput(logged.model_id, model["step"])
            self._store.call("log_outputs", self._run_id, [output])
        if str(logged.status) != "READY":
            self._upload(model, logged)
            logged = self._store.call("finalize_logged_model", logged.model_id, "READY")
        return logged

    def _is_program(self, model: Model) -> bool:
        return Path(self._rundir.path, model["path"], exports.FORMATS["pt2"].files[-1]).is_file()

    def _upload(self, model: Model, logged: Any) -> None:
        path = self._rundir.path / model["path"]
        record = exports.read(path)
        if not registry.is_same(record, model):
            raise DamagedFile(path / exports.RECORD, "is of another model", "digest")
        with tempfile.TemporaryDirectory(prefix="dtrain-") as folder:
            whole = Path(folder, "logged")
            parts = write_folder(path, record, whole, self._run_id, logged)
            self._store.call("log_model_artifacts", logged.model_id, str(whole))
        for part, place in parts:
            self._store.call("log_model_artifact", logged.model_id, str(part), place or None)

    def _log_metrics(self, model: Model, logged: Any, measured: Mapping[str, Measured]) -> None:
        """Give the logged model its metrics, which are points of the run."""
        entity = import_mlflow().entities.Metric
        there = {(each.key, each.step, each.value) for each in logged.metrics or ()}
        points = [
            entity(
                allowed(name), each.value, each.time, model["step"], model_id=logged.model_id,
                dataset_name=self._dataset, dataset_digest=each.data,
            )
            for name, each in measured.items()
            if (allowed(name), model["step"], each.value) not in there
        ]  # fmt: skip
        for begin in range(0, len(points), BATCH):
            self._store.call("log_batch", self._run_id, metrics=points[begin : begin + BATCH])

    def _version(self, name: str, model: Model, logged: Any, tags: dict[str, str]) -> Any:
        """Return the version of a model under a name, made where it is not there."""
        if not self._find_registered(name):
            try:
                self._store.call("create_registered_model", name)
            except Exception:
                if not self._find_registered(name):  # perhaps another run has made it meanwhile
                    raise
        ours = f"name = '{name}' and run_id = '{self._run_id}'"
        versions = self._store.call("search_model_versions", ours)
        version = next((each for each in versions if registry.is_same(_key(each), model)), None)
        if version is None:
            version = self._store.call(
                "create_model_version", name, logged.artifact_location, self._run_id, tags,
                model_id=logged.model_id,
            )  # fmt: skip
        for key, value in tags.items():
            if version.tags.get(key) != value:
                self._store.call("set_model_version_tag", name, version.version, key, value)
        self._link(logged, {"name": name, "version": version.version})
        return version

    def _link(self, logged: Any, version: Json) -> None:
        """Let the page of the logged model show its version; a server does that by itself."""
        tags = self._store.call("get_logged_model", logged.model_id).tags
        linked = json.loads(tags.get(_VERSIONS, "[]"))
        if str(version["version"]) not in [
            str(each["version"]) for each in linked if each["name"] == version["name"]
        ]:
            text = json.dumps([*linked, version])
            self._store.call("set_logged_model_tags", logged.model_id, {_VERSIONS: text})

    def _find_registered(self, name: str) -> list[Any]:
        """Return the registered model of a name, if there is one."""
        return list(self._store.call("search_registered_models", f"name = '{name}'"))

    def _named(self, name: str, alias: str) -> Any:
        """Return the version that an alias names, None where it names none."""
        [found] = self._find_registered(name)
        number = found.aliases.get(alias)
        return None if number is None else self._store.call("get_model_version", name, number)

    def _find_compared(self, name: str, condition: Condition, moved: str) -> Other | None:
        if condition.alias is None:
            return None
        other = self._named(name, condition.alias)
        if other is not None:
            run = other.tags.get("run_dir", "")
            return Other(str(other.version), run, _read_metrics(other.tags))
        if condition.alias == moved:
            return None
        refuse("if", f"no version of {name} has the alias {condition.alias}", condition,
               accepted="an alias that is there, the one that is to be moved, or a number",
               typed=f"'if={condition.metric}{condition.relation}@{moved}'")  # fmt: skip


def _key(version: Any) -> dict[str, str]:
    return {"digest": version.tags.get("digest", ""), "weights": version.tags.get("weights", "")}


def _tags(rundir: RunDir, model: Model, measured: Mapping[str, Measured]) -> dict[str, str]:
    """Return what a version says of its model."""
    data = {_kind(name): each.data for name, each in measured.items()}
    return {
        "run_dir": str(rundir.path),
        "step": str(model["step"]),
        "digest": model["digest"],
        "weights": model["weights"],
        "metrics": json.dumps({name: each.value for name, each in sorted(measured.items())}),
        "data": json.dumps(data, sort_keys=True),
    }


def _kind(metric: str) -> str:
    """Return what the data of a metric is known by: ``val``, or the prefix of an evaluation."""
    prefix, slash, _ = metric.partition("/")
    return prefix if slash else _OF_THE_RUN


def _read_metrics(tags: Mapping[str, str]) -> dict[str, Measured]:
    """Return the metrics that the tags of a version name; whoever may write there made them."""
    try:
        values, data = json.loads(tags.get("metrics", "{}")), json.loads(tags.get("data", "{}"))
        return {
            str(name): Measured(float(value), str(data[_kind(name)]), 0)
            for name, value in values.items()
            if _kind(name) in data
        }
    except (ValueError, TypeError, AttributeError):
        return {}


#: In which the model itself is.
FOLDER = "model"
#: The module that loads a model; its source goes along.
_LOADER = Path(__file__).with_name("loader.py")
#: Examples of the input example, at most.
_EXAMPLES = 2


def write_folder(
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
    format = next(name for name in ("savedmodel", "pt2") if name in record["formats"])
    names, kept = exports.files(version_folder, format), record["formats"][format]
    if names != kept["files"]:
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
    if format == "pt2":
        described.add_flavor("pytorch", model_data=FOLDER, pytorch_version=version("torch"))
    else:
        described.add_flavor("tensorflow", saved_model_dir=FOLDER, model_type="tf2-module")
    packages = ("mlflow", "torch" if format == "pt2" else "tensorflow", "numpy")
    requirements = [f"{name}=={number}" for name in packages if (number := version(name))]
    pyfunc.save_model(
        str(folder), loader_module=loader, code_paths=[str(code)], mlflow_model=described,
        signature=signature(record), input_example=_example(version_folder, record),
        pip_requirements=requirements,
    )  # fmt: skip
    writing.unlink(code)
    parts = [(name, str(Path(FOLDER, name).parent)) for name in names]
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
    examples = {
        each["name"]: _plain(sample.inputs[each["name"]][:rows], _dtype(each))
        for each in record["signature"]["inputs"]
    }
    return next(iter(examples.values())) if len(examples) == 1 else examples


def _plain(value: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    if value.dtype.kind != "O":
        return value
    texts = [each.decode(errors="replace") for each in value.reshape(-1).tolist()]
    return np.asarray(texts, dtype).reshape(value.shape)
