"""``python -m dtrain replay RUN``: repeat a run with the code that it used, and compare results.

The code of the run (commit, changes, untracked files) is checked out in a worktree of git, the run
is repeated there, the results are compared bit by bit, the worktree is removed. Exit codes: 0 same
bits, 1 others or a failure, 2 wrong usage, 75 stopped.

    python -m dtrain replay latest
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import dtrain
from dtrain import errors
from dtrain.cli.registry import RUN, command
from dtrain.compare import bits
from dtrain.config import private, tree
from dtrain.config.overrides import key_of
from dtrain.config.tree import Config
from dtrain.errors import UsageError, printable, quoted, refuse
from dtrain.files import writing
from dtrain.host import git, packages, pyproject, python_path
from dtrain.job import code_recorder, folders, resume
from dtrain.job.supervisor import Signals
from dtrain.run import code
from dtrain.run.code import Record, Tree
from dtrain.run.folder import RunDir, short

#: Keys of where a run goes and of what it continues from, which the replay has of its own.
_OWN = ("output_dir", "hydra", "tracking", "resume", "fork", "sweep", "dry_run", "action")
_EXAMPLE = "python -m dtrain replay outputs/DATE/TIME_NAME"


@dataclasses.dataclass(frozen=True)
class RunState:
    """What a run was made of.

    Attributes:
        typed: how the user has named the run.
        rundir: of the run.
        overrides, config_dir: of its command.
        folder: of the record of its first start.
        record: that record.
    """

    typed: str
    rundir: RunDir
    overrides: list[str]
    config_dir: str | None
    folder: Path
    record: Record

    @property
    def name(self) -> str:
        """What stands in ``DTRAIN_TRUST`` for the code, and the overrides, of this run."""
        text = json.dumps(
            [self.record["digest"], [self.overrides, self.config_dir]], sort_keys=True
        )
        return f"code_{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def read(typed: str) -> RunState:
    """Return what a run was made of, where the user may run it.

    Raises:
        UsageError: it is no run, nothing of its code was recorded, or it is another user's.
        DamagedFile: a file of it cannot be used.
    """

    def refused(problem: str, accepted: str, **words: str) -> UsageError:
        return UsageError("RUN", problem, typed, accepted=accepted, **(words or {"hint": _EXAMPLE}))

    rundir = RunDir(typed)
    if not rundir.path.is_dir():
        raise refused("is not a folder", "a folder that a run printed as its run folder")
    command = folders.read_command(folders.open_existing(rundir.path, "RUN"))
    resume.refuse_derived("RUN", typed, command)
    if command is None or not rundir.config.is_file():
        raise refused(f"is not a run folder (it has no {rundir.command.name})",
                      "a folder that a run printed as its run folder")  # fmt: skip
    if not (starts := code.folders(rundir.path)):
        raise refused("nothing of its code was recorded: it never began to train, or began with "
                      "record_code=false", f"a run whose folder has {code.FOLDER}/")  # fmt: skip
    record = code.read(starts[0])
    signed = private.is_own(record["digest"], record.get("signature"))
    own = private.grant_own(command) and signed
    overrides, config_dir = command.get("overrides") or [], command.get("config_dir")
    state = RunState(typed, rundir, overrides, config_dir, starts[0], record)
    if not own and state.name not in python_path.trusted():
        raise refused(
            "its code and its overrides are not signed by you, and replay would run them",
            "a run of your own, or code that you have read in its "
            f"{state.folder.relative_to(rundir.path)} and trust",
            typed=f"DTRAIN_TRUST={state.name} python -m dtrain replay {shlex.quote(typed)}",
        )
    if record["tree"] is None:
        raise refused(
            f"its code was not recorded: {next(iter(record['notes']), 'git gave none')}",
            "a run that was started in a working tree of git, with a commit",
            hint="git init there, and a first commit, before the next run",
        )
    private.accept("RUN", typed, command, [])  # no option of the command line is among them
    return state


def notes(state: RunState, tree: Tree) -> list[str]:
    """Return sentences on what is not as it was when the run began."""
    now = {"python": platform.python_version(), **packages.installed()[0]}
    then = state.record["packages"]
    lines = [f"package {name}: {then.get(name, 'none')} then, {now.get(name, 'none')} now"
             for name in sorted({*then, *now}) if then.get(name) != now.get(name)]  # fmt: skip
    lines += [f"{path} is not in the record: it {why}" for path, why in tree["left_out"].items()]
    if len(code.folders(state.rundir.path)) > 1:
        lines.append("a later start of the run had other code: its points may differ")
    return [*state.record["notes"], *lines]


@contextlib.contextmanager
def worktree(state: RunState, tree: Tree) -> Iterator[Path]:
    """Make the working tree of a run anew, for as long as it is needed.

    Args:
        state: of the run.
        tree: of its record.

    Raises:
        UsageError: the commit is not there, or the changes do not apply.
        DamagedFile: they were changed.
    """
    patch, commit = code.read_patch(state.folder, tree), tree["commit"]
    above = Path(os.path.realpath(tempfile.mkdtemp(prefix="dtrain-replay-")))
    path = above / (Path(tree["path"]).name or "tree")
    # Where the run's repository has lost it, the current directory may be a clone that has it.
    sources = [source for source in (Path(tree["path"]), git.toplevel(Path.cwd())) if source]
    having = (each for each in sources if not _git(each, "cat-file", "-e", f"{commit}^{{commit}}"))
    source = next(having, sources[0])
    try:
        problem = _git(source, "worktree", "add", "--detach", str(path), commit)
        if problem is None and patch:
            problem = _git(path, "apply", "--binary", "--whitespace=nowarn", "-", data=patch)
        if problem is not None:
            refuse("RUN", f"its code at commit {commit[:12]} cannot be built again ({problem})",
                   state.typed,
                   hint="git fetch in a clone of it, and the command there")  # fmt: skip
        yield path
    finally:
        if path.exists() and (refusal := _git(source, "worktree", "remove", "--force", str(path))):
            _say(f"{refusal}; type: git -C {source} worktree remove -f {path}")
        writing.remove_empty(above)


def _git(folder: Path, *words: str, data: bytes | None = None) -> str | None:
    """Run git, and return why it failed."""
    try:
        git.run(folder, *words, data=data, seconds=600.0)
    except git.GitError as error:
        return str(error)
    return None


def mapped(path: str, tree: Tree, to: Path) -> Path:
    """Return where a path of the run's time is in its worktree."""
    whole, top = Path(os.path.normpath(path)), tree["path"]
    return to / whole.relative_to(top) if whole.is_relative_to(top) else whole


def link_data(paths: Iterable[str], then: Path, now: Path) -> list[str]:
    """Link files that a configuration names and no record holds, such as data.

    Args:
        paths: texts of the configuration; those that are relative paths or patterns are linked.
        then: the current directory of the run.
        now: the one of its replay.

    Returns:
        What was linked.
    """
    linked = []
    for text in dict.fromkeys(paths):
        if os.path.isabs(text) or "://" in text or not Path(text).parts or ".." in Path(text).parts:
            continue
        for path in sorted([*then.glob(text), *then.glob(f"{text}/*")]):
            for part in [*reversed(path.relative_to(then).parents), path.relative_to(then)][1:]:
                if not os.path.lexists(now / part):
                    os.symlink(then / part, now / part)
                    linked.append(str(part))
                    break
    return linked


def _texts(node: object) -> Iterator[str]:
    """Yield the texts of a node."""
    if isinstance(node, dict | list):
        for each in node.values() if isinstance(node, dict) else node:
            yield from _texts(each)
    elif isinstance(node, str) and "${" not in node:
        yield node


def _words(state: RunState, config: Config, config_dir: Path | None, to: Path) -> list[str]:
    """Return the run's command line, into a new folder."""
    words = [each for each in state.overrides if re.split(r"[./@]", key_of(each))[0] not in _OWN]
    if config.fork is not None:
        words.append(f"fork={quoted(config.fork)}")
    flags = ["--config-dir", str(config_dir)] if config_dir is not None else []
    place = [f"output_dir={quoted(str(to.parent))}", f"hydra.run.dir={quoted(str(to))}"]
    return ["-m", "dtrain", *flags, *words, "tracking=none", *place]


def _environment(state: RunState, path: Path, tree: Tree) -> dict[str, str]:
    """Return the variables of the replay: this process's, and the run's own where they decide."""
    deciding = code_recorder.is_deciding
    own = {name: value for name, value in os.environ.items() if not deciding(name)}
    trust = dict.fromkeys([*state.record["trust"], *python_path.trusted()])
    looked = [str(path / root) for root in tree["roots"]]
    looked += filter(None, [os.environ.get("PYTHONPATH")])
    if not code_recorder.is_installed(root := Path(dtrain.__file__).resolve().parents[1]):
        looked.append(str(root))  # a checkout, behind that of the run
    return own | state.record["environment"] | {
        python_path.TRUST: ",".join(each for each in trust if each != state.name),
        "PYTHONPATH": os.pathsep.join(looked),
    }  # fmt: skip


def replay(state: RunState) -> int:
    """Build the code, make the run again, compare, remove the code, and return the exit code.

    Args:
        state: of the run.
    """
    code, config = state.record["tree"], tree.read(state.rundir.config, hidden=True)
    assert code is not None, "read has refused it"
    _say(f"code: {code['path']} at {code['commit'][:12]}, {code['changed']:,} changed files")
    for note in notes(state, code):
        _say(f"note: {note}")
    name = folders.check_name(f"{time.strftime('%H-%M-%S')}_{config.name}_replay")
    folder = Path(pyproject.output_dir(), time.strftime("%Y-%m-%d"), name).absolute()
    if os.path.lexists(folder):
        folder = folder.with_name(f"{name}-{os.getpid()}")
    then = state.record["folder"]
    # ORDER: before there is a worktree: whoever asks to stop does not keep it from being removed.
    with Signals() as signals:
        signals.started = True
        with worktree(state, code) as path:
            here = mapped(then, code, path)
            here.mkdir(parents=True, exist_ok=True)
            named = tree.written(config)["dataset"], tree.written(config)["model"]
            for linked in link_data(_texts(named), Path(then), here):
                _say(f"data: {linked} is read from {then}")
            config_dir = None
            if state.config_dir:
                config_dir = mapped(os.path.join(then, state.config_dir), code, path)
            words = _words(state, config, config_dir, folder)
            _say(f"replay: {short(folder)}")
            exit_code = _run(words, here, _environment(state, path, code), signals)
    if exit_code == errors.INTERRUPTED or not (replayed := RunDir(folder)).journal.is_file():
        _say(f"the replay was stopped or did not begin (exit code {exit_code}): begin it anew")
        return exit_code if exit_code > 0 else errors.FAILED
    lines, same = bits.report(state.rundir, replayed)
    print(*lines, sep="\n")
    return errors.OK if same and exit_code in (errors.OK, errors.FAILED) else errors.FAILED


def _run(words: list[str], here: Path, environment: dict[str, str], signals: Signals) -> int:
    """Run Python until it ends, pass requests to stop on to it, and return its exit code."""
    if signals.count:
        return errors.INTERRUPTED
    process = subprocess.Popen(
        [sys.executable, *words], cwd=here, env=environment, stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C reaches this process, and from here that one
    )  # fmt: skip
    passed = 0
    while process.poll() is None:
        if signals.count > passed:
            passed += 1
            process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.2)
    return process.returncode


def _say(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)


@command(RUN)
def main(run: str) -> int:
    """Repeat a run, and return the exit code."""
    return replay(read(run))
