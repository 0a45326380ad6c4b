"""``python -m dtrain predict RUN``: predict rows with a checkpoint of a run.

Rows are predicted in pieces, by any number of workers. To resume a command that was stopped or
killed, type it again. Exit codes: 0 done, 1 failed, 2 wrong usage, 75 interrupted: the same command
goes on.

    python -m dtrain predict latest dataset.path=FILE format=csv to=FOLDER
    python -m dtrain predict RUN workers=4 function=argmax 'include=[inputs,labels]'
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from dtrain.cli.on_run import Derived, DerivedJob, start
from dtrain.cli.registry import RUN, command
from dtrain.config import schema, tree, trust
from dtrain.config.node import Node
from dtrain.config.schema.launchers import Launcher
from dtrain.config.schema.running import Predict as Options
from dtrain.config.tree import Config
from dtrain.errors import refuse
from dtrain.files.fields import Json
from dtrain.job.plan import Plan
from dtrain.launchers import Env
from dtrain.run import checkpoint, identity
from dtrain.run.cluster import Task
from dtrain.run.devices import Machine, check_workers
from dtrain.run.folder import short
from dtrain.run.outcome import last

#: The launcher that every command has.
_LOCAL = "dtrain.launchers.Local"


class PredictJob(DerivedJob):
    """Predicts rows, by as many processes as there are workers."""

    saving = "the pieces that are done stay"

    @staticmethod
    def spread(config: Config, planned: Plan, machine: Machine) -> Plan:
        """Return the plan with a task for each worker, each alone with a strategy of its own.

        Raises:
            UsageError: the strategy has several tasks, or the machine has no place for so many.
        """
        cluster, workers = planned.cluster, int(config.action.get("workers", 1))
        if len(cluster.tasks) > cluster.together:
            refuse("strategy", f"has {len(cluster.tasks)} processes, and a worker is one",
                   config.strategy.name, accepted="one of one process, and any number of workers",
                   typed="strategy=one_device")  # fmt: skip
        task, replicas = cluster.chief, cluster.replicas // cluster.together
        check_workers(workers, cluster, machine)
        shares = machine.shared and cluster.device_kind == "cpu" and workers > 1
        if cluster.device_kind == "gpu":  # it may choose among algorithms, by how long they took
            config.trainer.deterministic = True
        own = machine.cores // workers if shares else 0
        tasks = [
            Task(
                "chief" if index == 0 else "worker", max(0, index - 1), task.devices,
                # The chief is waited for: it joins the pieces, and does those of the dead as well.
                replaceable=index > 0, threads=task.threads, alone=True,
                cores=tuple(range(index * own, (index + 1) * own)),
            )
            for index in range(workers)
        ]  # fmt: skip
        cluster = dataclasses.replace(cluster, tasks=tuple(tasks), replicas=replicas)
        return dataclasses.replace(planned, cluster=cluster)

    @staticmethod
    def show(config: Config, planned: Plan, folder: Path) -> None:
        """Print what would be started (``dry_run=true``)."""
        DerivedJob.show(config, planned, folder)
        print(f"predictions: {short(Path(config.action['to']))}")

    def result_fields(self, events: list[Json]) -> Json:
        """Return where the predictions are, and how many."""
        end = last(events, "end")
        names = ("predictions", "file", "rows", "pieces", "done", "own_rows")
        return {name: end.get(name) for name in names}

    def _print_end(self, found: Json, lacking: Collection[str]) -> None:
        super()._print_end(found, lacking)
        if found["predictions"] is not None:
            place, done = Path(found["predictions"]), f"{found['rows']:,} rows"
            if found["file"] is None:
                done = f"{found['done']:,} of {found['pieces']:,} pieces, {done}"
            self._view.detail(f"predictions: {short(place / (found['file'] or ''))} ({done})")


class Predict(Derived):
    """The command."""

    name = "predict"
    folder = "predictions/jobs"
    kind = PredictJob

    def needs_labels(self, config: Config) -> bool:
        """Say whether the targets of the data are needed: as columns of the predictions."""
        return "labels" in config.action["include"]

    def check(self, config: Config) -> None:
        """Settle which checkpoint it is, and where the predictions go, for all workers.

        Raises:
            UsageError: there is no such checkpoint, or the launcher has no place for workers.
        """
        launcher: Any = trust.locate(config.launcher["_target_"], "launcher._target_")
        if not isinstance(launcher, type):  # it chooses: each of several commands is a worker
            names = Launcher.model_fields.keys() - {"target_"}
            shared = {name: config.launcher[name] for name in names}
            config.launcher = Node(shared, _target_=_LOCAL)
        elif issubclass(launcher, Env):
            refuse("launcher", "starts tasks that share a batch, and a worker is by itself", "env",
                   accepted="the command on each host, with a folder that all share",
                   hint="launcher=local to=FOLDER shard=0/2")  # fmt: skip
        if config.hardware.intra_op_threads is None:
            # The bits of a batch may depend on how many threads share it: each has one.
            config.hardware.intra_op_threads = 1
        action = config.action
        mode = config.objective_mode
        path = checkpoint.only(self.rundir.checkpoints, action["checkpoint"], mode)
        checkpoint.check_weights(path, action["weights"])
        to = action["to"]
        place = self._place(config, path.name) if to is None else Path(to).absolute()
        config.action = action.replaced(checkpoint=path.name, to=str(place))
        if isinstance(action["function"], dict):  # it is called with the outputs, later
            made = {**action["function"], "_partial_": True}
            config.action = config.action.replaced(function=made)

    def _place(self, config: Config, step: str) -> Path:
        """Return the folder of these predictions: the same command finds it again."""
        trainer = config.trainer
        known = {
            "step": step,
            "dataset": identity.deciding(tree.select(config, "dataset")),
            "batch": [trainer.batch_size, trainer.validation_batch_size],
            "precision": config.hardware.precision,
            **{name: config.action[name] for name in schema.deciding(Options)},
        }
        text = json.dumps(json.loads(json.dumps(known, default=str)), sort_keys=True)
        name = f"{step}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
        return self.rundir.path / "predictions" / name


@command(RUN, Options, overrides=(), writes=True)
def main(run: str, overrides: list[str]) -> int:
    """Predict rows, and return the exit code."""
    return start(run, overrides, Predict)
