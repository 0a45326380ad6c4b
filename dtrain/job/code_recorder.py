"""Records the code of a run while its tasks start: commit, changes, untracked files, packages.

Secrets are left out: what git ignores, files named like keys, and texts that hold a password of an
address or the value of a secret variable. So is what is large: it is data, and no code.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dtrain
from dtrain import secrets
from dtrain.config import private
from dtrain.errors import DamagedFile, DtrainError
from dtrain.files import reading, writing
from dtrain.files.fields import Json
from dtrain.host import git, packages, python_path, variables
from dtrain.run import code
from dtrain.run.code import Tree
from dtrain.run.folder import write_json

#: Variables that decide numbers, by the beginnings of their names. TF_ alone is Terraform's, too.
_DECIDING = (
    "TF_XLA_", "TF_ENABLE_", "TF_DISABLE_", "TF_DETERMINISTIC_", "TF_CUDNN_", "TF_NUM_", "TF_USE_",
    "TF_FORCE_", "TF_GPU_", "TF_CPU_", "TF_FUNCTION_", "TF_AUTOTUNE_", "TF_OVERRIDE_", "TF_TPU_",
    "XLA_", "JAX_", "KERAS_", "OMP_", "KMP_AFFINITY", "KMP_BLOCKTIME", "KMP_DETERMINISTIC", "MKL_",
    "OPENBLAS_NUM", "OPENBLAS_CORE", "NVIDIA_TF32", "ONEDNN_", "ATEN_", "TORCH_ALLOW_",
    "TORCH_CUDNN_", "TORCHINDUCTOR_", "CUBLAS_WORKSPACE_CONFIG",
)  # fmt: skip
_CODE = (".py", ".pyi", ".ipynb", ".yaml", ".yml", ".toml", ".cfg", ".json", ".txt", ".md")
_KEYS = re.compile(
    r"\.env.*|\.netrc|\.pypirc|.*\.(pem|key|p12|pfx|jks|kdbx)|id_(rsa|dsa|ecdsa|ed25519)"
)
#: Begins the changes of each file in a patch.
_SECTION = re.compile(rb"^(?=diff --git )", re.M)
_SUBMODULE = re.compile(r"^\s*path\s*=\s*(.*\S)", re.M)
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
        self._state: tuple[Json, bytes] | None = None
        self._thread = threading.Thread(target=self._look, name="code", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        self._state = record(self._outputs, self._stop)

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
        if self._state is None:
            return
        (state, patch), self._state = self._state, None
        past = code.folders(self._run)
        if past and _digest(past[-1]) == state["digest"]:
            return
        folder = self._run / code.FOLDER / str(int(past[-1].name) + 1 if past else 1)
        folder.mkdir(parents=True, exist_ok=True)
        if patch:
            writing.write_bytes(folder / code.PATCH, patch)
        write_json(folder / code.RECORD, state)  # ORDER: the patch that it names is there

    def cancel(self) -> None:
        """Write nothing: the run has not begun."""
        self._stop.set()
        self._thread.join()
        self._state = None


def _digest(folder: Path) -> str | None:
    try:
        return code.read(folder)["digest"]
    except (DtrainError, OSError):  # damaged: there is a sound one beside it then
        return None


def record(outputs: Sequence[Path], stop: threading.Event | None = None) -> tuple[Json, bytes]:
    """Return what a run that starts now is made of, signed, and the changes of its working tree.

    Args:
        outputs: run folders, and folders of them, of which nothing is recorded.
        stop: ends what takes long when it is set.
    """
    versions, editable = packages.installed()
    here, notes, patch = Path.cwd(), [], b""
    tree: Tree | None = None
    if (top := git.toplevel(here)) is None:
        notes.append(f"{here} is in no working tree of git: what is there is not recorded")
    else:
        own = Path(dtrain.__file__).resolve().parent  # where Hydra finds plugins, too
        paths = (str(own.parent), *sys.path, *editable)
        looked = dict.fromkeys(Path(os.path.realpath(each or ".")) for each in paths)
        folders = [each for each in looked if each.is_dir() and not is_installed(each)
                   and not each.is_relative_to(own)]  # fmt: skip
        try:
            tree, patch = capture(top, outputs, stop)
            tree["roots"] = [str(each.relative_to(top)) for each in folders
                             if each.is_relative_to(top)]  # fmt: skip
        except (git.GitError, OSError, ValueError) as error:
            notes.append(f"{top} is not recorded: {error}")
        notes += [f"{each} is outside of {top}: it is not recorded" for each in folders
                  if not each.is_relative_to(top)]  # fmt: skip
    state: Json = {
        "format": "2", "time": round(time.time(), 3), "host": platform.node(), "folder": str(here),
        "tree": tree, "notes": notes, "environment": environment(),
        "trust": python_path.trusted(),
        "packages": {"python": platform.python_version(), **versions},
    }  # fmt: skip
    state["digest"] = code.digest_of(state)
    state["signature"] = private.signature(state["digest"])
    return state, patch


def is_installed(folder: Path) -> bool:
    """Say whether a folder is of an interpreter, or of what is installed for one."""
    if {"site-packages", "dist-packages"} & set(folder.parts):
        return True
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix} - {"/usr"}
    return any(folder.is_relative_to(os.path.realpath(each)) for each in prefixes)


def environment() -> dict[str, str]:
    """Return the variables of this process that decide numbers, and are no secrets."""
    return {
        name: value
        for name, value in sorted(variables.copied().items())
        if is_deciding(name) and not secrets.named(name) and secrets.mask(value) == value
    }


def is_deciding(name: str) -> bool:
    """Say whether a variable may decide numbers: one of a framework or of a library below it."""
    return name.startswith(_DECIDING)


def capture(
    top: Path, outputs: Sequence[Path], stop: threading.Event | None = None
) -> tuple[Tree, bytes]:
    """Return the commit of a working tree, and its changes and untracked files as one patch.

    Neither its index nor its objects are changed.

    Args:
        top: its root.
        outputs: run folders, and folders of them, of which nothing is recorded.
        stop: ends it when it is set.

    Raises:
        GitError: git does not answer, the tree has no commit, or there are too many changes.
        OSError: the index cannot be copied.
    """

    def call(*words: str, **more: Any) -> bytes:
        return git.run(top, "--literal-pathspecs", *words, stop=stop, seconds=20.0, **more)

    commit, index, objects = os.fsdecode(
        call("rev-parse", "HEAD", "--git-path", "index", "--git-path", "objects")
    ).splitlines()
    # Where the tree itself lies in such a folder, as that of a replay may, it is recorded.
    inside = [each for each in outputs if each.is_relative_to(top)]
    omitted: dict[str, str] = {}
    if (top / ".gitmodules").is_file():
        modules = reading.read_bytes(top / ".gitmodules", code.FILE).decode(errors="replace")
        omitted = dict.fromkeys(_SUBMODULE.findall(modules), "is a submodule")
    tracked: list[str] = []
    untracked: list[str] = []
    status = call("status", "--porcelain", "-z", "--untracked-files=all", "--no-renames",
                  "--ignore-submodules=all")  # fmt: skip
    for entry in filter(None, status.split(b"\0")):
        path, is_new = os.fsdecode(entry[3:]), entry.startswith(b"??")
        if is_new and (path.endswith(".pyc") or any((top / path).is_relative_to(each)
                                                    for each in inside)):  # fmt: skip
            continue
        if (why := _why_not(top, path, is_new)) is not None:
            omitted[path if path.isprintable() else ascii(path)] = why
        else:
            (untracked if is_new else tracked).append(path)
    untracked = sorted(untracked, key=lambda path: (not path.endswith(_CODE), path))
    total = 0
    for number, path in enumerate(untracked):
        total += os.lstat(top / path).st_size
        if number >= code.FILES or total > code.TOTAL:
            omitted |= dict.fromkeys(
                untracked[number:], "is one too many, or too large with others"
            )
            del untracked[number:]
            break
    patch = b""
    if tracked or untracked:
        with tempfile.TemporaryDirectory(prefix="dtrain-") as place:
            # Git writes what it has to write about untracked files beside a copy of the index.
            writing.copy(top / index, Path(place, "index"))
            about = os.stat(top / index)  # by its time git knows which files it has to read
            os.utime(Path(place, "index"), ns=(about.st_atime_ns, about.st_mtime_ns))
            own = {"GIT_INDEX_FILE": f"{place}/index", "GIT_OBJECT_DIRECTORY": place,
                   "GIT_ALTERNATE_OBJECT_DIRECTORIES": str((top / objects).absolute())}  # fmt: skip
            paths = "\0".join(untracked)
            if untracked:
                call("add", "--intent-to-add", "--pathspec-from-file=-", "--pathspec-file-nul",
                     data=os.fsencode(paths), environment=own)  # fmt: skip
            everything = call(
                "-c", "core.quotePath=false", "-c", "diff.orderFile=/dev/null", "diff",
                "--binary", "--full-index", "--no-renames", "--no-color", "--no-ext-diff",
                "--no-textconv", "--ignore-submodules=all", "--src-prefix=a/", "--dst-prefix=b/",
                commit, "--", *tracked, *untracked, most=2 * code.TOTAL, environment=own,
            )  # fmt: skip
        patch = _without_secrets(everything, omitted)
    named = dict(sorted(omitted.items())[: code.NAMED])
    if len(omitted) > code.NAMED:
        named[f"{len(omitted) - code.NAMED:,} others"] = "is beyond what a record names"
    digest = hashlib.sha256(patch).hexdigest() if patch else None
    changed = len(_SECTION.findall(patch))
    return {
        "path": str(top), "commit": commit, "roots": [], "patch": digest, "changed": changed,
        "left_out": named,
    }, patch  # fmt: skip


def _why_not(top: Path, path: str, is_new: bool) -> str | None:
    """Return why a changed file is not recorded; None where it is."""
    if not path.isprintable():
        return "its name cannot be printed"
    if path.endswith("/"):
        return "is a repository of its own"
    try:
        if os.lstat(top / path).st_size > code.FILE:
            return f"is larger than {code.FILE:,} bytes"
        if is_new and _is_key(os.path.basename(path)):
            return "is named like a secret"
        is_file = is_new and not os.path.islink(top / path)
        if is_file and _has_secret(reading.read_bytes(top / path, code.FILE)):
            return "holds what looks like a secret"
    except FileNotFoundError:
        return "was removed meanwhile" if is_new else None
    except (OSError, DamagedFile) as error:
        return f"cannot be read ({getattr(error, 'strerror', None) or 'changed'})"
    return None


def _without_secrets(patch: bytes, left: dict[str, str]) -> bytes:
    """Return the changes of the files that hold no secret; the others are put into ``left``."""
    kept: list[bytes] = []
    for section in filter(None, _SECTION.split(patch)):
        if _has_secret(section):
            name = section.partition(b"\n")[0].rpartition(b" b/")[2].decode(errors="replace")
            left[name] = "holds what looks like a secret"
        else:
            kept.append(section)
    return b"".join(kept)


def _has_secret(data: bytes) -> bool:
    text = data.decode(errors="replace")
    return secrets.mask(text) != text


def _is_key(name: str) -> bool:
    if _KEYS.fullmatch(name):
        return True
    return not name.endswith((".py", ".pyi")) and secrets.named(name.partition(".")[0])
