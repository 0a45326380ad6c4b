"""Which keys distinguish runs: found by comparing their resolved configurations."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from dtrain.compare.load_folders import KEYS, Run, kind

_TARGET = "._target_"
#: It follows from the strategy, and what it makes of the devices is a column: the replicas.
_PLAN = "strategy.plan"


def keys(runs: Sequence[Run]) -> list[str]:
    """Return the keys, and the groups, of which not all runs have the same.

    Where groups hold different things, such as two optimizers, the group is named; their keys are
    compared among the runs that have the same thing there. Names, folders and tracking are not.
    """
    known = [run.config for run in runs if run.config]
    every = dict.fromkeys(key for config in known for key in config)
    every = dict.fromkeys(itertools.islice(every, KEYS))
    groups = [key.removesuffix(_TARGET) for key in every if key.endswith(_TARGET)]
    groups = [group for group in groups if group != _PLAN]
    found = [g for g in groups if len({kind(config, g) for config in known} - {None}) > 1]
    for key in every:
        if not _distinguishes(key) or key in groups or key.removesuffix(".name") in groups:
            continue
        around = [group for group in groups if key.startswith(f"{group}.")]
        alike: dict[tuple[str | None, ...], set[str]] = {}
        for config in known:
            if key in config:
                kinds = tuple(kind(config, group) for group in around)
                alike.setdefault(kinds, set()).add(config[key])
        if any(len(values) > 1 for values in alike.values()):
            found.append(key)
    return found


def _distinguishes(key: str) -> bool:
    # Without a dot there are names and folders, and what MLflow has of the plan.
    group, _, rest = key.partition(".")
    if not rest:
        return key == "seed"
    return group not in ("tracking", "sweep") and not key.endswith(_TARGET)
