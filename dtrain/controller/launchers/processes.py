"""What only a launcher of processes of this machine can do."""

from __future__ import annotations

from abc import ABC, abstractmethod


class LocalProcesses(ABC):
    """A capability beside that of a launcher: to look at single processes and act on them.

    A job whose launcher has it continues without a worker that died and can be replaced, notices
    tasks that are stopped, and has the stacks of all tasks in their logs when it stalls.
    """

    @abstractmethod
    def start_again(self, name: str) -> None:
        """Start one task that has ended once more, at its old address."""

    @abstractmethod
    def end(self, name: str) -> None:
        """End one task at once."""

    @abstractmethod
    def frozen(self) -> set[str]:
        """Return the tasks that have been stopped (SIGSTOP) since the last such call or before."""

    @abstractmethod
    def dump(self) -> None:
        """Have every task write its Python stacks to its log."""
