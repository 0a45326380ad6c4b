"""``python -m dtrain replay RUN``: make a run again with its own code, and compare the numbers.

Exit codes: 0 same bits, 1 others or a failure, 2 wrong usage, 75 stopped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import dtrain
from dtrain import errors
from dtrain.compare import bits
from dtrain.config import consent, load, section
from dtrain.config import given as given_modules
from dtrain.config.overrides import key_of, parse
from dtrain.config.schema import Config
from dtrain.controller import code_recorder, folders, resume
from dtrain.controller.commands import boundary
from dtrain.controller.commands.boundary import Parser
from dtrain.errors import UsageError, printable
from dtrain.files import writing
from dtrain.host import git, packages, python_path, terminal
from dtrain.run import code
from dtrain.run.code import Record, Tree
from dtrain.run.folder import RunDir, short

#: Keys of where a run goes and of what it continues from, which the replay has of its own.
_OWN = ("output_dir", "hydra", "tracking", "resume", "fork", "sweep", "dry_run", "action")
_EXAMPLE = "python -m dtrain replay outputs/DATE/TIME_NAME"


def _parser() -> Parser:
    parser = Parser(
        prog="python -m dtrain replay", allow_abbrev=False,
        description="Check out the code of a run (commit, changes, untracked files) in a worktree "
        "of git, repeat the run there, compare the results bit by bit, remove the worktree.",
        epilog="Exit codes: 0 same bits, 1 others or a failure, 2 wrong usage, 75 stopped.",
    )  # fmt: skip
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE",
        help="changes, such as trainer.epochs=1: values that both runs have are compared",
    )  # fmt: skip
    return parser


@dataclasses.dataclass(frozen=True)
class State:
    """What a run was made of.

    Attributes:
        typed: how the user has named the run.
        rundir: of the run.
        overrides, config_dir: of its command.
        folder: of the record of its first start.
        record: that record.
        own: this user's key has signed the record and the command.
    """

    typed: str
    rundir: RunDir
    overrides: list[str]
    config_dir: str | None
    folder: Path
    record: Record
    own: bool

    @property
    def name(self) -> str:
        """What stands in ``DTRAIN_TRUST`` for the code, and the overrides, of this run."""
        text = json.dumps(
            [self.record["digest"], [self.overrides, self.config_dir]], sort_keys=True
        )
        return f"code_{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def read(typed: str) -> State:
    """Return what a run was made of, where the user may run it.

    Raises:
        UsageError: it is no run, nothing of its code was recorded, or it is another user's.
        DamagedFile: a file of it cannot be used.
    """

    def refused(problem: str, accepted: str, hint: str = _EXAMPLE) -> UsageError:
        return UsageError("RUN", typed, problem, accepted, hint)

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
    signed = consent.is_own(record["digest"], record.get("signature"))
    own = consent.grant_own(command) and signed
    overrides, config_dir = command.get("overrides") or [], command.get("config_dir")
    state = State(typed, rundir, overrides, config_dir, starts[0], record, own)
    if not own and state.name not in python_path.trusted():
        raise refused(
            "its code and its overrides are not signed by you, and replay would run them",
            "a run of your own, or code that you have read in its "
            f"{state.folder.relative_to(rundir.path)} and trust",
            f"DTRAIN_TRUST={state.name} python -m dtrain replay {shlex.quote(typed)}",
        )
    if record["tree"] is None:
        raise refused(
            f"its code was not recorded: {next(iter(record['notes']), 'git gave none')}",
            "a run that was started in a working tree of git, with a commit",
            "git init there, and a first commit, before the next run",
        )
    consent.accept("RUN", typed, command, [])  # no option of the command line is among them
    given_modules.offer(rundir.path, overrides, True)
    return state


def notes(state: State, tree: Tree) -> list[str]:
    """Return sentences on what is not as it was when the run began."""
    now = {"python": platform.python_version(), **packages.installed()[0]}
    then = state.record["packages"]
    lines = [f"package {name}: {then.get(name, 'none')} then, {now.get(name, 'none')} now"
             for name in sorted({*then, *now}) if then.get(name) != now.get(name)]  # fmt: skip
    lines += [f"{path} is not in the record: it {why}" for path, why in tree["left_out"].items()]
    if len(code.folders(state.rundir.path)) > 1:
        lines.append("a later start of the run had other code: its points may differ")
    return [*state.record["notes"], *lines]


class Worktree:
    """The working tree of a run, for as long as it is needed.

    Args:
        state: of the run.
        tree: of its record.
    """

    def __init__(self, state: State, tree: Tree):
        self._state, self._tree = state, tree
        self._place = Path(os.path.realpath(tempfile.mkdtemp(prefix="dtrain-replay-")))
        self._source: Path | None = None
        self.path = self._place / (Path(tree["path"]).name or "tree")

    def build(self) -> None:
        """Check the commit out, and apply the changes.

        Raises:
            UsageError: the commit is not there, or the changes do not apply.
            DamagedFile: they were changed.
        """
        tree, commit = self._tree, self._tree["commit"]
        patch = code.read_patch(self._state.folder, tree)
        places = dict.fromkeys(filter(None, [Path(tree["path"]), git.toplevel(Path.cwd())]))
        for place in places:
            with contextlib.suppress(git.GitError):
                git.run(place, "cat-file", "-e", f"{commit}^{{commit}}")
                self._source = place
                break
        else:
            raise UsageError(
                "RUN", self._state.typed, f"its commit {commit[:12]} is not in "
                f"{' and '.join(map(str, places))}: the history was rewritten, or is not here",
                "a run whose commit is in its repository, or in the current one",
                "git fetch in a clone of it, and the command again from there",
            )  # fmt: skip
        try:
            git.run(self._source, "worktree", "add", "--detach", str(self.path), commit,
                    seconds=600.0)  # fmt: skip
            if patch:
                git.run(self.path, "apply", "--binary", "--whitespace=nowarn", "-", data=patch)
        except git.GitError as error:
            raise UsageError(
                "RUN", self._state.typed,
                f"its code cannot be built again at commit {commit[:12]} ({error})",
                "a run whose changes apply to its commit",
                f"git -C {shlex.quote(str(self._source))} show {commit[:12]} to look at it",
            ) from None  # fmt: skip

    def mapped(self, path: str) -> Path:
        """Return where a path of the run's time is now."""
        whole, top = Path(os.path.normpath(path)), self._tree["path"]
        return self.path / whole.relative_to(top) if whole.is_relative_to(top) else whole

    def remove(self) -> None:
        """Remove it from the disk, and from git's list of worktrees."""
        if self._source is not None:
            try:
                git.run(self._source, "worktree", "remove", "--force", str(self.path))
            except git.GitError as error:
                if self.path.exists():
                    _say(f"{error}; type: git -C {self._source} worktree remove -f {self.path}")
        writing.remove_empty(self._place)


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


def _texts(config: Config) -> list[str]:
    """Return the texts in those groups of a configuration that name files."""
    texts: list[str] = []
    nodes: list[Any] = [section.written(getattr(config, each)) for each in ("dataset", "model")]
    while nodes:
        node = nodes.pop()
        if isinstance(node, dict | list):
            nodes += node.values() if isinstance(node, dict) else node
        elif isinstance(node, str) and "${" not in node:
            texts.append(node)
    return texts


def _words(state: State, config: Config, tree: Worktree, given: list[str], to: Path) -> list[str]:
    """Return the command line: the run's own, with what ``given`` replaces, into a new folder."""
    own = [key_of(each) for each in given if key_of(each) != "hydra.run.dir"]
    replaced = (*own, *_OWN)
    kept = [each for each in state.overrides
            if not any(key_of(each) == key or key_of(each).startswith((f"{key}.", f"{key}/"))
                       for key in replaced)]  # fmt: skip
    kept += [each for each in given if key_of(each) != "hydra.run.dir"]
    if config.fork is not None:
        kept.append(f"fork={_quoted(config.fork)}")
    flags = []
    if state.config_dir:
        whole = os.path.join(state.record["folder"], state.config_dir)
        flags = ["--config-dir", str(tree.mapped(whole))]
    place = [f"output_dir={_quoted(str(to.parent))}", f"hydra.run.dir={_quoted(str(to))}"]
    return ["-m", "dtrain", *flags, *kept, "tracking=none", *place]


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _environment(state: State, worktree: Worktree, tree: Tree) -> dict[str, str]:
    """Return the variables of the replay: this process's, and the run's own where they decide."""
    deciding = code_recorder.is_deciding
    own = {name: value for name, value in os.environ.items() if not deciding(name)}
    trust = dict.fromkeys([*state.record["trust"], *python_path.trusted()])
    path = [str(worktree.path / root) for root in tree["roots"]]
    path += filter(None, [os.environ.get("PYTHONPATH")])
    if not code_recorder.is_installed(root := Path(dtrain.__file__).resolve().parents[1]):
        path.append(str(root))  # a checkout, behind that of the run
    return own | state.record["environment"] | {
        python_path.TRUST: ",".join(each for each in trust if each != state.name),
        "PYTHONPATH": os.pathsep.join(path),
    }  # fmt: skip


def replay(state: State, given: list[str]) -> int:
    """Build the code, make the run again, compare, remove the code, and return the exit code.

    Args:
        state: of the run.
        given: overrides that the user typed.
    """
    _check(given)
    tree, config = state.record["tree"], load.read(state.rundir.config, hidden=True)
    assert tree is not None, "read has refused it"
    _say(f"code: {tree['path']} at {tree['commit'][:12]}, {tree['changed']:,} changed files")
    for note in notes(state, tree):
        _say(f"note: {note}")
    folder = _folder(config, given)
    requests: list[int] = []
    # ORDER: before there is a worktree: whoever asks to stop does not keep it from being removed.
    before = {number: signal.signal(number, lambda number, _: requests.append(number))
              for number in terminal.stops()}  # fmt: skip
    try:
        worktree = Worktree(state, tree)
        try:
            worktree.build()
            here = worktree.mapped(state.record["folder"])
            here.mkdir(parents=True, exist_ok=True)
            for path in link_data(_texts(config), Path(state.record["folder"]), here):
                _say(f"data: {path} is read from {state.record['folder']}")
            words = _words(state, config, worktree, given, folder)
            _say(f"replay: {short(folder)}")
            exit_code = _run(words, here, _environment(state, worktree, tree), requests)
        finally:
            worktree.remove()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if exit_code == errors.INTERRUPTED or not (replayed := RunDir(folder)).journal.is_file():
        _say(f"the replay was stopped or did not begin (exit code {exit_code}): begin it anew")
        return exit_code if exit_code > 0 else errors.FAILED
    whole = all(key_of(each) == "hydra.run.dir" for each in given)
    lines, same = bits.report(state.rundir, replayed, whole)
    print(*lines, sep="\n")
    return errors.OK if same and exit_code in (errors.OK, errors.FAILED) else errors.FAILED


def _check(given: list[str]) -> None:
    for override in given:
        key, value = key_of(override), parse(override).value
        if value is None and not override.startswith("~"):
            raise UsageError("OVERRIDE", override, "has no value", "KEY=VALUE",
                             f"{_EXAMPLE} trainer.epochs=1")  # fmt: skip
        if key.partition(".")[0] in _OWN and key != "hydra.run.dir":
            raise UsageError(
                key, value or "", "is the replay's own to choose",
                "overrides of hardware, launcher, trainer, checkpoint, and hydra.run.dir",
                f"the command without {override}",
            )  # fmt: skip


def _folder(config: Config, given: list[str]) -> Path:
    """Return the new run folder, which is not there yet."""
    typed = [parse(each).value or "" for each in given if key_of(each) == "hydra.run.dir"]
    if typed:
        return folders.place(typed[-1].strip("'\""), "hydra.run.dir")
    name = folders.check_name(f"{time.strftime('%H-%M-%S')}_{config.name}_replay")
    base = Path("outputs", time.strftime("%Y-%m-%d"), name).absolute()
    return base if not os.path.lexists(base) else base.with_name(f"{name}-{os.getpid()}")


def _run(words: list[str], here: Path, environment: dict[str, str], requests: list[int]) -> int:
    """Run Python until it ends, pass requests to stop on to it, and return its exit code."""
    if requests:
        return errors.INTERRUPTED
    process = subprocess.Popen(
        [sys.executable, *words], cwd=here, env=environment, stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C reaches this process, and from here that one
    )  # fmt: skip
    while process.poll() is None:
        while requests:
            process.send_signal(requests.pop(0))
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.2)
    return process.returncode


def _say(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: in place of those of the process.
    """
    given = _parser().parse_intermixed_args(arguments)
    return boundary.answered(lambda: replay(read(given.run), given.overrides), given.run)
