"""One sentence about what held a run up, where that is worth one."""

from __future__ import annotations

from collections.abc import Mapping

from dtrain.run.times import HOST, INPUT

#: Part of the time of training that a part may have without a word, and the
#: seconds of training below which nothing is said: those of the first calls are not typical.
SHARE, SECONDS = 0.15, 5.0

_SENTENCES = {
    INPUT: (
        "steps waited for their input {share} of the time (input_seconds of each step); "
        "python -m dtrain data shows how fast it can be read"
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
    largest = max(shares, key=lambda name: shares[name], default=None)
    if largest is None or seconds < SECONDS or shares[largest] <= SHARE:
        return None
    return _SENTENCES[largest].format(share=f"{shares[largest]:.0%}")
