"""One working tree of git as it is now: its commit, its changes, its untracked files.

Secrets are left out: what git ignores, files named like keys, and texts that hold a password of an
address or the value of a secret variable. So is what is large: it is data, and no code.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import stat
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from dtrain import secrets
from dtrain.errors import DamagedFile
from dtrain.files import reading
from dtrain.host import git
from dtrain.run import code
from dtrain.run.code import Blob, LeftOut, Tree

#: Seconds of one command of git.
SECONDS = 20.0
_CODE = (".py", ".pyi", ".ipynb", ".yaml", ".yml", ".toml", ".cfg", ".json", ".txt", ".md")
_KEYS = re.compile(
    r"\.env.*|\.netrc|\.pypirc|.*\.(pem|key|p12|pfx|jks|kdbx)|id_(rsa|dsa|ecdsa|ed25519)"
)
_TOTAL = "all that is recorded"

#: Files that are left out, by path, and why.
Left = dict[str, str]


def tree(
    top: Path,
    roots: list[str],
    outputs: Sequence[Path],
    number: int,
    stop: threading.Event | None = None,
) -> tuple[Tree, dict[str, bytes]]:
    """Return what there is to record of a working tree, and the files that go beside it.

    Args:
        top: its root.
        roots: as of :class:`dtrain.run.code.Tree`.
        outputs: run folders, and folders of them, of which nothing is recorded.
        number: of the tree in its record, for names of files.
        stop: ends it when it is set.

    Raises:
        GitError: git does not answer, or the tree has no commit.
    """
    commit, changed, untracked, left = _status(top, outputs, stop)
    for path in changed:
        with contextlib.suppress(OSError):
            if os.lstat(top / path).st_size > code.FILE:
                left[path] = f"is larger than {code.FILE:,} bytes"
    patch = _patch(top, commit, changed, left, stop)
    archive, added = _archive(top, untracked, left)
    files: dict[str, bytes] = {}
    found: Tree = {
        "path": str(top), "commit": commit, "roots": sorted(roots),
        "patch": _blob(files, f"{number}.patch", patch),
        "untracked": _blob(files, f"{number}.tar.gz", archive),
        "changed": len([path for path in changed if path not in left]), "added": added,
        "left_out": _named(left),
    }  # fmt: skip
    return found, files


def _blob(files: dict[str, bytes], name: str, data: bytes) -> Blob | None:
    if not data:
        return None
    files[name] = data
    return {"name": name, "sha256": hashlib.sha256(data).hexdigest()}


def _named(left: Left) -> list[LeftOut]:
    found: list[LeftOut] = [{"path": path, "why": why} for path, why in sorted(left.items())]
    more = len(found) - code.NAMED
    return (
        [*found[: code.NAMED], {"path": f"{more:,} others", "why": _TOTAL}] if more > 0 else found
    )


def _status(
    top: Path, outputs: Sequence[Path], stop: threading.Event | None
) -> tuple[str, list[str], list[str], Left]:
    """Return the commit, the changed and the untracked files, and what is left out of both."""
    told = git.run(
        top, "status", "--porcelain=v2", "--branch", "-z", "--untracked-files=all", "--no-renames",
        "--ignore-submodules=none", seconds=SECONDS, stop=stop,
    )  # fmt: skip
    commit, changed, untracked = "", [], []
    left: Left = {}
    # Where the tree itself lies in such a folder, as a checkout does, it is recorded.
    inside = [each for each in outputs if each.is_relative_to(top)]
    for line in filter(None, told.split(b"\0")):
        kind, _, rest = line.partition(b" ")
        if kind == b"#":
            if rest.startswith(b"branch.oid "):
                commit = rest.split()[1].decode()
            continue
        path = os.fsdecode(rest.split(b" ", {b"1": 7, b"u": 9}.get(kind, 0))[-1])
        if not path.isprintable():
            left[ascii(path)] = "its name cannot be printed"
        elif kind == b"?" and path.endswith("/"):
            left[path] = "is a repository of its own"
        elif kind == b"?":
            if not _is_made(path) and not any((top / path).is_relative_to(each) for each in inside):
                untracked.append(path)
        elif rest[3:4] == b"S":
            left[path] = "is a submodule"
        else:
            changed.append(path)
    if not commit.isalnum():  # "(initial)"
        raise git.GitError("it has no commit yet")
    return commit, changed, untracked, left


def _is_made(path: str) -> bool:
    """Say whether a file is byte code: Python makes it of what is recorded."""
    return "__pycache__" in path.split("/") or path.endswith(".pyc")


def difference(
    top: Path, commit: str, leave: list[str], stop: threading.Event | None = None
) -> bytes:
    """Return the changes of the tracked files of a working tree since a commit.

    The settings of the repository and of its user do not count.

    Args:
        top, commit: the tree, and what it is compared with.
        leave: paths that are left out.
        stop: ends it when it is set.

    Raises:
        GitError: git failed, or there are more than :data:`dtrain.run.code.PATCH` bytes.
    """
    found = git.run(
        top, "-c", "core.quotePath=true", "-c", "diff.orderFile=/dev/null",
        "-c", "diff.suppressBlankEmpty=false", "diff", "--binary", "--full-index", "--no-renames",
        "--no-color", "--no-ext-diff", "--no-textconv", "--ignore-submodules=all", "--unified=3",
        "--inter-hunk-context=0", "--diff-algorithm=myers", "--no-indent-heuristic",
        "--src-prefix=a/", "--dst-prefix=b/", commit, "--",
        *([":(top)"] if leave else []), *(f":(top,exclude,literal){path}" for path in leave),
        most=code.PATCH, seconds=SECONDS, stop=stop,
    )  # fmt: skip
    # Amid a merge: the file as it is follows, as that of any other.
    return re.sub(rb"^\* Unmerged path .*\n", b"", found, flags=re.M)


def _patch(
    top: Path, commit: str, changed: list[str], left: Left, stop: threading.Event | None
) -> bytes:
    """Return the changes of the tracked files; those with secrets are put into ``left``."""
    kept = [path for path in changed if path not in left]
    for _ in range(2):
        if not kept:
            return b""
        leave = [path for path in changed if path in left]
        if len(leave) > code.NAMED:
            break
        try:
            patch = difference(top, commit, leave, stop)
        except git.GitError as error:
            if "more than" not in str(error):
                raise
            break
        if not (secret := [path for path in kept if _hides(top, commit, path, patch, stop)]):
            return patch
        left.update(dict.fromkeys(secret, "holds what looks like a secret"))
        kept = [path for path in kept if path not in left]
    left.update(dict.fromkeys(kept, f"all changes together are more than {code.PATCH:,} bytes"))
    return b""


def _hides(top: Path, commit: str, path: str, patch: bytes, stop: threading.Event | None) -> bool:
    """Say whether the changes of one file hold a secret, where those of all of them do."""
    if not _has_secret(patch):
        return False
    one = git.run(
        top, "diff", "--no-ext-diff", "--no-textconv", "--no-color", commit, "--",
        f":(top,literal){path}", seconds=SECONDS, stop=stop,
    )  # fmt: skip
    return _has_secret(one)


def _has_secret(data: bytes) -> bool:
    text = data.decode(errors="replace")
    return secrets.mask(text) != text


def _archive(top: Path, untracked: list[str], left: Left) -> tuple[bytes, int]:
    """Return the untracked files as one archive, and how many they are."""
    if not untracked:
        return b"", 0
    import gzip  # with tarfile it takes as long as all launchers together
    import tarfile

    held, total, count = io.BytesIO(), 0, 0
    # The same files are the same bytes: no time is among them.
    with (
        gzip.GzipFile(fileobj=held, mode="wb", compresslevel=1, mtime=0) as packed,
        tarfile.TarFile(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path, mode, data in _contents(top, untracked, left):
            if count == code.FILES or total + len(data) > code.UNTRACKED:
                left[path] = f"is beyond {code.FILES:,} files or {code.UNTRACKED:,} bytes"
                continue
            entry = tarfile.TarInfo(path)
            entry.mode = 0o755 if mode & stat.S_IXUSR else 0o644
            if stat.S_ISLNK(mode):
                entry.type, entry.linkname = tarfile.SYMTYPE, os.fsdecode(data)
                tar.addfile(entry)
            else:
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
            count, total = count + 1, total + len(data)
    return (held.getvalue() if count else b""), count


def _contents(top: Path, untracked: list[str], left: Left) -> Iterator[tuple[str, int, bytes]]:
    """Yield path, mode and contents of untracked files, code first; the others go into ``left``."""
    for path in sorted(untracked, key=lambda each: (not each.endswith(_CODE), each)):
        why = None
        try:
            found = os.lstat(top / path)
            if stat.S_ISLNK(found.st_mode):
                target = os.readlink(top / path)
                if _leads_out(path, target):
                    why = "is a link to elsewhere"
                data = os.fsencode(target)
            elif not stat.S_ISREG(found.st_mode):
                why, data = "is no regular file", b""
            elif found.st_size > code.FILE:
                why, data = f"is larger than {code.FILE:,} bytes", b""
            elif _is_key(path):
                why, data = "is named like a secret", b""
            else:
                data = reading.read_bytes(top / path, code.FILE)
                if _has_secret(data):
                    why = "holds what looks like a secret"
        except (OSError, DamagedFile) as error:
            why, data = f"cannot be read ({getattr(error, 'strerror', None) or 'changed'})", b""
        if why is not None:
            left[path] = why
        else:
            yield path, found.st_mode, data


def _leads_out(path: str, target: str) -> bool:
    whole = os.path.normpath(os.path.join(os.path.dirname(path), target))
    return os.path.isabs(target) or whole.split(os.sep)[0] == ".."


def _is_key(path: str) -> bool:
    name = os.path.basename(path)
    if _KEYS.fullmatch(name):
        return True
    return not name.endswith((".py", ".pyi")) and secrets.named(name.partition(".")[0])
