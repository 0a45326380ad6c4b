"""The ``dataset`` group of a command, or of a test, that names other files than a run's own."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from dtrain.config.node import Node
from dtrain.errors import refuse
from dtrain.files.fields import Json
from dtrain.run import identity

#: Keys that say what is held out, or what to evaluate on.
_VALIDATION = (
    "validation_split", "validation", "validation_inputs", "validation_target", "validation_weight",
    "split", "folds", "fold",
)  # fmt: skip
#: Those of them that are of the run's own files.
_OF_FILES = (
    "validation", "validation_inputs", "validation_target", "validation_weight",
)  # fmt: skip
#: The dataset whose targets and weights are in files of their own.
_BESIDE = "dtrain.datasets.npy"
#: Without a part that is held out.
_NOTHING_HELD: Json = {"validation_split": 0.0, "split": None, "folds": None, "fold": 0}
#: Keys that say what the targets and the weights are.
_LABELS = ("target", "weight")


def settle_data(
    node: Node, own: Node, columns: Mapping[str, Any] | None, typed: Set[str], labels: bool
) -> Node:
    """Return the ``dataset`` group of a command that names another ``dataset.path`` than its run.

    All of that is meant, and no part of it is held out, unless a key of the validation is typed.
    Columns are those of the run, by their names. ``dataset.test`` is that path, where it is typed
    or, of a command that needs labels, where the run has it.

    Args:
        node: as composed, of the run and of what is typed.
        own: that of the run.
        columns: names of the columns that the run was trained on; None of what is no table.
        typed: keys that are typed.
        labels: whether targets are needed.
    """
    test = node.get("test")
    if test is not None and "dataset.path" not in typed and (labels or "dataset.test" in typed):
        if "path" not in node:
            refuse("dataset.test", "this dataset is of no files (dataset.path)", test)
        node, typed = node.replaced(path=test), {*typed, "dataset.path"}
    if "dataset.path" not in typed or identity.deciding(node) == identity.deciding(own):
        return node

    def is_free(key: str) -> bool:
        return key in node and f"dataset.{key}" not in typed

    changes: Json = {}
    if not any(f"dataset.{key}" in typed for key in _VALIDATION):
        changes |= {key: None for key in _OF_FILES if is_free(key)}
        changes |= {key: value for key, value in _NOTHING_HELD.items() if is_free(key)}
    for key in ("inputs", "target"):
        if columns is not None and is_free(key) and node[key] is None:
            changes[key] = columns[key]
    # Files beside the run's inputs are not beside these.
    if not labels or node.get("_target_") == _BESIDE:
        changes |= {key: None for key in _LABELS if is_free(key)}
    return node.replaced(**changes)
