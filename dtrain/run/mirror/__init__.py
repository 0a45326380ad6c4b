"""A run folder in another place, file by file, while the run goes on.

``change``    what goes from one place to the other: bytes of a file, or its removal
``original``  the run folder that changes: what a copy of it lacks, in an order that keeps a resume
              from the copy sound at every moment
``copy``      a folder on a disk that takes changes in; a peer may have sent them

The order of a look: ``result.json`` where it is gone; everything but checkpoints, the journal and
the logs read after a checkpoint was found whole; that checkpoint, its manifest last; ``latest``;
other checkpoints; ``result.json``; what was removed. So whatever the copy's ``latest`` names is
whole there, and the copy's journal reaches at least as far.

Files that begin with a dot are locks, leftovers and the like, and stay where they are.
"""

from dtrain.run.mirror.change import PIECE, Change
from dtrain.run.mirror.copy import Copy
from dtrain.run.mirror.original import OF_COMMANDS, Altered, Original, Removed

__all__ = ["OF_COMMANDS", "PIECE", "Altered", "Change", "Copy", "Original", "Removed"]
