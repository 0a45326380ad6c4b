"""Data that cannot be read before training is a mistake of the configuration."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from dtrain.errors import DataError, UsageError


@contextlib.contextmanager
def before_training(node: Mapping[str, Any]) -> Iterator[None]:
    """Refuse data that cannot be read as what is wrong with the configuration: nothing has begun.

    Args:
        node: the ``dataset`` group.

    Raises:
        UsageError: in the place of a :class:`DataError`.
    """
    try:
        yield
    except DataError as error:
        raise UsageError(
            "dataset", node["_target_"], str(error), "data that can be read",
            "sound files, or dataset.on_error=skip to leave out what cannot be read",
        ) from None  # fmt: skip
