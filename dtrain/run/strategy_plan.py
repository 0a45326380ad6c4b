"""What is known of a strategy before TensorFlow is imported: its tasks, devices and replicas.

The YAML file of a strategy names its plan (``strategy.plan``). The controller asks the plan, and a
task compares it with what the strategy really made.
"""

from __future__ import annotations

from dtrain.config import targets
from dtrain.config.tree import Config
from dtrain.errors import refuse
from dtrain.host.packages import version
from dtrain.run.cluster import Cluster, Task

#: Keys of the strategy group that are not for the strategy's class.
_GENERAL = ("name", "plan")


class StrategyPlan:
    """The plan of a strategy with one replica in one process.

    A subclass overrides what differs. Its constructor takes, by their names, those keys of the
    strategy group that it reads.
    """

    #: Keys of the strategy group that the plan reads and the strategy's class does not take.
    own_keys: tuple[str, ...] = ()
    #: Whether a process runs on each of ``hardware.hosts``.
    on_hosts = False
    #: How many of those there are where neither the user nor the launcher says.
    hosts = 1
    #: Whether XLA can compile a whole step.
    compilable = False
    #: Whether a step is computed in the tasks that train, by operations on tensors of one device:
    #: debug=nan can then repeat it.
    in_process = True
    #: Kinds of device that the strategy computes on.
    kinds: tuple[str, ...] = ("cpu", "gpu")
    #: ``variables`` or ``layers`` where devices share the model: a dry run lists them.
    divides: str | None = None

    def computing(self, hosts: int) -> int:
        """Return how many tasks compute."""
        return hosts

    def devices(self, kind: str, gpus: int) -> int:
        """Return how many devices each of these tasks has, where the user does not say.

        Args:
            kind: ``cpu``, ``gpu`` or ``tpu``.
            gpus: that a task may have.
        """
        return 1

    def tasks(self, hosts: int, devices: int) -> tuple[Task, ...]:
        """Return all processes, the chief first, without threads and addresses."""
        roles = [("chief", 0), *(("worker", index) for index in range(hosts - 1))]
        return tuple(Task(role, index, devices) for role, index in roles)

    def replicas(self, hosts: int, devices: int) -> int:
        """Return how many replicas share each global batch.

        Raises:
            UsageError: the strategy cannot be laid over so many devices.
        """
        return 1

    def parts(self, cluster: Cluster) -> int:
        """Return in how many parts each variable is, at most."""
        return cluster.chief.devices // cluster.replicas

    def check(self, config: Config, cluster: Cluster) -> None:
        """Refuse what does not go with the strategy.

        Args:
            config: its values checked.
            cluster: as planned.

        Raises:
            UsageError: naming the key.
        """

    def size(self) -> tuple[str, int]:
        """Return the key that decides how many tasks there are, and a small value of it."""
        return "hardware.hosts", 2

    def rows(self, cluster: Cluster) -> dict[str, str]:
        """Return what a dry run reports of this strategy alone, by its headings."""
        return {}


def of(config: Config) -> StrategyPlan:
    """Make the plan that ``strategy.plan`` names.

    Raises:
        UsageError: it cannot be made, or is none, or the configuration has none.
    """
    node = dict(config.strategy)
    if "plan" not in node:
        refuse("strategy.plan", "is not in the configuration of the run, as this dtrain "
               f"({version('dtrain')}) writes it", "null", accepted="the version that wrote it",
               hint="fork=RUN_DIR to begin a new run with its weights")  # fmt: skip
    plan = targets.instantiate(
        node["plan"], "strategy.plan", **{k: v for k, v in node.items() if k != "_target_"}
    )
    if not isinstance(plan, StrategyPlan):
        refuse("strategy.plan._target_", "makes no plan of a strategy", node["plan"]["_target_"],
               accepted="a subclass of dtrain.run.strategy_plan.StrategyPlan",
               typed="strategy.plan._target_=dtrain.task.strategies.plans.OneReplica")  # fmt: skip
    return plan


def options(config: Config) -> dict[str, object]:
    """Return the node of the strategy's class: its keys without those of the plan alone."""
    left_out = {*_GENERAL, *of(config).own_keys}
    return {k: v for k, v in config.strategy.items() if k not in left_out}
