"""A resume that is hit at each of its file operations: nothing that was there is lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.hostile import project
from tests.hostile.project import Home, hashes
from tests.sampled import sampled

server, home = project.server, project.home

KINDS = ("SIGKILL", "SIGTERM", "SIGINT", "error")
#: Of the default suite: moments, as parts of all of a command.
SOME = {
    "SIGKILL": (0.35, 0.6, 0.85),
    "SIGTERM": (0.5,),
    "SIGINT": (0.6,),
    "error": (0.45, 0.7),
}
#: What a resume writes before its tasks train: one that is killed then leaves it so.
COMMANDS = ("config.yaml", "command.json", "cluster.json", "progress.json", "sweep.json")
#: Moments of each case of the campaign, of which there are 24.
PARTS = 8


def lines(journal: Path) -> list[bytes]:
    return journal.read_bytes().splitlines() if journal.is_file() else []


def began(run: Path, kept: Path) -> bool:
    """Whether a task has reported that it trains."""
    return any(
        b'"start"' in line
        for journal in run.rglob("journal.jsonl")
        for line in set(lines(journal)) - set(lines(kept / journal.relative_to(run)))
    )


def hit(home: Home, folder: str, how: str, kind: str, at: int) -> int:
    """Resume, and be hit once; return how many operations there were."""
    run, kept = home.project / folder, home.path / "kept"
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(run, kept, symlinks=True)
    first = hashes(run)
    key = "sweep.resume" if folder.startswith("sweep") else "resume"
    more = [] if folder.startswith("sweep") else ["trainer.epochs=5"]
    try:
        code, output = home(f"{key}={run}", *more, environment={"QUICK": how}, fault=(at, kind))
        count = home.server.count
        trained = began(run, kept)
        if kind == "error" and code in (1, 2):
            assert "No space left on device" in output or "mine.small: lost" in output, output
            assert "error: " in output or "FAILED: " in output  # a job of a sweep
        # What a killed command has added is no hindrance to the next one, nor refused by it.
        refused, output = home(f"{key}={run}", "seed=99")
        assert refused == 2, output
        if folder.startswith("sweep"):
            for job in sorted(run.glob("[0-9]*")):
                home(f"resume={job}", "seed=99")
        now = hashes(run)
        for name, value in first.items():
            file = run / name
            if name.endswith("journal.jsonl"):
                assert file.read_bytes().startswith((kept / name).read_bytes())
            elif kind == "SIGKILL" and file.name in COMMANDS:
                assert file.is_file() or file.name == "progress.json", name
            elif not trained:
                assert now.get(name) == value, (kind, at, name, output)
            elif "checkpoints" in name:
                assert now[name] == value
        return count
    finally:
        shutil.rmtree(run)
        shutil.copytree(kept, run, symlinks=True)


CASES = [
    ("interrupted", "refuse"), ("interrupted", ""), ("finished", "refuse"), ("failed", "crash"),
    ("sweep-interrupted", "refuse"), ("sweep-interrupted", ""),
]  # fmt: skip


@pytest.mark.parametrize("kind", sampled(KINDS))
def test_some_moments(home: Home, kind: str) -> None:
    for number, part in enumerate(SOME[kind]):
        folder, how = CASES[(number + KINDS.index(kind)) % 2 * 4]
        total = hit(home, folder, how, kind, 10**9)
        assert total > 30
        for at in (1, int(part * total)):  # the first is where the command reads what to resume
            hit(home, folder, how, kind, at)


@pytest.mark.faults
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("folder", "how"), CASES)
def test_moments_of_all_of_a_command(home: Home, folder: str, how: str, kind: str) -> None:
    total = hit(home, folder, how, kind, 10**9)
    turn = CASES.index((folder, how)) * len(KINDS) + KINDS.index(kind)
    # Each kind and folder has moments of its own; threads do them in another order each time.
    for at in range(1 + turn % PARTS, total + 3, max(1, total // PARTS)):
        hit(home, folder, how, kind, at)
