"""Which checkpoints of a run a command means: the best, the latest, that of a step, or all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from dtrain.errors import CheckpointError, refuse
from dtrain.files import reading
from dtrain.files.fields import Json, Values
from dtrain.run.checkpoint import store, writer
from dtrain.run.checkpoint.arrays import names
from dtrain.run.checkpoint.format import STATE, read_manifest

#: What ``checkpoint=`` takes beside the number of a step.
WORDS = ("best", "latest", "all")


def choose(folder: Path, word: str | int | None, mode: str) -> list[Path]:
    """Return the folders of the checkpoints that ``word`` means, by step; none of them is loaded.

    A run may be saving and removing checkpoints there at the same time.

    Args:
        folder: ``checkpoints`` of a run.
        word: one of :data:`WORDS`, or a step; None: the best where objectives are known, else the
            latest.
        mode: which objective is better where the checkpoints do not say, ``max`` or ``min``.

    Raises:
        UsageError: there is no such checkpoint.
        OSError: the folder cannot be read.
    """
    paths, _ = store.candidates(folder)
    if not paths:
        refuse("checkpoint", f"{folder} holds no checkpoint", word or "latest",
               accepted="a run that saved one, as of checkpoint.every_epochs=1")  # fmt: skip
    by_step = {step_of(path): path for path in sorted(paths, key=step_of)}
    if word == "all":
        return list(by_step.values())
    if word in (None, "best"):
        metas = {step: meta for step, path in by_step.items() if (meta := _meta(path)) is not None}
        best = best_of(metas, mode)
        if best is not None:
            return [by_step[best]]
        if word == "best":
            refuse("checkpoint", "no checkpoint of the run has an objective", word,
                   accepted="latest, all, or a step", typed="checkpoint=latest")  # fmt: skip
    if word in (None, "latest"):
        return [paths[0]]
    step = int(word) if str(word).isdecimal() else -1
    if step not in by_step:
        steps = list(map(str, by_step))
        shown = steps if len(steps) <= 10 else [*steps[:5], "...", *steps[-4:]]
        refuse("checkpoint", "the run has no such checkpoint", word,
               accepted=f"{', '.join(WORDS)}, or a step of {', '.join(shown)}",
               typed="checkpoint=latest")  # fmt: skip
    return [by_step[step]]


def step_of(path: Path) -> int:
    """Return the step of a checkpoint, by its folder."""
    return int(path.name.removeprefix(store.ASIDE))


def _meta(path: Path) -> Json | None:
    try:
        return read_manifest(path)["meta"]
    except CheckpointError:  # it is gone by now, or damaged: what is loaded says so
        return None


def best_of(metas: Mapping[int, Values], mode: str | None) -> int | None:
    """Return the step with the best objective; None where none has one.

    A run that was resumed with another objective has values of both: those of the latest count.

    Args:
        metas: ``meta`` of checkpoints, by step.
        mode: as of :func:`choose`; None where the configuration does not say either.
    """
    values = {step: value for step, meta in metas.items()
              if (value := writer.objective(meta)) is not None}  # fmt: skip
    if not values:
        return None
    name, better = writer.compared(metas[max(values)])
    better = better or mode
    if better is None:
        return None
    alike = {s: v for s, v in values.items() if writer.compared(metas[s])[0] == name}
    return writer.best(alike, better)


def is_average(name: str) -> bool:
    """Say whether an array of an optimizer is the moving average of a weight."""
    return name.rpartition("/")[2].partition("#")[0].endswith("_average")


def only(folder: Path, word: str | int | None, mode: str) -> Path:
    """Return the folder of the one checkpoint that ``word`` means, as :func:`choose` does.

    Raises:
        UsageError: there is none, or it means several.
    """
    if word == "all":
        refuse("checkpoint", "means several checkpoints, and this command takes one", "all",
               accepted="best, latest or a step", typed="checkpoint=best")  # fmt: skip
    return choose(folder, word, mode)[0]


def check_weights(path: Path, weights: str) -> None:
    """Refuse moving averages that a checkpoint has not; of its arrays the names are read.

    One that cannot be read passes: what loads it says so.

    Args:
        path: of the checkpoint.
        weights: ``raw`` or ``ema``.

    Raises:
        UsageError: it has none.
    """
    if weights != "ema" or (names := _names(path)) is None:
        return
    if not any(name.startswith("optimizer/") and is_average(name) for name in names):
        refuse("weights", f"checkpoint {path.name} has no averages of its weights", "ema",
               accepted="raw, or a run with optimizer.use_ema=true",
               typed="weights=raw")  # fmt: skip


def of_module(folder: Path) -> bool:
    """Say whether the checkpoints of a run are of a plain module of PyTorch's.

    Weights of Keras' have paths of layers; those of a module have names without a slash.

    Args:
        folder: ``checkpoints`` of a run.
    """
    paths, _ = store.candidates(folder)
    names = (_names(paths[0]) if paths else None) or ()
    weights = [name for name in names if name.startswith("model/")]
    return bool(weights) and all(name.count("/") == 1 for name in weights)


def _names(path: Path) -> list[str] | None:
    """Return the names of a checkpoint's arrays; None where it cannot be read."""
    try:
        with os.fdopen(reading.open_read(path / STATE), "rb") as opened:
            return list(names(f"/dev/fd/{opened.fileno()}"))
    except (OSError, ValueError, CheckpointError):
        return None
