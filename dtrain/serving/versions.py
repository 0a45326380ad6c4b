"""Which version of the model serves, which one did before, and how another comes to serve."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable

from dtrain.serving.channel import Start
from dtrain.serving.metrics import Metrics
from dtrain.serving.model import Limits, Model
from dtrain.serving.problems import Refused, Unusable, busy

#: Seconds that a version has for what waits for it, once it serves no more.
_DRAIN = 30.0


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A version that may come to serve.

    Attributes:
        version: what answers say that they are from.
        path: of its SavedModel.
        remove: called when its files are needed no more.
    """

    version: str
    path: str
    remove: Callable[[], None] = lambda: None


class Versions:
    """The version that serves, and the one before it, which is kept for a rollback.

    Args:
        name: of the model.
        start, limits, metrics, notice: of :class:`~dtrain.serving.model.Model`.
    """

    def __init__(
        self,
        name: str,
        start: Start,
        limits: Limits,
        metrics: Metrics,
        notice: Callable[[str], None],
    ):
        self.name, self._start, self._limits = name, start, limits
        self._metrics, self._notice = metrics, notice
        self._held: list[tuple[Model, Candidate]] = []  # what serves, and what did before
        self._changing = asyncio.Lock()
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def current(self) -> Model | None:
        """The model that serves; None before the first has been taken."""
        return self._held[0][0] if self._held else None

    @property
    def kept(self) -> list[Model]:
        """That one, and the one before it."""
        return [model for model, _ in self._held]

    def find(self, name: str | None, version: str | None) -> Model:
        """Return the model that a request is for.

        Args:
            name: that it gives; None for whatever serves.
            version: that it gives; None for the one that serves.

        Raises:
            Refused: there is none, or none yet.
        """
        if name is not None and name != self.name:
            raise Refused(404, f"there is no model {name[:60]!r}: {self.name!r} is served")
        if not self._held:
            raise busy("the model is not loaded yet")
        if version is None:
            return self._held[0][0]
        for model, _ in self._held:
            if model.version == version:
                return model
        there = ", ".join(model.version for model, _ in self._held)
        raise Refused(404, f"there is no version {version[:60]!r} of {self.name!r}: {there}")

    async def take(self, candidate: Candidate) -> Model:
        """Load a version beside what serves, and let it serve from the next batch on.

        Raises:
            Unusable: it cannot serve; what served goes on.
        """
        async with self._changing:
            model = Model(
                self._start, candidate.path, candidate.version, self._limits, self._metrics,
                self._notice,
            )  # fmt: skip
            try:
                await model.load()
                if self._held and (how := self._held[0][0].signature.differs(model.signature)):
                    await model.close()
                    raise Unusable(f"{how}: a new command serves it")
            except BaseException:
                self._metrics.refused += 1
                candidate.remove()
                raise
            self._metrics.swaps += bool(self._held)
            self._held.insert(0, (model, candidate))
            for old, its in self._held[2:]:
                self._leave(old, its)
            del self._held[2:]
            return model

    def _leave(self, model: Model, candidate: Candidate) -> None:
        async def leave() -> None:
            await model.close(_DRAIN)
            candidate.remove()

        task = asyncio.get_running_loop().create_task(leave())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def rollback(self) -> Model:
        """Let the version before serve again; the one that served is kept in its place.

        Raises:
            Refused: there is none.
        """
        async with self._changing:
            if len(self._held) < 2:
                raise Refused(409, "there is no version before the one that serves")
            self._held.reverse()
            self._metrics.rollbacks += 1
            model = self._held[0][0]
        self._notice(f"version {model.version} serves again, by a rollback")
        return model

    async def close(self) -> None:
        """End all processes."""
        held, self._held = self._held, []
        for model, candidate in held:
            await model.close()
            candidate.remove()
        await asyncio.gather(*self._leaving)
