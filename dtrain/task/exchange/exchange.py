"""The sum of a vector over all tasks of a job: over those of a machine, and then over machines."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Sequence

import numpy as np

from dtrain.task.exchange import meeting, shared, wire
from dtrain.task.exchange.links import Link, Lost, Pulse

#: Seconds that a task which has lost another one waits with the error: who follows the tasks names
#: the one that died first, and ends the others meanwhile.
GRACE = 3.0


class Exchange:
    """Returns when all tasks are connected; each makes one at the same point.

    Args:
        rank: of this task.
        hosts: names or addresses of the tasks' machines, by rank.
        names: of the tasks, by rank.
        key: known to the tasks of the job alone.
        share: from numbers of this task to those of all, by rank.

    Raises:
        OSError: another task was not reached, or does not know the key.
    """

    def __init__(
        self,
        rank: int,
        hosts: Sequence[str],
        names: Sequence[str],
        key: bytes,
        share: Callable[[list[int]], list[list[int]]],
    ):
        with meeting.listen(hosts[rank]) as server:
            memory = shared.create(key)
            try:
                own = [server.getsockname()[1], shared.machine(), os.getpid(), memory]
                table = share(own)
                machines: dict[int, list[int]] = {}
                for each, (_, machine, _, _) in enumerate(table):
                    machines.setdefault(machine, []).append(each)
                local, firsts = machines[table[rank][1]], [ranks[0] for ranks in machines.values()]
                wanted = {*local, *(firsts if rank in firsts else ())} - {rank}
                addresses = [(host, row[0]) for host, row in zip(hosts, table, strict=True)]
                links = meeting.connect(rank, wanted, addresses, names, server, key)
                if local[0] != rank:
                    _, _, pid, descriptor = table[local[0]]
                    theirs = shared.open_of(pid, descriptor, key)
                    os.close(memory)
                    memory = theirs
            except BaseException:
                os.close(memory)
                raise
        self._links = links
        self._pulse = Pulse(links.values())
        within = [links[each] for each in local if each != rank]
        self._shared = shared.Shared(local.index(rank), within, memory)
        self._beyond: Callable[[np.ndarray], None] | None = None
        self._machines = len(firsts)
        if self._machines > 1:
            between: list[Link | None] = [links.get(each) for each in firsts]
            place = firsts.index(local[0])
            self._beyond = functools.partial(wire.add_up, place=place, links=between)

    def sum(self, vector: np.ndarray) -> np.ndarray:
        """Return the sum of the tasks' vectors, the same bits in each.

        Args:
            vector: of one dimension, of one type and length in all tasks; each must call it at the
                same point.

        Raises:
            Lost: another task is gone, or stands still.
        """
        try:
            return self._shared.sum(vector, self._beyond)
        except Lost:
            time.sleep(GRACE)
            raise

    def meet(self) -> None:
        """Return when all tasks have called it.

        Raises:
            Lost: another task is gone, or stands still.
        """
        # A number for each machine, so that each sends something to, and waits for, the others.
        self.sum(np.zeros(self._machines, np.float32))

    def close(self) -> None:
        """Close all connections, and the memory."""
        self._pulse.close()
        for link in self._links.values():
            link.close()
        self._shared.close()
