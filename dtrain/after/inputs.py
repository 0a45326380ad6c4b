"""Rows of other data than that of the run: whether they are inputs of its model."""

from __future__ import annotations

import copy
import re
from typing import Any

from dtrain.config import load
from dtrain.config.schema import Config
from dtrain.data import options
from dtrain.data.example import spec_difference, spec_of
from dtrain.data.sources import Source
from dtrain.data.streams import Stream
from dtrain.errors import UsageError
from dtrain.run.folder import RunDir
from dtrain.task.data import reading

_HINTS = {
    "inputs": "x of that form, data=((a, b),) of a tuple, or dataset.inputs=[COLUMN,COLUMN]",
    "targets": "data=(x, y) with y of that form, or the columns of the run's data",
}


def of_run(rundir: RunDir, config: Config) -> Config | None:
    """Return the configuration with the run's own data; None where it has that already.

    Args:
        rundir: of the run.
        config: of the command on it.
    """
    own = load.read(rundir.config).dataset
    if options.deciding(dict(own)) == options.deciding(dict(config.dataset)):
        return None
    config = copy.copy(config)
    config.dataset = own
    return config


def check(
    source: Source | Stream, built_on: Source | Stream, part: str = "inputs", sizes: bool = True
) -> None:
    """Refuse rows that are no inputs, or no targets, of the model.

    Args:
        source: has the rows.
        built_on: what the model was built on.
        part: ``inputs`` or ``targets``.
        sizes: whether float32 and float64 differ.

    Raises:
        UsageError: one is absent, or of another type or shape.
    """

    def spec(of: Source | Stream) -> dict[str, tuple[str, Any]]:
        parts, at = [*reading.specs(of, None), None], list(_HINTS).index(part)
        named = spec_of((None,) * at + (parts[at],))
        general = r"[bu]?(float|int)\d+"  # of any size
        return {
            name: (kind if sizes else re.sub(general, r"\1", kind), shape)
            for name, (kind, shape) in named.items()
        }

    if (problem := spec_difference(spec(built_on), spec(source))) is not None:
        raise UsageError(
            "dataset", part, problem, f"data with the {part} of the run's own", _HINTS[part]
        )


def explain(source: Source | Stream, built_on: Source | Stream) -> None:
    """Raise what examples that did not fit have otherwise than those of the run, if anything.

    Args:
        source: has the examples.
        built_on: what the model was built on.

    Raises:
        UsageError: an input or a target is absent, or of another kind or shape.
    """
    for part in _HINTS:
        check(source, built_on, part, sizes=False)
