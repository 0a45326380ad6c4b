"""A sink: a tracker of few methods, which knows nothing of journals. :class:`Sunk` reads for it."""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from dtrain.config.tree import Config
from dtrain.errors import refuse
from dtrain.files.fields import Json
from dtrain.run import schemas, times
from dtrain.run.folder import RunDir, write_json
from dtrain.tracking import facts
from dtrain.tracking.base import TrackedRun, Tracker
from dtrain.tracking.facts import LATER

#: What a file is: an image of a step, a table (CSV) of a step, or any file.
Kind = Literal["image", "table", "file"]


class Sink(ABC):
    """Where a run is recorded: a service, or files. ``tracking.NAME._target_`` names the class.

    Its constructor takes all keys of its node, and ``config``, of the run, if it wants it. It is
    called from one thread. Each method may raise what it will: training goes on, and the call is
    repeated. What was written once is not given to it again, also over a resume.
    """

    #: What it is called in messages.
    label: ClassVar[str]

    @abstractmethod
    def open(
        self, name: str, group: str | None, tags: Mapping[str, str], resume: str | None,
        folder: Path,
    ) -> str:  # fmt: skip
        """Begin a record, or go on with one, and return its id.

        Args:
            name: of the run.
            group: the sweep that it is a job of.
            tags: host, versions, commit and the like.
            resume: id of the record to go on with.
            folder: of the run, for files that the sink keeps there.
        """

    @abstractmethod
    def params(self, values: Mapping[str, str]) -> None:
        """Record the parameters: those of the first start."""

    @abstractmethod
    def log(self, points: Mapping[str, float], step: int, time: float) -> None:
        """Record metrics of a step, which may be an earlier one: evaluations come late.

        Args:
            points: by name; some may be NaN or infinite.
            step: of the training.
            time: seconds since the epoch.
        """

    @abstractmethod
    def file(self, path: Path, name: str, kind: Kind, step: int) -> None:
        """Record a file.

        Args:
            path: in the run folder, where it stays.
            name: under which it is shown; of a file with its folder, such as ``code/1/tree.diff``.
            kind: of file.
            step: of the training.
        """

    @abstractmethod
    def note(self, values: Mapping[str, float], tags: Mapping[str, str]) -> None:
        """Record what holds for the run as a whole, in the place of what was said before.

        Args:
            values: results.
            tags: the user's, ``error``, ``resumed.KEY`` of a parameter that a resume has changed.
        """

    @abstractmethod
    def close(self, status: str) -> None:
        """Send the rest, and record how the run ended: ``FINISHED``, ``FAILED`` or ``KILLED``."""

    @abstractmethod
    def address(self) -> str:
        """Return where runs are recorded, or how to see this one; before :meth:`open`, where."""


def need(package: str, title: str, key: str) -> None:
    """Refuse a package that is not installed, before training begins.

    Raises:
        UsageError: saying how to install it.
    """
    if importlib.util.find_spec(package) is None:
        refuse(key, f"{title} is not installed", package, accepted="trackers that are",
               hint=f"pip install 'dtrain[{package}]'")  # fmt: skip


class Sunk(Tracker):
    """Records one run by a sink. ``trackers/NAME.json`` in the run folder says what that has.

    Args:
        sink: does the writing.
        name: of its node.
        config: of the run.
    """

    def __init__(self, sink: Sink, name: str, config: Config):
        self._closed, self._name, self._config = sink, name, config
        self._is_open = self._opened = False
        self._place = sink.address()
        self._run: TrackedRun  # after open
        self._has: Any = {}  # schemas.Recorded
        self._derived: Json = {}
        self._step = 0

    @property
    def label(self) -> str:
        """The name of the service."""
        return self._closed.label

    @property
    def address(self) -> str:
        """Where the sink records runs."""
        return self._place

    def view(self) -> str:
        """Return what the sink says of this run."""
        return self._closed.address()

    def open(self, run: TrackedRun, started: float) -> None:
        """Look what the sink has of the run, which it is opened for once there is more."""
        if self._is_open:
            return
        file = run.rundir.trackers / f"{self._name}.json"
        past: Any = schemas.read(file, schemas.Recorded)
        if past is None or past["place"] != self._place:
            past = {"place": self._place}
        self._has = {"last": {}, "late": {}, "files": {}, **past}
        self._run, self._is_open = run, True

    @property
    def _sink(self) -> Sink:
        """The sink, opened: it begins the record of the run, or goes on with it."""
        if not self._opened:
            run = self._run
            job = facts.job_of(run)
            name = facts.run_name(run)
            group = None if job is None else run.rundir.path.parent.name
            tags = facts.tags(run)
            self._has["id"] = self._closed.open(
                name, group, tags, self._has.get("id"), run.rundir.path
            )
            self._opened = True
            self._save()
        return self._closed

    def is_shipped(self, rundir: RunDir) -> bool:
        """Say whether the sink has all that a run had when it ended."""
        past: Any = schemas.glance(rundir.trackers / f"{self._name}.json", schemas.Recorded) or {}
        return past.get("place") == self._place and "shipped" in past

    has_all = is_shipped

    def _save(self) -> None:
        file = self._run.rundir.trackers / f"{self._name}.json"
        file.parent.mkdir(exist_ok=True)
        write_json(file, self._has)

    def write(self, events: list[Json]) -> None:
        """Write what is new in ``events``."""
        try:
            for event in events:
                self._write(event)
            if self._derived:  # of the last start among them
                self._note_changed()
        finally:  # what was written before an error is there
            if self._opened:
                self._save()

    def _write(self, event: Json) -> None:
        kind = event["event"]
        self._step = max(self._step, event.get("step") or 0)
        if kind in ("start", "objective"):
            self._describe(facts.added_parameters(event))
        elif kind == "metrics":
            new = {k: v for k, v in event["metrics"].items() if self._lacks(k, event)}
            if new:
                named = {times.shown(name): value for name, value in new.items()}
                self._sink.log(named, event["step"], event["time"])
            for name in new:
                self._take(name, event)
        elif kind == "data":
            for name, each in event.items():
                if isinstance(each, dict) and isinstance(each.get("digest"), str):
                    self._tag(f"data.{name}", each["digest"], 0)
        elif kind == "tag":
            self._tag(event["name"], event["value"], event["step"])
        elif kind == "file" and self._lacks(name := f"{event['kind']}:{event['name']}", event):
            if (path := facts.logged_file(self._run.rundir, event)) is not None:
                self._sink.file(path, event["name"], event["kind"], event["step"])
            self._take(name, event)

    def _tag(self, name: str, value: str, step: int) -> None:
        """Set a tag, unless it was set at a later step."""
        tags, last = self._has.setdefault("tags", {}), self._has["last"].get(f"tag:{name}", -1)
        if step > last or (step == last and tags.get(name) != value):
            self._sink.note({}, {name: value})
            tags[name], self._has["last"][f"tag:{name}"] = value, step

    def _lacks(self, name: str, event: Json) -> bool:
        """Say whether the sink has no point of this name and step."""
        if "prefix" in event:  # evaluated later, and of any checkpoint
            return event["step"] not in self._has["late"].get(name, ())
        return bool(event["step"] > self._has["last"].get(name, -1))

    def _take(self, name: str, event: Json) -> None:
        if "prefix" in event:
            self._has["late"].setdefault(name, []).append(event["step"])
        else:
            self._has["last"][name] = event["step"]

    def _describe(self, added: Json) -> None:
        """Record the parameters of a start."""
        self._derived.update(added)
        values = facts.parameters(self._run, self._derived)
        first = self._has.setdefault("parameters", {})
        if new := {key: value for key, value in values.items() if key not in first}:
            self._sink.params(first | new)
            first.update(new)

    def _note_changed(self) -> None:
        """Note what the last start has changed of the parameters, or has changed back."""
        first, before = self._has["parameters"], self._has.get("later", {})
        values = facts.parameters(self._run, self._derived)
        later = {k: v for k, v in values.items() if first.get(k, v) != v and k != "resume"}
        if later != before:
            again = {name: first[name] for name in before}
            self._sink.note({}, {f"{LATER}{k}": v for k, v in (again | later).items()})
            self._has["later"] = later

    def close(self, status: str, ended: float) -> None:
        """Add files and results, and record how the run ended."""
        rundir, result = self._run.rundir, schemas.read(self._run.rundir.result, schemas.Result)
        if "parameters" not in self._has:
            self._describe({})  # it failed before training began
        for path, place in [*facts.run_files(rundir, status), *facts.evaluation_files(rundir)]:
            name, about = f"{place}/{path.name}".lstrip("/"), path.stat()
            state = f"{about.st_size} {about.st_mtime_ns}"
            if self._has["files"].get(name) != state:
                self._sink.file(path, name, "file", self._step)
                self._has["files"][name] = state
        values = dict(result.get("metrics", {})) if result else {}
        values["best_objective"] = result.get("best_objective") if result else None
        if not self._opened and self._has.get("shipped") == status:
            self._is_open = False  # nothing is new
            return
        numbers = {name: value for name, value in values.items() if value is not None}
        self._sink.note(numbers, {"status": status, **facts.outcome_tags(self._run, status)})
        self._sink.close(status)
        self._is_open = self._opened = False
        self._has["shipped"] = status
        write_json(rundir.trackers / f"{self._name}.json", self._has)
