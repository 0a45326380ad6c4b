"""Checkpoints: the state of a run in a folder of its own, whole or not there at all.

``<checkpoints>/<step>/`` has ``state.safetensors`` (full arrays by name, whatever the number of
replicas) and ``manifest.json`` (sizes and checksums, and what is not an array: position, callback
state, identities). ``<checkpoints>/latest`` is the pointer: it names the step that was saved last,
and is written last. What was killed or failed before that did not save. TensorFlow is not imported.

``arrays``    named arrays as the bytes of a file
``format``    one checkpoint: what its files hold
``store``     the checkpoints of a run: which one counts, and how another comes to
``choice``    which ones a command means: the best, the latest, all
``writer``    saves from a thread, and keeps the newest and the best
``__main__``  ``python -m dtrain checkpoint PATH``: what is there, and whether it is sound
"""

from dtrain.run.checkpoint.arrays import SMALL, digest, non_finite
from dtrain.run.checkpoint.choice import (
    WORDS,
    best_of,
    check_weights,
    choose,
    is_average,
    of_module,
    only,
    step_of,
)
from dtrain.run.checkpoint.format import Checkpoint, load, pack, unpack, versions
from dtrain.run.checkpoint.store import hold, newest, save, steps
from dtrain.run.checkpoint.writer import Writer

__all__ = [
    "SMALL", "WORDS", "Checkpoint", "Writer", "best_of", "check_weights", "choose", "digest",
    "hold", "is_average", "load", "newest", "non_finite", "of_module", "only", "pack", "save",
    "step_of", "steps", "unpack", "versions",
]  # fmt: skip
