"""Commands on what a run has left: ``python -m dtrain NAME RUN [WORD=VALUE | KEY=VALUE ...]``."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dtrain.config.overrides import key_of, parse
from dtrain.controller import cli, resume
from dtrain.errors import UsageError, nearest
from dtrain.run.folder import short

#: Which weights of a checkpoint there are.
_WEIGHTS = ("raw", "ema")


class RunCommand(cli.OneConfiguration):
    """A command on a run.

    Args:
        run: a run folder, or one of its checkpoints.
    """

    def __init__(self, run: str):
        self._run = run
        self.rundir, self._chosen = resume.origin(run)

    def check_run(self, has_checkpoint: bool) -> None:
        """Refuse what is no run, and two checkpoints.

        Args:
            has_checkpoint: one was typed.

        Raises:
            UsageError: there is no such folder, or it is another checkpoint.
        """
        if not self.rundir.path.is_dir():
            raise UsageError(
                "RUN", self._run, "is not a folder", "a folder that a run printed as its run "
                "folder, or RUN/checkpoints/STEP",
                f"python -m dtrain {self.name} outputs/DATE/TIME_NAME",
            )  # fmt: skip
        if self._chosen is not None and has_checkpoint:
            raise UsageError(
                "RUN", self._run, "names a checkpoint, and so does checkpoint=", "one of them",
                f"python -m dtrain {self.name} {short(self.rundir.path)}",
            )  # fmt: skip

    def overrides(self, own: list[str], replaced: Collection[str]) -> list[str]:
        """Return the overrides of the run with those of this command.

        Args:
            own: of this command.
            replaced: keys and groups of which those of the run are left out.

        Raises:
            UsageError: it is no run folder.
        """
        typed = f"python -m dtrain {self.name} "
        return resume.of_run("RUN", self._run, self.rundir, own, replaced, typed)


class OfModel(RunCommand):
    """A command ``python -m dtrain NAME RUN [WORD=VALUE ...] [dataset...=...]``."""

    #: Its words, with what each means where it is left out.
    words: Mapping[str, str | None]

    def __init__(self, run: str):
        super().__init__(run)
        self._words: dict[str, str | None] = dict(self.words)

    def check(self) -> None:
        """Check the words.

        Raises:
            UsageError: one is wrong.
        """

    def arguments(self, given: list[str]) -> list[str]:
        """Return the overrides of the run, and those that were typed; keep the command's own words.

        Raises:
            UsageError: there is no such run, a word is wrong, or a key means nothing here.
        """
        words, own = own_words(self.name, given, self.words)
        self._words |= words
        self.check()
        if self._words["weights"] not in _WEIGHTS:
            raise UsageError(
                "weights", self._words["weights"], "are no weights of a run", " or ".join(_WEIGHTS),
                "weights=raw",
            )  # fmt: skip
        self.check_run(self._words["checkpoint"] is not None)
        replaced = {*map(key_of, own), "resume", "fork", "output_dir", "tracking", "debug",
                    "sweep", "hydra"}  # fmt: skip
        return self.overrides([*own, "tracking=none"], replaced)

    @property
    def checkpoint(self) -> str | None:
        """What was typed of the checkpoint that is meant, or the name of its folder."""
        return self._words["checkpoint"] if self._chosen is None else self._chosen.name


def own_words(
    command: str, given: list[str], words: Collection[str], group: str = "dataset"
) -> tuple[dict[str, str], list[str]]:
    """Return what was typed for a command's own words, and the rest: overrides and options.

    Args:
        command: its name.
        given: its command line.
        words: those that it has.
        group: whose overrides it takes as well; empty: it takes none.

    Raises:
        UsageError: something is neither.
    """
    values, rest = {}, []
    for text in given:
        override = parse(text)
        if text.startswith("-") or (group and override.key.partition(".")[0] == group):
            rest.append(text)
        elif override.name in words and override.value is not None and not override.sign:
            values[override.name] = override.value.strip("'\"")
        else:
            near, accepted = nearest(override.name, words), ", ".join(f"{word}=" for word in words)
            raise UsageError(
                override.name or text, override.value or "", f"is no option of {command}",
                f"{accepted} and overrides of {group}" if group else accepted,
                f"the command with {near}=" if near else f"the command without {text}",
            )  # fmt: skip
    return values, rest
