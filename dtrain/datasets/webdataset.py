"""Tar files as of webdataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dtrain.data.sources import Splits
from dtrain.data.splits import of_tables
from dtrain.data.tables import Names


def webdataset(
    path: str | Sequence[str],
    target: Names,
    inputs: Names = None,
    weight: Names = None,
    validation_path: str | Sequence[str] | None = None,
    validation_split: float = 0.2,
    split_seed: int = 0,
    classes: int | None = None,
    images: Mapping[str, Sequence[int]] | None = None,
) -> Splits:
    """Examples of tar files, in any order: members of one name up to its first dot are an example.

    Its columns are their extensions: ``cls`` is a whole number, ``txt`` a text, ``npy`` an array,
    ``json`` a number or text, or several: ``json.KEY``; all others are bytes, as of images. Before
    the first run the headers of all members are read, for an index.

    Args:
        path: a file, a pattern, or a list of them.
        target: a column, a list of numbers, or columns by name.
        inputs: as the target; None for all that are neither target nor weight.
        weight: a column, or None.
        validation_path: files to evaluate on; None: a part of the examples is split off.
        validation_split: fraction to split off.
        split_seed: of the shuffle before the split.
        classes: number of classes; None: those of the target's column, which is read for it.
        images: columns of encoded images, by name: height, width and channels of each.
    """
    from dtrain.data.formats.webdataset import Shards  # not above: with NumPy alone the others work

    return of_tables(
        Shards, path, inputs, target, weight, validation_path, validation_split, split_seed,
        classes, images,
    )  # fmt: skip
