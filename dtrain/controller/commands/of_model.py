"""Commands on the model of a run: words of their own, and overrides of the run's dataset."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dtrain import errors
from dtrain.config.overrides import key_of, parse
from dtrain.controller import cli, resume
from dtrain.controller.commands import failures
from dtrain.errors import CheckpointError, UsageError
from dtrain.run.folder import short

#: Which weights of a checkpoint there are.
_WEIGHTS = ("raw", "ema")


class OfModel(cli.Command):
    """A command ``python -m dtrain NAME RUN [WORD=VALUE ...] [dataset...=...]``.

    Args:
        run: a run folder, or one of its checkpoints.
    """

    #: Of the command.
    name: str
    #: Its words, with what each means where it is left out.
    words: Mapping[str, str | None]

    def __init__(self, run: str):
        self._run = run
        self._rundir, self._chosen = resume.origin(run)
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
        own = [override for override in given if not self._is_word(override)]
        for override in own:
            if not override.startswith("-") and key_of(override).partition(".")[0] != "dataset":
                an = "an" if self.name[0] in "aeiou" else "a"
                raise UsageError(
                    key_of(override), parse(override).value or "",
                    f"says nothing of {an} {self.name}",
                    f"{', '.join(f'{word}=' for word in self.words)} and overrides of dataset",
                    f"the command without {override}",
                )  # fmt: skip
        self.check()
        if self._words["weights"] not in _WEIGHTS:
            raise UsageError(
                "weights", self._words["weights"], "are no weights of a run", " or ".join(_WEIGHTS),
                "weights=raw",
            )  # fmt: skip
        if self._chosen is not None and self._words["checkpoint"] is not None:
            raise UsageError(
                "RUN", self._run, "names a checkpoint, and so does checkpoint=", "one of them",
                f"python -m dtrain {self.name} {short(self._rundir.path)}",
            )  # fmt: skip
        if not self._rundir.path.is_dir():
            raise UsageError(
                "RUN", self._run, "is not a folder", "a folder that a run printed as its run "
                "folder, or RUN/checkpoints/STEP",
                f"python -m dtrain {self.name} outputs/DATE/TIME_NAME",
            )  # fmt: skip
        known = {key_of(override) for override in own}
        replaced = {*known, "resume", "fork", "output_dir", "tracking", "debug", "sidecar", "sweep"}
        replaced.add("hydra")
        return resume.of_run(
            "RUN", self._run, self._rundir, [*own, "tracking=none"], replaced,
            f"python -m dtrain {self.name} ",
        )  # fmt: skip

    def _is_word(self, override: str) -> bool:
        """Take one of the command's own words; say whether it was one."""
        found = parse(override)
        if override.startswith("-") or found.sign or found.name not in self.words:
            return False
        self._words[found.name] = (found.value or "").strip("'\"")
        return True

    @property
    def checkpoint(self) -> str | None:
        """What was typed of the checkpoint that is meant, or the name of its folder."""
        return self._words["checkpoint"] if self._chosen is None else self._chosen.name

    def sweep(self, loader: Any, master: Any, source: Any) -> None:
        """Refuse a sweep."""
        raise UsageError(
            "hydra.mode", "MULTIRUN", f"{self.name} has one configuration",
            "overrides with one value each", "a command for each value",
        )  # fmt: skip

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self._rundir.path


def answer(run: str, given: list[str], made: Callable[[], OfModel]) -> int:
    """Do what a command line says, and return the exit code.

    Args:
        run: that it names.
        given: its words and overrides.
        made: makes the command.
    """
    try:
        return cli.composed(given, made())
    except (UsageError, CheckpointError) as error:
        return failures.report(error, "")
    except OSError as error:
        return failures.report(error, f"{error.filename or run}: {error.strerror}")
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return errors.FAILED
