"""What of a traced step a tensor depends on: the examples of a replica, or nothing of them.

Replicas have other examples each, and the same weights and constants. So a tensor whose value
depends on no example is the same on all of them.
"""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from dtrain.task.aliases import Tensors

#: Operations whose value depends on the shape of what they are given alone.
OF_SHAPES = ("Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike")
#: Which inputs of an operation give sizes of its output, where not the sizes of its inputs do.
SIZES = {
    "BroadcastTo": (1,), "Fill": (0,), "Pad": (1,), "PadV2": (1,), "Range": (0, 1, 2),
    "Reshape": (1,), "Slice": (1, 2), "StridedSlice": (1, 2, 3), "Tile": (1,),
}  # fmt: skip


class Examples:
    """The examples of one replica, in the graph of its step.

    Args:
        tensors: what the step is given.
    """

    def __init__(self, tensors: Iterable[tf.Tensor]):
        self._own = {tensor.ref() for tensor in tensors}

    def decide(self, tensor: tf.Tensor) -> bool:
        """Whether a value depends on those of the examples, or may.

        What a stateful operation gives (a random number, a collective, Python code) may, unless it
        reads a variable; the shape of a tensor does where :meth:`decide_sizes` says so.
        """
        waiting, visited = [tensor], set()
        while waiting:
            each = waiting.pop()
            if each.ref() in visited or not tf.is_symbolic_tensor(each):
                continue
            visited.add(each.ref())
            if each.ref() in self._own:
                return True
            operation = each.op
            if operation.type in OF_SHAPES:
                if any(map(self.decide_sizes, operation.inputs)):
                    return True
            elif operation.type == "Placeholder":
                outside = _outside(each)
                if outside is None:
                    return True
                waiting.append(outside)
            elif operation.op_def.is_stateful and not _reads(operation):
                return True
            else:
                waiting += operation.inputs
        return False

    def decide_sizes(self, tensor: tf.Tensor) -> bool:
        """Whether a dimension that is unknown in the graph depends on values of the examples.

        The dimensions of the examples themselves are the same on all replicas: batches are padded
        to one length.
        """
        waiting, visited = [tensor], set()
        while waiting:
            each = waiting.pop()
            if each.shape.is_fully_defined() or each.ref() in self._own or each.ref() in visited:
                continue
            visited.add(each.ref())
            operation = each.op
            if operation.type == "Placeholder":
                outside = _outside(each)
                if outside is None:
                    return True
                waiting.append(outside)
                continue
            inputs = list(operation.inputs)
            unknown = [one for one in inputs if not one.shape.is_fully_defined()]
            deciding = [inputs[i] for i in SIZES.get(operation.type, ()) if i < len(inputs)]
            if not unknown and not deciding:
                deciding = inputs
            if operation.op_def.is_stateful or any(map(self.decide, deciding)):
                return True
            waiting += unknown
        return False


def _outside(placeholder: tf.Tensor) -> tf.Tensor:
    """Return what a function has captured of the graph around it, None of an argument."""
    captures = getattr(placeholder.graph, "captures", ())
    return next((outer for outer, inner in captures if inner is placeholder), None)


def _reads(operation: tf.Operation) -> bool:
    """Whether an operation reads a variable."""
    return operation.type in ("ReadVariableOp", "ResourceGather", "VarHandleOp")


def lookups(indices: tf.Tensor) -> Tensors:
    """Return the indices of each use of a table: a tape has appended those of several."""
    if indices.op.type != "ConcatV2":
        return [indices]
    *parts, _ = indices.op.inputs
    return [use for part in parts for use in lookups(part)]


def looked_up(indices: tf.Tensor) -> tf.TensorShape:
    """Return the shape of indices as the step has looked them up: a tape flattens them."""
    while indices.op.type in ("Cast", "Identity"):
        [indices] = indices.op.inputs
    return indices.op.inputs[0].shape if indices.op.type == "Reshape" else indices.shape


def divided(
    rows: tf.IndexedSlices, same: list[bool]
) -> tuple[tf.IndexedSlices | None, tf.IndexedSlices | None]:
    """Divide rows that were looked up in those that all replicas have, and a replica's own.

    Args:
        rows: of all uses of a table.
        same: of each use, whether all replicas have its rows.

    Returns:
        None where there are none.
    """
    if any(same) == all(same):
        return (rows, None) if any(same) else (None, rows)
    uses = lookups(rows.indices)
    sizes = [use.shape[0] for use in uses]
    sizes = [tf.shape(use)[0] for use in uses] if None in sizes else sizes
    parts = [
        tf.IndexedSlices(values, use, rows.dense_shape)
        for values, use in zip(tf.split(rows.values, sizes), uses, strict=True)
    ]
    pairs = list(zip(parts, same, strict=True))
    return (
        appended([part for part, of_all in pairs if of_all]),
        appended([part for part, of_all in pairs if not of_all]),
    )


def appended(parts: list[tf.IndexedSlices]) -> tf.IndexedSlices:
    """Return the rows of several uses of a table as one."""
    first, *others = parts
    if not others:
        return first
    values, indices = ([getattr(p, name) for p in parts] for name in ("values", "indices"))
    return tf.IndexedSlices(tf.concat(values, 0), tf.concat(indices, 0), first.dense_shape)
