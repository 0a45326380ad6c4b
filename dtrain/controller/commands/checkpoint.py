"""``python -m dtrain checkpoint PATH``: show the checkpoints of a run, and whether they are sound.

PATH is a run folder, its ``checkpoints``, or one checkpoint. Every file is read and verified.
Exit codes: 0 all is sound, 1 something is damaged or nothing sound is there, 2 wrong usage.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

from dtrain import errors
from dtrain.config.objective import Mode
from dtrain.controller.commands import failures
from dtrain.controller.commands.parsing import Parser
from dtrain.errors import CheckpointError, DamagedFile, UsageError, printable
from dtrain.files import reading
from dtrain.host.columns import aligned
from dtrain.run.checkpoint import best_of, store, writer
from dtrain.run.checkpoint.arrays import digest
from dtrain.run.checkpoint.format import MANIFEST, STATE, Checkpoint, load, read_manifest
from dtrain.run.folder import check_format

_SHOWN = 200  # characters of a value
_DAMAGED = 100  # rows of damaged checkpoints


@dataclasses.dataclass
class _Row:
    """What is reported of one checkpoint."""

    step: int
    path: Path
    objective: float | None
    problem: str | None
    marks: list[str]

    def cells(self) -> list[str]:
        sizes = [_size(self.path / STATE), _size(self.path / MANIFEST)]
        return [
            str(self.step),
            _saved(self.path),
            f"{sum(sizes):,}",
            "-" if self.objective is None else f"{self.objective:.6g}",
            " ".join(self.marks) or "-",
            self.problem or "sound",
        ]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _saved(path: Path) -> str:
    try:
        at = time.localtime((path / MANIFEST).stat().st_mtime)
    except (OSError, ValueError, OverflowError):  # it is not there, or of a year beyond 9999
        return "-"
    return time.strftime("%Y-%m-%d %H:%M:%S", at)


def _mode(config: Path) -> str | None:
    """Return which objective is better in the run of ``config``; None where that is not known."""
    try:
        found = reading.read_plain(config).get("objective_mode")
    except (OSError, DamagedFile):  # it only costs a mark
        return None
    return found if found in Mode.__members__ else None


def _look(folder: Path, mode: str | None) -> tuple[list[_Row], Checkpoint | None, list[str]]:
    """Read all checkpoints of a run.

    Returns:
        A row for each, by step; the one to resume from; what is wrong with the pointer.
    """
    paths, problems = store.candidates(folder)
    last = None if problems else store.committed(folder)
    rows: list[_Row] = []
    metas: dict[int, dict[str, Any]] = {}
    newest: Checkpoint | None = None
    for path in paths:
        step, problem, value = int(path.name.removeprefix(store.ASIDE)), None, None
        try:
            metas[step] = read_manifest(path)["meta"]
            value = writer.objective(metas[step])
            found = load(path)
            newest = newest or found
        except CheckpointError as error:
            if step != last and not path.exists():
                continue  # a run that is resumed has removed it just now
            problem = str(error).removeprefix(f"{path}/")
        marks = ["latest"] if step == last else []
        marks += ["uncommitted"] if last is not None and step > last else []
        marks += ["aside"] if path.name != str(step) else []
        rows.append(_Row(step, path, value, problem, marks))
    top = best_of(metas, mode)
    for row in rows:
        row.marks += ["best"] if row.step == top else []
    return sorted(rows, key=lambda row: row.step), newest, problems


def _contents(checkpoint: Checkpoint) -> None:
    """Print what is in a sound checkpoint: its plain values and its arrays."""
    arrays = checkpoint.arrays
    facts: dict[str, Any] = {
        "arrays": len(arrays),
        "bytes": f"{sum(array.nbytes for array in arrays.values()):,}",
        "digest": digest(arrays),
    }
    plain = {k: v for k, v in checkpoint.meta.items() if isinstance(v, str | int | float)}
    print(f"{checkpoint.path} (step {checkpoint.step}):")
    for name, value in {**facts, **plain}.items():
        print(f"  {_line(name):<16}  {_line(value)}")
    head = ["name", "dtype", "shape", "bytes"]
    rows = [
        [
            errors.shortened(printable(name)),
            a.dtype.name,
            "x".join(map(str, a.shape)) or "scalar",
            f"{a.nbytes:,}",
        ]
        for name, a in sorted(checkpoint.arrays.items())
    ]
    print()
    print(*aligned([head, *rows], {3}), sep="\n")


def _line(value: object) -> str:
    text = printable(str(value)).replace("\n", "\\n")
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _one(path: Path) -> int:
    try:
        found = load(path)
    except CheckpointError as error:
        print(printable(f"damaged: {error}"))
        return errors.FAILED
    _contents(found)
    return errors.OK


def _run(folder: Path, config: Path) -> int:
    rows, newest, problems = _look(folder, _mode(config))
    if rows:
        head = ["step", "saved", "bytes", "objective", "marks", "state"]
        damaged = [row.step for row in rows if row.problem]
        left_out = set(damaged[_DAMAGED:])
        listed = [row.cells() for row in rows if not (row.problem and row.step in left_out)]
        print(*aligned([head, *listed], {0, 2, 3}), sep="\n")
        if left_out:
            print(f"and {len(damaged) - _DAMAGED:,} more that are damaged")
    for problem in problems:
        print(printable(f"damaged: {problem}"))
    print()
    if newest is None:
        print(f"{folder} holds no sound checkpoint")
        return errors.FAILED
    _contents(newest)
    return errors.FAILED if problems or any(row.problem for row in rows) else errors.OK


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
        return _run(path / "checkpoints", path / "config.yaml")
    if path.is_dir():
        name = path.resolve().name
        if (path / MANIFEST).exists() or (path / STATE).exists() or name.isdecimal():
            return _one(path)
        if name == "checkpoints" or store.candidates(path)[0] or (path / store.POINTER).exists():
            return _run(path, path.resolve().parent / "config.yaml")
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
    return failures.answered(lambda: show(given.path), given.path)
