"""One sentence about what held a run up, where that is worth one."""

from __future__ import annotations

from collections.abc import Mapping

from dtrain.run.times import COMMUNICATION, HOST, INPUT, WAITING

#: Part of the time of training that a part other than computing may have without a word, and the
#: seconds of training below which nothing is said: those of the first calls are not typical.
SHARE, SECONDS = 0.15, 5.0

_SENTENCES = {
    INPUT: (
        "steps waited for their input {share} of the time (input_seconds of each step); "
        "python -m dtrain data shows how fast it can be read"
    ),
    COMMUNICATION: (
        "steps exchanged gradients {share} of the time (communication_seconds of each step); "
        "a larger trainer.batch_size gives them more to compute for each exchange"
    ),
    WAITING: (
        "replicas waited for the slowest of them {share} of the time (waiting_seconds of each "
        "step): it has fewer cores, or shares them"
    ),
    HOST: (
        "{share} of the time passed between the calls of steps (host_seconds of each step): "
        "callbacks, metric points, checkpoints"
    ),
}


def sentence(seconds: float, shares: Mapping[str, float]) -> str | None:
    """Return a sentence that names the bottleneck; None where there is none.

    Args:
        seconds: of the training, without validations.
        shares: the part of these that each part has had, 0 to 1.
    """
    known = {name: share for name, share in shares.items() if name in _SENTENCES}
    largest = max(known, key=lambda name: known[name], default=None)
    if largest is None or seconds < SECONDS or known[largest] <= SHARE:
        return None
    return _SENTENCES[largest].format(share=f"{known[largest]:.0%}")
