"""Examples that must be alike: those of all batches, and of all members of a mixture."""

from __future__ import annotations

from typing import Any

from dtrain.data import nest, padding
from dtrain.data.mixture import place
from dtrain.data.sources import Source
from dtrain.errors import DataError, UsageError


def label(name: str) -> str:
    """Return the place of a leaf among the parts of an example, in words."""
    part, _, inside = name.partition(".")
    role = ("the input", "the target", "the weight")[int(part)]
    return f"{role} {inside}".strip()


def check(
    found: dict[str, Any],
    likes: dict[str, Any],
    shapes: dict[str, list[Any]],
    source: Source,
    row: int,
) -> None:
    """Refuse what is not like the first example, of which the model was built.

    Raises:
        DataError: it has other parts or other shapes.
    """
    text = "the first example has {}, and one of these has {}"
    present = {name for name, value in found.items() if value is not None}
    if present != shapes.keys():
        parts = (", ".join(padding.place(name) for name in each) for each in (shapes, present))
        raise DataError(f"the batch of {place(source, row)}", text.format(*parts))
    for name, shape in shapes.items():
        other = list(found[name].shape[1:])
        if len(other) != len(shape) or any(
            size not in (None, own) for size, own in zip(shape, other, strict=True)
        ):
            raise DataError(
                f"the batch of {place(source, row)}",
                text.format(f"{label(name)} of shape {shape}", f"one of {other}"),
            )


def ragged(name: str) -> UsageError:
    """Return what to raise of rows of different lengths at a place of an example."""
    return UsageError(
        "dataset.pad", "null", f"{label(name)} has rows of different lengths",
        "a length for each such input or target: {NAME: {length: 128}}",
        f"dataset.pad={{{padding.place(name)}:{{length:128}}}}",
    )  # fmt: skip


def difference(one: tuple[Any, ...], other: tuple[Any, ...]) -> str | None:
    """Return how the examples of another source differ; None where they do not."""
    ones, others = (
        {
            padding.place(name): "nothing"
            if leaf is None
            else f"{leaf.dtype.name} {leaf.shape[1:].as_list()}"
            for name, leaf in nest.named(each)
        }
        for each in (one, other)
    )
    for name, kind in ones.items():
        if others.get(name) != kind:
            return f"has {others.get(name, 'nothing')} as {name}, and not {kind}"
    added = next((name for name in others if name not in ones), None)
    return None if added is None else f"has {added}, and not only {', '.join(ones)}"
