"""Which of the probes of a step is the first, and what it means in a sentence."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dtrain.task.debugging.probes import (
    ARRIVES,
    DATA,
    GRADIENT,
    INPUT,
    LOSS,
    OUTPUT,
    PASSES,
    Count,
    Probe,
)

#: Of weights, which are looked at after a step.
WEIGHT = "weight"
#: What ends a training: the rest may be meant so, as the minus infinity of a mask is.
_SERIOUS = (LOSS, GRADIENT, WEIGHT)

_WHERE = {
    DATA: "the {path} of the batch",
    INPUT: "what layer {path} ({what}) is given",
    OUTPUT: "the output of layer {path} ({what})",
    LOSS: "the loss",
    ARRIVES: "the gradient that arrives at the output of layer {path} ({what})",
    PASSES: "the gradient that layer {path} ({what}) passes on to its input",
    GRADIENT: "the gradient of weight {path} ({what})",
    WEIGHT: "weight {path} ({what})",
}
_HINTS = {
    DATA: "python -m dtrain data shows the data, and which examples are not finite",
    INPUT: "look at what is computed between the layers, in the call that this layer is in",
    OUTPUT: "look at this layer: a division, a logarithm, a root or an exponential in it, or "
    "inputs that are too large",
    LOSS: "look at the loss: the logarithm of 0, or targets that it is not made for; every layer's "
    "output is finite",
    ARRIVES: "look at what is computed of this output outside of layers, and at the loss",
    PASSES: "look at the derivative of this layer: that of a root or a norm at 0 is infinite, and "
    "so is one of a value that tf.where leaves out",
    GRADIENT: "look at how the layer of this weight uses it: what it is given and gives is finite",
    WEIGHT: "look at the optimizer (a smaller optimizer.learning_rate), or at what assigns this "
    "weight: its gradient is finite",
}

Counts = Mapping[Probe, Count]


def bad(counts: Counts) -> list[Probe]:
    """Return the probes that have found something, in their order."""
    found = [probe for probe, count in counts.items() if count.bad]
    return sorted(found, key=lambda probe: (probe.order, probe.replica))


def is_serious(counts: Counts, gradients: bool) -> bool:
    """Say whether a training goes wrong by what probes have found in a step.

    Args:
        counts: of the probes, and of weights.
        gradients: whether a gradient counts: a scaled loss has some that are not finite, and the
            optimizer leaves these steps out.
    """
    kinds = {probe.kind for probe in bad(counts)}
    return bool(kinds.intersection(_SERIOUS if gradients else (LOSS, WEIGHT)))


def of(counts: Counts, harmless: Collection[tuple[str, str]]) -> Probe:
    """Return the probe where it began.

    Args:
        counts: of a step that has a bad one.
        harmless: kinds and paths that had values which are not finite in steps that went well.
    """
    found = bad(counts)
    return next((each for each in found if (each.kind, each.path) not in harmless), found[0])


def described(probe: Probe, count: Count) -> str:
    """Return what a probe has found, as a clause: ``the output of layer a (Dense) is not finite``.

    Its numbers stand behind it, in brackets.
    """
    return f"{_WHERE[probe.kind].format(path=probe.path, what=probe.what)} is not finite " + (
        f"({_numbers(count)})"
    )


def where(probe: Probe) -> str:
    """Return where a probe is, for a list."""
    return _WHERE[probe.kind].format(path=probe.path, what=probe.what)


def hint(probe: Probe) -> str:
    """Return what to look at."""
    return _HINTS[probe.kind]


def given(probe: Probe, counts: Counts) -> str | None:
    """Return how large what a layer was given is; None of what is no output of a layer."""
    if probe.kind != OUTPUT:
        return None
    own = [
        count
        for each, count in counts.items()
        if (each.kind, each.path, each.replica) == (INPUT, probe.path, probe.replica)
    ]
    if not own or any(count.bad for count in own):
        return None
    largest = max(count.largest for count in own)
    return f"its input is finite, up to {largest:.3g} in magnitude"


def _numbers(count: Count) -> str:
    parts = [f"{n:,} {name}" for n, name in ((count.nan, "NaN"), (count.infinite, "infinite")) if n]
    return f"{', '.join(parts)} of {count.size:,} values"
