"""Records a session as the README's picture: ``python -m tests.recording``.

The commands are run, and what they print is shown as it is; only the name of the folder is fixed.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from dtrain.config import schema

PICTURE = schema.folder("conf").parent / "docs" / "session.svg"
#: What is typed, and what is added to it here: a folder whose name does not have the time.
SESSION = (
    ("python -m dtrain strategy=mirrored trainer.batch_size=63", ()),
    ("python -m dtrain strategy=mirrored trainer.epochs=5", ("hydra.run.dir=outputs/first",)),
    (
        "python -m dtrain -m strategy=one_device,mirrored trainer.epochs=3 sweep.parallel=1",
        ("hydra.sweep.dir=outputs/sweep",),
    ),
)
WIDTH = 128
#: Where Rich would have the page load its letters from.
FONTS = re.compile(r"@font-face \{.*?\}\s*", re.S)


def printed(command: str, more: tuple[str, ...], folder: Path) -> str:
    """Run a command and return what it prints on a terminal of no redrawing, in colours."""
    environment = {**os.environ, "COLUMNS": str(WIDTH), "PYTHONPATH": str(PICTURE.parents[1])}
    done = subprocess.run(
        [sys.executable, *command.split()[1:], *more], cwd=folder, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600, check=False,
    )  # fmt: skip
    return done.stdout


def main() -> None:
    """Write the picture."""
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    with tempfile.TemporaryDirectory() as folder:
        for command, more in SESSION:
            console.print(Text("$ ", "bold green") + Text(command, "bold"))
            console.print(Text.from_ansi(printed(command, more, Path(folder))))
    PICTURE.write_text(FONTS.sub("", console.export_svg(title="dtrain")), encoding="utf-8")


if __name__ == "__main__":
    main()
