"""Weights & Biases, by its own package."""

from __future__ import annotations

import contextlib
import csv
import netrc
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from dtrain.config.tree import Config
from dtrain.errors import refuse
from dtrain.files import writing
from dtrain.run.folder import short
from dtrain.tracking.sink import Kind, Sink, need

#: Seconds that W&B may take to begin a run, and to send the last of it.
_BEGIN, _END = 20.0, 50.0
#: The axis of all metrics: W&B's own step cannot go back, and an evaluation comes late.
STEP = "step"


class WandB(Sink):
    """One run folder, as one run of W&B.

    Args:
        config: of the run.
        project: None: that of ``tracking.experiment``.
        entity: team or user; None: the default one.
        mode: ``online`` or ``offline``.
    """

    label = "W&B"

    def __init__(
        self, config: Config, project: str | None = None, entity: str | None = None,
        mode: Literal["online", "offline"] = "online",
    ):  # fmt: skip
        need("wandb", self.label, "tracking")
        self._project = project or config.tracking.experiment
        self._entity, self._mode = entity, mode
        self._run: Any = None
        self._shown: str | None = None
        if mode == "online" and not _has_key():
            refuse("tracking.wandb.mode", "W&B has no key of yours on this machine", mode,
                   accepted="offline, or online after wandb login",
                   hint="tracking.wandb.mode=offline")  # fmt: skip

    def open(
        self, name: str, group: str | None, tags: Mapping[str, str], resume: str | None,
        folder: Path,
    ) -> str:  # fmt: skip
        """Begin a run, or go on with one."""
        # Lines at the terminal, and reports of its own to its makers.
        os.environ.setdefault("WANDB_SILENT", "true")
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        quiet = wandb.Settings(
            console="off", silent=True, init_timeout=_BEGIN, finish_timeout=_END,
            finish_timeout_raises=True, reinit="create_new", disable_git=True, save_code=False,
            x_disable_stats=True, x_disable_meta=True, x_disable_machine_info=True,
            use_dot_wandb=False, symlink=False,
        )  # fmt: skip
        before = {*folder.glob("wandb/*run-*")}
        try:
            self._run = wandb.init(
                project=self._project, entity=self._entity, name=name, group=group, id=resume,
                resume="allow", dir=str(folder), mode=self._mode, settings=quiet,
            )  # fmt: skip
        except Exception:  # it is tried again, and again, while a server is away
            for path in {*folder.glob("wandb/*run-*")} - before:
                writing.remove(path)
            raise
        finally:  # of W&B's own process, in a folder that may hold no link
            for path in folder.glob("wandb/*/logs/*"):
                if path.is_symlink():
                    writing.unlink(path)
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)
        self.note({}, tags)
        kept = f"wandb sync {shlex.quote(short(folder))}/wandb/offline-run-*"  # one a start
        self._shown = self._run.url if self._mode == "online" else kept
        return str(self._run.id)

    def params(self, values: Mapping[str, str]) -> None:
        """Set the configuration of the run."""
        self._run.config.update(dict(values), allow_val_change=True)

    def log(self, points: Mapping[str, float], step: int, time: float) -> None:
        """Log them on our axis, at the time at which they were measured."""
        self._run.log({**points, STEP: step, "_timestamp": time})

    def file(self, path: Path, name: str, kind: Kind, step: int) -> None:
        """Log an image or a table; any other file is one of the run's."""
        import wandb

        if kind == "image":
            self._run.log({name: wandb.Image(str(path)), STEP: step})
        elif kind == "table":
            with path.open(newline="", encoding="utf-8") as file:
                head, *rows = csv.reader(file)
            self._run.log({name: wandb.Table(columns=head, data=rows), STEP: step})
        else:
            place = Path(self._run.dir, name)
            place.parent.mkdir(parents=True, exist_ok=True)
            writing.remove(place)
            writing.copy(path, place)  # a link would make it a damaged file of the run
            self._run.save(str(place), base_path=self._run.dir, policy="now")

    def note(self, values: Mapping[str, float], tags: Mapping[str, str]) -> None:
        """Set the summary; tags stand beside the parameters, where W&B filters and groups."""
        self._run.summary.update(dict(values))
        self._run.config.update(dict(tags), allow_val_change=True)

    def close(self, status: str) -> None:
        """Send the rest."""
        self._run.finish(exit_code=int(status != "FINISHED"))

    def address(self) -> str:
        """Return the page of the run, or what sends it there."""
        place = "/".join(filter(None, (self._entity, self._project)))
        return self._shown or f"W&B {place} ({self._mode})"


def _has_key() -> bool:
    """Say whether W&B would find a key, without asking for it at the terminal."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    path = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    with contextlib.suppress(OSError, netrc.NetrcParseError):
        return netrc.netrc(str(path)).authenticators(host) is not None
    return False
