"""The recorded state of a run: found, read, and run only where it is the user's own or trusted."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shlex
from pathlib import Path
from typing import Any

from dtrain.config import consent
from dtrain.config import given as given_modules
from dtrain.controller import folders, resume
from dtrain.errors import UsageError
from dtrain.host import python_path
from dtrain.run import code
from dtrain.run.code import Record, Tree
from dtrain.run.folder import RunDir


@dataclasses.dataclass(frozen=True)
class State:
    """What a run was made of.

    Attributes:
        typed: how the user has named the run: a folder, or an id of MLflow.
        rundir: of the run.
        command: the contents of its ``command.json``.
        folder: of the record of its first start.
        record: that record.
        later: records of later starts, which found another state.
        own: this user's key has signed all of it.
    """

    typed: str
    rundir: RunDir
    command: dict[str, Any]
    folder: Path
    record: Record
    later: list[Record]
    own: bool

    @property
    def name(self) -> str:
        """What stands in ``DTRAIN_TRUST`` for the code, and the overrides, of this run."""
        command = [self.command["overrides"], self.command.get("config_dir")]
        text = json.dumps([self.record["digest"], command], sort_keys=True)
        return f"code_{hashlib.sha256(text.encode()).hexdigest()[:32]}"

    def check_trust(self) -> None:
        """Refuse to run the code of another user, unless this one trusts just that code.

        Raises:
            UsageError: saying how to consent.
        """
        if not self.own and self.name not in python_path.trusted():
            place = self.folder.relative_to(self.rundir.path)
            raise UsageError(
                "RUN", self.typed,
                "its code and its overrides are not signed by you, and replay would run them",
                f"a run of your own, or code that you have read in its {place} and trust",
                f"DTRAIN_TRUST={self.name} python -m dtrain replay {shlex.quote(self.typed)}",
            )  # fmt: skip

    def offer_given(self) -> None:
        """Let the modules be found that a Python caller has given to the run.

        Raises:
            DamagedFile: one was changed since.
        """
        given_modules.offer(self.rundir.path, self.command["overrides"], True)

    def file(self, tree: Tree, kind: str) -> bytes:
        """Return the ``patch`` of a tree, or the archive of its ``untracked`` files; empty if none.

        Raises:
            DamagedFile: it was changed since it was written.
        """
        blob = tree["patch"] if kind == "patch" else tree["untracked"]
        return b"" if blob is None else code.blob(self.folder, blob)


def read(folder: str | Path, typed: str | None = None) -> State:
    """Return the state of the run in a folder.

    Args:
        folder: of the run.
        typed: how the user has named it; None: so.

    Raises:
        UsageError: it is none of a run, or nothing of its code was recorded.
        DamagedFile: a file of it cannot be used.
    """
    rundir = RunDir(folder)
    if not rundir.path.is_dir():
        raise UsageError(
            "RUN", folder, "is not a folder", "a folder that a run printed as its run folder, or "
            "the id of a run in MLflow", "python -m dtrain replay outputs/DATE/TIME_NAME",
        )  # fmt: skip
    command = folders.read_command(folders.open_existing(rundir.path, "RUN"))
    resume.refuse_derived("RUN", folder, command)
    if command is None or not rundir.config.is_file():
        raise UsageError(
            "RUN", folder, f"is not a run folder (it has no {rundir.command.name})",
            "a folder that a run printed as its run folder",
            "python -m dtrain replay outputs/DATE/TIME_NAME",
        )  # fmt: skip
    found = code.folders(rundir.path)
    if not found:
        raise UsageError(
            "RUN", folder, "nothing of its code was recorded: it never began to train, or began "
            "with record_code=false, or with an older dtrain",
            f"a run whose folder has {code.FOLDER}/", "python -m dtrain replay ANOTHER",
        )  # fmt: skip
    records = [code.read(each) for each in found]
    signed = all(consent.is_own(each["digest"], each.get("signature")) for each in records)
    own = consent.grant_own(command) and signed
    return State(typed or str(folder), rundir, command, found[0], records[0], records[1:], own)


def check_complete(state: State) -> None:
    """Refuse a run of which code lies in no working tree of git: it would be another's by now.

    Raises:
        UsageError: naming the folder and the note that says why.
    """
    folder = state.rundir.path / given_modules.FOLDER
    for name in given_modules.names(state.command["overrides"]):
        if not (folder / f"{name}.py").is_file():
            raise UsageError(
                "RUN", state.typed, f"{name}.py, which Python gave to the run, is not in its "
                f"{given_modules.FOLDER}/: MLflow does not hold it", "the folder of the run",
                "python -m dtrain replay FOLDER",
            )  # fmt: skip
    missing = state.record["outside"]
    if missing:
        note = next(iter(state.record["notes"]), f"{missing[0]} is in no working tree of git")
        raise UsageError(
            "RUN", state.typed, f"its code cannot be built again: {note}",
            "a run whose modules lie in a working tree of git, or are installed",
            "git init there, and a first commit, before the next run",
        )  # fmt: skip
