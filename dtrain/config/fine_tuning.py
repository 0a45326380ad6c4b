"""Keys of fine-tuning: the weights that a run begins with, and which of a model's are trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from dtrain.config.forms import PATH, PATTERNS
from dtrain.config.ranges import LARGE, MANY, Each, Form, Range, formed, short
from dtrain.config.section import Section

#: Rules, and patterns of one epoch, that a list may have.
_RULES = 1000
_RANK = Range(1, 2**16)
_FACTOR = Range(0, LARGE, above=True)
_EPOCH = Range(2, MANY)


def _rule(name: str, why: Callable[[Any], str | None]) -> Callable[[Any], str | None]:
    """Return what says why a node is not ``{path: REGEX, NAME: VALUE}``."""

    def problem(value: Any) -> str | None:
        if not isinstance(value, dict) or set(value) != {"path", name}:
            return f"is no rule {{path: REGEX, {name}: ...}}"
        if (wrong := PATTERNS.rule.problem(value["path"])) is not None:
            return f"has a path that {wrong}"
        found = why(value[name])
        return None if found is None else f"has a {name} that {found}"

    return problem


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) and len(value) <= 1000 else "is no text"


def _initial(value: Any) -> str | None:
    """Say why ``value`` is no rule of ``init.rules``."""
    skips = isinstance(value, dict) and "skip" in value
    if skips and not isinstance(value["skip"], bool):
        return "has a skip that is neither true nor false"
    return _rule("skip" if skips else "as", (lambda _: None) if skips else _text)(value)


def _rank(value: Any) -> str | None:
    return _RANK.problem(value) or (None if isinstance(value, int) else "is no whole number")


def _unfreeze(value: Any) -> str | None:
    if not isinstance(value, dict):
        return "is no mapping from epochs to patterns"
    for epoch, patterns in value.items():
        if isinstance(epoch, bool) or not isinstance(epoch, int) or _EPOCH.problem(epoch):
            return f"{short(epoch)} is no epoch after the first"
        problem = PATTERNS.problem(patterns)
        if problem is None and not patterns:
            problem = "has no pattern"
        if problem is not None:
            return f"epoch {epoch}: {short(patterns)} {problem}"
    return None


INIT_RULES = Each(
    Form("{path: REGEX, as: TEXT} or {path: REGEX, skip: true}", _initial), 0, _RULES,
    '[{path: "^head/", skip: true}]',
)  # fmt: skip
UNFREEZE = Form(
    "null, or {EPOCH: [REGEX]}, epochs from 2 on", _unfreeze, '{3: ["^block_4/"]}'
)  # fmt: skip
FACTORS = Each(
    Form("{path: REGEX, factor: NUMBER above 0}", _rule("factor", _FACTOR.problem)), 0, _RULES,
    '[{path: "^backbone/", factor: 0.1}]',
)  # fmt: skip
LORA = Each(
    Form("{path: REGEX, rank: NUMBER}", _rule("rank", _rank)), 0, _RULES,
    '[{path: "query", rank: 4}]',
)  # fmt: skip


@dataclasses.dataclass
class Init(Section):
    """Weights that a new run begins with.

    Attributes:
        weights: run folder, checkpoint, or file (.keras, .h5, .safetensors, .pt) to read them from.
        rules: [{path: REGEX, as: TEXT}, {path: REGEX, skip: true}] for names that differ.
    """

    weights: str | None = formed(None, PATH)
    rules: list[Any] = formed([], INIT_RULES)


@dataclasses.dataclass
class FineTuning(Section):
    """Frozen weights, unfreezing, learning rates by layer, LoRA.

    Attributes:
        freeze: patterns of paths of weights that are not trained, such as ['^backbone/'].
        unfreeze: {EPOCH: [REGEX]}, frozen weights that are trained from the start of an epoch.
        learning_rates: [{path: REGEX, factor: 0.1}], factors of the learning rate by path.
        lora: [{path: REGEX, rank: 4}], layers of which a product of two thin matrices is trained.
    """

    freeze: list[str] = formed([], PATTERNS)
    unfreeze: Any | None = formed(None, UNFREEZE)
    learning_rates: list[Any] = formed([], FACTORS)
    lora: list[Any] = formed([], LORA)
