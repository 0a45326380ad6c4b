"""The checkpoints of a run: which one counts, and how another one comes to count.

Names in the folder, apart from the checkpoints themselves (``<step>``):

``latest``        the pointer: the step that was saved last, with a checksum
``.tmp-<name>``   being written or removed: of no use to anybody
``.old-<step>``   set aside while the same step is saved again; it counts where ``<step>`` is absent

A save is done when the pointer is on the disk. Whatever ends it before, and whenever: what is
loaded next is what it was about to save, or what was saved before it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np

from dtrain.errors import CheckpointError, DamagedFile
from dtrain.files import reading, writing
from dtrain.files.fields import Json
from dtrain.run.checkpoint import format
from dtrain.run.checkpoint.arrays import non_finite
from dtrain.run.checkpoint.format import MANIFEST, STATE, Checkpoint, load, write

POINTER = "latest"
TEMPORARY = ".tmp-"
ASIDE = ".old-"
_POINTER_BYTES = 1000  # at most
#: How often a folder is listed while a run saves and removes there faster than it is read.
_LOOKS = 10


def _numbered(folder: Path, prefix: str = "") -> list[int]:
    """Return, ascending, the numbers N for which ``folder`` has ``<prefix>N``."""
    if not folder.is_dir():
        return []
    pattern = re.compile(re.escape(prefix) + "(0|[1-9][0-9]{0,17})")
    found = [pattern.fullmatch(name) for name in os.listdir(folder)]
    return sorted(int(match[1]) for match in found if match)


def steps(folder: Path) -> list[int]:
    """Return the steps for which ``folder`` has a checkpoint under its final name, ascending."""
    return _numbered(folder)


def _pointer(step: int) -> bytes:
    # The step itself could be altered into another one that is there: hence the checksum.
    checksum = hashlib.sha256(f"{POINTER} {step}".encode()).hexdigest()
    return json.dumps({"step": step, "sha256": checksum}).encode() + b"\n"


def committed(folder: Path) -> int | None:
    """Return the step that the pointer names, None where there is none yet.

    Raises:
        CheckpointError: the pointer cannot be read, or is damaged.
    """
    path = folder / POINTER
    try:
        data = reading.read_bytes(path, _POINTER_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except DamagedFile as error:
        raise CheckpointError(str(error)) from error
    try:
        step = reading.parse_json(data, path)["step"]
    except (DamagedFile, KeyError) as error:
        raise CheckpointError(f"{path} is damaged: it is no pointer") from error
    if type(step) is not int or step < 0:
        raise CheckpointError(f"{path} is damaged: it is no pointer")
    if data != _pointer(step):
        raise CheckpointError(f"{path} is damaged: it does not match its checksum")
    return step


def candidates(folder: Path) -> tuple[list[Path], list[str]]:
    """Return the checkpoints of a run, the one to resume from first, then the next best.

    That of the pointer comes first, whether it is there or not; then those before it, descending.
    What has a step above the pointer was never committed, or belongs to a future that the run has
    gone back from: it comes last, for it is better than nothing. Without a sound pointer all are
    in descending order.

    Returns:
        Their folders, and what is wrong with the pointer, if anything is.

    Raises:
        OSError: the pointer is there and cannot be read.
    """
    problems: list[str] = []
    last: int | None = None
    try:
        last = committed(folder)
    except CheckpointError as error:
        problems.append(_damage(error))
    found = {step: folder / f"{ASIDE}{step}" for step in _numbered(folder, ASIDE)}
    found |= {step: folder / str(step) for step in steps(folder)}
    if last is not None:
        found.setdefault(last, folder / str(last))
    order = sorted(found, key=lambda step: (last is None or step <= last, step), reverse=True)
    return [found[step] for step in order], problems


def newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """Return the checkpoint to resume from, and why others were passed over.

    A run may be saving and removing checkpoints there at the same time.

    Returns:
        The first sound one of :func:`candidates`, None if none is; a sentence for each that comes
        before it, and one for a damaged pointer.

    Raises:
        OSError: one that is there cannot be read now. It is not passed over: the next reader may
            be able to read it, and what was recorded up to it would be lost.
    """
    for _ in range(_LOOKS):
        paths, problems = candidates(folder)
        for path in paths:
            try:
                return load(path), problems
            except CheckpointError as error:
                problems.append(_damage(error))
        if candidates(folder)[0] == paths:
            break
    return None, problems


def _damage(error: CheckpointError) -> str:
    """Return what is wrong with a file; raise what is wrong with the disk or the permission."""
    cause = error.__cause__
    if isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError | NotADirectoryError):
        raise cause
    return str(error)


def save(folder: Path, step: int, arrays: Mapping[str, np.ndarray], meta: Json) -> Path:
    """Save one checkpoint; on return it is on the disk and the pointer names it.

    Args:
        folder: where the checkpoints of the run are; it is made where it is not there.
        step: global step; an earlier checkpoint of the same step is replaced.
        arrays: full arrays by name, of any shape and layout.
        meta: JSON values.

    Returns:
        The folder of the checkpoint.

    Raises:
        CheckpointError: an array is not finite, or something cannot be written (named). A resume
            begins at this one then, where it is whole, or at the one before.
    """
    name = non_finite(arrays)
    if name is not None:
        raise CheckpointError(f"{name} is not finite at step {step}; it was not saved")
    final, temporary, pointer = (
        folder / each for each in (f"{step}", f"{TEMPORARY}{step}", f"{TEMPORARY}{POINTER}")
    )
    try:
        writing.make_lasting_folder(folder)
        writing.remove(temporary)
        write(temporary, step, arrays, meta)
        # ORDER: a full disk is to be noticed before the renames.
        writing.write_new(pointer, [_pointer(step)], lasting=True)
        put(temporary)
        writing.replace(pointer, folder / POINTER)
        writing.sync(folder)
    except Exception as error:  # of encoding too (MemoryError)
        writing.remove(temporary)
        writing.remove(pointer)
        raise _failed(final, error) from error
    return final


def put(temporary: Path) -> None:
    """Give a checkpoint its name; one that has it is there until then.

    Args:
        temporary: ``.tmp-<step>`` in the folder of the checkpoints, on the disk.

    Raises:
        OSError: it cannot be done.
    """
    folder, name = temporary.parent, temporary.name.removeprefix(TEMPORARY)
    final, aside = folder / name, folder / f"{ASIDE}{name}"
    # ORDER: aside, in place, on the disk. Between any two of these the new one or the one before is
    # found under its name, or aside, by `candidates`.
    if final.exists():
        discard(folder, [aside])
        writing.rename(final, aside)
    writing.rename(temporary, final)
    writing.sync(folder)
    discard(folder, [aside])


def rewrite(folder: Path, step: int, meta: Json) -> None:
    """Give the checkpoint of ``step`` another ``meta``; its arrays stay as they are.

    Raises:
        CheckpointError: it cannot be written (named); the checkpoint has the old ``meta`` then.
    """
    try:
        format.rewrite(folder / str(step), meta, TEMPORARY)
    except Exception as error:
        raise _failed(folder / str(step), error) from error


def _failed(path: Path, error: Exception) -> CheckpointError:
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return CheckpointError(
        f"the checkpoint of step {path.name} could not be written to {path}: {reason}"
    )


def discard(folder: Path, paths: Iterable[Path]) -> None:
    """Remove checkpoints as far as that can be done; none is ever half there under its name."""
    gone: list[Path] = []
    with contextlib.suppress(OSError):
        for path in paths:
            if path.exists():
                gone.append(folder / f"{TEMPORARY}{path.name}")
                writing.remove(gone[-1])
                writing.rename(path, gone[-1])
        if gone:
            writing.sync(folder)  # ORDER: their names are gone for good before their files go
            for path in gone:
                writing.remove(path)


def tidy(folder: Path) -> None:
    """Remove what killed saves have left, as far as that can be done.

    No other process may be saving there. Afterwards there are checkpoints and the pointer, and no
    checkpoint above the pointer, unless nothing else is sound.
    """
    for step in _numbered(folder, ASIDE):
        final, aside = folder / str(step), folder / f"{ASIDE}{step}"
        if final.exists():
            discard(folder, [aside])
        else:
            with contextlib.suppress(OSError):  # it counts where it is, too
                writing.rename(aside, final)
    for place in (folder, *(folder / str(step) for step in steps(folder))):
        for leftover in place.glob(f"{TEMPORARY}*") if place.is_dir() else []:
            writing.remove(leftover)
    try:
        last = committed(folder)
    except CheckpointError:
        return  # all of them may count
    if last is None or last >= max(steps(folder), default=0):
        return
    try:
        found, _ = newest(folder)
    except OSError:
        return
    if found is not None and found.step <= last:
        discard(folder, [folder / str(step) for step in steps(folder) if step > last])


#: Times that a training may be faster in removing what was chosen.
_TRIALS = 20


def hold(choose: Callable[[], Iterable[Path]], folder: Path) -> list[Path]:
    """Give checkpoints a second name each, which no training knows of.

    Args:
        choose: returns the folders of checkpoints; it is called again where one of them is gone.
        folder: that they are held in, as ``<step>/``; on another disk as copies. Who calls this
            removes it.

    Returns:
        Their folders there.

    Raises:
        CheckpointError: one is gone, however often others are chosen.
        OSError: it cannot be read, or ``folder`` not be written.
    """
    for _ in range(_TRIALS):
        held: list[Path] = []
        try:
            for path in choose():
                held.append(folder / path.name.removeprefix(ASIDE))
                writing.remove(held[-1])
                writing.make_lasting_folder(held[-1])
                for name in (STATE, MANIFEST):
                    _link(path / name, held[-1] / name)
        except FileNotFoundError as error:
            gone = error
            continue
        return held
    raise CheckpointError(f"{gone.filename} was removed before it could be read") from gone


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except OSError:  # on another disk, or one without hard links
        writing.copy(source, target)
