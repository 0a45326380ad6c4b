"""The datasets that dtrain ships. A dataset function returns :class:`Splits`."""

from dtrain.data.images import ImageFiles
from dtrain.data.sources import Arrays, Info, Source, Splits
from dtrain.data.text import text
from dtrain.datasets.arrays import npy, npz
from dtrain.datasets.images import image_folder
from dtrain.datasets.made import columns, digits, mixture, synthetic
from dtrain.datasets.records import array_record, tfds, tfrecord
from dtrain.datasets.tables import huggingface, table

__all__ = [
    "Arrays",
    "ImageFiles",
    "Info",
    "Source",
    "Splits",
    "array_record",
    "columns",
    "digits",
    "huggingface",
    "image_folder",
    "mixture",
    "npy",
    "npz",
    "synthetic",
    "table",
    "text",
    "tfds",
    "tfrecord",
]
