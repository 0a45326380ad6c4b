"""What trackers record of a run beside its points: its name, parameters, tags and files."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dtrain.config import schema, tree
from dtrain.config.objective import AUTO
from dtrain.config.overrides import parse
from dtrain.errors import DamagedFile
from dtrain.files.fields import Json
from dtrain.host import git
from dtrain.host.frameworks import FRAMEWORKS
from dtrain.host.packages import version
from dtrain.run import code, failure, schemas
from dtrain.run.folder import RunDir
from dtrain.tracking.base import TrackedRun

#: Of the longest journal that is an artifact: MLflow has its points.
_JOURNAL_BYTES = 64 << 20
#: What the tag of a parameter begins with that a later start has changed.
LATER = "resumed."
#: Of a log that is an artifact of a failed run, and characters of a tag: MLflow's own limit.
_LOG_BYTES, _TAG_CHARACTERS = 16 << 20, 8000
#: Packages whose versions are tags, beside those of the backend.
_PACKAGES = ("dtrain", "keras", "hydra-core", "mlflow")
#: Other names of distributions that they are installed from.
_OTHERS = {
    "tensorflow": ("tensorflow-cpu", "tensorflow-tpu", "tf-nightly", "tf-nightly-cpu"),
    "keras": ("keras-nightly",),
    "mlflow": ("mlflow-skinny",),
}


def tags(run: TrackedRun) -> dict[str, str]:
    """Describe where and with what the run was made.

    Host, versions and commit are those of the record that the run itself has made
    (:mod:`dtrain.run.code`). A run that trains in this moment and has no record yet is on this
    machine; of one that is shipped later without a record they are not known.
    """
    config = run.config
    values = {"strategy": config.strategy.name, "device_kind": run.cluster.device_kind}
    values |= {name: str(value) for name, value in (config.tracking.get("tags") or {}).items()}
    if config.fork is not None:
        values["forked_from"] = config.fork
        origin = schemas.glance(RunDir(Path(config.fork).parent.parent).tracking, schemas.Shipped)
        if origin is not None and "run_id" in origin:
            values["forked_from_run_id"] = origin["run_id"]
    records = code.folders(run.rundir.path)
    with contextlib.suppress(DamagedFile):
        if records:
            return values | _of_record(code.read(records[0]), config.backend)
    return values | (_here(Path(config.output_dir), config.backend) if run.live else {})


def _packages(backend: str) -> tuple[str, ...]:
    return (*_PACKAGES, *FRAMEWORKS[backend].packages)


def _of_record(record: code.Record, backend: str) -> dict[str, str]:
    """Return host, versions and commit of a record of the run's code."""
    installed = record["packages"]
    values = {"host": record["host"], "python": installed.get("python", "")}
    for name in _packages(backend):
        names = (name, *_OTHERS.get(name, ()))
        distribution = next((each for each in names if each in installed), None)
        if distribution is not None:
            values[name] = installed[distribution]
    tree = record["tree"]
    return values if tree is None else values | _source(tree["commit"], bool(tree["changed"]))


def _here(outputs: Path, backend: str) -> dict[str, str]:
    """Return host, versions and commit of this moment, as :func:`_of_record` does of a record."""
    values = {"host": platform.node(), "python": platform.python_version()}
    values |= {name: number for name in _packages(backend) if (number := version(name)) is not None}
    commit, top = _git("rev-parse", "HEAD"), _git("rev-parse", "--show-toplevel")
    if not commit:
        return values
    whole = ["--", top]
    if outputs.absolute().is_relative_to(top):  # what runs write is no change of the code
        whole.append(f":(exclude,top){outputs.absolute().relative_to(top)}")
    return values | _source(commit, bool(_git("status", "--porcelain", *whole)))


def _source(commit: str, dirty: bool) -> dict[str, str]:
    return {"git_commit": commit, "git_dirty": str(dirty).lower()}


def _git(*words: str) -> str:
    try:
        return git.run(Path.cwd(), *words, seconds=10.0).decode(errors="replace").strip()
    except git.GitError:
        return ""


#: What a parameter that differs begins with: MLflow's tables sort parameters by their names, and
#: this stands before every letter that a key begins with.
FIRST = "_"
#: Characters of the name of a job, and of a run, to which no more is added.
_NAME_CHARACTERS, _SHORT_NAME = 200, 80


def first(differs: dict[str, str]) -> dict[str, str]:
    """Return the parameters that distinguish a job from the others, under names that sort first."""
    return {f"{FIRST}{key}": str(value) for key, value in differs.items()}


def job_name(job: Json, otherwise: str) -> str:
    """Return a readable name: ``3 strategy=mirrored learning_rate=0.001``.

    Args:
        job: ``sweep`` of the run's ``command.json``: its ``number``, and ``differs``.
        otherwise: for a job that differs in nothing.
    """
    differs: dict[str, str] = job["differs"]
    return f"{job['number']} {' '.join(_short(differs) or [otherwise])}"[:_NAME_CHARACTERS]


def _short(values: dict[str, str]) -> list[str]:
    """Return ``learning_rate=0.001`` of each, with the whole key where another ends alike."""
    tails = [key.rpartition(".")[2] for key in values]
    return [
        f"{tail if tails.count(tail) == 1 else key}={value}"
        for (key, value), tail in zip(values.items(), tails, strict=True)
    ]


def job_of(run: TrackedRun) -> Json | None:
    """Return which job of a sweep a run is; None of one that is none."""
    command = schemas.read(run.rundir.command, schemas.Command)
    return command.get("sweep") if command else None  # type: ignore[return-value] # a mapping


#: At most so many parameters; the whole configuration is an artifact, ``config.yaml``.
MOST = 40
#: What every run has, whether it was typed or not.
_ALWAYS = (
    "backend", "seed", "strategy.name", "hardware.devices", "model._target_", "dataset._target_",
    "dataset.path", "optimizer._target_", "optimizer.learning_rate", "trainer.epochs",
    "trainer.batch_size", "trainer.loss",
)  # fmt: skip


def run_name(run: TrackedRun) -> str:
    """Return a name that tells runs apart: that of the configuration, and what was typed.

    Of a job of a sweep it is :func:`job_name`.
    """
    job = job_of(run)
    if job is not None:
        return job_name(job, run.config.name)
    parts = run.config.name.split("_")
    values = {key: text for key, text in _typed(run).items() if text not in parts}
    name = run.config.name
    for part in _short(values):
        if len(name) + len(part) < _SHORT_NAME:
            name += f" {part}"
    return name


def parameters(run: TrackedRun, derived: Json) -> dict[str, str]:
    """Return at most :data:`MOST` parameters of a run, flat.

    They come in this order: what distinguishes a job in its sweep, what was typed, what every run
    has, what follows from it, and what a preset has in another way than dtrain's defaults.

    Args:
        run: what is recorded.
        derived: what its starts have added.
    """
    plain = tree.written(run.config)
    if plain["objective"] == AUTO:  # a parameter keeps its first value: not before it is known
        del plain["objective"], plain["objective_mode"]
    whole = tree.flatten(plain)
    values = first((job_of(run) or {}).get("differs", {})) | _typed(run)
    values |= {key: whole[key] for key in _ALWAYS if whole.get(key) not in (None, "None")}
    values |= tree.flatten(derived)
    for key, value in _chosen(plain).items():
        values.setdefault(key, value)
    return dict(list(values.items())[:MOST])


def _typed(run: TrackedRun) -> dict[str, str]:
    """Return what was typed of that which decides what is trained, choices of groups included."""
    command: Any = schemas.read(run.rundir.command, schemas.Command) or {}
    whole = tree.flatten(tree.written(run.config))
    deciding = (*schema.having("data", "numbers", "length"), "strategy", "backend", "hardware",
                "experiment")  # fmt: skip
    values: dict[str, str] = {}
    for each in map(parse, command.get("overrides", ())):
        if each.sign == "~" or not any(f"{each.key}.".startswith(f"{key}.") for key in deciding):
            continue
        leaves = {k: v for k, v in whole.items() if f"{k}.".startswith(f"{each.key}.")}
        is_group = each.key not in whole and (each.value or "").isidentifier()
        values |= {each.key: str(each.value)} if is_group else leaves
    return values


def _chosen(plain: Json) -> dict[str, str]:
    """Return the values of groups that are not the defaults of :mod:`dtrain.config.schema`."""
    values: dict[str, str] = {}
    for group in ("model", "optimizer", "trainer", "dataset", *schema.sections()):
        node = plain.get(group)
        if not isinstance(node, dict):
            continue
        kind = schema.kind_of(group, node) if group in schema.SCHEMAS else schema.sections()[group]
        usual = {} if kind is None else schema.defaults(kind)
        own = {name: value for name, value in node.items()
               if value is not None and value != usual.get(name)}  # fmt: skip
        values |= tree.flatten(own, group)
    return values


def added_parameters(event: Json) -> Json:
    """Return what a ``start`` or ``objective`` event adds to the parameters."""
    return {k: v for k, v in event.items() if k not in ("event", "time", "step")}


def outcome_tags(run: TrackedRun, status: str) -> dict[str, str]:
    """Return the tags that say how a run ended, and with what code where a resume had another."""
    result: Any = schemas.read(run.rundir.result, schemas.Result) or {}
    tags = {name: str(result[name]).lower() for name in ("restarts", "pruned") if name in result}
    if status == "FAILED" and (error := failure.sentence(result.get("failure"), run.rundir.path)):
        tags["error"] = error[:_TAG_CHARACTERS]
    with contextlib.suppress(DamagedFile):
        records = [code.read(each) for each in code.folders(run.rundir.path)]
        of_each = [_of_record(record, run.config.backend) for record in records]
        for name, value in of_each[-1].items() if of_each else ():
            if of_each[0].get(name) != value:
                tags[f"{LATER}{name}"] = value
    return tags


def run_files(rundir: RunDir, status: str) -> Iterator[tuple[Path, str]]:
    """Yield the files of a run that has ended, and the folder that each is shown in.

    Args:
        rundir: of the run.
        status: how it ended: one that failed has the logs of its tasks.
    """
    whole = [rundir.config, rundir.result, rundir.page, rundir.model, rundir.weights, rundir.state]
    if folders := code.folders(rundir.path):  # what replay makes the run again from
        whole += [rundir.command, rundir.journal]
    paths = [(path, "") for path in whole]
    if status == "FAILED":
        paths += [(path, rundir.logs.name) for path in sorted(rundir.logs.glob("*.log"))]
    for folder in folders:
        paths += [
            (path, path.parent.relative_to(rundir.path).as_posix())
            for path in sorted(folder.rglob("*"))
        ]
    most = {rundir.journal: _JOURNAL_BYTES}
    for path, place in paths:
        limit = most.get(path, _LOG_BYTES if place == rundir.logs.name else None)
        plain = path.is_file() and not path.is_symlink()
        if plain and (limit is None or path.stat().st_size <= limit):
            yield path, place


def evaluation_files(rundir: RunDir) -> Iterator[tuple[Path, str]]:
    """Yield the tables and pictures of evaluations, as :func:`run_files` does."""
    for folder in sorted((rundir.path / "evaluations").glob("*")):
        if not folder.is_symlink():
            for path in sorted(folder.glob("*_*.*")):
                if path.suffix in (".csv", ".png") and path.is_file() and not path.is_symlink():
                    yield path, f"evaluations/{folder.name}"


def logged_file(rundir: RunDir, event: Json) -> Path | None:
    """Return the file that user code has logged; None where it is gone, or none of the run.

    Args:
        rundir: of the run.
        event: ``file`` of its journal, whose path is not trusted.
    """
    path = rundir.path / event["path"]
    parts = path.relative_to(rundir.path).parts if path.is_relative_to(rundir.logged) else ("..",)
    inside = ".." not in parts and not any(each.is_symlink() for each in (path, *path.parents)
                                           if each.is_relative_to(rundir.path))  # fmt: skip
    return path if inside and path.is_file() else None
