"""Every command that reads what another program has written, as it is typed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tests.hostile.harness import OTHER, QUICK, RUN, SMALL, STOPPED, SWEEP, Place

_OUT = "work/outputs"


@dataclasses.dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        command: what follows ``python -m``.
        arguments: what follows, of a place.
        mine: what it may write, below the root, unless it ends with 2.
        fresh: it needs an interpreter of its own.
    """

    command: str
    arguments: Callable[[Place], tuple[str, ...]]
    mine: tuple[str, ...] = ()
    fresh: bool = False


def _typed(*words: str) -> Callable[[Place], tuple[str, ...]]:
    """Return the words, in which a place's folders are called RUN, STOPPED, SWEEP, OUTPUTS."""

    def arguments(place: Place) -> tuple[str, ...]:
        names = {"RUN": RUN, "STOPPED": STOPPED, "SWEEP": SWEEP, "OTHER": OTHER}
        found = []
        for word in words:
            for name, path in names.items():
                word = word.replace(f"<{name}>", f"outputs/{path}")
            found.append(word)
        return tuple(found)

    return arguments


_NEW = (_OUT,)
_STORE = tuple(f"{_OUT}/{name}" for name in ("mlflow.db", "mlartifacts"))
_PAGES = ("comparison.csv", "comparison.html", "curves.csv")


def _pages(folder: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}" for name in _PAGES)


#: By name. `<RUN>` ended well, `<STOPPED>` was killed and has checkpoints, `<SWEEP>` lacks a job.
ALL = {
    "resume": Command("dtrain", _typed("resume=<STOPPED>"), (f"{_OUT}/{STOPPED}",)),
    "resume finished": Command("dtrain", _typed("resume=<RUN>"), (f"{_OUT}/{RUN}",)),
    "resume dry": Command("dtrain", _typed("resume=<STOPPED>", "dry_run=true")),
    "fork": Command("dtrain", _typed("fork=<STOPPED>"), _NEW),
    "fork dry": Command("dtrain", _typed("fork=<STOPPED>", "dry_run=true")),
    "auto": Command("dtrain", _typed(*QUICK, *SMALL, "seed=5", "resume=auto"), _NEW),
    "sweep resume": Command("dtrain", _typed("sweep.resume=<SWEEP>"), (f"{_OUT}/{SWEEP}",)),
    "sweep resume dry": Command("dtrain", _typed("sweep.resume=<SWEEP>", "dry_run=true")),
    "compare": Command("dtrain compare", _typed("<STOPPED>"), _pages(f"{_OUT}/{STOPPED}")),
    "compare finished": Command("dtrain compare", _typed("<RUN>"), _pages(f"{_OUT}/{RUN}")),
    "compare sweep": Command("dtrain compare", _typed("<SWEEP>"), _pages(f"{_OUT}/{SWEEP}")),
    "compare all": Command("dtrain compare", _typed("outputs"), _pages(_OUT)),
    "sync": Command("dtrain sync", _typed("<STOPPED>"), (f"{_OUT}/{STOPPED}/tracking.json", *_STORE)
    ),
    "sync finished": Command(
        "dtrain sync", _typed("<RUN>"), (f"{_OUT}/{RUN}/tracking.json", *_STORE)
    ),
    "sync sweep": Command("dtrain sync", _typed("<SWEEP>"), (f"{_OUT}/{SWEEP}", *_STORE)),
    "checkpoint": Command("dtrain checkpoint", _typed("<STOPPED>")),
    "checkpoint folder": Command("dtrain checkpoint", _typed("<STOPPED>/checkpoints")),
    "checkpoint one": Command("dtrain checkpoint", _typed("<STOPPED>/checkpoints/2")),
    "preset dry": Command(
        "dtrain", _typed("--config-dir", "presets", "model=evil", "dry_run=true"), ()
    ),
    "preset": Command(
        "dtrain", _typed("--config-dir", "presets", *QUICK, "dataset=synthetic", "model=evil"), _NEW
    ),
    "preset sweep": Command(
        "dtrain",
        _typed("-m", "--config-dir", "presets", *QUICK, "dataset=synthetic", "model=evil",
               "seed=1,2"),
        _NEW,
    ),
    "preset shown": Command(
        "dtrain", _typed("--config-dir", "presets", "model=evil", "--cfg", "job"), ()
    ),
    "experiment": Command(
        "dtrain", _typed("--config-dir", "presets", *QUICK, *SMALL, "experiment=evil"), _NEW
    ),
    "experiment dry": Command(
        "dtrain", _typed("--config-dir", "presets", "experiment=evil", "dry_run=true"), ()
    ),
    "experiment shown": Command(
        "dtrain", _typed("--config-dir", "presets", "experiment=evil", "--cfg", "hydra"), ()
    ),
    "typed": Command("dtrain", lambda place: (*QUICK, *SMALL, *place.words), _NEW),
    "typed dry": Command("dtrain", lambda place: (*place.words, "dry_run=true")),
    "typed sweep": Command(
        "dtrain", lambda place: ("-m", *QUICK, *SMALL, *place.words, "seed=1,2"), _NEW
    ),
    "typed shown": Command("dtrain", lambda place: (*place.words, "--cfg", "job")),
    "resume it": Command("dtrain", lambda place: (f"resume={place.it}",), _NEW),
    "fork it": Command("dtrain", lambda place: (f"fork={place.it}",), _NEW),
    "sweep resume it": Command("dtrain", lambda place: (f"sweep.resume={place.it}",), _NEW),
    "compare it": Command("dtrain compare", lambda place: (place.it,), _NEW),
    "sync it": Command("dtrain sync", lambda place: (place.it,), _NEW),
    "checkpoint it": Command("dtrain checkpoint", lambda place: (place.it,)),
    "ui it": Command("dtrain ui", lambda place: ("--output-dir", place.it)),
    "presets it": Command("dtrain", lambda place: ("--config-dir", place.it, "dry_run=true")),
    "fresh dry": Command("dtrain", _typed("dry_run=true"), (), True),
    "fresh new": Command("dtrain", _typed(*QUICK, *SMALL), _NEW, True),
    "fresh compare": Command("dtrain compare", _typed("<RUN>"), _pages(f"{_OUT}/{RUN}"), True
    ),
    "fresh sync": Command(
        "dtrain sync", _typed("<RUN>"), (f"{_OUT}/{RUN}/tracking.json", *_STORE), True
    ),
    "fresh checkpoint": Command("dtrain checkpoint", _typed("<STOPPED>"), (), True),
    "fresh ui": Command("dtrain ui", _typed("--output-dir", "nothing"), (), True),
    "new": Command("dtrain", _typed(*QUICK, *SMALL), _NEW),
    "dry": Command("dtrain", _typed("dry_run=true")),
}  # fmt: skip
