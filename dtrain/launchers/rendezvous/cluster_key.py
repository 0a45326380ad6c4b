"""The key that the commands of one cluster prove to each other (:mod:`.messages`).

It stands in a variable of the environment or in a file of the user's, and nowhere else.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from dtrain.errors import UsageError
from dtrain.files import writing

VARIABLE = "DTRAIN_CLUSTER_KEY"
FILE = "~/.dtrain/cluster.key"
#: Characters of a key; a shorter one can be guessed from what it has proven.
SHORTEST = 16
_LONGEST = 4096

_MAKE = "python -c 'import secrets; print(secrets.token_hex(32))'"


def find() -> bytes | None:
    """Return the key of the environment, else of the user's file; None where there is none.

    Raises:
        UsageError: it is too short, or the file is not the user's alone.
    """
    if (text := os.environ.get(VARIABLE, "").strip()) != "":
        return _checked(text.encode(errors="surrogateescape"), f"the variable {VARIABLE}")
    path = Path(os.path.expanduser(FILE))
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        why = f"the key in {FILE} cannot be read ({error.strerror})"
        raise _problem(why, f"a file of yours, or {VARIABLE}", f"chmod 600 {FILE}") from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
            raise _problem(f"{FILE} is no file of yours", "a file of yours", f"rm {FILE}")
        if found.st_mode & 0o077:
            raise _problem(f"the key in {FILE} may be read by others",
                           "a file that only you can read", f"chmod 600 {FILE}")  # fmt: skip
        return _checked(os.read(descriptor, _LONGEST).strip(), f"the file {FILE}")
    finally:
        os.close(descriptor)


def missing() -> UsageError:
    """Return the error for hosts that have no key."""
    return _problem(
        "its hosts must know a common key, and there is none here",
        f"the same key on every host, as {VARIABLE} in the environment or in the file {FILE}",
        _MAKE,
    )


def make() -> bytes:
    """Make a key in the user's file, which suffices for commands on one machine; return it.

    Raises:
        UsageError: there is no home to write it in.
    """
    path = Path(os.path.expanduser(FILE))
    try:
        writing.write_key(path, secrets.token_hex(32).encode() + b"\n")
    except OSError as error:
        raise _problem(f"no key can be made in {FILE} ({error.strerror})",
                       f"a key in the variable {VARIABLE}", _MAKE) from None  # fmt: skip
    found = find()
    assert found is not None, "it was made, or was there"
    return found


def _checked(key: bytes, where: str) -> bytes:
    if len(key) < SHORTEST:
        raise _problem(f"the key in {where} is too short", f"{SHORTEST} characters or more", _MAKE)
    return key


def _problem(problem: str, accepted: str, typed: str) -> UsageError:
    return UsageError("launcher", problem, "env", accepted=accepted, typed=typed)
