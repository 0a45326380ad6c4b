"""Predictions: rows in pieces, each whole or not there at all, by any number of workers.

``<folder>/pieces/part-<piece>.<suffix>`` has the rows ``[piece * size, (piece + 1) * size)``, and
``<folder>/predictions.json`` says of which checkpoint and data they are, how they are divided and
computed, and, once all is done, which files they are. A small result is joined to one file,
``<folder>/predictions.<suffix>``. TensorFlow is not imported.

``division``  rows into pieces, pieces into batches, pieces to workers
``formats``   the files of a piece
``store``     writes pieces, finds those that are done, joins and records them
"""

from dtrain.run.predictions.store import Division, Manifest, Store, read, size_of

__all__ = ["Division", "Manifest", "Store", "read", "size_of"]
