"""Runs git without changing the checkout that it looks at, and without a network."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from dtrain.host import variables

#: Neither the index is refreshed, nor is a missing object fetched, nor does anything ask.
_ENVIRONMENT = {
    "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0",
    "GIT_LFS_SKIP_SMUDGE": "1", "LC_ALL": "C",
}  # fmt: skip
#: Of a caller that is itself run by git (a hook): they would name another repository.
_FOREIGN = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX")
#: No program of a repository's own configuration is started.
_PLAIN = ("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")
#: Seconds between two looks at a git that is at work.
_TURN = 0.05


class GitError(Exception):
    """git did not do what it was asked for. The text is a clause."""


def run(
    folder: Path | str, *words: str, data: bytes | None = None, most: int = 1 << 26,
    seconds: float = 60.0, stop: threading.Event | None = None,
    environment: Mapping[str, str] | None = None,
) -> bytes:  # fmt: skip
    """Run ``git WORDS`` in a folder and return what it printed.

    Args:
        folder, words: where, and what.
        data: its standard input.
        most: bytes that it may print.
        seconds: that it may take.
        stop: ends it when it is set.
        environment: variables of git's own.

    Raises:
        GitError: it failed, took too long, or printed too much.
    """
    own = {k: v for k, v in variables.copied().items() if k not in _FOREIGN} | _ENVIRONMENT
    with contextlib.ExitStack() as stack:
        out, err, given = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        given.write(data or b"")
        given.seek(0)
        try:
            process = subprocess.Popen(
                ["git", "-C", str(folder), *_PLAIN, *words],
                env=own | dict(environment or {}), stdin=given, stdout=out, stderr=err,
                start_new_session=True,  # Ctrl-C is the caller's to answer
            )  # fmt: skip
        except OSError as error:
            raise GitError(f"git cannot be started ({error.strerror})") from None
        _wait(process, time.monotonic() + seconds, stop)
        if process.returncode:
            err.seek(0)
            raise GitError(_reason(err.read(4000), words))
        if os.fstat(out.fileno()).st_size > most:
            raise GitError(f"git {words[0]} printed more than {most:,} bytes")
        out.seek(0)
        return out.read()


def _wait(process: subprocess.Popen[bytes], end: float, stop: threading.Event | None) -> None:
    try:
        while process.poll() is None:
            if time.monotonic() >= end or (stop is not None and stop.is_set()):
                raise GitError("git took too long")
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_TURN)
    finally:
        process.kill()  # which does nothing to one that has ended
        process.wait()


def _reason(text: bytes, words: Sequence[str]) -> str:
    lines = text.decode(errors="replace").strip().splitlines()
    first = next((line for line in lines if line.startswith(("fatal:", "error:"))), None)
    said = (first or (lines[0] if lines else "no reason given")).partition(": ")
    return f"git {words[0]}: {said[2] or said[0]}"


def toplevel(folder: Path) -> Path | None:
    """Return the root of the working tree that a folder is in; None where it is in none."""
    folder = Path(os.path.realpath(folder))
    for each in (folder, *folder.parents):
        if os.path.lexists(each / ".git"):
            return each
    return None
