"""Builds working trees again, in a folder of their own: the user's own trees are only read."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path

import dtrain
from dtrain.controller.code import capture
from dtrain.controller.code.state import State
from dtrain.errors import DamagedFile, UsageError
from dtrain.files import writing
from dtrain.host import git
from dtrain.run import code
from dtrain.run.code import Tree

#: Settings of a repository by which git writes files in another way.
_SETTINGS = ("core.autocrlf", "core.eol", "core.symlinks", "core.fileMode")
#: Runs in each interpreter of the replay, before dtrain: what Python finds in a working tree is
#: found in the one that was built, at the same place of the order.
_STARTUP = '''\
"""Written by dtrain's replay: modules of a working tree are found in its checkout."""

import importlib.machinery
import importlib.util
import os
import sys

_MOVED = {moved!r}
_ROOTS = {roots!r}


def _moved(path):
    whole = os.path.realpath(path or ".")
    if {{"site-packages", "dist-packages"}} & set(whole.split(os.sep)):
        return path
    for old in sorted(_MOVED, key=len, reverse=True):
        if whole == old or whole.startswith(old + os.sep):
            return _MOVED[old] + whole[len(old):]
    return path


_own = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [_moved(path) for path in sys.path if os.path.abspath(path or ".") != _own]
sys.path += [path for path in _ROOTS if path not in sys.path]
_spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
if _spec is not None and _spec.loader is not None:
    _spec.loader.exec_module(importlib.util.module_from_spec(_spec))
'''


class Checkout:
    """The working trees of a run, as they were.

    Args:
        state: of the run.
        place: folder that is made for them.

    Attributes:
        moved: where each tree is, by where it was.
        notes: what is not as it was, in sentences.
    """

    def __init__(self, state: State, place: Path):
        self._state, self._place, self._made = state, place, False
        self.moved: dict[str, str] = {}
        self.notes: list[str] = []

    def build(self) -> None:
        """Make the folder, and all trees in it.

        Raises:
            UsageError: a commit is not there, or changes do not apply.
            DamagedFile: a file of the record was changed, or cannot be unpacked.
            OSError: the folder cannot be written.
        """
        writing.make_folder(self._place)
        self._made = True
        for number, tree in enumerate(self._state.record["trees"]):
            top = self._place / str(number) / (Path(tree["path"]).name or "tree")
            top.mkdir(parents=True)
            try:
                self._tree(tree, top)
            except git.GitError as error:
                raise self._refused(
                    tree, f"{tree['path']} cannot be built again ({error})"
                ) from None
            self.moved[tree["path"]] = str(top)
        if self.moved:
            self._startup()

    def remove(self) -> None:
        """Remove the folder, if this has made it."""
        if self._made:
            writing.discard(self._place)

    def mapped(self, path: str) -> Path:
        """Return where a path of the run's time is now."""
        whole = Path(os.path.normpath(path))
        for old in sorted(self.moved, key=len, reverse=True):
            if whole.is_relative_to(old):
                return Path(self.moved[old]) / whole.relative_to(old)
        return whole

    @property
    def path(self) -> list[str]:
        """What an interpreter needs in ``PYTHONPATH`` to find the modules of these trees."""
        return [str(self._place / "path")] if self.moved else []

    def _startup(self) -> None:
        roots = [
            str(Path(self.moved[tree["path"]], root))
            for tree in self._state.record["trees"]
            for root in tree["roots"]
        ]
        (self._place / "path").mkdir()
        text = _STARTUP.format(moved=self.moved, roots=[os.path.normpath(each) for each in roots])
        writing.write_bytes(self._place / "path" / "sitecustomize.py", text.encode())

    def _tree(self, tree: Tree, top: Path) -> None:
        patch, archive = (self._state.file(tree, kind) for kind in ("patch", "untracked"))
        source = self._source(tree)
        kind = git.run(source, "rev-parse", "--show-object-format").decode().strip()
        form = ["--object-format=sha256"] if kind == "sha256" else []  # an older git has no other
        objects = git.run(source, "rev-parse", "--git-path", "objects").decode().rstrip("\n")
        git.run(top, "init", "--quiet", "--template=", *form)
        shared = os.path.realpath(source / objects)
        writing.write_bytes(top / ".git/objects/info/alternates", f"{shared}\n".encode())
        for setting in _SETTINGS:
            try:
                value = git.run(source, "config", "--get", setting).decode().strip()
            except git.GitError:  # it is not set
                continue
            git.run(top, "config", setting, value)
        git.run(top, "-c", "advice.detachedHead=false", "checkout", "--quiet", "--detach",
                tree["commit"], seconds=600.0)  # fmt: skip
        if (top / ".gitmodules").is_file():
            self.notes.append(f"submodules of {tree['path']} are not checked out")
        if patch:
            self._apply(tree, top, patch)
        if archive:
            _unpack(archive, top, self._state.folder)
        self.notes += [f"{each['path']} is not in the record: it {each['why']}"
                       for each in tree["left_out"]]  # fmt: skip

    def _source(self, tree: Tree) -> Path:
        """Return a repository that has the commit: where the run was made, or the one here.

        Raises:
            UsageError: there is none.
        """
        here = [git.toplevel(Path.cwd()), git.toplevel(Path(dtrain.__file__).parent)]
        places = [Path(tree["path"]), *(each for each in here if each is not None)]
        for place in dict.fromkeys(places):
            if not place.is_dir():
                continue
            try:
                git.run(place, "cat-file", "-e", f"{tree['commit']}^{{commit}}")
            except git.GitError:
                continue
            return place
        where = " and ".join(str(each) for each in dict.fromkeys(places))
        raise self._refused(
            tree, f"its commit {tree['commit'][:12]} is not in {where}: the history was rewritten, "
            "or is not here", "git fetch in a clone of it, and the command again from there",
        )  # fmt: skip

    def _apply(self, tree: Tree, top: Path, patch: bytes) -> None:
        """Apply the changes, and prove that they are the ones that were recorded.

        Raises:
            UsageError: they are not.
        """
        try:
            git.run(top, "apply", "--index", "--binary", "--whitespace=nowarn", "-", data=patch)
        except git.GitError as error:
            why = f"its changes do not apply to commit {tree['commit'][:12]} ({error})"
            raise self._refused(tree, why) from None
        if capture.difference(top, tree["commit"], []) != patch:
            raise self._refused(tree, f"its changes to {tree['path']} came out otherwise")

    def _refused(self, tree: Tree, why: str, hint: str | None = None) -> UsageError:
        return UsageError(
            "RUN", self._state.typed, why, "a run whose code can be built again",
            hint or f"git -C {tree['path']} checkout {tree['commit'][:12]} to look at it",
        )  # fmt: skip


def _unpack(archive: bytes, top: Path, record: Path) -> None:
    import tarfile

    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
            entries = tar.getmembers()
            if len(entries) > code.FILES or sum(e.size for e in entries) > code.UNTRACKED:
                raise DamagedFile(record, "has an archive that is too large")
            if any(entry.name.split("/")[0] == ".git" for entry in entries):
                raise DamagedFile(record, "has an archive with files of git's own")
            tar.extractall(top, filter="data")
    except (tarfile.TarError, EOFError, OSError) as error:
        raise DamagedFile(record, f"has an archive that cannot be unpacked ({error})") from None


def link_data(values: Sequence[str], then: Path, now: Path) -> list[str]:
    """Make files be found that a configuration names and no record holds, such as data.

    Args:
        values: texts of the configuration; of those that are relative paths the files are linked.
        then: the current directory of the run.
        now: the one of its replay.

    Returns:
        The paths that were linked.
    """
    linked = []
    for value in dict.fromkeys(values):
        # Of a pattern the folder that it begins with.
        fixed = os.path.normpath(value.partition("*")[0].partition("?")[0].rstrip("/") or ".")
        if value != fixed and "*" in value and not value.partition("*")[0].endswith("/"):
            fixed = os.path.dirname(fixed)
        first = fixed.split(os.sep)[0]
        if os.path.isabs(fixed) or first in ("", ".", "..", ".git") or "://" in value:
            continue
        for path in _missing(fixed, then, now):
            (now / path).parent.mkdir(parents=True, exist_ok=True)
            os.symlink(then / path, now / path)
            linked.append(path)
    return linked


def _missing(path: str, then: Path, now: Path) -> list[str]:
    """Return what there is at ``path`` that is not in the checkout, itself or what is in it."""
    if not os.path.lexists(then / path):
        return []
    if not os.path.lexists(now / path):
        return [path]
    if not (then / path).is_dir() or not (now / path).is_dir():
        return []
    return [
        os.path.join(path, name)
        for name in sorted(os.listdir(then / path))
        if not os.path.lexists(now / path / name) and name != "__pycache__"
    ]
