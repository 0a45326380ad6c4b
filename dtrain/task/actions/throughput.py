"""How fast training is, and how much of its time it waits for its input."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Throughput:
    """Sums over the calls of a training, but for the first: that traces, and compiles.

    Attributes:
        seconds: that they took.
        examples: of all replicas together.
        waited: seconds for input.
    """

    seconds: float = 0.0
    examples: int = 0
    waited: float = 0.0

    def add(self, seconds: float, examples: int, waited: float) -> None:
        """Add a call."""
        self.seconds += seconds
        self.examples += examples
        self.waited += waited

    @property
    def examples_per_second(self) -> float:
        """Examples of a second of training itself."""
        return self.examples / self.seconds if self.seconds else 0.0

    @property
    def input_share(self) -> float:
        """Part of the time in which steps waited for their input, 0 to 1."""
        return min(1.0, self.waited / self.seconds) if self.seconds else 0.0
