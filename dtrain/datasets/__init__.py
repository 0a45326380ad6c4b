"""The datasets that dtrain ships. A dataset function returns :class:`Splits`."""

from dtrain.data.sources import Arrays, ImageFiles, Source, Splits
from dtrain.data.text import text
from dtrain.datasets.arrays import npz
from dtrain.datasets.images import image_folder
from dtrain.datasets.made import digits, synthetic
from dtrain.datasets.tables import arrow, csv, huggingface, parquet

__all__ = [
    "Arrays",
    "ImageFiles",
    "Source",
    "Splits",
    "arrow",
    "csv",
    "digits",
    "huggingface",
    "image_folder",
    "npz",
    "parquet",
    "synthetic",
    "text",
]
