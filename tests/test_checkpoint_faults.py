"""Saves that are killed, lose power or fail at every single operation, in real processes.

The driver (this file as a program) forks a process for each operation of a save and each way to
end there. What is left is then looked at, and a new writer must be able to resume it.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import errno
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from dtrain.errors import CheckpointError
from dtrain.run import checkpoint
from tests.sampled import sampled

#: What counts as an operation; of `open` only what is opened for writing.
OPERATIONS = ("open", "write", "fsync", "rename", "replace", "mkdir", "unlink", "rmdir")
REAL: dict[str, Any] = {name: getattr(os, name) for name in OPERATIONS}
#: How a save may end at an operation.
MODES = {
    "before": "killed before it",
    "after": "killed after it",
    "half": "killed after half of the bytes were written",
    "data": "power fails after it: files that were not flushed are empty, names stay",
    "power": "power fails after it: names that were not flushed are as before, too",
    "order": "the same, but for the last name, which did get to the disk",
    "error": "it fails, and only this one",
    "broken": "it fails, and so does everything after it",
}


Inode = tuple[int, int]


class Faults:
    """Counts the operations of this process, and lets one of them be the last.

    ``os.fsync`` does nothing but to be noted: what it would do is what ``power`` undoes without.
    """

    def __init__(self, at: int, mode: str):
        self.at, self.mode = at, mode
        self.kinds: list[str] = []
        # What is not on the disk: files by inode, with a descriptor of their own, and names by
        # the inode of their folder, with what undoes them.
        self.files: dict[Inode, int] = {}
        self.names: list[tuple[Inode, Callable[[], Any]]] = []
        self.removed: dict[Inode, Inode] = {}  # folders, and where they were

    def install(self) -> None:
        for name in OPERATIONS:
            setattr(os, name, getattr(self, name))

    def uninstall(self) -> None:
        for name in OPERATIONS:
            setattr(os, name, REAL[name])
        os.fsync = lambda descriptor: None  # a killed process loses nothing that the kernel has
        for descriptor in self.files.values():
            os.close(descriptor)

    def _at(self, kind: str, act: Callable[[], Any], half: Callable[[], Any] | None = None) -> Any:
        self.kinds.append(kind)
        here = len(self.kinds) == self.at
        if here and self.mode == "before":
            _die()
        if here and self.mode == "half" and half is not None:
            half()
            _die()
        late = self.mode == "broken" and 0 < self.at < len(self.kinds)
        if kind != "saved" and (late or (here and self.mode in ("error", "broken"))):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        result = act()
        if here and self.mode in ("after", "half"):
            _die()
        if here and self.mode in ("data", "power", "order"):
            self._lose_power()
        return result

    def _lose_power(self) -> None:
        try:
            for descriptor in self.files.values():
                os.ftruncate(descriptor, 0)
            if self.mode != "data":
                kept = self.names[-1:] if self.mode == "order" else []
                for _, undo in [each for each in reversed(self.names) if each not in kept]:
                    # What is kept may stand on what is not, or in its place.
                    with contextlib.suppress(OSError) if kept else contextlib.nullcontext():
                        undo()
        except BaseException:  # ours: it must not be taken for one of the save
            traceback.print_exc()
            os._exit(8)
        _die()

    def saved(self, tell: Callable[[Any], None]) -> None:
        """Report the save: one more point at which it may end, and must not be lost any more."""
        self._at("saved", lambda: tell("saved"))

    def _note(self, path: Path, undo: Callable[[], Any]) -> None:
        self.names.append((_inode(path.parent), undo))

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if not flags & (os.O_WRONLY | os.O_RDWR):
            return REAL["open"](path, flags, mode, dir_fd=dir_fd)

        def act() -> int:
            new = not os.path.lexists(path)
            descriptor = REAL["open"](path, flags, mode)
            if new:
                self._note(Path(path), lambda: REAL["unlink"](path))
            self.files[_inode(path)] = os.dup(descriptor)
            return descriptor

        return self._at("open", act)

    def write(self, descriptor: int, data: Any) -> int:
        half = memoryview(data)[: len(data) // 2]
        return self._at(
            "write",
            lambda: REAL["write"](descriptor, data),
            lambda: REAL["write"](descriptor, half),
        )

    def fsync(self, descriptor: int) -> None:
        def act() -> None:
            found = os.fstat(descriptor)
            inode = (found.st_dev, found.st_ino)
            self.files.pop(inode, None)
            # What is in a folder does not matter any more when that is gone for good.
            done = {inode} | {each for each, parent in self.removed.items() if parent == inode}
            self.names = [(folder, undo) for folder, undo in self.names if folder not in done]
            self.removed = {each: p for each, p in self.removed.items() if p != inode}

        self._at("fsync", act)

    def rename(self, source: Path, target: Path) -> None:
        def act() -> None:
            REAL["rename"](source, target)
            self._note(Path(target), lambda: REAL["rename"](target, source))

        assert Path(source).parent == Path(target).parent
        self._at("rename", act)

    def replace(self, source: Path, target: Path) -> None:
        def act() -> None:
            before = Path(target).read_bytes() if Path(target).exists() else None

            def undo() -> None:
                REAL["replace"](target, source)
                if before is not None:
                    _create(target, before)

            REAL["replace"](source, target)
            self._note(Path(target), undo)

        assert Path(source).parent == Path(target).parent
        self._at("replace", act)

    def mkdir(self, path: Path, mode: int = 0o777) -> None:
        def act() -> None:
            REAL["mkdir"](path, mode)
            self._note(Path(path), lambda: shutil.rmtree(path))

        self._at("mkdir", act)

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        where = _path(path, dir_fd)

        def act() -> None:
            before = where.read_bytes()
            REAL["unlink"](where)
            self._note(where, lambda: _create(where, before))

        self._at("unlink", act)

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        where = _path(path, dir_fd)

        def act() -> None:
            REAL["open"](where, os.O_RDONLY)  # as long as it is open no other has its inode
            self.removed[_inode(where)] = _inode(where.parent)
            REAL["rmdir"](where)
            self._note(where, lambda: REAL["mkdir"](where))

        self._at("rmdir", act)


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL cannot be survived")


def _inode(path: Any) -> Inode:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _path(path: Any, dir_fd: int | None) -> Path:
    """Return the path of what is named relative to an open folder, as shutil.rmtree does."""
    return Path(path if dir_fd is None else os.path.join(f"/proc/self/fd/{dir_fd}", path)).resolve()


def _create(path: Path, data: bytes) -> None:
    descriptor = REAL["open"](path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    REAL["write"](descriptor, data)
    os.close(descriptor)


# -- what is saved -------------------------------------------------------------------------------


def state(seed: int) -> dict[str, np.ndarray]:
    """Arrays that differ for each seed."""
    return {"weights": np.arange(40.0) + seed, "step": np.array(seed)}


@dataclasses.dataclass
class Scenario:
    """A folder with checkpoints, and a writer that saves one more.

    Attributes:
        prepare: makes the folder.
        step: what is saved.
        objective: of what is saved.
        options: of the writer.
        then: the step that a later writer saves.
        problems: whether there is damage to be told of.
        twice: the same arrays are saved again, with an objective that is known only then.
    """

    prepare: Callable[[Path], None]
    step: int
    objective: float | None = None
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    then: int = 30
    problems: bool = False
    twice: bool = False

    def writer(self, folder: Path, saved: Callable[[int], None]) -> checkpoint.Writer:
        options = {"keep": 3, "best": False, "mode": "max", **self.options}
        return checkpoint.Writer(folder, **options, saved=saved)

    def save(self, folder: Path, saved: Callable[[int], None]) -> None:
        """Do what is examined: open the folder, save one checkpoint, remove old ones."""
        log = self.writer(folder, saved)
        if self.twice:
            log.submit(self.step, state(100 + self.step), {"objective": None})
        log.submit(self.step, state(100 + self.step), {"objective": self.objective})
        log.wait()

    def go_on(self, folder: Path) -> None:
        """Do what a later run does."""
        log = self.writer(folder, lambda step: None)
        log.submit(self.then, state(self.then), {"objective": 0.0})
        log.wait()


def saved(*steps: int, objectives: tuple[float, ...] = ()) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        for i, step in enumerate(steps):
            meta = {"objective": objectives[i] if objectives else None}
            checkpoint.save(folder, step, state(step), meta)

    return prepare


def leftovers(folder: Path) -> None:
    """What several kills may have left: of a save, of its pointer, of replacing, of pruning."""
    saved(1, 2, 3)(folder)
    os.rename(folder / "2", folder / ".old-2")
    os.rename(folder / "3", folder / ".tmp-3")
    (folder / ".tmp-3" / "manifest.json").unlink()
    (folder / ".tmp-latest").write_text("half of a poi")
    checkpoint.save(folder.parent / "other", 4, state(4), {})
    os.rename(folder.parent / "other" / "4", folder / "4")  # not committed
    shutil.copytree(folder / "1", folder / ".old-1")  # it was replaced
    shutil.copytree(folder / "1", folder / ".tmp-0")
    (folder / "latest").write_bytes(checkpoint.store._pointer(2))


def damaged(folder: Path) -> None:
    saved(10, 20)(folder)
    os.truncate(folder / "20" / "state.safetensors", 9)


def without_a_pointer(folder: Path) -> None:
    saved(1, 2)(folder)
    (folder / "latest").unlink()


SCENARIOS = {
    "the first of all": Scenario(lambda folder: None, 1),
    "one more": Scenario(saved(1, 2), 3),
    "the same step again": Scenario(saved(1, 2), 2),
    "the same step again, the only one": Scenario(saved(2), 2, options={"keep": 1}),
    "the last one goes, the best one stays": Scenario(
        saved(1, 2, objectives=(0.9, 0.5)), 3, 0.4, {"keep": 1, "best": True}
    ),
    "the last one and the best one go": Scenario(
        saved(1, 2, objectives=(0.9, 0.5)), 3, 0.95, {"keep": 1, "best": True}
    ),
    "after other kills": Scenario(leftovers, 3),
    "back to one before a damaged one": Scenario(damaged, 15, then=17, problems=True),
    "a damaged one again": Scenario(damaged, 20, then=20, problems=True),
    "a run that has no pointer yet": Scenario(without_a_pointer, 3),
    "with an objective that comes later": Scenario(saved(1, 2), 3, 0.5, twice=True),
}


# -- the driver ----------------------------------------------------------------------------------


def tree(folder: Path) -> list[str]:
    """Return the relative paths of all files and empty folders."""
    if not folder.is_dir():
        return []
    found = [p for p in folder.rglob("*") if p.is_file() or not any(p.iterdir())]
    return sorted(str(p.relative_to(folder)) for p in found)


def digests(folder: Path) -> dict[int, str]:
    found = [checkpoint.load(folder / str(step)) for step in checkpoint.steps(folder)]
    return {each.step: checkpoint.digest(each.arrays) for each in found}


def newest(folder: Path) -> tuple[int, str] | None:
    found, _ = checkpoint.newest(folder)
    return None if found is None else (found.step, checkpoint.digest(found.arrays))


def outcome(folder: Path) -> Any:
    """All that there is to a folder: files, the pointer, arrays."""
    return tree(folder), (folder / "latest").read_bytes(), digests(folder)


class Driver:
    """Runs one scenario with all faults, in a folder of its own."""

    def __init__(self, scenario: Scenario, folder: Path):
        self.scenario = scenario
        self.base, self.now = folder / "base" / "checkpoints", folder / "now" / "checkpoints"
        self.base.parent.mkdir(parents=True)
        scenario.prepare(self.base)
        self.before = newest(self.base)
        self._fresh()
        scenario.go_on(self.now)
        #: By what was found after the fault, what there is when a later run has gone on.
        self.expected = {self.before: outcome(self.now)}
        self._fresh()
        scenario.save(self.now, lambda step: None)
        found = newest(self.now)
        assert found == (scenario.step, checkpoint.digest(state(100 + scenario.step)))
        assert found != self.before
        self.after = found
        scenario.go_on(self.now)
        self.expected[found] = outcome(self.now)

    def _fresh(self) -> None:
        shutil.rmtree(self.now.parent, ignore_errors=True)
        shutil.copytree(self.base.parent, self.now.parent)

    def kinds(self) -> list[str]:
        """Return the operations of a save that nothing happens to."""
        self._fresh()
        code, told = self._child(0, "before")
        assert code == 0, told
        return told[-1]

    def _act(self, at: int, mode: str, tell: Callable[[Any], None]) -> int:
        """Save with a fault; return the exit code of what was told."""
        faults = Faults(at, mode)
        faults.install()
        try:
            self.scenario.save(self.now, lambda step: faults.saved(tell))
        except CheckpointError as error:
            tell(str(error))
            return 3
        finally:
            faults.uninstall()
        tell(faults.kinds)
        return 0

    def _child(self, at: int, mode: str) -> tuple[int, list[Any]]:
        """Save in a process of its own; return how it ended and what it told."""
        ours, theirs = os.pipe()
        child = os.fork()
        if not child:
            status = 9
            try:
                status = self._act(
                    at,
                    mode,
                    lambda value: REAL["write"](theirs, json.dumps(value).encode() + b"\n"),
                )
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(theirs)
        with os.fdopen(ours) as pipe:
            told = [json.loads(line) for line in pipe]
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), told

    def examine(self, at: int, mode: str) -> None:
        """Let the fault happen; look at what is left; go on."""
        self._fresh()
        told: list[Any] = []
        if mode in ("error", "broken"):
            code = self._act(at, mode, told.append)
        else:
            code, told = self._child(at, mode)
            assert code == -signal.SIGKILL, (code, told)
        found, problems = checkpoint.newest(self.now)
        state = None if found is None else (found.step, checkpoint.digest(found.arrays))
        assert state in (self.before, self.after), (state, problems)
        assert self.scenario.problems or not problems, problems
        if "saved" in told or code == 0:
            assert state == self.after, "it was told to be saved"
        if code == 3:
            final = self.now / str(self.scenario.step)
            assert f"written to {final}: No space left on device" in told[-1], told
        for step in () if self.scenario.problems else checkpoint.steps(self.now):
            checkpoint.load(self.now / str(step))  # none is half there under its name
        self.scenario.go_on(self.now)
        assert outcome(self.now) == self.expected[state], (outcome(self.now), state)


def main(name: str) -> None:
    """Run one scenario; print its operations and how many faults there were."""
    gc.freeze()
    Faults(0, "before").uninstall()
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # where there is one: faster
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        driver = Driver(SCENARIOS[name], Path(folder))
        kinds = driver.kinds()
        count = 0
        for at, kind in enumerate(kinds, 1):
            for mode in MODES:
                if mode != "half" or kind == "write":
                    try:
                        driver.examine(at, mode)
                    except BaseException as error:
                        raise AssertionError(f"{mode} operation {at} of {kinds}") from error
                    count += 1
    print(json.dumps({"kinds": kinds, "faults": count}))


# -- the tests -----------------------------------------------------------------------------------

#: What every save does: a folder, three files (two and the pointer), six flushes, two renames.
LEAST = {"saved": 1, "mkdir": 1, "open": 3, "write": 3, "fsync": 6, "rename": 1, "replace": 1}
#: And more where something is replaced or removed.
MORE = {
    "the first of all": {"mkdir": 2},
    "the same step again": {"rename": 3, "unlink": 2, "rmdir": 1},
    "the same step again, the only one": {"rename": 3, "unlink": 2, "rmdir": 1},
    "the last one goes, the best one stays": {"rename": 2, "unlink": 2, "rmdir": 1},
    "the last one and the best one go": {"rename": 3, "unlink": 4, "rmdir": 2},
    "after other kills": {"rename": 4, "unlink": 8, "rmdir": 4},
    "back to one before a damaged one": {"rename": 2, "unlink": 2, "rmdir": 1},
    "a damaged one again": {"rename": 3, "unlink": 2, "rmdir": 1},
    "with an objective that comes later": {"open": 4, "write": 4, "fsync": 8, "replace": 2},
}


@pytest.mark.parametrize("name", sampled(SCENARIOS, list(SCENARIOS)[-1]))
def test_whatever_ends_a_save_the_last_or_the_one_before_is_there(name: str) -> None:
    root = Path(__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": str(root), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.test_checkpoint_faults", name],
        capture_output=True, text=True, timeout=120, cwd=root, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    counts = collections.Counter(found["kinds"])
    least = LEAST | MORE.get(name, {})
    assert all(counts[kind] >= number for kind, number in least.items()), counts
    assert found["faults"] == len(found["kinds"]) * (len(MODES) - 1) + counts["write"] > 100


if __name__ == "__main__":
    main(sys.argv[1])
