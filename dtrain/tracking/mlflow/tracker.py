"""The tracker that records each run folder as one MLflow run: its data, tags, points, artifacts."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dtrain import secrets
from dtrain.config.tree import Config
from dtrain.files.fields import Json, Values
from dtrain.run import schemas
from dtrain.run.folder import RunDir, short, write_json
from dtrain.run.registry import Promotion
from dtrain.run.times import shown
from dtrain.tracking import facts
from dtrain.tracking.base import SweepRecord, TrackedRun, Tracker
from dtrain.tracking.facts import LATER
from dtrain.tracking.mlflow.models import Models
from dtrain.tracking.mlflow.store import BATCH, Store, allowed, import_mlflow, uri
from dtrain.tracking.mlflow.sweep import SweepRun, job_tags, parent, record

#: Characters of a name, a digest, and what describes a dataset, that MLflow takes.
_NAME, _DIGEST, _TEXT = 500, 36, 60_000
#: What MLflow shows each split as.
_IMAGE = re.compile(r"(.+?)[%+]step[%+]([0-9]+)[%+]")
_CONTEXT = {"train": "training", "validation": "validation"}


def inputs(event: Json, dataset: Values) -> list[Any]:
    """Return MLflow's inputs of a ``data`` event.

    Args:
        event: of the journal, which may be anybody's: what is of no use in it is left out.
        dataset: the ``dataset`` group, with references in the place of secrets.
    """
    entities = import_mlflow().entities
    target = str(dataset.get("_target_", "dataset"))
    path = secrets.hide(dataset.get("path"))
    datasets = []
    for split, context in _CONTEXT.items():
        record = event.get(split)
        if not isinstance(record, dict) or not isinstance(record.get("digest"), str):
            continue
        source = {"target": target, **({} if path is None else {"path": path})}
        shown = {
            "name": target.rpartition(".")[2][:_NAME] or "dataset",
            "digest": record["digest"][:_DIGEST],
            "source_type": "dtrain",
            "source": json.dumps(source, default=str)[:_TEXT],
            "schema": json.dumps({"structure": str(record.get("structure"))})[:_TEXT],
            "profile": json.dumps({"num_rows": record.get("examples")})[:_TEXT],
        }
        tag = entities.InputTag("mlflow.data.context", context)
        datasets.append(entities.DatasetInput(entities.Dataset(**shown), [tag]))
    return datasets


class StepSet:
    """A set of steps, those of a page as bits of a number: of a long run they are little memory."""

    _PAGE = 4096

    def __init__(self) -> None:
        self._pages: dict[int, int] = {}

    def add(self, step: int) -> None:
        """Take in a step."""
        page, bit = divmod(step, self._PAGE)
        self._pages[page] = self._pages.get(page, 0) | 1 << bit

    def __contains__(self, step: int) -> bool:
        page, bit = divmod(step, self._PAGE)
        return bool(self._pages.get(page, 0) >> bit & 1)


class MLflow(Tracker):
    """One run folder, as one MLflow run.

    ``tracking.json`` in the folder holds the MLflow run's id once it exists.

    Args:
        config: of the run, with references in the place of secrets; ``tracking`` and
            ``output_dir`` count.
    """

    keeps_models = True

    def __init__(self, config: Config):
        self._config = config
        self._run: TrackedRun  # after open
        self._store: Store  # after open
        self._run_id = ""
        self._resumed = False
        self._known: dict[str, StepSet] = {}
        #: Parameters that MLflow has of the run, None where that is not known; and names of those
        #: that have another value since a later start.
        self._present: dict[str, str] | None = None
        self._changed: set[str] = set()
        self._derived: Json = {}
        self._images: set[tuple[str, int]] | None = None

    @property
    def address(self) -> str:
        """The tracking URI, without a password."""
        return secrets.mask(uri(self._config))

    def view(self) -> str:
        """Return what opens MLflow's UI on the store: a command, or its address."""
        given = self.address
        if given.startswith("http"):
            return given
        if self._config.tracking.uri is not None:
            return f"mlflow ui --backend-store-uri {shlex.quote(given)}"
        folder = short(Path(self._config.output_dir))
        other = "" if folder == "outputs" else f" output_dir={shlex.quote(folder)}"
        return f"python -m dtrain ui{other}"

    def prepare(self) -> None:
        """Import MLflow: 3 to 9 s of CPU."""
        import_mlflow()

    def open(self, run: TrackedRun, started: float) -> None:
        """Connect, and find or create the MLflow run.

        Args:
            run: what is recorded.
            started: when it began, seconds since the epoch.
        """
        if self._run_id:
            return
        self._find(run, started)
        if self._resumed:
            self._call_store("update_run", status="RUNNING")

    def add(self, run: TrackedRun, events: list[Json], ended: tuple[float, str, float]) -> None:
        """Write events of a run that has ended: its status and its artifacts stay."""
        self._find(run, ended[0])
        self.write(events)
        self._evaluations(run.rundir)
        if run.rundir.page.is_file():
            self._call_store("log_artifact", local_path=str(run.rundir.page))
        self._models().ship()
        if not self._resumed:  # the store is another one by now
            self.close(*ended[1:])

    def _call_store(self, method: str, **named: Any) -> None:
        self._store.call(method, self._run_id, **named)

    def _find(self, run: TrackedRun, started: float) -> None:
        self._run = run
        job = facts.job_of(run)
        self._store = store = Store(self._config)
        name, more = facts.run_name(run), {}
        if job is not None:
            above = parent(store, self._config, run.rundir.path.parent, started)
            more = job_tags(job, above)

        def described() -> dict[str, str]:
            origin = {"mlflow.source.name": "dtrain", "run_dir": str(run.rundir.path)}
            tags = facts.tags(run)
            commit = {"mlflow.source.git.commit": c} if (c := tags.get("git_commit")) else {}
            note = {"mlflow.note.content": n} if (n := self._config.tracking.get("note")) else {}
            return {**origin, **more, **tags, **commit, **note}

        self._run_id, self._resumed = store.run(run.rundir.tracking, name, started, described)

    def resynchronize(self) -> None:
        """Read again what MLflow has: a call failed, and may have taken effect."""
        self._known.clear()
        self._images = None
        self._present = None
        self._resumed = True

    def write(self, events: list[Json]) -> None:
        """Write what ``events`` say; a point that is already there is not written again."""
        points = []
        for event in events:
            if event["event"] in ("start", "objective"):
                self._describe(facts.added_parameters(event))
            elif event["event"] == "data":
                self._store.inputs(self._run_id, *inputs(event, self._config.dataset))
            elif event["event"] == "metrics":
                points += [
                    (key, value, int(event["time"] * 1000), event["step"])
                    for key, value in event["metrics"].items()
                    if event["step"] not in self._steps(key)
                ]
            elif event["event"] == "tag":
                self._call_store("set_tag", key=event["name"], value=event["value"])
            elif event["event"] == "file":
                self._file(event)
        for begin in range(0, len(points), BATCH):
            part = points[begin : begin + BATCH]
            self._store.points(self._run_id, part)
            for key, _, _, step in part:
                self._known[key].add(step)

    def _file(self, event: Json) -> None:
        """Add a file that user code has logged; an image as MLflow shows images by step."""
        path, step = facts.logged_file(self._run.rundir, event), event["step"]
        if path is None:
            return
        if event["kind"] != "image":
            place = Path("logged", str(step), event["name"]).parent
            self._call_store("log_artifact", local_path=str(path), artifact_path=str(place))
            return
        if self._images is None:  # MLflow gives each a name that no other has
            images = self._store.call("list_artifacts", self._run_id, "images")
            names = (_IMAGE.match(Path(each.path).name) for each in images if self._resumed)
            self._images = {(each[1], int(each[2])) for each in names if each is not None}
        key = re.sub(r"[^A-Za-z0-9_./ -]", "_", event["name"])
        there = (key.replace("/", "~"), step)  # its name in that of a file
        if there not in self._images:
            from PIL import Image

            with Image.open(path) as image:
                image.load()
                self._call_store("log_image", image=image, key=key, step=step,
                                 timestamp=int(event["time"] * 1000), synchronous=True)  # fmt: skip
            self._images.add(there)

    def _steps(self, key: str) -> StepSet:
        """Return the steps at which MLflow has a point of ``key``."""
        if key not in self._known:
            known = self._known[key] = StepSet()
            if self._resumed:
                history = self._store.call("get_metric_history", self._run_id, allowed(shown(key)))
                for point in history:
                    known.add(point.step)
        return self._known[key]

    def _describe(self, added: Json) -> None:
        """Write the parameters of a start of the run.

        MLflow keeps the first value of a parameter. One that a later start has changed, such as
        ``trainer.epochs`` of a run that was resumed for more, is a tag ``resumed.NAME`` as well.
        """
        self._derived.update(added)
        values = facts.parameters(self._run, self._derived)
        if self._present is None:
            data = self._store.call("get_run", self._run_id).data if self._resumed else None
            self._present = dict(data.params) if data else {}
            past = data.tags if data else {}
            self._changed = {tag[len(LATER) :] for tag in past if tag.startswith(LATER)}
        changed = self._store.parameters(self._run_id, values, self._present)
        changed.pop("resume", None)  # of each later start, and no property of the run
        for name, value in changed.items():
            self._call_store("set_tag", key=f"{LATER}{name}", value=value)
        for name in self._changed - set(changed):  # it has its first value again
            self._call_store("delete_tag", key=f"{LATER}{name}")
        self._changed = set(changed)

    def close(self, status: str, ended: float) -> None:
        """Add the artifacts and set the final status.

        Args:
            status: ``FINISHED``, ``FAILED`` or ``KILLED``.
            ended: when the run did, seconds since the epoch.
        """
        rundir, call = self._run.rundir, self._store.call
        for name, value in facts.outcome_tags(self._run, status).items():
            call("set_tag", self._run_id, name, value)
        if self._present is None:
            self._describe({})  # it failed before training began
        for path, place in facts.run_files(rundir, status):
            call("log_artifact", self._run_id, str(path), place or None)
        self._evaluations(rundir)
        call("set_terminated", self._run_id, status, int(ended * 1000))
        self._models().ship()
        tracked: Any = schemas.read(rundir.tracking, schemas.Shipped) or {}
        write_json(rundir.tracking, {**tracked, "shipped": status})

    def promote(self, run: TrackedRun, promotion: Promotion) -> str:
        """Let an alias name a model of a run that is recorded, and is registered where need be."""
        self._find(run, time.time())
        return self._models().promote(promotion)

    def _models(self) -> Models:
        target = str(self._config.dataset.get("_target_", "dataset"))
        return Models(self._store, self._run.rundir, self._run_id, target.rpartition(".")[2])

    def _evaluations(self, rundir: RunDir) -> None:
        """Add the tables and pictures of evaluations that are not there yet."""
        there: dict[str, set[str]] = {}
        for path, place in facts.evaluation_files(rundir):
            if self._resumed and place not in there:
                listed = self._store.call("list_artifacts", self._run_id, place)
                there[place] = {Path(each.path).name for each in listed}
            if path.name not in there.get(place, ()):
                self._call_store("log_artifact", local_path=str(path), artifact_path=place)

    def sweep(self, config: Config, folder: Path, warn: Callable[[str], None]) -> SweepRecord:
        """Return the parent run of the sweep's jobs."""
        return SweepRun(config, folder, warn)

    def record_sweep(self, config: Config, folder: Path, status: str, ended: float) -> None:
        """Write what a sweep's folder says of it to the parent run."""
        record(Store(config), config, folder, status, ended)
