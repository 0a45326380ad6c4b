"""Weights of another run or of a file, which a new run begins with (``init``).

In ``.weights.h5``, and in the file of that kind in a ``.keras``, a layer lies where it is found in
the model, under the name of its class (``layers/dense_1/vars/0``), and has its own name as an
attribute. In whole files and weights of Keras 2 (``.h5``) each layer has a list of names of its
weights. An array is called by the names of the layers that lead to it and its place among those of
its layer: ``backbone/conv/0``; those of ``.safetensors`` and of PyTorch have their own names.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import pickle
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import safetensors.numpy

from dtrain.config import tree as configs
from dtrain.errors import CheckpointError, UsageError, refuse
from dtrain.host.terminal import aligned
from dtrain.run import checkpoint, initial
from dtrain.run.checkpoint import Checkpoint
from dtrain.run.folder import RunDir
from dtrain.task.aliases import Foreign, Variable
from dtrain.task.backends.base import Backend
from dtrain.task.backends.runtime import runtime
from dtrain.task.model import train_state
from dtrain.task.model.path_rules import choose, listed
from dtrain.task.model.walk import LORA, weights

RULES = "init.rules"
#: Begins the names of arrays of such a source, among those that a run begins with.
PREFIX = "init/"
_ROWS = 40  # of a table; of longer ones a row is a layer
_NEW = "new (finetune.lora)"


def find(value: str) -> Checkpoint:
    """Read what ``init.weights`` names.

    Args:
        value: a run folder stands for its best checkpoint, the latest where none is known.

    Returns:
        A checkpoint of step 0, without a position, whose arrays are named ``init/NAME``.

    Raises:
        UsageError: it cannot be read, or has no weights.
    """
    kind, path = initial.kind(value), Path(value).absolute()
    if kind in (initial.RUN, initial.CHECKPOINT):
        try:
            if kind == initial.RUN:
                mode = configs.read(RunDir(path).config, hidden=True).objective_mode
                [path] = checkpoint.choose(RunDir(path).checkpoints, None, mode)
            arrays = checkpoint.load(path).arrays
        except (CheckpointError, UsageError) as error:
            raise initial.refused(value, f"has no sound checkpoint ({error})") from None
        sources = {n.removeprefix("model/"): a for n, a in arrays.items() if n.startswith("model/")}
        sources = {name: array for name, array in sources.items() if not _is_seed(name)}
    else:
        sources = read_file(path)
    if not sources:
        raise initial.refused(value, "has no weights in it")
    return Checkpoint(0, path, {f"{PREFIX}{name}": a for name, a in sources.items()}, {})


def _is_seed(name: str) -> bool:
    return name.rpartition("/")[2].partition("#")[0] == "seed_generator_state"


def is_initial(past: Checkpoint) -> bool:
    """Say whether what a run begins with is of :func:`find`."""
    return any(name.startswith(PREFIX) for name in past.arrays)


@dataclasses.dataclass(frozen=True)
class Wanted:
    """A weight of the model that may be loaded.

    Attributes:
        path: of :class:`dtrain.task.model.walk.Weight`.
        names: of a source of the same model: in a checkpoint.
        index: its place among those of its layer, which files name it by.
        shape: its shape.
        optional: it may begin as it was made.
    """

    path: str
    names: tuple[str, ...]
    index: int
    shape: tuple[int, ...]
    optional: bool = False


@dataclasses.dataclass(frozen=True)
class Match:
    """What a weight gets.

    Attributes:
        source: name of an array; None: it stays as it was made.
        why: of one that stays.
    """

    source: str | None
    why: str = ""


def match(
    wanted: Sequence[Wanted], shapes: Mapping[str, tuple[int, ...]], rules: list[Any], value: str
) -> tuple[list[Match], list[str]]:
    """Find what each weight is loaded from.

    Args:
        wanted: the weights of the model.
        shapes: of the arrays of the source, by name.
        rules: of ``init.rules``; the first that is found in a path holds. What is skipped is
            neither loaded nor missed, nor left over in the source.
        value: of ``init.weights``, for errors.

    Returns:
        A match for each weight, and the names of arrays that rules have left in the source.

    Raises:
        UsageError: a rule finds nothing, a weight has no array or one of another shape, or an
            array is for no weight.
    """
    skips = [re.compile(rule["path"]) for rule in rules if rule.get("skip")]
    paths = [each.path for each in wanted]
    for rule in rules:
        names = list(shapes) if rule.get("skip") else []
        both = list(dict.fromkeys([*paths, *names]))
        choose([rule], both, "weight", lambda r: (r["path"], r), RULES)
    chosen = [next((r for r in rules if re.search(r["path"], path)), None) for path in paths]
    matches = [_match(each, rule, shapes) for each, rule in zip(wanted, chosen, strict=True)]
    missed = [w for w, m in zip(wanted, matches, strict=True) if m.source is None and not m.why]
    if missed:
        refuse(initial.KEY,
               f"has nothing for {listed([f'{w.path} ({_shape(w.shape)})' for w in missed])}",
               value, accepted=f"{listed(list(shapes))}, by init.rules=[{{path: REGEX, as: TEXT}}]",
               typed=_skipping(missed[0].path))  # fmt: skip
    for each, matched in zip(wanted, matches, strict=True):
        if matched.source is not None and shapes[matched.source] != each.shape:
            refuse(initial.KEY, f"its {matched.source} is {_shape(shapes[matched.source])}, and "
                   f"{each.path} {_shape(each.shape)}", value, accepted="weights of one shape, or "
                   "a rule that leaves this one out", typed=_skipping(each.path))  # fmt: skip
    used = {matched.source for matched in matches}
    unused = [name for name in shapes if name not in used]
    over = [name for name in unused if not any(skip.search(name) for skip in skips)]
    if over:
        of_lora = all(name.rpartition("/")[2].startswith(LORA) for name in over)
        refuse(initial.KEY, f"has {listed(over)}, which no weight of the model is loaded from",
               value, accepted="a model with such weights, or a rule that leaves them out",
               typed=None if of_lora else _skipping(over[0], paths), hint="finetune.lora of that "
               "run, or RUN_DIR/model.keras, where they are merged")  # fmt: skip
    return matches, unused


def _match(wanted: Wanted, rule: Any, shapes: Mapping[str, tuple[int, ...]]) -> Match:
    if rule is not None and rule.get("skip"):
        return Match(None, "left out (init.rules)")
    path, names = wanted.path, wanted.names
    if rule is not None and "as" in rule:
        path, names = re.sub(rule["path"], rule["as"], path, count=1), ()
    above = path.rpartition("/")[0]
    tried = (*names, path, f"{above}/{wanted.index}" if above else str(wanted.index))
    source = next((name for name in tried if name in shapes), None)
    new = "new (trainer.loss)" if wanted.path.startswith("trainer.loss") else _NEW
    return Match(source, new if source is None and wanted.optional else "")


def load(past: Checkpoint, model: keras.Model, strategy: Backend, rules: list[Any]) -> str:
    """Set the weights of a model from a source of :func:`find`.

    Args:
        past: the source.
        model: built under ``strategy``.
        strategy: which it is.
        rules: of ``init.rules``.

    Returns:
        A table of what was loaded, left out and left over, for the user.

    Raises:
        UsageError: source and model do not go together, or an array is not finite.
    """
    named = {id(variable): name for name, variable in train_state.variables(model).items()}
    all_weights = weights(model)
    wanted = [
        Wanted(
            each.path, (named[id(each.variable)].removeprefix("model/"),), each.index,
            tuple(each.variable.shape), each.is_of_lora or each.path.startswith("trainer.loss"),
        )
        for each in all_weights
    ]  # fmt: skip
    arrays = {n.removeprefix(PREFIX): a for n, a in past.arrays.items() if n.startswith(PREFIX)}
    shapes = {name: tuple(array.shape) for name, array in arrays.items()}
    matched, unused = match(wanted, shapes, [*rules], str(past.path))
    for each, found in zip(all_weights, matched, strict=True):
        if found.source is not None:
            _check_numbers(arrays[found.source], found.source, str(past.path))
            train_state.write(strategy, {found.source: each.variable}, arrays)
    with strategy.optimizer_scope():
        train_state.begin_with_weights(model)
    return "\n".join(table(wanted, matched, {name: shapes[name] for name in unused}, past.path))


def _check_numbers(array: np.ndarray, name: str, value: str) -> None:
    if array.dtype.kind not in "fiub" and "float" not in array.dtype.name:
        raise initial.refused(value, f"its {name} are no numbers ({array.dtype})")
    if array.dtype.kind == "f" and not np.all(np.isfinite(array)):
        raise initial.refused(value, f"its {name} is not finite")


def table(
    wanted: Sequence[Wanted], matched: Sequence[Match], unused: Mapping[str, tuple[int, ...]],
    path: Path,
) -> list[str]:  # fmt: skip
    """Return a sentence, and a row for each weight, or for each layer where there are many."""
    loaded = sum(each.source is not None for each in matched)
    head = f"init.weights: {loaded} of {len(wanted)} weights are loaded from {path}"
    if unused:
        head += f", which has {len(unused)} more"
    rows = [
        (each.path, _shape(each.shape), found.source or found.why)
        for each, found in zip(wanted, matched, strict=True)
    ]
    over = [(name, _shape(shape)) for name, shape in unused.items()]
    if len(rows) + len(over) > _ROWS:
        rows = _by_layer(rows)
    lines = aligned([("weight", "shape", "from"), *rows])
    if over:
        shown = [*over[:_ROWS], *([("...", "")] if len(over) > _ROWS else [])]
        lines += aligned([("left over in the source", "shape"), *shown])
    return [head, *(f"  {line}" for line in lines)]


def _by_layer(rows: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Return a row for neighbouring weights of one layer that have the same origin."""
    groups: list[list[Variable]] = []
    for path, _, source in rows:
        above, origin = path.rpartition("/")[0], source
        if not source.endswith(")"):
            origin = source.rpartition("/")[0]
        if groups and groups[-1][:2] == [above, origin]:
            groups[-1][2] += 1
        else:
            groups.append([above, origin, 1])
    return [(above, f"{n} weights", origin) for above, origin, n in groups]


def _shape(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "a number"


def _skipping(path: str, others: Sequence[str] = ()) -> str:
    """Return a rule that leaves out the layer of a path, or it alone where others are of it."""
    above = path.rpartition("/")[0]
    alone = not above or any(other.startswith(f"{above}/") for other in others)
    pattern = f"^{re.escape(path)}$" if alone else f"^{re.escape(above)}/"
    return f"'init.rules=[{{path: \"{pattern}\", skip: true}}]'"


#: What a file has beside the layers.
_OTHERS = ("optimizer", "metrics", "optimizer_weights")
_MEMBER = "model.weights.h5"
_UNREADABLE = (
    OSError, KeyError, ValueError, RuntimeError, zipfile.BadZipFile, safetensors.SafetensorError,
    pickle.UnpicklingError,
)  # fmt: skip


def read_file(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file by name, in its order.

    Raises:
        UsageError: it is no such file, or has what lies in other files.
    """
    suffix = path.suffix.lower()
    try:
        if suffix == initial.SAFETENSORS:
            return dict(safetensors.numpy.load_file(path))
        if suffix in initial.TORCH:
            if (plain := runtime().PLAIN) is None:
                raise initial.refused(str(path), "is a file of PyTorch's: backend=torch reads it")
            return plain.weights(path)
        with _opened(path) as file:
            if "layer_names" in file.attrs:
                return dict(_of_keras_2(path, file))
            if "model_weights" in file:
                return dict(_of_keras_2(path, file["model_weights"]))
            return dict(_of_keras_3(path, file))
    except (AttributeError, TypeError) as error:  # of NumPy, about such as float8
        problem = f"has a type of numbers that cannot be read ({error})"
        raise initial.refused(str(path), problem) from None
    except _UNREADABLE as error:
        raise initial.refused(str(path), f"cannot be read ({error})") from None


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Foreign]:
    if path.suffix.lower() != ".keras":
        with h5py.File(path, "r") as file:
            yield file
        return
    with zipfile.ZipFile(path) as archive:
        if _MEMBER not in archive.namelist():
            raise initial.refused(str(path), f"has no {_MEMBER} in it")
        with archive.open(_MEMBER) as member, h5py.File(member, "r") as file:
            yield file


def _of_keras_3(path: Path, file: Foreign) -> Iterator[tuple[str, np.ndarray]]:
    items: list[tuple[str, Foreign]] = []
    file.visititems(lambda name, item: items.append((name, item)))  # follows no link
    for place, item in items:
        group, _, rest = f"/{place}".rpartition("/vars/")
        if not isinstance(item, h5py.Dataset) or not rest or place.split("/")[0] in _OTHERS:
            continue
        names, above = [], file
        for part in group.split("/")[1:]:
            above = above[part]
            if "vars" in above and (name := above["vars"].attrs.get("name")) is not None:
                names.append(str(name))
        yield "/".join([*names, rest]), _array(path, place, item)


def _of_keras_2(path: Path, group: Foreign) -> Iterator[tuple[str, np.ndarray]]:
    count: collections.Counter[str] = collections.Counter()
    for layer in map(_text, group.attrs["layer_names"]):
        for weight in group[layer].attrs["weight_names"]:
            name = _text(weight).partition(":")[0]
            # A Sequential of Keras 3 is the first part: sequential/dense/kernel.
            if name.split("/")[1:2] == [layer]:
                name = name.partition("/")[2]
            elif not name.startswith(f"{layer}/"):
                name = f"{layer}/{name}"
            above = name.rpartition("/")[0]
            yield f"{above}/{count[above]}", _array(path, name, group[layer][weight])
            count[above] += 1


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _array(path: Path, name: str, item: Foreign) -> np.ndarray:
    if not isinstance(item, h5py.Dataset) or item.external or item.is_virtual:
        raise initial.refused(str(path), f"{name} lies in another file")
    return np.asarray(item[()])
