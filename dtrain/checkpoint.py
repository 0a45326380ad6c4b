"""Checkpoints: every variable by path in one safetensors file, and a manifest with checksums.

A checkpoint is a folder ``<step>/`` with ``state.safetensors`` (full arrays, whatever the number
of replicas) and ``manifest.json`` (SHA-256 and size of the former, and what is not an array:
position, callback state, identities). It is made as ``.tmp-<step>/``, flushed to the disk, and
renamed, so that a folder under its final name is whole. TensorFlow is not imported here.

Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors.numpy

from dtrain.errors import CheckpointError

_STATE = "state.safetensors"
_MANIFEST = "manifest.json"
_TEMPORARY = ".tmp-"
#: Types that NumPy itself has not, as bytes of their own: safetensors.numpy cannot read them back.
_CODES = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read back and found sound.

    Attributes:
        step: global step at which it was taken.
        path: its folder.
        arrays: by name, full arrays.
        meta: everything else that was saved with them.
    """

    step: int
    path: Path
    arrays: dict[str, np.ndarray]
    meta: dict[str, Any]


def steps(folder: Path) -> list[int]:
    """Return the steps for which ``folder`` has a checkpoint under its final name, ascending."""
    if not folder.is_dir():
        return []
    return sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit())


def load(path: Path) -> Checkpoint:
    """Read and verify one checkpoint.

    Raises:
        CheckpointError: a file is missing, truncated or altered.
    """
    try:
        manifest = json.loads((path / _MANIFEST).read_text())
        state = (path / _STATE).read_bytes()
        expected = manifest["files"][_STATE]
        if len(state) != expected["bytes"]:
            raise CheckpointError(
                f"{path / _STATE} has {len(state)} bytes and should have {expected['bytes']}"
            )
        if hashlib.sha256(state).hexdigest() != expected["sha256"]:
            raise CheckpointError(f"{path / _STATE} does not match its checksum")
        meta = manifest["meta"]
        guarded = {**manifest, "sha256": None}
        if hashlib.sha256(_canonical(guarded)).hexdigest() != manifest["sha256"]:
            raise CheckpointError(f"{path / _MANIFEST} does not match its checksum")
        arrays = _decode(state, manifest["dtypes"])
        return Checkpoint(manifest["step"], path, arrays, meta)
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error!r}") from error


def newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest sound checkpoint in ``folder`` and why newer ones were passed over."""
    problems: list[str] = []
    for step in reversed(steps(folder)):
        try:
            return load(folder / str(step)), problems
        except CheckpointError as error:
            problems.append(str(error))
    return None, problems


def _encode(arrays: dict[str, np.ndarray]) -> tuple[bytes, dict[str, str]]:
    """Return the safetensors file, and the types that it cannot tell."""
    dtypes = {name: a.dtype.name for name, a in arrays.items() if a.dtype.name in _CODES}
    contiguous = {name: np.ascontiguousarray(a).reshape(a.shape) for name, a in arrays.items()}
    for name, dtype in dtypes.items():
        contiguous[name] = contiguous[name].view(_CODES[dtype])
    return safetensors.numpy.save(contiguous), dtypes


def _decode(state: bytes, dtypes: dict[str, str]) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = safetensors.numpy.load(state)
    for name, dtype in dtypes.items():
        arrays[name] = arrays[name].view(getattr(ml_dtypes, dtype))
    return arrays


def pack(checkpoint: Checkpoint) -> bytes:
    """Return a checkpoint as bytes, for another process."""
    state, dtypes = _encode(checkpoint.arrays)
    about = {"step": checkpoint.step, "path": str(checkpoint.path), "meta": checkpoint.meta}
    return _canonical({**about, "dtypes": dtypes}) + b"\n" + state


def unpack(data: bytes) -> Checkpoint:
    """Return what was given to :func:`pack`."""
    head, _, state = data.partition(b"\n")
    about = json.loads(head)
    arrays = _decode(state, about["dtypes"])
    return Checkpoint(about["step"], Path(about["path"]), arrays, about["meta"])


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def save(folder: Path, step: int, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> Path:
    """Write one checkpoint; on return it is on the disk, or nothing of it is left.

    Raises:
        CheckpointError: an array is not finite, or a file cannot be written (named).
    """
    for name, array in arrays.items():
        floating = array.dtype.kind == "f" or array.dtype.name in _CODES
        if floating and not np.all(np.isfinite(array)):
            raise CheckpointError(f"{name} is not finite at step {step}; it was not saved")
    temporary, final = folder / f"{_TEMPORARY}{step}", folder / str(step)
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        state, dtypes = _encode(arrays)
        _write(temporary / _STATE, state)
        manifest = {
            "step": step,
            "files": {_STATE: {"bytes": len(state), "sha256": hashlib.sha256(state).hexdigest()}},
            "dtypes": dtypes,
            "meta": json.loads(json.dumps(meta)),  # as it will be read: keys become text
            "sha256": None,
        }
        manifest["sha256"] = hashlib.sha256(_canonical(manifest)).hexdigest()
        _write(temporary / _MANIFEST, json.dumps(manifest, indent=1).encode())
        _sync_folder(temporary)
        if final.exists():  # the same step again, after a resume from an older one
            shutil.rmtree(final)
        os.rename(temporary, final)  # order: only after both files are on the disk
        _sync_folder(folder)
    except (OSError, TypeError, ValueError, safetensors.SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(
            f"the checkpoint of step {step} could not be written to {final}: {reason}"
        ) from error
    return final


class Writer:
    """Saves checkpoints from a thread, and keeps the newest ones and the best.

    Args:
        folder: where checkpoints go.
        keep: how many of the newest stay.
        best: whether the one with the best objective stays too.
        mode: ``max`` or ``min``: which objective is better.
        saved: called from the thread with the step of each checkpoint that is on the disk.
    """

    def __init__(
        self, folder: Path, keep: int, best: bool, mode: str, saved: Callable[[int], None]
    ):
        self._folder = folder
        self._keep = keep
        self._best = best
        self._saved = saved
        self._sign = 1 if mode == "max" else -1
        self._thread: threading.Thread | None = None
        self._error: CheckpointError | None = None
        self.objectives: dict[int, float] = {}
        for leftover in folder.glob(f"{_TEMPORARY}*") if folder.is_dir() else []:
            shutil.rmtree(leftover, ignore_errors=True)
        for step in steps(folder):
            try:
                manifest = json.loads((folder / str(step) / _MANIFEST).read_text())
                self._note(step, manifest["meta"])
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                continue  # damaged: `newest` says so

    def _note(self, step: int, meta: dict[str, Any]) -> None:
        objective = meta.get("objective")
        if objective is not None and math.isfinite(objective):
            self.objectives[step] = float(objective)

    def best_step(self) -> int | None:
        """Return the saved step with the best objective, the earliest of equals."""
        if not self.objectives:
            return None
        return max(self.objectives, key=lambda s: (self._sign * self.objectives[s], -s))

    def submit(self, step: int, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        """Begin to save; waits only where the previous save still runs.

        Args:
            step: global step.
            arrays: a snapshot that nobody changes any more.
            meta: JSON values; ``objective`` (float or None) decides which is the best.

        Raises:
            CheckpointError: the previous save failed.
        """
        self.wait()
        self._thread = threading.Thread(
            target=self._save, args=(step, arrays, meta), name="checkpoint", daemon=True
        )
        self._thread.start()

    def _save(self, step: int, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        try:
            save(self._folder, step, arrays, meta)
            self._note(step, meta)
            self._saved(step)
            self._remove_old(step)
        except CheckpointError as error:
            self._error = error
        except Exception as error:  # of `saved`: it must not be lost with the thread
            self._error = CheckpointError(f"step {step} was saved, but not reported: {error}")
            self._error.__cause__ = error

    def _remove_old(self, newest: int) -> None:
        saved = steps(self._folder)
        # Later ones are those that the run passed over as damaged when it was resumed.
        for step in [s for s in saved if s > newest]:
            self.objectives.pop(step, None)
        kept = set([s for s in saved if s <= newest][-self._keep :])
        best = self.best_step()
        if self._best and best is not None:
            kept.add(best)
        for step in set(saved) - kept:
            shutil.rmtree(self._folder / str(step), ignore_errors=True)
            self.objectives.pop(step, None)

    def wait(self) -> None:
        """Wait for the save that is under way.

        Raises:
            CheckpointError: it failed.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error
