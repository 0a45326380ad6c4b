"""Images in files of their own: those of a folder or a CSV of paths, with the class of each."""

from __future__ import annotations

import collections
import csv
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Unpack

import numpy as np

from dtrain.data.cache import cached
from dtrain.data.files import DataFile, divided
from dtrain.data.holdout import Holdout, HoldoutKeys
from dtrain.data.images import Decoded, DecodedImages, ImageFiles, of_eight_bits
from dtrain.data.sources import Source, Splits
from dtrain.errors import DataError, nearest, refuse

#: What TensorFlow decodes in the input graph.
DIRECT = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif"})
#: What is converted to PNG once, in the cache.
CONVERTED = frozenset({".webp", ".tif", ".tiff"})
KINDS = DIRECT | CONVERTED
#: TensorFlow decodes other kinds in colour only.
GREY = frozenset({".png", ".jpg", ".jpeg"})
#: Names of the column of classes, in a CSV of more than two columns.
_LABELS = ("label", "class", "target", "category", "y")
#: Height and width where none are given, in pixels.
_SIZE = (64, 64)


def image_folder(
    path: str, size: Sequence[int] | None = _SIZE, channels: int = 3, validation: str | None = None,
    cache: str = "none", **holdout: Unpack[HoldoutKeys],
) -> Splits:  # fmt: skip
    """Images in one sub-folder a class: ``path/cat/1.png``, ``path/dog/more/2.jpg``.

    Where ``path`` has a sub-folder ``train``, its class folders are there, and those of ``val``,
    ``valid`` or ``validation`` are evaluated on.

    Args:
        path: the folder; its sub-folders in alphabetical order are classes 0, 1, ...; or a CSV with
            a column of paths and a column of classes.
        size: height and width to resize to, in pixels; None: the default.
        channels: 1 (grey) or 3 (RGB).
        validation: a folder or CSV to evaluate on; None: a part is held out.
        cache: ``memory`` or ``disk``: each image is decoded once, before the first step, and kept;
            ``none``: whenever it is taken.
        **holdout: how a part is held out (:class:`dtrain.data.holdout.Holdout`).

    Raises:
        UsageError: there are no such images.
    """
    size = list(_SIZE if size is None else size)
    if channels not in (1, 3):
        refuse("dataset.channels", "is no image format", channels, accepted="1 or 3",
               typed="dataset.channels=3")  # fmt: skip
    if folders := divided(path):
        path, *parts = folders
        validation = validation or next(iter(parts), None)
    images, names, notices = listed(path)
    count = len(images)
    if validation is not None:
        held, others, more = listed(validation, "dataset.validation")
        _check_classes(others, names, validation)
        images, notices = images + held, notices + more
    numbers = {name: number for number, name in enumerate(names)}
    labels = np.array([numbers[name] for _, name in images], np.int64)
    if validation is None:
        rows = Holdout(**holdout).rows(count, lambda: labels)
    else:
        rows = np.arange(count), np.arange(count, len(images))
    paths = [str(file) for file, _ in images]
    whole = ImageFiles(as_png(paths, channels), labels, (size[0], size[1]), channels, names, paths)
    part: Callable[[np.ndarray], Source] = whole.subset
    if cache != "none":
        part = functools.partial(DecodedImages, Decoded(whole, cache))
    train, evaluated = rows
    validated = part(evaluated) if len(evaluated) else None
    return Splits(part(train), validated, len(names), notices=tuple(notices))


def _check_classes(classes: Sequence[str], names: Sequence[str], path: str) -> None:
    for name in classes:
        if name not in names:
            near = nearest(name, names)
            problem = f"has a class {name} that the training images do not have"
            refuse("dataset.validation", problem + (f" (but {near})" if near else ""), path,
                   accepted=f"the classes {', '.join(names)}")  # fmt: skip


def listed(
    path: str, key: str = "dataset.path"
) -> tuple[list[tuple[Path, str]], list[str], list[str]]:
    """List the images of a folder with one sub-folder a class, or of a CSV of paths and classes.

    Sub-folders of a class folder belong to the class. Files are in the order of their paths.

    Args:
        path: the folder, or the CSV; paths in it are relative to its folder.
        key: that ``path`` is the value of.

    Returns:
        The files with the class of each; the classes, in their order; notices of what was left out.

    Raises:
        UsageError: there are no such images.
    """
    root = Path(path)
    accepted = (
        f"a folder with CLASS/NAME ({' '.join(sorted(KINDS))}), or a CSV of paths and classes"
    )
    notices: list[str] = []
    if root.suffix.lower() == ".csv" and root.is_file():
        images = list(_in_csv(root, key))
        classes = sorted({name for _, name in images})
    elif root.is_dir():
        classes = [p.name for p in sorted(root.iterdir()) if p.is_dir() and not _is_hidden(p, root)]
        images, notices = _in_folders(root, classes)
    else:
        refuse(key, "there is no such folder", path, accepted=accepted)
    if not images:
        refuse(key, "holds no images in sub-folders", path, accepted=accepted)
    return images, classes, notices


def _in_folders(root: Path, classes: Sequence[str]) -> tuple[list[tuple[Path, str]], list[str]]:
    pairs, notices = list[tuple[Path, str]](), list[str]()
    others = collections.Counter[str]()
    for name in classes:
        count = len(pairs)
        for file in sorted((root / name).rglob("*")):
            if _is_hidden(file, root) or file.is_dir():
                continue
            if file.suffix.lower() in KINDS:
                pairs.append((file, name))
            else:
                others[file.suffix.lower() or file.name] += 1
        if len(pairs) == count:
            notices.append(f"the class folder {name} has no image")
    beside = [p for p in root.iterdir() if p.suffix.lower() in KINDS]
    if beside:
        notices.append(
            f"images beside the class folders are left out ({len(beside):,}, the first: "
            f"{min(beside).name})"
        )
    if others:
        kinds = ", ".join(f"{kind} ({count:,})" for kind, count in sorted(others.items()))
        notices.append(f"files that are no images are left out: {kinds}")
    return pairs, [f"dataset.path={root}: {notice}" for notice in notices]


def _is_hidden(file: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(root).parts)


def _in_csv(path: Path, key: str) -> Iterator[tuple[Path, str]]:
    """Yield the files and the classes of a CSV with one column of paths and one of classes."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file)
        columns, first = list(rows.fieldnames or ()), next(rows, None)
        where = [c for c in columns if first and first[c] and (path.parent / first[c]).is_file()]
        rest = [c for c in columns if c not in where]
        named = [c for c in rest if c.lower() in _LABELS] if len(rest) > 1 else rest
        if len(where) != 1 or len(named) != 1:
            refuse(key, "is no CSV of images and classes: its columns are "
                   f"{', '.join(columns) or 'none'}", path, accepted="a column of paths, relative "
                   "to the CSV, and one of classes; or a folder of sub-folders")  # fmt: skip
        for row in itertools.chain(filter(None, [first]), rows):
            image = path.parent / (row[where[0]] or "")
            place = f"{path}, line {rows.line_num}"
            if not image.is_file():
                raise DataError(place, f"there is no file {image}")
            if image.suffix.lower() not in KINDS:
                raise DataError(place, f"{image.name} is no image ({', '.join(sorted(KINDS))})")
            yield image, row[named[0]]


def as_png(paths: Sequence[str], channels: int) -> list[str]:
    """Return paths of images that TensorFlow decodes; others are converted once, into the cache.

    Of 16 bits the upper 8 are kept, as TensorFlow does of a PNG; an alpha channel is dropped.

    Args:
        paths: of images of :data:`KINDS`.
        channels: 1 or 3.

    Raises:
        DataError: naming a file that cannot be converted.
    """
    direct = DIRECT if channels == 3 else GREY
    return [p if Path(p).suffix.lower() in direct else str(_converted(p)) for p in paths]


def _converted(path: str) -> Path:
    from PIL import Image

    def convert(made: Path) -> None:
        try:
            with Image.open(path) as image:
                image.seek(0)
                pixels = of_eight_bits(image)
                pixels = pixels.convert("L" if pixels.mode in ("1", "L", "LA") else "RGB")
        except (OSError, ValueError, SyntaxError) as error:
            raise DataError(path, f"is no image that can be read ({error})") from None
        pixels.save(made, "PNG")  # whose errors are of the cache

    file = DataFile(path)
    return cached("image.png", ["png", file.place(), file.stamp()], convert)
