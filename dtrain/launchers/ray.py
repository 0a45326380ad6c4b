"""Tasks on the nodes of a Ray cluster: a placement group, and an actor for each task.

An actor starts an agent (:mod:`dtrain.agent`) and passes on what that reads and writes. Ray ends
the actors of a command that is gone, and an agent ends with its actor.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import sys
import threading
import time
from typing import Any

from dtrain.errors import TrainingError, UsageError, refuse
from dtrain.host import python_path
from dtrain.launchers.agents import Agents, Transport
from dtrain.launchers.agents.host import Host
from dtrain.launchers.agents.stream import BEAT
from dtrain.run.cluster import Cluster
from dtrain.run.devices import Machine

#: Seconds in which a cluster is to answer.
_KNOCK = 10.0

#: The jobs of this process share its connection to Ray, which is to one cluster.
_lock = threading.Lock()
_users = 0
_where = ""


class Ray(Agents):
    """Starts an actor on a Ray cluster for each task.

    Args:
        args, kwargs: as of every launcher.
        address: of the cluster; None: that of ``RAY_ADDRESS``, or the one of this machine.
        cpus_per_task: Ray's CPUs of a task, which may be a part of one.
        gpus_per_task: GPUs of a task.
        placement: Ray's strategy for a placement group, in small letters; ``auto``:
            ``strict_spread`` where each task is a host (multiworker), ``pack`` elsewhere.
    """

    several = True

    def __init__(
        self, *args: Any, address: str | None = None, cpus_per_task: float = 1.0,
        gpus_per_task: int = 0, placement: Any = "auto", **kwargs: Any,
    ):  # fmt: skip
        super().__init__(*args, **kwargs)
        self._address = address
        self._placement = str(getattr(placement, "name", placement))
        self._cpus, self._gpus = cpus_per_task, gpus_per_task
        self._tasks, self._on_hosts = 1, False
        self._group: Any = None
        self._connected = False

    def part(self, machine: Machine) -> Machine:
        """Return what one task has; which nodes have it is known when all are placed."""
        cores = max(1, int(self._cpus))
        return Machine(self._gpus, cores, shared=False)

    def check(self, cluster: Cluster, facts: dict[str, str]) -> Cluster:
        """Look whether there is a Ray cluster with nodes for such tasks.

        Places are taken when the tasks are started: of a sweep not all jobs run at once.

        Raises:
            UsageError: there is none.
        """
        ray = self._ray()
        self._tasks = len(cluster.tasks) // cluster.together  # an actor has a place
        self._on_hosts = facts["strategy.on_hosts"] == "True"
        self.where = "a node of Ray"
        fits = [
            node["Resources"].get("CPU", 0) >= self._cpus
            and node["Resources"].get("GPU", 0) >= self._gpus
            for node in ray.nodes()
            if node["Alive"]
        ]
        if not any(fits) or (self._strategy == "STRICT_SPREAD" and sum(fits) < self._tasks):
            raise self._no_room(ray, "has no room")
        return cluster

    @property
    def _strategy(self) -> str:
        spread = self._on_hosts and self._tasks > 1
        strategy = "strict_spread" if spread else "pack"
        return (strategy if self._placement == "auto" else self._placement).upper()

    def transports(self) -> list[tuple[Transport, int]]:
        """Return the actors, in places that were taken together or not at all."""
        ray = self._ray()
        bundle = {name: n for name, n in (("CPU", self._cpus), ("GPU", self._gpus)) if n}
        self._group = ray.util.placement_group([bundle] * self._tasks, strategy=self._strategy)
        if not self._group.wait(self.start_timeout):
            within = f"had no room within {self.start_timeout:g} s (launcher.start_timeout)"
            raise self._no_room(ray, within)
        actors = [Actor(ray, self._group, n, self._cpus, self._gpus) for n in range(self._tasks)]
        for actor in actors:
            actor.locate(self.start_timeout)
        return [(actor, 1) for actor in actors]

    def _no_room(self, ray: Any, problem: str) -> UsageError:
        wanted = f"{self._tasks} x {self._cpus:g} CPU"
        wanted += f" and {self._gpus} GPU" if self._gpus else ""
        nodes = [
            f"{node['NodeManagerAddress']} {node['Resources'].get('CPU', 0):g} CPU and "
            f"{node['Resources'].get('GPU', 0):g} GPU"
            for node in ray.nodes()
            if node["Alive"]
        ]
        free = ray.available_resources()
        return UsageError("launcher.cpus_per_task", f"the Ray cluster {problem} for {wanted} "
                          f"({self._strategy}); free now are {free.get('CPU', 0):g} CPU and "
                          f"{free.get('GPU', 0):g} GPU", f"{self._cpus:g}",
                          accepted=f"what its nodes have: {', '.join(nodes)}",
                          hint="fewer CPUs a task, more nodes, or "
                          "launcher.placement=pack")  # fmt: skip

    def _ray(self) -> Any:
        """Return Ray, connected to the cluster.

        Raises:
            UsageError: it is not installed, there is no cluster, or another job of this process
                uses another one.
        """
        global _users, _where
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            import ray
            import ray.util
        except ImportError as error:
            raise UsageError("launcher", f"Ray is not installed ({error})", "ray",
                             typed='pip install "dtrain[ray]"') from None  # fmt: skip
        address = self._address or os.environ.get("RAY_ADDRESS") or "auto"
        with _lock:
            if _users and address != _where:
                refuse("launcher.address", f"other jobs of this command are on {_where}: Ray "
                       "connects a process with one cluster", address,
                       typed=f"launcher.address={_where}")  # fmt: skip
            if not ray.is_initialized():
                try:
                    _knock(address)
                    ray.init(
                        address, logging_level="ERROR", log_to_driver=False, configure_logging=False
                    )
                except (ConnectionError, RuntimeError, ValueError, OSError) as error:
                    why = str(error).strip().split("\n")[0]
                    raise UsageError("launcher.address", f"no Ray cluster answers ({why})",
                                     self._address or "null", hint="ray start --head, or "
                                     "launcher.address=HOST:6379") from None  # fmt: skip
            if not self._connected:
                self._connected, _where = True, address
                _users += 1
        return ray

    def address(self, host: Host) -> str | None:
        """Return the address of the node that an actor is on, and say what the task has there."""
        actor: Any = host.transport
        # It shares the node: what is there is not what it has.
        host.facts["cores"] = max(1, int(self._cpus))
        host.facts["gpus"] = self._gpus
        return str(actor.node)

    def place(self, cluster: Cluster) -> Cluster:
        """Return the cluster with addresses; Ray counts cores, and says not which they are."""
        threads = max(1, int(self._cpus) // cluster.together)
        cluster = super().place(cluster)
        tasks = (
            dataclasses.replace(t, threads=t.threads or threads, cores=()) for t in cluster.tasks
        )
        return dataclasses.replace(cluster, tasks=tuple(tasks))

    def silent(self) -> list[str]:
        """Return the tasks of nodes from which nothing comes, after a look of some seconds.

        Ray finds the end of a node late: a task that lacks it may have ended before.
        """
        begun = time.monotonic()
        waits = [host.stream for host in self._used() if host.stream is not None]
        while any(s.heard <= begun and s.silent() <= 3 * BEAT for s in waits):
            time.sleep(0.1)
        return super().silent()

    def kill(self) -> None:
        """End all tasks, the actors and the placement group."""
        global _users
        super().kill()
        if not self._connected:
            return
        import ray
        import ray.util

        with _lock:
            group, self._group = self._group, None
            self._connected = False
            _users -= 1
            with contextlib.suppress(Exception):  # the cluster is gone, and they with it
                if group is not None:
                    ray.util.remove_placement_group(group)
                if not _users:
                    ray.shutdown()


def _knock(address: str) -> None:
    """Refuse an address where nothing listens: Ray itself would wait for minutes.

    Raises:
        OSError: there is nothing.
    """
    host, _, port = address.rpartition(":")
    if host and "/" not in host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _KNOCK).close()


#: Bytes of a message between an actor and this process.
_PIECE = 1 << 20
#: Seconds that a call of an actor has which is there.
_CALL = 30.0


class Actor:
    """What leads to an agent: an actor that has started it.

    Args:
        ray: the module, connected.
        group: the placement group.
        number: index of its bundle in the placement group.
        cpus, gpus: of the place.
    """

    def __init__(self, ray: Any, group: Any, number: int, cpus: float, gpus: int):
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        self._ray = ray
        self.host = f"place {number}"
        self.node = ""
        self._why = ""
        self._ended = threading.Event()
        self._actor = (
            ray.remote(_bridge())
            .options(
                num_cpus=cpus,
                num_gpus=gpus,
                max_concurrency=4,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, number),
            )
            .remote()
        )

    def locate(self, seconds: float) -> None:
        """Wait until the actor is there.

        Raises:
            TrainingError: it does not come.
        """
        try:
            self.node, name = self._ray.get(self._actor.where.remote(), timeout=seconds)
        except Exception as error:  # of Ray's many
            raise TrainingError(f"{self.host}: its actor does not start ({brief(error)})") from None
        self.host = f"{name} ({self.host})"

    def open(self) -> tuple[int, int]:
        """Start the agent; return descriptors of its output and its input."""
        environment = python_path.environment()
        try:
            self._ray.get(
                self._actor.open.remote(sys.executable, environment, os.getcwd()), timeout=_CALL
            )
        except Exception as error:  # of Ray's many
            raise OSError(f"its agent does not start ({brief(error)})") from None
        reader, out = os.pipe()
        into, writer = os.pipe()
        for work, end in ((self._read, out), (self._write, into)):
            threading.Thread(target=work, args=(end,), name="ray-pipe", daemon=True).start()
        return reader, writer

    def _read(self, out: int) -> None:
        try:
            while data := self._ray.get(self._actor.read.remote()):
                left = memoryview(data)
                while left:
                    left = left[os.write(out, left) :]
        except OSError:  # nothing here reads any more
            pass
        except Exception as error:  # of Ray's many: the actor, its node, or the cluster is gone
            self._why = f"its actor is gone: {brief(error)}"
        finally:
            os.close(out)

    def _write(self, into: int) -> None:
        try:
            while data := os.read(into, _PIECE):
                self._ray.get(self._actor.write.remote(data))
            self._ray.get(self._actor.end.remote())
        except Exception as error:  # of Ray's many: what reads says it, too
            self._why = self._why or f"its actor is gone: {brief(error)}"
        finally:
            os.close(into)
            self._ended.set()

    def why(self) -> str:
        """Return what is known of how it ended."""
        if self._why:
            return self._why
        with contextlib.suppress(Exception):  # of Ray's many
            code, printed = self._ray.get(self._actor.close.remote(1.0), timeout=_CALL)
            last = (printed.strip().splitlines() or [""])[-1]
            return f"its agent ended with exit code {code}" + (f": {last}" if last else "")
        return ""

    def close(self, seconds: float = 5.0) -> None:
        """Let the agent end, within so many seconds; then end its actor."""
        self._ended.wait(seconds)
        with contextlib.suppress(Exception):  # of Ray's many: it is gone
            if not self._why:
                self._ray.get(self._actor.close.remote(seconds), timeout=seconds + 1.0)
        with contextlib.suppress(Exception):
            self._ray.kill(self._actor)


def brief(error: Exception) -> str:
    """Return one of Ray's errors in a line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    known = [line for line in lines if line.startswith(("The actor", "The node", "Actor"))]
    return (known or lines or [type(error).__name__])[0][:300]


def _bridge() -> type:
    """Return the class of the actors, which is sent along: it needs nothing but Python there."""

    class Bridge:
        """Starts an agent, and passes on what it reads and writes."""

        def where(self) -> tuple[str, str]:
            """Return the address of the node, and its name."""
            import socket

            import ray.util

            return str(ray.util.get_node_ip_address()), socket.gethostname()

        def open(self, python: str, environment: dict[str, str], folder: str) -> None:
            """Start the agent, in the folder of the command where it is there."""
            import os
            import subprocess
            import sys
            import tempfile

            self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
            self._process: Any = subprocess.Popen(
                [python if os.path.exists(python) else sys.executable, "-m", "dtrain.agent"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, bufsize=0,
                cwd=folder if os.path.isdir(folder) else None,
                env={**os.environ, **environment}, start_new_session=True,
            )  # fmt: skip

        def read(self) -> bytes:
            """Return the next bytes of its output, none at the end."""
            import os

            return os.read(self._process.stdout.fileno(), 1 << 20)

        def write(self, data: bytes) -> None:
            """Write to its input; once it has ended, nowhere."""
            import os

            left = memoryview(data)
            try:
                while left:
                    left = left[os.write(self._process.stdin.fileno(), left) :]
            except (BrokenPipeError, ValueError):
                pass

        def end(self) -> None:
            """End its input, which is the order to end."""
            self._process.stdin.close()

        def close(self, seconds: float) -> tuple[int, str]:
            """Wait for its end; return its exit code and the end of what it has printed."""
            import os
            import signal
            import subprocess

            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
            self._errors.seek(max(0, os.fstat(self._errors.fileno()).st_size - 8192))
            return self._process.returncode, self._errors.read().decode(errors="replace")

    return Bridge
