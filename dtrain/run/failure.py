"""Why a job failed: recorded once, in ``result.json``, and told everywhere in the same words."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal, get_args

from dtrain import secrets
from dtrain.files.fields import Json
from dtrain.run.folder import short

#: What happened: ``refused`` (the configuration or the usage is wrong), ``failed`` (the task says
#: why), ``died`` (its process was ended), ``lost`` (its host does not answer), ``absent`` (it never
#: came), ``stalled`` (no step for too long), ``frozen`` (SIGSTOP), ``port`` (another program has
#: it), ``start`` (it could not be started), ``disk`` (nothing can be written), ``unsaved``
#: (stopped before there was a checkpoint).
Kind = Literal[
    "refused", "failed", "died", "lost", "absent", "stalled", "frozen", "port", "start", "disk",
    "unsaved",
]  # fmt: skip
#: A process or a host was lost: nothing is wrong with the training itself.
LOSSES = ("died", "lost")


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why a job could not continue.

    Attributes:
        kind: what happened.
        task: whose end, or absence, was the first; None where it was no task's.
        reason: a clause, or the task's own words; None where its last lines have to say it.
        place: ``(FILE, line N, in F)`` of the user's code, if it was there.
        log: of the task, below the run folder.
        silent: tasks of other hosts of which nothing had been heard for a while.
    """

    kind: Kind
    task: str | None = None
    reason: str | None = None
    place: str | None = None
    log: str | None = None
    silent: tuple[str, ...] = ()

    @classmethod
    def of(cls, record: Json) -> Failure:
        """Return what :meth:`record` has written."""
        known = {each.name for each in dataclasses.fields(cls)} - {"silent"}
        values = {name: value for name, value in record.items() if name in known}
        return cls(**values, silent=tuple(record.get("silent") or ()))

    def record(self) -> Json:
        """Return it for ``result.json``."""
        return {**dataclasses.asdict(self), "silent": list(self.silent)}

    def sentence(self, folder: Path | None = None) -> str:
        """Return it in words.

        Args:
            folder: of the run, in which its log is.
        """
        text = " ".join(filter(None, (self.reason or "it left no word", self.place)))
        if self.silent:
            text += f"; nothing came lately from {', '.join(self.silent)}"
        if self.task is not None:
            text = f"{self.task}: {text}"
        if self.log is not None:
            text += f" (log: {short(folder / self.log) if folder else self.log})"
        return secrets.mask(text)


def sentence(record: Json | None, folder: Path | None = None) -> str | None:
    """Return what a record of a failure says; None where there is none."""
    return None if record is None else Failure.of(record).sentence(folder)


KINDS: tuple[str, ...] = get_args(Kind)
