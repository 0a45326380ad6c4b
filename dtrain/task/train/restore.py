"""Where a run begins: at its newest checkpoint, at another run's (``fork=``), or with weights alone
(``init.weights``), or at nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import keras

from dtrain.config.tree import Config
from dtrain.errors import CheckpointError, DamagedFile, UsageError, refuse
from dtrain.files.fields import Json
from dtrain.host.frameworks import FRAMEWORKS
from dtrain.run import checkpoint, identity, schemas
from dtrain.run.checkpoint import Checkpoint
from dtrain.run.checkpoint.format import MANIFEST
from dtrain.run.folder import RunDir
from dtrain.run.journal import Journal
from dtrain.run.journal import read as reading
from dtrain.task.backends.base import Backend
from dtrain.task.model import initial, train_state
from dtrain.task.train.step_schedule import Schedule

#: Parts of a checkpoint that belong to a position in its data: dropped with it.
_POSITION = ("optimizer/", "objects/optimizer", "sums/", "callbacks/")
#: Begin the names of arrays that variables are set to.
_VARIABLES = ("model/", "optimizer/", initial.PREFIX)


def find(rundir: RunDir, config: Config, journal: Journal) -> Checkpoint | None:
    """Return what to begin with, and write to the journal what the user should know of it.

    Raises:
        CheckpointError: the checkpoint that the configuration forks is damaged or gone.
        UsageError: what ``init.weights`` names cannot be read.
        OSError: a checkpoint of the run cannot be read now.
    """
    restored, problems = checkpoint.newest(rundir.checkpoints)
    for problem in problems:
        journal.write("notice", message=f"passed over a checkpoint: {problem}"[:4000])
    if restored is None and config.fork is not None:
        restored, notice = adopt(checkpoint.load(Path(config.fork)), identity.fingerprints(config))
        journal.write("notice", message=notice)
    elif restored is None and config.init.weights is not None:
        restored = _initial(rundir, config.init.weights, journal)
    for message in _differing(restored, config):
        journal.write("notice", message=message)
    return restored


def _differing(restored: Checkpoint | None, config: Config) -> Iterator[str]:
    """Yield a sentence for each version that a checkpoint was made with and that is not here."""
    then = restored.meta.get("versions", {}) if restored else {}
    now, here = identity.versions(config.backend), FRAMEWORKS[config.backend]
    for framework in FRAMEWORKS.values():
        if framework.packages[0] in then and framework is not here:
            yield (
                f"the checkpoint was made with {framework.title}, and this is {here.title}: "
                "numbers differ by rounding, and what is drawn (dropout) is drawn anew"
            )
            then = {name: text for name, text in then.items() if name not in framework.packages}
    for name, text in then.items():
        if now.get(name) != text:
            yield (
                f"the checkpoint was made with {name} {text}, and this is {now.get(name)}: "
                "the last digits may differ"
            )


def of_chief(strategy: Backend, restored: Checkpoint | None) -> Checkpoint | None:
    """Return the chief's checkpoint in all tasks: its folder may be on the chief's disk alone.

    Where tasks have variables in parts, ``strategy.write`` sends large arrays part by part: other
    tasks than the chief have their shapes alone here.
    """
    tasks, large = strategy.tasks, set[str]()
    if restored is not None and strategy.abilities.reads_together:
        large = {name for name, array in restored.arrays.items()
                 if name.startswith(_VARIABLES) and array.nbytes > checkpoint.SMALL}  # fmt: skip
    pieces = tasks.broadcast(() if restored is None else checkpoint.pack(restored, large))
    return restored if tasks.rank == 0 else checkpoint.unpack(pieces)


def _initial(rundir: RunDir, value: str, journal: Journal) -> Checkpoint:
    """Return what ``init.weights`` names; of a run that has begun before, what it named then."""
    before = next((e for e in reading(rundir.journal) if e["event"] == "init"), None)
    source: Checkpoint | None
    if before is None:
        source = initial.find(value)
        journal.write("init", path=str(source.path), digest=checkpoint.digest(source.arrays))
        return source
    path = Path(before["path"])
    source = initial.find(str(path)) if path.exists() else None
    if source is None or checkpoint.digest(source.arrays) != before["digest"]:
        problem = "is gone" if source is None else "has other weights than when this run began"
        refuse("init.weights", f"{problem}, and this run has no checkpoint of its own", path,
               accepted="the weights that it began with",
               hint=f"init.weights={value} in a new run")  # fmt: skip
    return source


def restore(
    restored: Checkpoint, model: keras.Model, strategy: Backend, rundir: RunDir, schedule: Schedule
) -> None:
    """Set the variables from a checkpoint of :func:`find`.

    Raises:
        CheckpointError: the model has other variables, or what was saved with them is damaged.
        UsageError: it has other variables, and the checkpoint is that of a run that is forked; or
            the fork would end where it begins.
    """
    if has_position(restored):
        try:
            schemas.check(restored.meta, schemas.Position, restored.path / MANIFEST, "meta")
        except DamagedFile as error:
            raise CheckpointError(f"{error} {checkpoint.versions(restored.meta)}") from None
    forked = restored.path.parent != rundir.checkpoints
    if forked and restored.step >= schedule.total_steps:
        epochs = restored.step // schedule.steps_per_epoch
        refuse("trainer.epochs", f"the fork begins after {epochs} epochs", schedule.epochs,
               accepted=f"{epochs + 1} or more",
               typed=f"trainer.epochs={epochs + schedule.epochs}")  # fmt: skip
    arrays = restored.arrays
    if restored.meta.get("swapped"):  # as they were when it was taken
        arrays = train_state.exchange_averages(model, arrays)
    try:
        train_state.restore(model, strategy, arrays, forked)
    except CheckpointError as error:
        if not forked:
            raise
        raise UsageError("fork", str(error), restored.path, accepted="a checkpoint of a model with "
                         "the same weights", hint=f"python -m dtrain checkpoint {restored.path} to "
                         "see its weights") from None  # fmt: skip


def release(restored: Checkpoint) -> None:
    """Forget the arrays that are in variables now, and the file that the others are read from.

    Neither memory nor the disk of a checkpoint that is removed is held for the whole run.
    """
    for name, array in list(restored.arrays.items()):
        if name.startswith(_VARIABLES):
            del restored.arrays[name]
        else:
            restored.arrays[name] = array.copy()


def has_position(restored: Checkpoint | None) -> bool:
    """Say whether the loop continues from ``past``, or begins: a fork may have weights alone."""
    return restored is not None and bool(restored.meta)


def adopt(restored: Checkpoint, fingerprints: dict[str, str]) -> tuple[Checkpoint, str]:
    """Keep of a checkpoint what still means something under another configuration.

    On the same data the new run continues at the same step, with the optimizer's state (of another
    optimizer: whatever has the same name and shape, its learning rate excepted) and that of the
    callbacks, unless these are others. On other data it begins at step 0 with the weights alone.

    Args:
        restored: of the run that is forked.
        fingerprints: of the new run's configuration (:func:`dtrain.run.identity.fingerprints`).

    Returns:
        The checkpoint to begin with, and a sentence that says what it is.
    """
    changed = identity.changed(restored.meta["config"], fingerprints)
    source = f"forked from step {restored.step} of {restored.path.parent.parent}"
    meta: Json = dict(restored.meta)
    meta.pop("objective_name", None)  # a fork chooses its own
    meta.pop("objective_mode", None)
    meta.pop("stopped", None)
    meta.pop("best", None)
    if changed & set(identity.of_data()):
        arrays = {n: a for n, a in restored.arrays.items() if not n.startswith(_POSITION)}
        other = ", ".join(sorted(changed & set(identity.of_data())))
        notice = f"{source}: with its weights, at step 0 of other data ({other})"
        return dataclasses.replace(restored, step=0, arrays=arrays, meta={}), notice
    dropped: list[str] = []
    if "optimizer" in changed:
        dropped += [n for n in restored.arrays if n.startswith("optimizer/") and _is_rate(n)]
        dropped += [n for n in restored.arrays if n.startswith("objects/optimizer")]
        meta["began"] = {**meta["began"], "learning_rate": None}
    if changed & {"trainer.callbacks", "trainer.early_stopping"}:
        dropped += [n for n in restored.arrays if n.startswith("callbacks/")]
        meta["callbacks"] = []
        meta.pop("began", None)
        meta.pop("swapped", None)
    if changed & {
        "trainer.loss", "trainer.class_weight", "trainer.metrics", "trainer.log", "model",
    }:  # fmt: skip
        dropped += [n for n in restored.arrays if n.startswith("sums/")]
        empty = {"returned": {}, "examples": 0}
        meta.update(interval=empty, interval_seconds=0.0, epoch=empty, logs={}, objective=None)
        meta.pop("epoch_logs", None)
    kept = {name: array for name, array in restored.arrays.items() if name not in dropped}
    notice = f"{source}: continues from there"
    if changed:
        notice += f" with other {', '.join(sorted(changed))}"
    return dataclasses.replace(restored, arrays=kept, meta=meta), notice


def _is_rate(name: str) -> bool:
    return name.rpartition("/")[2].startswith("learning_rate")
