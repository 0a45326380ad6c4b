"""Every reader of a run's files answers what is damaged in a sentence, and nothing else."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from dtrain.compare.comparison import compare
from dtrain.compare.load_folders import of_folders
from dtrain.compare.table import curves_csv, runs_csv, text
from dtrain.config import load
from dtrain.controller.commands import checkpoint as show
from dtrain.controller.terminal.progress import Display
from dtrain.errors import CheckpointError, UsageError
from dtrain.files import reading
from dtrain.run import checkpoint, journal, schemas
from dtrain.run.checkpoint import format, store
from dtrain.run.cluster import Cluster, Task
from dtrain.run.folder import RunDir, write_json
from dtrain.tracking.mlflow.sweep import jobs_of
from tests.hostile import variants
from tests.test_schema import composed

#: What a damaged file may end in: sentences.
SENTENCES = (UsageError, CheckpointError)
META = {
    "config": {"model": "ab", "dataset": "cd"}, "versions": {"numpy": "2.0"}, "seed": 0,
    "interval": {"returned": {"loss": 0.5}, "examples": 64}, "interval_seconds": 0.5,
    "epoch": {"returned": {}, "examples": 0}, "examples": 64, "callbacks": [{"wait": 1}],
    "steps": {"worker_steps": {"worker-0": 4}, "staleness": {"0": 3}, "dropped_gradients": 1},
    "logs": {"loss": 0.5}, "objective": 0.5, "mlflow_run_id": None,
    "pending_validation": False,
}  # fmt: skip
PROGRESS = {
    "step": 4, "total_steps": 8, "epoch": 1, "epochs": 2, "loss": 0.5, "metrics": {"val_a": 0.5},
    "examples_per_second": 5.0, "time": 1000.0,
}  # fmt: skip


def leave(folder: Path) -> None:
    """Make a sweep of one job that has everything that a job may leave."""
    rundir = RunDir.create(folder / "0")
    rundir.config.write_text(load.to_yaml(composed("dataset=synthetic", "seed=3")))
    differs = {"seed": "3"}
    write_json(rundir.command, {
        "overrides": ["seed=3"], "config_dir": None, "sweep": {"number": 0, "differs": differs},
    })  # fmt: skip
    tasks = (Task("chief", 0, 1, cores=(0, 1)), Task("worker", 0, 1, True, address="h:1"))
    write_json(rundir.cluster, Cluster(tasks, "cpu", 2, {"A": "b"}).to_json())
    write_json(rundir.progress, PROGRESS)
    write_json(rundir.tracking, {
        "uri": "sqlite:///x", "experiment_id": "1", "token": "0" * 32, "run_id": "f" * 32,
        "shipped": "FINISHED",
    })  # fmt: skip
    write_json(rundir.result, {
        "status": "FINISHED", "exit_code": 0, "error": None, "objective": 0.5, "replicas": 2,
        "metrics": {"loss": 0.5, "val_accuracy": None}, "step": 8, "examples_per_second": 5.0,
        "restarts": 0, "started": 1000.0, "seconds": 5.0, "pruned": False,
    })  # fmt: skip
    log = journal.Journal(rundir.journal)
    log.write("start", step=0, replicas=2, parameters=42, train_examples=64)
    for step in range(1, 9):
        log.write("metrics", step=step, epoch=1, metrics={"loss": 1 / step, "val_loss": 2.0})
    log.write("notice", message="something")
    log.write("checkpoint", step=8, path="checkpoints/8")
    log.write("end", status="FINISHED", step=8, examples=64, metrics={"loss": 0.125})
    log.close()
    arrays = {"a": np.arange(6, dtype="float32").reshape(2, 3), "b": np.array(1), "c": np.zeros(0)}
    for step in (4, 8):
        checkpoint.save(rundir.checkpoints, step, arrays, META)
    write_json(folder / "sweep.json", {
        "name": "s", "started": 1000.0, "status": "FINISHED", "ended": 1010.0, "best": 0,
        "command": {"overrides": ["seed=3"], "config_dir": None}, "objective": "val_accuracy",
        "objective_mode": "max", "baseline": "seed=3",
        "jobs": [{
            "number": 0, "folder": "0", "overrides": ["seed=3"], "differs": differs, "hash": "ab",
            "status": "FINISHED", "objective": 0.5, "seconds": 5.0, "exit_code": 0, "error": None,
            "log": None,
        }],
    })  # fmt: skip


def compared(folder: Path) -> bool:
    """Compare, and say whether nothing was reported as damaged."""
    found = compare(*of_folders([folder]))
    assert "\x1b" not in "".join(text(found))
    runs_csv(found).encode()
    curves_csv(found).encode()
    return all(run.problem is None for run in found.runs)


def shown(folder: Path) -> None:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        show.show(folder / "0")
    assert "\x1b" not in out.getvalue()
    out.getvalue().encode()


def restored(folder: Path) -> None:
    found = checkpoint.load(folder / "0" / "checkpoints" / "8")
    schemas.check(found.meta, schemas.Position, "manifest.json", "meta")


def displayed(folder: Path) -> None:
    found: Any = schemas.glance(folder / "0" / "progress.json", schemas.Progress)
    Display().update(found)
    schemas.read(folder / "0" / "progress.json", schemas.Step)


def cut(folder: Path) -> bool:
    path = folder / "0" / "journal.jsonl"
    sound = len(journal.read(path))
    notice = journal.cut(path, 1 << 60)
    assert len(journal.read(path)) <= sound + 1
    journal.Journal(path).close()
    follower = journal.Follower(path)
    follower.new()
    assert follower.damaged == 0, "what is left is sound"
    return notice is None


def sealed(changed: bytes, folder: Path) -> None:
    """Write a manifest whose own checksum fits, whatever else it says."""
    path = folder / "0" / "checkpoints" / "8" / "manifest.json"
    with contextlib.suppress(ValueError, RecursionError):
        manifest = json.loads(changed)
        if isinstance(manifest, dict):
            manifest["sha256"] = format._checksum(manifest)
            changed = format._text(manifest)
    path.write_bytes(changed)


def vouched(changed: bytes, folder: Path) -> None:
    """Write a state whose manifest fits it."""
    checkpoint_folder = folder / "0" / "checkpoints" / "8"
    (checkpoint_folder / "state.safetensors").write_bytes(changed)
    manifest = json.loads((checkpoint_folder / "manifest.json").read_bytes())
    about = {"bytes": len(changed), "sha256": hashlib.sha256(changed).hexdigest()}
    sealed(json.dumps({**manifest, "files": {"state.safetensors": about}}).encode(), folder)


def of_header(data: bytes, chance: random.Random) -> bytes:
    """Return a variant of a safetensors file: of its header, mostly."""
    length = int.from_bytes(data[:8], "little")
    if chance.random() < 0.3:
        return variants.raw(data, chance)
    header = variants.of_json(data[8 : 8 + length], chance)
    size = chance.choice((len(header), len(header), len(header), 2**63, 2**64 - 1, 0, 10**8))
    return size.to_bytes(8, "little") + header + data[8 + length :]


@dataclasses.dataclass(frozen=True)
class Target:
    """A file, how it is varied, and who reads it."""

    path: str
    variant: variants.Variant
    readers: tuple[Callable[[Path], object], ...]
    put: Callable[[bytes, Path], object] | None = None


def in_run(read: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda folder: read(folder / "0")


TARGETS = [
    Target("0/config.yaml", variants.of_yaml, (
        compared, in_run(lambda run: load.read(run / "config.yaml")), shown,
        in_run(lambda run: schemas.check(
            reading.read_plain(run / "config.yaml"), schemas.Config, "config.yaml"
        )),
    )),
    Target("0/command.json", variants.of_json, (
        in_run(lambda run: schemas.read(run / "command.json", schemas.Command)),
    )),
    Target("0/cluster.json", variants.of_json, (
        compared,
        in_run(lambda run: Cluster.from_json(reading.read_json(run / "cluster.json") or {})),
    )),
    Target("0/progress.json", variants.of_json, (displayed,)),
    Target("0/tracking.json", variants.of_json, (
        in_run(lambda run: schemas.read(run / "tracking.json", schemas.Tracking)),
        in_run(lambda run: schemas.read(run / "tracking.json", schemas.Shipped)),
    )),
    Target("0/result.json", variants.of_json, (compared,)),
    Target("0/journal.jsonl", variants.of_lines, (compared, cut)),
    Target("sweep.json", variants.of_json, (compared, jobs_of)),
    Target("0/checkpoints/latest", variants.of_json, (
        shown, in_run(lambda run: store.committed(run / "checkpoints")),
        in_run(lambda run: store.newest(run / "checkpoints")),
        in_run(lambda run: store.tidy(run / "checkpoints")),
    )),
    Target("0/checkpoints/8/manifest.json", variants.of_json, (restored, shown)),
    Target("0/checkpoints/8/manifest.json", variants.of_json, (restored, shown), sealed),
    Target("0/checkpoints/8/state.safetensors", of_header, (restored, shown)),
    Target("0/checkpoints/8/state.safetensors", of_header, (restored, shown), vouched),
]  # fmt: skip


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("readers") / "sound"
    folder.mkdir()
    leave(folder)
    return folder


def check(sound: Path, target: Target, seed: int) -> bool:
    """Damage a copy of one file and have it read; say whether all readers took it."""
    folder = sound.with_name("damaged")
    if not folder.exists():
        shutil.copytree(sound, folder)
    changed = target.variant((sound / target.path).read_bytes(), random.Random(seed))
    put = target.put or (lambda data, where: (where / target.path).write_bytes(data))
    put(changed, folder)
    taken = True
    try:
        for read in target.readers:
            try:
                taken &= read(folder) is not False
            except SENTENCES as error:
                taken = False
                assert str(error).strip() and "\x1b" not in str(error)
    finally:
        held = folder / "0" / "checkpoints" if "checkpoints" in target.path else None
        if held is not None:  # `tidy` may remove some
            shutil.rmtree(held)
            shutil.copytree(sound / "0" / "checkpoints", held)
        else:
            shutil.copy(sound / target.path, folder / target.path)
    return taken


def settings(examples: int) -> hypothesis.settings:
    return hypothesis.settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )


GIVEN = hypothesis.given(
    target=strategies.sampled_from(TARGETS), seed=strategies.integers(0, 2**64)
)


def test_what_is_sound_is_taken(sound: Path) -> None:
    for target in TARGETS:
        for read in target.readers:
            read(sound)
    found = compare(*of_folders([sound]))
    assert [(run.status, run.problem) for run in found.runs] == [("FINISHED", None)]


@settings(400)
@GIVEN
def test_a_damaged_file_is_answered_in_a_sentence(sound: Path, target: Target, seed: int) -> None:
    check(sound, target, seed)


PAGES = ("0/result.json", "0/journal.jsonl", "sweep.json")
DRAWN = [each for each in TARGETS if each.path in PAGES]


@pytest.mark.faults
@pytest.mark.parametrize("target", DRAWN, ids=lambda target: target.path)
def test_damaged_files_on_a_page(sound: Path, target: Target) -> None:
    from dtrain.compare.page import page

    def drawn(folder: Path) -> None:
        html = page(compare(*of_folders([folder]), baseline="0")).encode()
        assert b"<script>alert" not in html

    @settings(60)
    @hypothesis.given(seed=strategies.integers(0, 2**64))
    def each(seed: int) -> None:
        check(sound, dataclasses.replace(target, readers=(drawn,)), seed)

    each()


@pytest.mark.faults
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.path)
def test_thousands_of_damaged_files(sound: Path, target: Target) -> None:
    taken = []

    @settings(600)
    @hypothesis.given(seed=strategies.integers(0, 2**64))
    def each(seed: int) -> None:
        taken.append(check(sound, target, seed))

    each()
    assert len(taken) >= 600
    assert not all(taken), "nothing was refused: the variants are none"
