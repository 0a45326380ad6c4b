"""The tracking store: where it is, how it is reached, how a run is found in it again.

:class:`Registered` is a model of its registry, as it is served: which version an alias names, and
its files.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import threading
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from dtrain import secrets
from dtrain.config import private, tree
from dtrain.config.tree import Config
from dtrain.errors import DtrainError, refuse
from dtrain.files import locks, writing
from dtrain.host import pyproject
from dtrain.run import schemas, times
from dtrain.run.exports import FORMATS
from dtrain.run.folder import write_json
from dtrain.tracking.delivery import reason

#: Tag by which a run is found whose creation was never answered.
TOKEN = "dtrain.token"
#: Points in one call: MLflow's own limit.
BATCH = 1000
_PARAMETERS = 100  # in one call, by MLflow's own limit
_PARAMETER_CHARACTERS = 6000  # of one of them, by MLflow's own limit
_FORBIDDEN = re.compile(r"[^\w./: -]")  # in names of metrics and parameters: MLflow's own rule
_connecting = threading.Lock()


def embedded(output_dir: Path | str) -> str:
    """Return the address of the embedded store of an output folder."""
    return f"sqlite:///{Path(output_dir).absolute()}/mlflow.db"


def uri(config: Config) -> str:
    """Return ``tracking.uri``, or that of the embedded store under ``output_dir``.

    Raises:
        UsageError: its password is not in the run folder that ``config`` is from.
    """
    given = tree.address(config)
    if given is None:
        return embedded(config.output_dir)
    private.check_references("tracking.uri", given)
    return str(config.tracking.uri)


def sqlite_file(address: str) -> Path | None:
    """Return the file that the address of a SQLite store names; None of any other store."""
    match = re.match(r"sqlite(?:\+\w+)?:///([^?:]+)", address)
    return None if match is None else Path(match[1]).absolute()


def import_mlflow() -> Any:
    """Import MLflow with short waits and without its chatter."""
    # Its own defaults keep a call to a dead server waiting for minutes; we try again ourselves.
    # It must not: of a request sent twice both may be done, and there would be two runs.
    os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    # It would log the project files of the current directory with a model.
    os.environ.setdefault("MLFLOW_UV_AUTO_DETECT", "false")
    # Lines with the address, password and all.
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
    with _connecting:  # threads that import one package together can find it half made
        import mlflow.entities
        import mlflow.tracking
    for name in ("mlflow", "alembic"):
        # It sets its own level when it is imported, and logs what it raises as well.
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return mlflow


def import_models() -> tuple[Any, Any, Any]:
    """Import what MLflow has of models: its modules ``pyfunc``, ``models`` and ``types``."""
    import_mlflow()
    with _connecting, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of types of its own
        import mlflow.models
        import mlflow.pyfunc
        import mlflow.types
    return mlflow.pyfunc, mlflow.models, mlflow.types


def allowed(name: str) -> str:
    """Return ``name`` as MLflow takes it."""
    return _FORBIDDEN.sub("_", name)


def prepare(database: Path, client: Callable[[str], Any]) -> None:
    """Make the tables of a SQLite store that is not there.

    MLflow makes them one by one, and can use no store whose making was cut off. So they are made in
    a temp file, which then becomes the store as a whole.

    Args:
        database: the file; the caller holds its lock.
        client: MLflow's, which makes the tables of the store at an address.
    """
    if database.exists():
        return
    made = database.with_name(f".{database.name}.new")
    writing.remove(made)  # of a process that was killed
    client(f"sqlite:///{made}").search_experiments(max_results=1)
    writing.replace(made, database)


class Store:
    """One tracking store, from many threads and processes.

    Args:
        config: of a run; its ``tracking`` and ``output_dir`` count.
    """

    def __init__(self, config: Config):
        self._config = config
        self._address = uri(config)
        self.shown = secrets.mask(self._address)
        self._client: Any = None
        self._experiment: str | None = None

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of MLflow's client, connecting first where that has not been done."""
        # Explicit client and ids: MLflow's fluent globals leak from one run into the next.
        if self._client is None:
            client = import_mlflow().tracking.MlflowClient
            with _connecting, self._turn():
                database = sqlite_file(self._address)
                if database is not None:
                    prepare(database, client)
                self._client = client(self._address)
        with self._turn():
            return getattr(self._client, method)(*arguments, **named)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Let one thread of one process at a time at a SQLite file: it would refuse the others."""
        path = sqlite_file(self._address)
        if path is None:
            yield
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with locks.alone(path.with_name(f".{path.name}.lock")):
            yield

    def run(
        self, file: Path, name: str, started: float, tags: Callable[[], dict[str, str]]
    ) -> tuple[str, bool]:
        """Find the MLflow run that ``file`` (``tracking.json``) names, or create it.

        Args:
            file: remembers the run. It is written before the run is created as well: a creation
                that was not answered may have been done.
            name: of a new run.
            started: when that began, seconds since the epoch.
            tags: returns those of a new run.

        Returns:
            Its id, and whether it was there before.
        """
        # The jobs of a sweep look for their parent together.
        with locks.alone(file.with_name(f".{file.name}.lock")):
            past = schemas.read(file, schemas.Tracking)
            if past is None or past["uri"] != self.shown:
                past = None
            if past is not None and "run_id" in past:
                known = self.call("get_run", past["run_id"])
                if known.data.tags.get(TOKEN) == past["token"]:
                    if self._is_embedded:
                        self._check_place(str(known.info.artifact_uri))
                    return past["run_id"], True
                past = None  # that of another folder
            experiment = self._experiment_id()
            token = uuid.uuid4().hex if past is None else past["token"]
            about = {"uri": self.shown, "experiment_id": experiment, "token": token}
            runs = []
            if past is None:
                write_json(file, about)
            else:
                runs = self.call("search_runs", [experiment], f"tags.`{TOKEN}` = '{token}'")
            run_id = runs[0].info.run_id if runs else self._create(
                experiment, name, started, {**tags(), TOKEN: token}
            )  # fmt: skip
            write_json(file, {**about, "run_id": run_id})
            return run_id, bool(runs)

    def _create(self, experiment: str, name: str, started: float, tags: dict[str, str]) -> str:
        run = self.call(
            "create_run", experiment, start_time=int(started * 1000), run_name=name, tags=tags
        )
        return str(run.info.run_id)

    def _experiment_id(self) -> str:
        if self._experiment is None:
            name = self._config.tracking.experiment
            file = sqlite_file(self._address)
            # Of its own accord MLflow puts a new experiment's files below the current directory.
            location = None
            if file is not None:
                location = (file.parent / "mlartifacts").as_uri()
            experiment = self.call("get_experiment_by_name", name)
            if experiment is None:
                try:
                    self.call("create_experiment", name, artifact_location=location)
                except Exception:
                    if self.call("get_experiment_by_name", name) is None:
                        raise
                experiment = self.call("get_experiment_by_name", name)  # perhaps another's
            if self._is_embedded:
                self._check_place(str(experiment.artifact_location))
            self._experiment = str(experiment.experiment_id)
        return self._experiment

    @property
    def _is_embedded(self) -> bool:
        """Whether this is the default store, inside of ``output_dir``."""
        return self._config.tracking.uri is None

    def _check_place(self, found: str) -> None:
        """Refuse the embedded store where it would write files anywhere but beside itself.

        The outputs were moved or copied, and their store has the path of before; or they came from
        elsewhere, and the store names any path of this machine.

        Args:
            found: where the store puts the files of an experiment or a run, an address.

        Raises:
            UsageError: that is not below ``mlartifacts``.
        """
        store = sqlite_file(self._address)
        assert store is not None, "is embedded"
        wanted = (store.parent / "mlartifacts").as_uri()
        parts = found.removeprefix(wanted).split("/")
        if found.startswith(wanted) and parts[0] == "" and ".." not in map(unquote, parts):
            return
        refuse("tracking.experiment", f"{store} keeps its files in {found}, not beside itself: it "
               "was moved, copied or made by another user", self._config.tracking.experiment,
               hint="tracking.experiment=NEW; to sync, tracking.uri=sqlite:////NEW.db")  # fmt: skip

    def points(self, run_id: str, points: list[tuple[str, float, int, int]]) -> None:
        """Write up to :data:`BATCH` points: key, value, milliseconds since the epoch, step."""
        metric = import_mlflow().entities.Metric
        metrics = [metric(allowed(times.shown(key)), *point) for key, *point in points]
        self.call("log_batch", run_id, metrics=metrics)

    def inputs(self, run_id: str, *inputs: Any) -> None:
        """Write what the run reads; MLflow keeps an input that is there already once."""
        if inputs:
            self.call("log_inputs", run_id, datasets=list(inputs))

    def parameters(
        self, run_id: str, values: dict[str, str], present: dict[str, str]
    ) -> dict[str, str]:
        """Write parameters, in their order; MLflow refuses to change one that is there.

        Args:
            run_id: of the run.
            values: by name.
            present: those that MLflow has, which those that are written now are added to.

        Returns:
            Those whose value is another one in MLflow.
        """
        values = {allowed(key): text[:_PARAMETER_CHARACTERS] for key, text in values.items()}
        new = {key: text for key, text in values.items() if key not in present}
        entity = import_mlflow().entities.Param
        entries = [entity(*item) for item in new.items()]
        for first in range(0, len(entries), _PARAMETERS):
            self.call("log_batch", run_id, params=entries[first : first + _PARAMETERS])
        present.update(new)
        return {key: text for key, text in values.items() if present[key] != text}


SCHEME = "models:/"
_FORM = re.compile(r"models:/(?:(?P<name>[^/@]+)(?:@(?P<alias>[^/@]+)|/(?P<version>[0-9]+))|"
                   r"(?P<id>m-[^/@]+))")  # fmt: skip
#: Files that complete what can be served.
_SERVED = [FORMATS[name].files[-1] for name in ("savedmodel", "pt2")]


class Registered:
    """What ``models:/NAME@ALIAS``, ``models:/NAME/VERSION`` or ``models:/m-ID`` names.

    Args:
        text: as it was typed.
        address: of the store; None for that of ``MLFLOW_TRACKING_URI``, or ``outputs/mlflow.db``.

    Raises:
        UsageError: it is none of these, or the store is not known.
    """

    def __init__(self, text: str, address: str | None):
        match = _FORM.fullmatch(text)
        if match is None:
            refuse("MODEL", "is no model of a registry", text,
                   hint="models:/NAME@ALIAS, models:/NAME/VERSION or models:/m-ID")  # fmt: skip
        self._text = text
        self.name: str | None = match["name"]
        self.alias: str | None = match["alias"]
        self._version: str | None = match["version"]
        own = embedded(pyproject.output_dir())
        self._address = address or os.environ.get("MLFLOW_TRACKING_URI") or own
        if self._address == own and not (file := Path(own.removeprefix("sqlite:///"))).is_file():
            refuse("tracking.uri", f"{file} is not there, so that the store of {text} is not known",
                   "", hint="tracking.uri=sqlite:////PATH/OF/mlflow.db")  # fmt: skip
        self._client: Any = None

    def version(self) -> str:
        """Return the number of the version that is meant now; of a model without one its id.

        Raises:
            DtrainError: the store does not answer, or has no such model.
        """
        if self.alias is None:
            return self._version or self._text.removeprefix(SCHEME)
        try:
            version = self._connected().get_model_version_by_alias(self.name, self.alias)
        except Exception as error:  # whatever a server, a driver or a proxy may raise
            raise DtrainError(f"{self._text}: {reason(error)}") from None
        return str(version.version)

    def _connected(self) -> Any:
        if self._client is None:
            tracking = import_mlflow().tracking
            self._client = tracking.MlflowClient(self._address, self._address)
        return self._client

    def _location(self, version: str) -> str:
        """Return where the files of a version are; MLflow itself looks in its default store."""
        client, place = self._connected(), version
        if self.name is not None:
            place = client.get_model_version_download_uri(self.name, version)
        if (match := _FORM.fullmatch(place)) is not None and match["id"]:
            place = match["id"]
        if place.startswith("m-"):
            place = client.get_logged_model(place).artifact_location
        return str(place)

    def download(self, version: str, folder: Path) -> Path:
        """Fetch a version, and return the folder of its SavedModel or program.

        Args:
            version: of :meth:`version`.
            folder: that it goes to.

        Raises:
            DtrainError: it cannot be had, or has neither.
        """
        uri = self._text if self.alias is None else f"{SCHEME}{self.name}/{version}"
        os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
        import_mlflow()
        artifacts = importlib.import_module("mlflow.artifacts")
        try:
            artifacts.download_artifacts(
                artifact_uri=self._location(version), dst_path=str(folder),
                tracking_uri=self._address,
            )  # fmt: skip
        except Exception as error:
            raise DtrainError(f"{uri}: {reason(error)}") from None
        # ORDER: that of the model itself, before one that is deeper inside of something else.
        served = [path for name in _SERVED for path in folder.rglob(name)]
        if not served:
            raise DtrainError(f"{uri} has no model that is served: tracking.model=best logs one")
        return min(served, key=lambda path: (len(path.parts), path)).parent
