"""``resume=`` and ``fork=``: a run's own command line, with what this one changes.

``resume=RUN_DIR`` resumes in place, ``resume=auto`` with the run that the same command began,
``fork=RUN_DIR`` begins a new run from a checkpoint.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from dtrain.config import private, project, schema, suggest, tree
from dtrain.config.node import Unresolvable, to_plain
from dtrain.config.overrides import key_of, parse
from dtrain.config.tree import Config
from dtrain.errors import CheckpointError, DamagedFile, UsageError, nearest, refuse
from dtrain.files import reading
from dtrain.files.fields import Json
from dtrain.job import latest
from dtrain.job.folders import lock, open_existing, read_command, runs_below
from dtrain.launchers import env
from dtrain.run import checkpoint, identity, schemas
from dtrain.run.folder import FORMAT, RunDir, short
from dtrain.run.journal import Follower

AUTO = "auto"


def command(overrides: list[str], config_dir: str | None, places: object = None) -> Json:
    """Return the contents of ``command.json``: what a later ``resume=`` composes from.

    Args:
        overrides, config_dir: of the command.
        places: of :func:`dtrain.config.tree.places`.
    """
    kept = [
        override
        for override in overrides
        if not schema.has_mark(key := key_of(override), "once") and not key.startswith("sweep.")
    ]
    return {"format": FORMAT, **private.sign_command(kept, config_dir, places)}


def arguments(line: list[str]) -> list[str]:
    """Put the overrides of the run that is resumed or forked before those of ``line``.

    Args:
        line: the command line, without the program's name.

    Returns:
        All overrides, less those that ``line`` replaces.

    Raises:
        UsageError: ``resume=`` or ``fork=`` names no run folder, or both are given.
    """
    words = {each.key: (each.value or "").strip("'\"") for each in map(parse, line)}
    named = {key: words[key] for key in ("resume", "fork") if words.get(key, "null") != "null"}
    if named.get("resume") == AUTO:
        del named["resume"]  # found once all is composed
    if len(named) == 2:
        refuse("fork", "cannot be given with resume=", named["fork"], typed=f"fork={named['fork']}")
    if not named:
        return line
    if "fork" in named and (key := next((k for k in words if f"{k}.".startswith("init.")), None)):
        refuse(key, "cannot be given with fork=, which begins with the weights of its checkpoint",
               words[key], hint=f"no fork=, or init.weights={named['fork']}")  # fmt: skip
    [(key, folder)] = named.items()
    rundir = RunDir(folder) if key == "resume" else origin(folder)[0]
    return of_run(key, folder, rundir, line, words)


def of_run(
    key: str, folder: str, rundir: RunDir, line: list[str], replaced: Collection[str],
    typed: str | None = None,
) -> list[str]:  # fmt: skip
    """Put the overrides of a run before those of ``line``.

    Args:
        key: that names the run.
        folder: its value.
        rundir: the run's folder.
        line: a command line, without the program's name.
        replaced: keys, and groups, that the run's overrides of are left out.
        typed: what stands before the folder in the command; None for ``KEY=``.

    Raises:
        UsageError: it is no run folder.
    """
    past = None
    if rundir.path.is_dir():
        past = read_command(open_existing(rundir.path, key))
    if past is None or not rundir.config.is_file():
        raise _no_run(key, folder, rundir, f"{key}=" if typed is None else typed)
    refuse_derived(key, folder, past)
    overrides, config_dir = private.accept(key, folder, past, line)
    kept = [
        override
        for override in overrides
        if not any(
            key_of(override) == name or key_of(override).startswith(f"{name}.") for name in replaced
        )
    ]
    if any(key_of(override) == "experiment" for override in kept) and not any(
        word in ("-m", "--multirun") or key_of(word) == "hydra.mode" for word in line
    ):
        kept.append("hydra.mode=RUN")  # an experiment of a sweep says the other
    flags = []
    if config_dir and not any(override.startswith(("--config-dir", "-cd")) for override in line):
        flags = ["--config-dir", config_dir]
    return project.in_front(flags, kept, line)


def _no_run(key: str, folder: str, rundir: RunDir, typed: str) -> UsageError:
    """Return what to raise for a value of ``key`` that is no run folder.

    It is ``typed`` behind what :func:`of_run` says.
    """
    problem = f"is not a run folder (it has no {rundir.command.name})"
    if not rundir.path.exists():
        problem = f"there is no such folder (looked in {os.getcwd()})"
    run = Path(folder).parent.parent
    if Path(folder).parent.name == "checkpoints" and RunDir(run).config.is_file():
        right: str | None = str(run)
    else:
        below = latest.find(folder) if rundir.path.is_dir() else None
        right = None if below is None else short(below)
    if (word := nearest(folder, (latest.LATEST,))) is not None:
        right = word
    advice: Mapping[str, str | None] = suggest.corrected(key, folder) or {
        "typed": right and f"{typed}{right}", "hint": f"{typed}outputs/DATE/TIME_NAME"
    }  # fmt: skip
    return UsageError(key, problem, folder, accepted="a folder that a run printed", **advice)


def refuse_derived(key: str, folder: object, command: Json | None) -> None:
    """Refuse the folder of an evaluation or the like where that of a run is asked for.

    Args:
        key: that names it.
        folder: its value.
        command: the contents of its ``command.json``.

    Raises:
        UsageError: it is none of a run.
    """
    if command is not None and "derived" in command:
        refuse(key, "is not a run: it is what another command made of one", folder,
               hint="the folder of the run; or the command that made it, to go on")  # fmt: skip


def origin(fork: str) -> tuple[RunDir, Path | None]:
    """Return the run folder that ``fork`` names, and the checkpoint if it names one."""
    path = Path(fork).absolute()
    if path.name.isdigit() and path.parent.name == "checkpoints":
        return RunDir(path.parent.parent), path
    return RunDir(path), None


def find(config: Config, words: Json, folder: Path | None = None) -> str | None:
    """Return the newest run folder that the same command has begun and that is not finished.

    A folder that is named may be of a finished one: nothing is left to do there.

    Args:
        config: of the command.
        words: its :func:`command`, as it was typed.
        folder: the only one that is looked at; None for all below ``output_dir``.
    """
    for run in runs_below(Path(config.output_dir)) if folder is None else [folder]:
        status = status_of(run, config, words)
        if status is not None:
            return None if status == "FINISHED" and folder is None else str(run)
    return None


def status_of(folder: Path, config: Config, words: Json) -> str | None:
    """Return how the run in a folder ended; None where another command began it.

    Args:
        folder: of a run.
        config, words: of :func:`find`.
    """
    rundir = RunDir(folder)
    try:
        past = read_command(rundir)
        if past is None or "derived" in past:
            return None
        if _sorted(past) != _sorted(words):
            return None
        open_existing(rundir.path, "resume")
        if identity.config_hash(_load(rundir)) != identity.config_hash(config):
            return None  # the same overrides meant something else
        result = reading.read_json(rundir.result) or {}
    except (UsageError, OSError) as error:
        print(f"resume={AUTO}: passed over {rundir.path}: {error}", file=sys.stderr)
        return None
    return str(result.get("status"))


def _sorted(words: Json) -> tuple[list[str], Any]:
    # Of those with one key it counts.
    last = {key_of(override): override for override in words["overrides"]}
    return sorted(last.values()), words["config_dir"]


def _load(rundir: RunDir) -> Config:
    """Return the configuration of a run.

    Raises:
        DamagedFile: the file is not as dtrain writes it.
    """
    try:
        # Without the secrets: what it refers to may be gone from the environment, or another.
        config = tree.read(rundir.config, hidden=True)
        to_plain(config)  # all that it refers to is there
        identity.fingerprints(config)
    except OSError as error:
        raise DamagedFile(rundir.config, f"cannot be read ({error.strerror})") from None
    except (ValueError, TypeError, AttributeError, Unresolvable) as error:
        reason = str(error).strip().split("\n")[0]
        raise DamagedFile(rundir.config, f"is not the configuration of a run ({reason})") from None
    for key, kind in (("fork", str | None), *((each, Mapping) for each in tree.GROUPS)):
        if not isinstance(tree.select(config, key), kind):
            raise DamagedFile(rundir.config, "is not what a run has there", key)
    return config


def check(config: Config, overrides: list[str]) -> None:
    """Refuse to resume what would not be the same run.

    Args:
        config: composed from :func:`arguments`.
        overrides: the whole command line.

    Raises:
        UsageError: the run's checkpoints are all damaged, or of another configuration, or a key
            that decides its numbers differs.
    """
    assert config.resume is not None
    rundir = RunDir(config.resume)
    past = _load(rundir)
    saved, problems = checkpoint.newest(rundir.checkpoints)
    if saved is None and problems:
        os.close(lock(rundir, "resume"))  # a command at work there may remove what is read
        refuse("resume", f"holds no sound checkpoint ({problems[0]})", config.resume,
               hint="the command that began the run, to start anew")  # fmt: skip
    if saved is not None and "config" not in saved.meta:
        refuse("resume", f"{saved.path} does not say of what configuration it is", config.resume,
               hint="the command that began the run, to start anew")  # fmt: skip
    begun, now = identity.fingerprints(past), identity.fingerprints(config)
    if saved is not None and (edited := identity.changed(saved.meta["config"], begun)):
        [key, *_] = (each for each in begun if each in edited)
        if saved.meta["versions"]["dtrain"] != identity.versions(config.backend)["dtrain"]:
            refuse("resume", f"has a {key} of another dtrain {checkpoint.versions(saved.meta)}",
                   config.resume, accepted="the version of dtrain that began the run",
                   hint=f"fork={config.resume} to begin a new run with its weights")  # fmt: skip
        refuse("resume", f"its config.yaml was changed since it was saved ({key})", config.resume,
               hint=f"fork={config.resume} to begin a new run from it")  # fmt: skip
    own = (read_command(rundir) or {"overrides": []})["overrides"]
    for fixed in identity.fixed():
        if begun[fixed] == now[fixed]:
            continue
        words = [
            override
            for override in overrides
            if override not in own and _meet(key_of(override), fixed)
        ]
        if not words:  # the file was edited, or a default is another one by now
            key, old, new = _differing(
                fixed, identity.value(past, fixed), identity.value(config, fixed)
            )
            refuse(key, f"is not what the run has in its {rundir.config.name}", new,
                   accepted=str(old), typed=f"resume={config.resume} {key}={old}")  # fmt: skip
        last = parse(words[-1])
        key, value = f"{last.sign}{last.name}", last.value or ""
        refuse(last.key, f"would change the numbers of a run that is resumed ({fixed})", value,
               accepted="trainer.epochs, strategy, hardware, tracking, checkpoint, launcher",
               hint=f"no {key}=, or fork={config.resume} {key}={value}")  # fmt: skip
    # Pinned by the command that began the run: what the override names may have moved on since.
    config.fork = past.fork
    if saved is None and config.fork is not None:
        try:
            checkpoint.load(Path(config.fork))
        except CheckpointError as error:
            raise UsageError("resume", f"saved nothing, and what it forked is gone ({error})",
                             config.resume, hint="fork=ANOTHER_RUN") from None  # fmt: skip


def nothing_to_do(config: Config) -> str | None:
    """Return a sentence where all that a resumed run would train is trained; None otherwise.

    Args:
        config: that :func:`check` has passed.
    """
    assert config.resume is not None
    rundir = RunDir(config.resume)
    result: Any = schemas.glance(rundir.result, schemas.Result) or {}
    past = _load(rundir)
    other = identity.value(past, "tracking") != identity.value(config, "tracking")
    changes = other or tree.select(config, "dataset.accept_changes")
    whole = any(path.exists() for path in (rundir.model, rundir.weights, rundir.state))
    # Where other programs start tasks of the job, these would wait for this one.
    if result.get("status") != "FINISHED" or changes or not whole or env.found() is not None:
        return None
    starts = [e for e in Follower(rundir.journal).events() if e["event"] == "start"]
    per_epoch = starts[-1].get("steps_per_epoch") if starts else None
    newest, _ = checkpoint.newest(rundir.checkpoints)
    if newest is None or not isinstance(per_epoch, int) or newest.meta["pending_validation"]:
        return None
    stopped, whole = newest.meta.get("stopped"), newest.step >= config.trainer.epochs * per_epoch
    if not (stopped or whole):
        return None
    why = stopped if isinstance(stopped, str) else f"a callback ended it at step {newest.step}"
    epochs = newest.step // per_epoch
    if not stopped:
        why = "its only epoch is trained" if epochs == 1 else f"all {epochs} epochs are trained"
    return (
        f"{config.resume} is finished: {why}; nothing is left to do; to train on: "
        f"{to_train_on(config, shlex.quote(short(rundir.path)), bool(stopped), whole, epochs)}"
    )


def to_train_on(
    config: Config, folder: str, stopped: bool, whole: bool, trained: int = 0
) -> str:  # fmt: skip
    """Return the command that trains on where a run has ended by itself.

    Args:
        config: of the run.
        folder: of it, as a word of a shell.
        stopped: a callback has ended it, which a resumed run keeps to.
        whole: its last epoch is trained.
        trained: so many epochs are, where a command may have asked for fewer.
    """
    more = f"trainer.epochs={2 * max(config.trainer.epochs, trained)}"
    if not stopped:
        return f"python -m dtrain resume={folder} {more}"
    early = config.trainer.early_stopping is not None
    other = "trainer.early_stopping=null" if early else "'trainer.callbacks=[]'"
    return f"python -m dtrain fork={folder} {other}" + (f" {more}" if whole else "")


def _meet(key: str, other: str) -> bool:
    """Whether one of two keys is the other one, or has it below itself (``strategy=ps``)."""
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


def _differing(key: str, old: object, new: object) -> tuple[str, object, object]:
    """Return the first key at or below ``key`` that is not alike, with its two values."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in {**old, **new}:
            if old.get(name) != new.get(name):
                return _differing(f"{key}.{name}", old.get(name), new.get(name))
    return key, old, new


def pin(config: Config) -> None:
    """Replace ``fork``, a run folder, by its newest sound checkpoint.

    Raises:
        UsageError: there is none.
    """
    assert config.fork is not None
    rundir, chosen = origin(config.fork)
    problems: list[str] = []
    saved: checkpoint.Checkpoint | None = None
    if chosen is None:
        saved, problems = checkpoint.newest(rundir.checkpoints)
    else:
        try:
            saved = checkpoint.load(chosen)
        except CheckpointError as error:
            problems = [str(error)]
    if saved is None:
        detail = f" ({problems[0]})" if problems else ""
        refuse("fork", f"holds no sound checkpoint{detail}", config.fork,
               accepted="a run that saved one, or RUN_DIR/checkpoints/STEP",
               hint=f"python -m dtrain checkpoint {rundir.path} to see what there is")  # fmt: skip
    config.fork = str(saved.path.absolute())
