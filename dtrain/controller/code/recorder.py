"""Records what a run is made of while its tasks start; the files are written when it has begun."""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import dtrain
from dtrain import secrets
from dtrain.config import consent
from dtrain.controller.code import capture
from dtrain.errors import DtrainError
from dtrain.files import writing
from dtrain.host import git, packages, processors, python_path, variables
from dtrain.run import code
from dtrain.run.folder import write_json

#: Variables that decide numbers, by the beginnings of their names. TF_ alone is Terraform's, too.
_DECIDING = (
    "TF_XLA_", "TF_ENABLE_", "TF_DISABLE_", "TF_DETERMINISTIC_", "TF_CUDNN_", "TF_NUM_", "TF_USE_",
    "TF_FORCE_", "TF_GPU_", "TF_CPU_", "TF_FUNCTION_", "TF_AUTOTUNE_", "TF_OVERRIDE_", "TF_TPU_",
    "XLA_", "JAX_", "KERAS_", "OMP_", "KMP_AFFINITY", "KMP_BLOCKTIME", "KMP_DETERMINISTIC", "MKL_",
    "OPENBLAS_NUM", "OPENBLAS_CORE", "NVIDIA_TF32", "ONEDNN_", "ATEN_", "TORCH_ALLOW_",
    "TORCH_CUDNN_", "TORCHINDUCTOR_", "CUBLAS_WORKSPACE_CONFIG",
)  # fmt: skip
#: Seconds that a run waits at its end for what git has not told yet.
LAST = 1.0


class Recorder:
    """Looks at the code of this moment from a thread of its own.

    Args:
        run: the run folder.
        outputs: folder of run folders, of which nothing is recorded.
    """

    def __init__(self, run: Path, outputs: Path):
        self._run = run
        self._outputs = [Path(os.path.realpath(each)) for each in (outputs, run)]
        self._stop = threading.Event()
        self._found: tuple[dict[str, Any], dict[str, bytes]] | None = None
        self._thread = threading.Thread(target=self._look, name="code", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        self._found = record(self._outputs, self._stop)

    def write(self, last: bool = False) -> None:
        """Write what was found, unless the run's newest record says the same.

        Args:
            last: there is no later call: what git has not told by now is left out.

        Raises:
            OSError: it cannot be written.
        """
        if last:
            self._thread.join(LAST)
            self._stop.set()
            self._thread.join()
        elif self._thread.is_alive():
            return
        if self._found is None:
            return
        (found, files), self._found = self._found, None
        past = code.folders(self._run)
        if len(past) >= code.STARTS or (past and _digest(past[-1]) == found["digest"]):
            return
        folder = self._run / code.FOLDER / str(int(past[-1].name) + 1 if past else 1)
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            writing.write_bytes(folder / name, data)
        write_json(folder / code.RECORD, found)  # ORDER: the files that it names are there

    def cancel(self) -> None:
        """Write nothing: the run has not begun."""
        self._found = None
        self._stop.set()
        self._thread.join()
        self._found = None


def _digest(folder: Path) -> str | None:
    try:
        return code.read(folder)["digest"]
    except (DtrainError, OSError):  # damaged: there is a sound one beside it then
        return None


def record(
    outputs: Sequence[Path], stop: threading.Event | None = None
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return what a run that starts now is made of, signed, and the files that go beside it.

    Args:
        outputs: run folders, and folders of them, of which nothing is recorded.
        stop: ends what takes long when it is set.
    """
    versions, editable = packages.installed()
    trust = [name for name in python_path.trusted() if not name.startswith("given_")]
    notes: list[str] = []
    trees: list[Any] = []
    files: dict[str, bytes] = {}
    found, outside = roots([*editable, *_of_modules(trust)])
    if git.toplevel(Path.cwd()) is None:
        notes.append(f"{Path.cwd()} is in no working tree of git: what is there is not recorded")
    for top, below in list(found.items())[: code.TREES]:
        try:
            tree, beside = capture.tree(top, below, outputs, len(trees), stop)
        except (git.GitError, OSError) as error:
            notes.append(f"{top} is not recorded: {error}")
            outside += [name for name in below if name]
            continue
        trees.append(tree)
        files |= beside
    notes += [f"{top} is not recorded: it is one too many" for top in list(found)[code.TREES :]]
    made: dict[str, Any] = {
        "format": "1", "time": round(time.time(), 3), "host": platform.node(),
        "folder": str(Path.cwd()), "trees": trees, "notes": notes, "trust": trust,
        "outside": outside, "environment": environment(), "machine": machine(),
        "packages": versions,
    }  # fmt: skip
    made["digest"] = code.digest_of(made)
    made["signature"] = consent.signature(made["digest"])
    return made, files


def roots(more: Iterable[str]) -> tuple[dict[Path, list[str]], list[str]]:
    """Return the working trees that Python may find modules in, and where in each it looks.

    Args:
        more: folders besides the current one, that of dtrain, and those of ``sys.path``.

    Returns:
        The trees, and those folders of ``more`` that are in none, and are not installed.
    """
    found: dict[Path, list[str]] = {}
    outside = []
    here = git.toplevel(Path.cwd())
    if here is not None:
        found[here] = []
    own = str(Path(dtrain.__file__).resolve().parents[1])
    for folder in dict.fromkeys([own, *sys.path, *more]):
        whole = Path(os.path.realpath(folder or "."))
        if _is_installed(whole) or not whole.is_dir():
            continue
        top = git.toplevel(whole)
        if top is None:
            outside += [str(whole)] if folder in more else []
            continue
        below = str(whole.relative_to(top))
        if below not in found.setdefault(top, []):
            found[top].append(below)
    return found, outside


def _is_installed(folder: Path) -> bool:
    """Say whether a folder is of an interpreter, or of what is installed for one."""
    if {"site-packages", "dist-packages"} & set(folder.parts):
        return True
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix}
    return any(folder.is_relative_to(os.path.realpath(each)) for each in prefixes if each != "/usr")


def _of_modules(names: Iterable[str]) -> list[str]:
    """Return the folders that modules lie in; nothing is imported."""
    found = []
    for name in dict.fromkeys(each.partition(".")[0] for each in names):
        spec = PathFinder.find_spec(name, [*sys.path, os.getcwd()])
        if spec is not None and spec.submodule_search_locations:
            found += [os.path.dirname(each) for each in spec.submodule_search_locations]
        elif spec is not None and spec.origin is not None:
            found.append(os.path.dirname(spec.origin))
    return found


def environment() -> dict[str, str]:
    """Return the variables of this process that decide numbers."""
    found = {name: value for name, value in sorted(variables.copied().items()) if is_deciding(name)}
    return {
        name: value
        for name, value in found.items()
        if not secrets.named(name) and secrets.mask(value) == value
    }


def is_deciding(name: str) -> bool:
    """Say whether a variable may decide numbers: one of a framework or of a library below it."""
    return name.startswith(_DECIDING)


def machine() -> dict[str, str]:
    """Return what of this machine and this Python decides how sums are rounded."""
    affinity = getattr(os, "sched_getaffinity", None)  # of Linux
    found = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processors.processor(),
        "cores": str(len(affinity(0)) if affinity else os.cpu_count()),
        "gpus": ", ".join(processors.gpus()),
    }
    return {name: value for name, value in found.items() if value}
