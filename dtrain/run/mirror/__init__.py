"""A run folder in another place, file by file, while the run goes on.

``changes``   what the other place lacks, in an order in which a resume from it is always possible
``bucket``    uploads that to an object store
``receiver``  takes it in on another host, where it comes through the pipe of an agent

The order: ``result.json`` where it is gone; everything but checkpoints, the journal and the logs
read after a checkpoint was found whole; that checkpoint, its manifest last; ``latest``; other
checkpoints; ``result.json``; what was removed. So whatever ``latest`` names there is whole, and the
journal there reaches at least as far.

Files that begin with a dot are locks, leftovers and the like, and stay where they are.
"""

from dtrain.run.mirror.changes import OF_COMMANDS, PIECE, ChangedFile, Changes, Part, Removed
from dtrain.run.mirror.receiver import Receiver

__all__ = ["OF_COMMANDS", "PIECE", "ChangedFile", "Changes", "Part", "Receiver", "Removed"]
