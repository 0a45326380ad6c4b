"""``python -m dtrain init DIR``: write a project that trains: model, data, experiment, test.

Exit codes: 0 it was written, 2 wrong usage, or the folder is not empty.

    python -m dtrain init mine
"""

from __future__ import annotations

import random
import re
import shlex
from pathlib import Path

from dtrain import errors
from dtrain.cli.registry import Target, command
from dtrain.errors import refuse
from dtrain.files import writing

#: The files, each below a line with its path.
_FILES = Path(__file__).with_suffix(".txt")
_DATA, _ROWS = "data/points.csv", 300


def write(folder: Path) -> int:
    """Write the project, and return the exit code.

    Raises:
        UsageError: something is in the folder, or is no folder.
        OSError: it cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        above = folder if folder.is_dir() else folder.parent
        free = next(path for n in range(1, 1000) if not (path := above / f"project{n}").exists())
        refuse("DIR", "is not an empty folder", folder, accepted="a folder that is empty or new",
               typed=f"python -m dtrain init {shlex.quote(str(free))}")  # fmt: skip
    texts = re.split(r"^==> (.+)\n", _FILES.read_text(encoding="utf-8"), flags=re.M)
    for name, text in [*zip(texts[1::2], texts[2::2], strict=True), (_DATA, _points())]:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        writing.write_bytes(path, text.encode())
    goes = "" if folder.resolve() == Path.cwd() else f" cd {shlex.quote(str(folder))}"
    print(f"wrote {folder}; next:{goes}")
    print("python -m dtrain experiment=first")
    return errors.OK


def _points() -> str:
    """Return a table of points around three others, and which one each is around."""
    draw, kinds = random.Random(0), {"low": -2.0, "middle": 0.0, "high": 2.0}
    rows = [
        f"{draw.gauss(center, 1):.3f},{draw.gauss(-center, 1):.3f},{kind}"
        for _ in range(_ROWS // len(kinds)) for kind, center in kinds.items()
    ]  # fmt: skip
    return "\n".join(["x,y,kind", *rows, ""])


@command(Target("DIR", "a folder that is empty or new", is_run=False))
def main(folder: str) -> int:
    """Write a project, and return the exit code."""
    return write(Path(folder))
