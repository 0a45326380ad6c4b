"""The frameworks that Keras computes with: their names and packages; none is imported."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

#: Where Keras reads the name of its backend from, while it is imported.
VARIABLE = "KERAS_BACKEND"


@dataclasses.dataclass(frozen=True)
class Framework:
    """One of them.

    Attributes:
        title: its name in sentences.
        packages: whose versions decide numbers; the first is what is imported.
        install: what is typed to get it.
        process_per_device: a process computes on one device; else on all that its task has.
    """

    title: str
    packages: tuple[str, ...]
    install: str
    process_per_device: bool = False

    @property
    def importing(self) -> str:
        """What a process does first, and for how long."""
        return f"importing {self.title} takes 3 to 15 s"


#: By their names in ``backend=NAME``.
FRAMEWORKS = {
    "tensorflow": Framework("TensorFlow", ("tensorflow",), "pip install dtrain"),
    "jax": Framework("JAX", ("jax", "jaxlib"), "pip install 'dtrain[jax]'"),
    "torch": Framework("PyTorch", ("torch",), "pip install 'dtrain[torch]'", True),
}


def of(environment: Mapping[str, str]) -> Framework:
    """Return the one that a process of this environment imports."""
    return FRAMEWORKS[environment.get(VARIABLE, "tensorflow")]
