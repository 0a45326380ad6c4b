"""``python -m dtrain checkpoint PATH``: show the checkpoints of a run, and whether they are sound.

PATH is a run folder, its ``checkpoints``, or one checkpoint. Every file is read and verified.
Exit codes: 0 all is sound, 1 something is damaged or nothing sound is there, 2 wrong usage.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from dtrain import errors
from dtrain.config.objective import Mode
from dtrain.controller.commands import boundary
from dtrain.controller.commands.boundary import Parser
from dtrain.errors import CheckpointError, DamagedFile, UsageError, printable
from dtrain.files import reading
from dtrain.host.terminal import aligned
from dtrain.run.checkpoint import best_of, store, writer
from dtrain.run.checkpoint.arrays import digest
from dtrain.run.checkpoint.format import MANIFEST, STATE, Checkpoint, load, read_manifest
from dtrain.run.folder import check_format

_SHOWN = 200  # characters of a value
_HEAD = ["step", "saved", "bytes", "objective", "marks", "state"]


def _of_files(path: Path) -> tuple[str, str]:
    """Return when a checkpoint was saved, and how large it is."""
    size, saved = 0, "-"
    for file in (path / STATE, path / MANIFEST):
        try:
            status = file.stat()
            size += status.st_size
            saved = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(status.st_mtime))
        except (OSError, ValueError, OverflowError):  # it is not there, or of a year beyond 9999
            saved = "-"
    return saved, f"{size:,}"


def _mode(config: Path) -> str | None:
    """Return which objective is better in the run of ``config``; None where that is not known."""
    try:
        mode = reading.read_plain(config).get("objective_mode")
    except (OSError, DamagedFile):  # it only costs a mark
        return None
    return mode if mode in Mode.__members__ else None


def _list(folder: Path, mode: str | None) -> int:
    """Print all checkpoints of a run, and the contents of the one to resume from."""
    paths, problems = store.candidates(folder)
    last = None if problems else store.committed(folder)
    rows: dict[Path, str] = {}
    metas: dict[int, dict[str, Any]] = {}
    newest: Checkpoint | None = None
    for path in paths:
        step, rows[path] = int(path.name.removeprefix(store.ASIDE)), "sound"
        try:
            metas[step] = read_manifest(path)["meta"]
            whole = load(path)
            newest = newest or whole
        except CheckpointError as error:
            rows[path] = str(error).removeprefix(f"{path}/")
            if step != last and not path.exists():
                del rows[path]  # a run that is resumed has removed it just now
    top, table = best_of(metas, mode), []
    for path, problem in rows.items():
        step = int(path.name.removeprefix(store.ASIDE))
        objective = writer.objective(metas[step]) if step in metas else None
        value = "-" if objective is None else f"{objective:.6g}"
        marks = {"latest": step == last, "uncommitted": last is not None and step > last,
                 "aside": path.name != str(step), "best": step == top}  # fmt: skip
        text = " ".join(mark for mark, holds in marks.items() if holds) or "-"
        table.append((step, [str(step), *_of_files(path), value, text, problem]))
    if table:
        listed = [cells for _, cells in sorted(table, key=lambda row: row[0])]
        print(*aligned([_HEAD, *listed], {0, 2, 3}), sep="\n")
    for problem in problems:
        print(printable(f"damaged: {problem}"))
    print()
    if newest is None:
        print(f"{folder} holds no sound checkpoint")
        return errors.FAILED
    _print_contents(newest)
    return errors.FAILED if problems or set(rows.values()) - {"sound"} else errors.OK


def _print_contents(checkpoint: Checkpoint) -> None:
    """Print what is in a sound checkpoint: its plain values and its arrays."""
    arrays = checkpoint.arrays
    facts: dict[str, Any] = {
        "arrays": len(arrays), "bytes": f"{sum(array.nbytes for array in arrays.values()):,}",
        "digest": digest(arrays),
    }  # fmt: skip
    facts |= {k: v for k, v in checkpoint.meta.items() if isinstance(v, str | int | float)}
    print(f"{checkpoint.path} (step {checkpoint.step}):")
    for name, value in facts.items():
        print(f"  {_line(name):<16}  {_line(value)}")
    rows = [
        [_line(name), a.dtype.name, "x".join(map(str, a.shape)) or "scalar", f"{a.nbytes:,}"]
        for name, a in sorted(arrays.items())
    ]
    print("", *aligned([["name", "dtype", "shape", "bytes"], *rows], {3}), sep="\n")


def _line(value: object) -> str:
    text = printable(str(value)).replace("\n", "\\n")
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def show(path: Path) -> int:
    """Print what is at ``path``.

    Args:
        path: a run folder, its ``checkpoints``, or one checkpoint.

    Returns:
        The exit code.

    Raises:
        UsageError: ``path`` is none of these.
    """
    whole = path.absolute()
    for folder in (whole, whole.parent, whole.parent.parent):
        check_format(folder, "PATH")
    if (path / "checkpoints").is_dir() or (path / "config.yaml").is_file():
        return _list(path / "checkpoints", _mode(path / "config.yaml"))
    name = path.resolve().name
    if path.is_dir() and ({MANIFEST, STATE} & {f.name for f in path.iterdir()} or name.isdecimal()):
        try:
            _print_contents(load(path))
        except CheckpointError as error:
            print(printable(f"damaged: {error}"))
            return errors.FAILED
        return errors.OK
    if path.is_dir() and (
        name == "checkpoints" or store.candidates(path)[0] or (path / store.POINTER).exists()
    ):
        return _list(path, _mode(path.resolve().parent / "config.yaml"))
    problem = "is neither a run folder nor a checkpoint" if path.exists() else "is not there"
    raise UsageError(
        "PATH", path, problem, "a run folder, its checkpoints folder, or one checkpoint in it",
        "python -m dtrain checkpoint outputs/DATE/TIME_NAME",
    )  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: in place of those of the process.
    """
    parser = Parser(
        prog="python -m dtrain checkpoint",
        description="List and verify the checkpoints of a run.",
        epilog="Every file is read. Exit codes: 0 all checkpoints are intact, 1 a checkpoint is "
        "damaged or none is intact, 2 wrong usage.",
    )
    parser.add_argument(
        "path", metavar="PATH", type=Path,
        help="a run folder, its folder checkpoints, or one checkpoint",
    )  # fmt: skip
    given = parser.parse_args(arguments)
    return boundary.answered(lambda: show(given.path), given.path)
