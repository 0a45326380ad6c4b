"""What a configuration may name without being trusted: at each place, things of one kind.

Names are checked first, importing nothing (the controller imports no Keras); what a name stands for
is checked once it is imported, before it is called. The table is ``kinds.yaml``.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from operator import attrgetter
from pathlib import Path
from typing import Any

from dtrain.files import reading


@dataclasses.dataclass(frozen=True)
class Kind:
    """One kind of function or class.

    Attributes:
        what: it is, for messages.
        accepted: names, for messages.
        names: pattern of the whole name.
        bases: Keras' classes, of one of which a class of Keras' must be.
        first: names of the first parameters of a function of Keras'; None: no function is taken.
        home: module that a function of Keras' is from, or below.
        package: whose classes and functions they are, in the place of Keras'.
    """

    what: str
    accepted: str
    names: str
    bases: tuple[str, ...] = ()
    first: tuple[str, ...] | None = None
    home: str = ""
    package: str = "keras"


#: dtrain, Keras, PyTorch and its metrics, of which some names may be given without trust, and all
#: only one by one. Their functions check their arguments, or fail over them.
KNOWN = ("dtrain", "keras", "torch", "torchmetrics")
#: Keras' layers but those that run code which a file or an argument brings.
_SAFE = r"(?!(Lambda|TFSMLayer|TorchModuleWrapper|FlaxLayer|JaxLayer)$)CLASS"


def _kind(name: str, row: dict[str, Any]) -> Kind:
    names = "|".join(row["names"]).replace("SAFE", _SAFE).replace("CLASS", r"[A-Z]\w*")
    bases, first = tuple(row.get("bases", ())), row.get("first")
    return Kind(
        row.get("what", name), row["accepted"], names, bases,
        None if first is None else tuple(first), row.get("home", ""), row.get("package", "keras"),
    )  # fmt: skip


_TABLE: Any = reading.read_plain(Path(__file__).with_name("kinds.yaml"))
_KINDS = {name: _kind(name, row) for name, row in _TABLE["kinds"].items()}
#: What is called at each key.
PLACES = {key: tuple(_KINDS[name] for name in names) for key, names in _TABLE["places"].items()}
#: Groups, and keys, below which a function or class of the user's own project is called.
OWN = ("model", "dataset", "optimizer", "trainer", "action.function")
#: What may be an argument of what is called.
ARGUMENTS = tuple(_KINDS[name] for name in _TABLE["arguments"])
EVERY = tuple(_KINDS.values())
MODEL, CALLBACK = PLACES["model"][0], PLACES["trainer.callbacks"][0]
#: Keras' callbacks that neither send anything nor run code of an argument.
CALLBACKS = tuple(re.findall(r"[A-Z]\w+", CALLBACK.names))
#: Callbacks that write: the argument that says where, and Keras' default of it.
WRITES: dict[str, tuple[str, str | None]] = {
    name: tuple(argument) for name, argument in _TABLE["writes"].items()
}


def at(key: str, argument: bool = False) -> tuple[Kind, ...]:
    """Return the kinds of what may stand at ``key``.

    Args:
        key: of the node that has ``_target_``.
        argument: it is an argument of another such node.

    Returns:
        None at all where nothing is called.
    """
    parts = re.sub(r"\[\d+\]", "", key).split(".")
    if parts[:2] == ["dataset", "members"]:  # of a mixture
        return PLACES["dataset"]
    if parts[0] == "tracking" and len(parts) == 2:  # of several trackers
        return PLACES["tracking"]
    if argument and ".".join(parts) not in PLACES:  # `dataset.augment` is both
        return ARGUMENTS
    return PLACES.get(".".join(parts[:2]), ())


def takes_own(key: str) -> bool:
    """Say whether what is called at ``key``, or below it, may be of the user's own project."""
    return any(f"{key}.".replace("[", ".").startswith(f"{each}.") for each in OWN)


def named(target: str, kinds: tuple[Kind, ...]) -> list[Kind]:
    """Return those of ``kinds`` that a thing called ``target`` may be of."""
    return [kind for kind in kinds or EVERY if re.fullmatch(kind.names, target)]


def fits(value: Any, target: str, kinds: list[Kind]) -> bool:
    """Say whether what was imported by the name ``target`` is of one of ``kinds``.

    dtrain's own names are written out above, and need no look.
    """
    return target.startswith("dtrain.") or any(_is(value, kind) for kind in kinds)


def _is(value: Any, kind: Kind) -> bool:
    if inspect.isclass(value):
        package = sys.modules[kind.package]
        return issubclass(value, tuple(attrgetter(base)(package) for base in kind.bases))
    if kind.first is None or not inspect.isfunction(value):
        return False
    first = tuple(inspect.signature(value).parameters)[: len(kind.first)]
    return first == kind.first and f"{value.__module__}.".startswith(f"{kind.home}.")
