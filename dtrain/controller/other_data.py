"""Other data than that of a run, for a command on it: all of it, read by the run's columns."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from dtrain.config import load
from dtrain.config.section import Node
from dtrain.data import options
from dtrain.errors import UsageError
from dtrain.run import journal
from dtrain.run.folder import RunDir

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
_NOTHING_HELD: dict[str, Any] = {"validation_split": 0.0, "split": None, "folds": None, "fold": 0}
#: Keys that say what the targets and the weights are.
_LABELS = ("target", "weight")


def settled(node: Node, rundir: RunDir, typed: Set[str], labels: bool) -> Node:
    """Return the ``dataset`` group of a command that names another ``dataset.path`` than its run.

    All of that is meant, and no part of it is held out, unless a key of the validation is typed.
    Columns are those of the run, by their names. ``dataset.test`` is that path, where it is typed
    or, of a command that needs labels, where the run has it.

    Args:
        node: as composed, of the run and of what is typed.
        rundir: the run.
        typed: keys that are typed.
        labels: whether targets are needed.
    """
    own = load.read(rundir.config).dataset
    test = node.get("test")
    if test is not None and "dataset.path" not in typed and (labels or "dataset.test" in typed):
        if "path" not in node:
            raise UsageError(
                "dataset.test", test, "this dataset is of no files", "a dataset with dataset.path",
                "the command without it",
            )  # fmt: skip
        node, typed = node.replaced(path=test), {*typed, "dataset.path"}
    if "dataset.path" not in typed or options.deciding(node) == options.deciding(own):
        return node

    def is_free(key: str) -> bool:
        return key in node and f"dataset.{key}" not in typed

    changes: dict[str, Any] = {}
    if not any(f"dataset.{key}" in typed for key in _VALIDATION):
        changes |= {key: None for key in _OF_FILES if is_free(key)}
        changes |= {key: value for key, value in _NOTHING_HELD.items() if is_free(key)}
    columns = _columns(rundir)
    if columns is not None and is_free("inputs") and node["inputs"] is None:
        changes["inputs"] = columns["inputs"]
    if columns is not None and is_free("target") and node["target"] is None:
        changes["target"] = columns["target"]
    # Files beside the run's inputs are not beside these.
    if not labels or node.get("_target_") == _BESIDE:
        changes |= {key: None for key in _LABELS if is_free(key)}
    return node.replaced(**changes)


def _columns(rundir: RunDir) -> dict[str, Any] | None:
    """Return the names of the columns that the run was trained on; None of what is no table."""
    for event in journal.read(rundir.journal):
        if event["event"] == "data":
            columns: dict[str, Any] | None = (event.get("train") or {}).get("columns")
            return columns
    return None
