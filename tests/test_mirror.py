"""Copies of run folders and working trees.

The referees are the readers of a run, after every single change.
"""

from __future__ import annotations

import io
import os
import random
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain.errors import CheckpointError, DamagedFile, DtrainError, UsageError
from dtrain.launchers import facts
from dtrain.launchers.agents import mirror
from dtrain.run import checkpoint, journal
from dtrain.run.checkpoint.writer import Writer
from dtrain.run.folder import RunDir, write_json
from dtrain.run.mirror import OF_COMMANDS, PIECE, Changes, Part, Receiver


class Training:
    """Does to a run folder what a training does, without one."""

    def __init__(self, folder: Path, keep: int = 1):
        self.rundir = RunDir(folder)
        folder.mkdir()
        self.rundir.logs.mkdir()
        for path in (self.rundir.config, self.rundir.command, self.rundir.cluster):
            path.write_text("{}\n")
        self.keep = keep
        self.begin(0)

    def begin(self, step: int) -> None:
        self.step = step
        self.journal = journal.Journal(self.rundir.journal)
        self.writer = Writer(
            self.rundir.checkpoints, self.keep, True, "max", lambda step: None,
            self.journal.sync, step or None,
        )  # fmt: skip

    def train(self) -> None:
        self.step += 1
        self.journal.write("metrics", step=self.step, metrics={"loss": 1 / self.step})
        with self.rundir.log("chief-0").open("a") as file:
            file.write(f"step {self.step}\n")
        write_json(self.rundir.progress, {"step": self.step, "time": 1.0})

    def save(self) -> None:
        arrays = {"w": np.full(1000, self.step, np.float32)}
        self.writer.submit(self.step, arrays, {"objective": -abs(self.step - 4) / 8})
        self.writer.wait()

    def restart(self) -> None:
        """Die, and begin again from the last checkpoint."""
        self.journal.close()
        found, _ = checkpoint.newest(self.rundir.checkpoints)
        step = found.step if found else 0
        log = journal.Journal(self.rundir.journal)
        log.write(journal.RESUMED, step=step)
        log.close()
        self.begin(step)

    def end(self) -> None:
        write_json(self.rundir.result, {"status": "FINISHED"})

    def resume(self) -> None:
        self.rundir.result.unlink(missing_ok=True)
        self.restart()


def check(copy: Path, before: int) -> int:
    """Resume from a copy, as far as it can be told apart from the run; return the step."""
    found, problems = checkpoint.newest(copy / "checkpoints")
    assert not problems, problems
    step = found.step if found else 0
    if found is not None:
        assert (found.arrays["w"] == step).all()
        assert checkpoint.store.committed(copy / "checkpoints") in (step, None)
    points = [e["step"] for e in journal.read(copy / "journal.jsonl") if e["event"] == "metrics"]
    assert set(range(1, step + 1)) <= set(points), (step, points)
    assert step >= before
    return step


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
        and not path.is_symlink()
        and not any(part.startswith(".") for part in path.parts)
    }


def act(training: Training, rng: random.Random) -> None:
    kind = rng.choice(["train", "train", "train", "save", "save", "restart", "end"])
    if kind == "end":
        training.end()
        training.resume()
    else:
        getattr(training, kind)()


@pytest.mark.parametrize("seed", range(6))
def test_a_resume_from_the_copy_is_sound_after_every_change(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    training, copied = Training(tmp_path / "run", keep=1 + seed % 2), tmp_path / "copy"
    copied.mkdir()
    original, copy, step = Changes(training.rundir.path), Receiver(copied), 0
    for _ in range(25):
        for _ in range(rng.randrange(4)):
            act(training, rng)
        for change in original.parts():
            copy.apply(change)
            step = check(copied, step)
            if rng.random() < 0.2:
                act(training, rng)  # while a look is on its way
    training.end()
    for change in original.parts():
        copy.apply(change)
    assert files(copied) == files(training.rundir.path)
    assert not list(original.parts()), "nothing has changed"


def test_a_look_that_was_given_up_is_made_again(tmp_path: Path) -> None:
    rng = random.Random(1)
    training, copied = Training(tmp_path / "run"), tmp_path / "copy"
    copied.mkdir()
    original, copy, step = Changes(training.rundir.path), Receiver(copied), 0
    for turn in range(60):
        act(training, rng)
        for number, change in enumerate(changes := original.parts()):
            if number == turn % 7:  # it did not get there
                break
            copy.apply(change)
            step = check(copied, step)
        changes.close()
        copy.close()
        if turn % 5 == 0:  # another process, which knows what the copy has
            original = Changes(training.rundir.path, copied=original.copied)
    for change in original.parts():
        copy.apply(change)
    assert files(copied) == files(training.rundir.path)


OPERATIONS = ("open", "write", "fsync", "rename", "replace", "mkdir", "unlink", "rmdir")


@pytest.mark.faults
def test_a_copy_that_is_killed_at_every_operation(tmp_path: Path) -> None:
    training = Training(tmp_path / "run")
    original = Changes(training.rundir.path)
    looks: list[list[Part]] = []
    for _ in range(2):
        training.train()
        training.save()
        looks.append(list(original.parts()))
    training.writer._last = None  # the same step once more, as a run that was resumed may do
    training.save()
    looks.append(list(original.parts()))

    def killed(at: int) -> bool:
        """Apply all in a process that ends at an operation; say whether it did."""
        folder = tmp_path / f"copy-{at}"
        folder.mkdir()
        if not (child := os.fork()):
            count = 0

            def counted(real: Callable[..., Any]) -> Callable[..., Any]:
                def call(*given: Any, **named: Any) -> Any:
                    nonlocal count
                    count += 1
                    if count == at:
                        os._exit(9)
                    return real(*given, **named)

                return call

            for name in OPERATIONS:
                setattr(os, name, counted(getattr(os, name)))
            copy = Receiver(folder)
            for change in (each for look in looks for each in look):
                copy.apply(change)
                if change.path == "checkpoints/latest":
                    (tmp_path / f"{at}-at-{len(os.listdir(tmp_path))}").touch()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        reached = len(list(tmp_path.glob(f"{at}-at-*")))
        check(folder, min(reached, 2))
        return os.waitstatus_to_exitcode(status) == 9

    at = 1
    while killed(at):
        at += 1
    assert at > 60


def test_what_is_replaced_grows_or_goes(tmp_path: Path) -> None:
    run, copied = tmp_path / "run", tmp_path / "copy"
    for folder in (run / "logs", run / "exports" / "m" / "1", copied):
        folder.mkdir(parents=True)
    original, copy = Changes(run), Receiver(copied)

    def look() -> list[tuple[str, str, int]]:
        found = list(original.parts())
        for change in found:
            copy.apply(change)
        assert files(copied) == files(run)
        return [(change.kind, change.path, len(change.data)) for change in found]

    log = run / "logs" / "chief-0.log"
    log.write_bytes(b"x" * (PIECE + 5))
    (run / "exports" / "m" / "1" / "export.json").write_text("{}")
    (run / "exports" / "m" / "1" / "model.keras").write_text("model")
    (run / ".lock").write_text("1")
    assert look() == [
        ("replace", "exports/m/1/model.keras", 5),
        ("replace", "exports/m/1/export.json", 2),
        ("replace", "logs/chief-0.log", PIECE),
        ("replace", "logs/chief-0.log", 5),
    ]
    with log.open("ab") as file:
        file.write(b"more")
    assert look() == [("append", "logs/chief-0.log", 4)]
    os.truncate(log, 3)
    assert look() == [("replace", "logs/chief-0.log", 3)]
    shutil.rmtree(run / "exports" / "m")
    assert sorted(look()) == [
        ("remove", "exports/m/1/export.json", 0), ("remove", "exports/m/1/model.keras", 0),
    ]  # fmt: skip
    assert sorted(os.listdir(copied)) == ["exports", "logs"]
    assert os.listdir(copied / "exports") == []
    log.touch()
    assert look() == []
    (run / "link").symlink_to("/etc/passwd")
    os.mkfifo(run / "pipe")
    assert look() == [], "they are no files of a run"


def test_what_is_there_already_is_not_sent(tmp_path: Path) -> None:
    training = Training(tmp_path / "run")
    training.train()
    training.save()
    original = Changes(training.rundir.path, leave=OF_COMMANDS)
    original.skip()
    training.train()
    found = list(original.parts())
    assert {(change.path, change.kind) for change in found} == {
        ("journal.jsonl", "append"), ("logs/chief-0.log", "append"), ("progress.json", "replace"),
    }  # fmt: skip


def test_arrays_that_come_again_bring_their_manifest(tmp_path: Path) -> None:
    training = Training(tmp_path / "run")
    training.train()
    training.save()
    original = Changes(training.rundir.path)
    original.skip()
    os.utime(training.rundir.checkpoints / "1" / "state.safetensors", (1, 1))
    assert [change.path for change in original.parts()] == [
        "checkpoints/1/state.safetensors", "checkpoints/1/manifest.json",
    ]  # fmt: skip


def piece(path: str, data: bytes = b"x", kind: str = "replace", **fields: Any) -> Part:
    return Part(path, kind, data=data, **fields)


@pytest.mark.parametrize(
    "path",
    ["../x", "/etc/x", "a/../../x", "", ".", "a//b", "a/", ".lock", "logs/.x", "a\n", "a\x00b",
     "x" * 300, "checkpoints/5/x", "checkpoints/5", "config.yaml"],
)  # fmt: skip
def test_a_peer_writes_nowhere_else(tmp_path: Path, path: str) -> None:
    (tmp_path / "copy").mkdir()
    copy = Receiver(tmp_path / "copy", refuse=OF_COMMANDS)
    for kind in ("replace", "append", "remove"):
        if kind == "remove" and path == "checkpoints/5":
            continue
        with pytest.raises(ValueError, match=r"."):
            copy.apply(piece(path, kind=kind))
    assert os.listdir(tmp_path) == ["copy"] and not files(tmp_path / "copy")


def test_links_in_the_way_are_not_followed(tmp_path: Path) -> None:
    for name in ("copy", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "other" / "file").write_text("mine")
    (tmp_path / "copy" / "logs").symlink_to(tmp_path / "other")
    (tmp_path / "copy" / "journal.jsonl").symlink_to(tmp_path / "other" / "file")
    copy = Receiver(tmp_path / "copy")
    with pytest.raises(ValueError, match="is no folder"):
        copy.apply(piece("logs/file"))
    with pytest.raises(DamagedFile, match="symbolic link"):
        copy.apply(piece("journal.jsonl", kind="append"))
    copy.apply(piece("journal.jsonl"))  # the link itself is replaced
    assert (tmp_path / "other" / "file").read_text() == "mine"
    assert (tmp_path / "copy" / "journal.jsonl").read_text() == "x"


def test_pieces_out_of_order(tmp_path: Path) -> None:
    copy = Receiver(tmp_path)
    with pytest.raises(ValueError, match="has 0 bytes and not 3"):
        copy.apply(piece("progress.json", offset=3))
    copy.apply(piece("progress.json", last=False))
    with pytest.raises(ValueError, match="has 1 bytes and not 5"):
        copy.apply(piece("progress.json", offset=5))
    copy.apply(piece("journal.jsonl", b"abc"))  # what was begun is given up
    with pytest.raises(ValueError, match="has 3 bytes and not 2"):
        copy.apply(piece("journal.jsonl", kind="append", offset=2))
    with pytest.raises(ValueError, match="came before its arrays"):
        copy.apply(piece("checkpoints/5/manifest.json"))
    copy.close()
    assert files(tmp_path) == {"journal.jsonl": b"abc"}


def test_a_checkpoint_that_does_not_arrive_whole(tmp_path: Path) -> None:
    training, copied = Training(tmp_path / "run"), tmp_path / "copy"
    copied.mkdir()
    training.train()
    training.save()
    copy = Receiver(copied)
    changes = [c for c in Changes(training.rundir.path).parts() if "checkpoints/1" in c.path]
    state, manifest = changes
    copy.apply(piece(state.path, state.data[:-1]))
    with pytest.raises(CheckpointError, match="bytes, and not"):
        copy.apply(manifest)
    assert checkpoint.steps(copied / "checkpoints") == []
    copy.apply(piece(state.path, state.data, last=False))
    copy.close()
    with pytest.raises(ValueError, match="came before"):
        copy.apply(manifest)
    for change in changes:
        copy.apply(change)
    assert checkpoint.load(copied / "checkpoints" / "1").step == 1


@pytest.mark.parametrize(
    "message",
    [{}, {"path": "a"}, {"path": 1, "how": "remove"}, {"path": "a", "how": "link"},
     {"path": "a", "how": "append", "offset": -1}, {"path": "a", "how": "append", "offset": True},
     {"path": "a", "how": "append", "last": 1}, {"path": "a", "how": "append", "more": 1},
     {"path": "a", "how": "append", "data": b"A" * (PIECE + 1)}],
)  # fmt: skip
def test_what_is_no_part_of_a_file(message: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        mirror.of_message(**message)


def made(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def test_a_folder_without_git(tmp_path: Path) -> None:
    made(tmp_path, "a.py", "b/c.py", ".hidden", ".x/y", "outputs/z", "v/pyvenv.cfg", "v/lib.py")
    assert [str(path) for path in mirror.files(tmp_path)] == ["a.py", "b/c.py"]


def test_a_checkout(tmp_path: Path) -> None:
    made(tmp_path, "a.py", "new.py", "data.bin", "gone.py")
    (tmp_path / ".gitignore").write_text("*.bin\n")
    for words in (["init", "-q"], ["add", "a.py", "gone.py"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    (tmp_path / "gone.py").unlink()
    assert [str(path) for path in mirror.files(tmp_path)] == [".gitignore", "a.py", "new.py"]


def test_it_arrives_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path / "here", "a.py", "b/c.py")
    (tmp_path / "there").mkdir()
    monkeypatch.setattr(mirror, "_PIECE", 50)
    pieces = list(mirror.messages(mirror.archive(tmp_path / "here")))
    last = [b'"last": true' in head for head, _ in pieces]
    assert last == [False] * (len(pieces) - 1) + [True] and len(pieces) > 1
    mirror.unpack(b"".join(data for _, data in pieces), tmp_path / "there")
    assert (tmp_path / "there" / "b" / "c.py").read_text() == "b/c.py"


def test_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path, "a.py", "large")
    (tmp_path / "large").write_bytes(bytes(range(256)) * 100)
    monkeypatch.setattr(mirror, "MOST", 100)
    with pytest.raises(UsageError, match="the most is large"):
        mirror.archive(tmp_path)


@pytest.mark.parametrize("name", ["../out", "a/../../out", "link", "no archive"])
def test_nothing_gets_out(name: str, tmp_path: Path) -> None:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as tar:
        member = tarfile.TarInfo(name)
        if name == "link":
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(member)
    (tmp_path / "in").mkdir()
    data = b"nonsense" if name == "no archive" else held.getvalue()
    with pytest.raises(DtrainError, match="cannot be unpacked"):
        mirror.unpack(data, tmp_path / "in")
    assert not list((tmp_path / "in").iterdir()) and not (tmp_path / "out").exists()


def test_modules_by_their_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made(tmp_path, "one_code.py", "two_code/__init__.py", "two_code/a.py")
    before = facts.modules(["one_code", "two_code", "no_such_code"])
    assert before["no_such_code"] is None and before["one_code"] != before["two_code"]
    (tmp_path / "two_code" / "a.py").write_text("other")
    after = facts.modules(["one_code", "two_code"])
    assert after["one_code"] == before["one_code"] and after["two_code"] != before["two_code"]
