"""Addresses of folders, such as ``s3://bucket/runs``, and the folders here that stand for them.

A run whose ``output_dir`` is an address is made in a folder of this machine, and copied. Which
folder that is follows from the address, and the other way round: nothing else has to say so.
"""

from __future__ import annotations

import os
from pathlib import Path

from dtrain.errors import refuse
from dtrain.files import reading

#: What a run can be copied to; the others of fsspec have files that cannot be written, or no order.
SCHEMES = ("s3", "gs", "memory")
#: Where the local folders are, below the current one.
_ROOT = ("outputs", "remote")


def local(address: str, key: str) -> Path:
    """Return the folder of this machine that stands for the one at an address.

    Args:
        address: of a folder.
        key: that names it, for messages.

    Raises:
        UsageError: no run can be there.
    """
    scheme, _, rest = address.partition("://")
    names = rest.rstrip("/").split("/")
    problem = next(filter(None, map(reading.component, names)), None)
    if scheme not in SCHEMES or problem is not None:
        refuse(key, f"a name in it {problem}" if problem else f"no run goes to {scheme}://",
               address, accepted="a folder, or s3://BUCKET/FOLDER, gs://BUCKET/FOLDER")  # fmt: skip
    return Path.cwd().joinpath(*_ROOT, scheme, *names)


def address_of(folder: Path) -> str | None:
    """Return the address that a folder of this machine stands for; None where it stands for none.

    Args:
        folder: absolute.
    """
    names = folder.parts
    for at in range(len(names) - 4, 0, -1):
        if names[at : at + 2] == _ROOT and names[at + 2] in SCHEMES:
            return f"{names[at + 2]}://{'/'.join(names[at + 3 :])}"
    return None


def is_far(word: str) -> bool:
    """Say whether a word of a command line names a run that has a place at an address."""
    if word.partition("://")[0] in SCHEMES:
        return True
    is_path = not word.startswith("-") and ("=" not in word or os.path.exists(word))
    return is_path and address_of(Path(word).absolute()) is not None
