"""``init``: what can be refused before a task is started."""

from __future__ import annotations

from dtrain.config.schema import Config
from dtrain.errors import UsageError
from dtrain.run import initial


def check(config: Config) -> None:
    """Refuse weights that are not there, and rules without any.

    Args:
        config: of a job that trains. One that is resumed, or a fork, has its weights.

    Raises:
        UsageError: naming the key.
    """
    if config.init.weights is None:
        if config.init.rules:
            raise UsageError(
                "init.rules", config.init.rules, "are of init.weights, which is null",
                "init.weights with what they are for", "'init.rules=[]'",
            )  # fmt: skip
    elif config.resume is None and config.fork is None:
        initial.kind(config.init.weights)
