"""``python -m dtrain checkpoint RUN``: list and verify the checkpoints of a run.

Every file is read. Exit codes: 0 all checkpoints are intact, 1 a checkpoint is damaged or none is
intact, 2 wrong usage.

    python -m dtrain checkpoint latest
"""

from __future__ import annotations

import time
from pathlib import Path

from dtrain import errors
from dtrain.cli.registry import Target, command
from dtrain.errors import CheckpointError, DamagedFile, printable, refuse
from dtrain.files import reading
from dtrain.files.fields import Json
from dtrain.host.terminal import aligned
from dtrain.run.checkpoint import best_of, store, writer
from dtrain.run.checkpoint.format import MANIFEST, STATE, load, read_manifest
from dtrain.run.folder import check_format

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
    return mode if mode in ("max", "min", "auto") else None


def _list(folder: Path, one: Path | None) -> int:
    """Print the checkpoints of a run, or one of them, and return the exit code."""
    paths, problems = store.candidates(folder) if one is None else ([one], [])
    last = None if one is not None or problems else store.committed(folder)
    rows: dict[Path, str] = {}
    metas: dict[int, Json] = {}
    for path in paths:
        step, rows[path] = _step(path), "sound"
        try:
            metas[step] = read_manifest(path)["meta"]
            load(path)
        except CheckpointError as error:
            rows[path] = str(error).removeprefix(f"{path}/")
            if step != last and not path.exists():
                del rows[path]  # a run that is resumed has removed it just now
    top = best_of(metas, _mode(folder.resolve().parent / "config.yaml")) if one is None else None
    table = []
    for path in sorted(rows, key=_step):
        step = _step(path)
        objective = writer.objective(metas[step]) if step in metas else None
        value = "-" if objective is None else f"{objective:.6g}"
        marks = {"latest": step == last, "uncommitted": last is not None and step > last,
                 "aside": path.name.startswith(store.ASIDE), "best": step == top}  # fmt: skip
        text = " ".join(mark for mark, holds in marks.items() if holds) or "-"
        table.append([str(step), *_of_files(path), value, text, rows[path]])
    if table:
        print(*aligned([_HEAD, *table], {0, 2, 3}), sep="\n")
    for problem in problems:
        print(printable(f"damaged: {problem}"))
    if one is None and "sound" not in rows.values():
        print(f"{folder} holds no sound checkpoint")
    return errors.FAILED if problems or set(rows.values()) != {"sound"} else errors.OK


def _step(path: Path) -> int:
    name = path.name.removeprefix(store.ASIDE)
    return int(name) if name.isdecimal() else 0


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
        check_format(folder, "RUN")
    if (path / "checkpoints").is_dir() or (path / "config.yaml").is_file():
        return _list(path / "checkpoints", None)
    name = path.resolve().name
    if path.is_dir() and ({MANIFEST, STATE} & {f.name for f in path.iterdir()} or name.isdecimal()):
        return _list(path.parent, path.resolve())
    if path.is_dir() and (
        name == "checkpoints" or store.candidates(path)[0] or (path / store.POINTER).exists()
    ):
        return _list(path, None)
    problem = "is neither a run folder nor a checkpoint" if path.exists() else "is not there"
    refuse("RUN", problem, path, accepted="a run folder, its checkpoints folder, or one of these",
           hint="python -m dtrain checkpoint outputs/DATE/TIME_NAME")  # fmt: skip


@command(
    Target("RUN", "a run folder, its folder checkpoints, or one of these; latest: the newest run")
)
def main(path: str) -> int:
    """List the checkpoints of a run, or one, and return the exit code."""
    return show(Path(path))
