"""What says which task this command stands for, and where the others are."""

from __future__ import annotations

from typing import Protocol

from dtrain.run.cluster import Cluster, Task


class ClusterEnvironment(Protocol):
    """A platform that starts a command on each host, and tells it so by its environment.

    ``launcher.environment`` names the class, its constructor takes the keys beside that.
    """

    def find(self, planned: Cluster, strategy: str, on_hosts: bool) -> tuple[Cluster, Task]:
        """Find the planned cluster, and this command's task in it.

        Args:
            planned: the tasks that the configuration asks for, without addresses.
            strategy: its name, for messages.
            on_hosts: it runs a process on each host, and there may be one.

        Returns:
            The cluster with an address for each task, the chief first, and the own task.

        Raises:
            UsageError: the environment says nothing of a cluster, or it is not the planned one.
        """
