"""Commands on the model of a run: words of their own, and overrides of the run's dataset."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from dtrain import errors
from dtrain.config.overrides import key_of
from dtrain.controller import cli
from dtrain.controller.commands import failures
from dtrain.controller.run_command import RunCommand, own_words
from dtrain.errors import CheckpointError, UsageError

#: Which weights of a checkpoint there are.
_WEIGHTS = ("raw", "ema")


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
                    "sidecar", "sweep", "hydra"}  # fmt: skip
        return self.overrides([*own, "tracking=none"], replaced)

    @property
    def checkpoint(self) -> str | None:
        """What was typed of the checkpoint that is meant, or the name of its folder."""
        return self._words["checkpoint"] if self._chosen is None else self._chosen.name


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
