"""A command that stands for one task of a cluster and is not the chief's (``launcher=env``)."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from dtrain import errors, targets
from dtrain.cluster import Cluster
from dtrain.controller import report, result
from dtrain.controller.launchers import Env
from dtrain.controller.supervisor import INTERVAL, Signals
from dtrain.rundir import RunDir, read_json, write_json, write_text

#: Parts of the configuration that every task must have alike.
_DECISIVE = ("seed", "trainer", "dataset", "model", "optimizer", "strategy")


def run(config: DictConfig, cluster: Cluster, launcher: Env) -> int:
    """Meet the chief, run this host's task to its end, and return the exit code.

    Raises:
        UsageError: the chief has another configuration.
        TrainingError: it did not come.
    """
    task = launcher.own(cluster)
    guest = launcher.guest(cluster)
    with Signals() as signals:
        try:
            _say(f"{task.name}: looking for the chief at {cluster.chief.address}")
            rundir = _folder(config, cluster, guest.meet(launcher.start_timeout))
            launcher.start_own(rundir, cluster)
            signals.started = True
            _say(f"{task.name}: started; its log is {report.short(rundir.log(task.name))}")
            asked, deadline, begun = 0, math.inf, False
            while "ended" not in (words := {word for _, word in launcher.wait(INTERVAL)}):
                begun = begun or "training" in words
                if signals.count > asked or "stop" in words:
                    if signals.count > 1:
                        break
                    asked = signals.count
                    _say(f"{task.name}: asked to stop: the chief saves a checkpoint")
                    guest.ask_to_stop()
                    launcher.stop()
                if guest.ended() is not None:
                    if task.serves or not begun:  # nothing of it is still wanted
                        break
                    deadline = min(deadline, time.monotonic() + launcher.grace_seconds)
                if time.monotonic() > deadline:
                    break
        except KeyboardInterrupt:
            return errors.FAILED
        finally:
            signals.started = True
            launcher.kill()
            ended = guest.ended()
            guest.close()
    own = launcher.exit_codes().get(task.name, errors.FAILED)
    code = own if own >= 0 and not task.serves else errors.FAILED if ended is None else ended
    if code == errors.FAILED:
        _say(f"{task.name}: {result.last_words(rundir.log(task.name))}")
    _say(f"{task.name}: ended with exit code {code}")
    return code


def _folder(config: DictConfig, cluster: Cluster, path: str) -> RunDir:
    """Return the chief's run folder, or one of the same name where its disk is not shared."""
    rundir = RunDir(path)
    if not rundir.config.is_file():
        rundir = RunDir(Path(config.output_dir) / Path(path).parent.name / Path(path).name)
    rundir.logs.mkdir(parents=True, exist_ok=True)
    if not _is_of_this_job(rundir, config, cluster):  # none, or what a resumed run left here
        write_text(rundir.config, OmegaConf.to_yaml(config))
        write_json(rundir.cluster, cluster.to_json())
    return rundir


def _is_of_this_job(rundir: RunDir, config: DictConfig, cluster: Cluster) -> bool:
    if not rundir.config.is_file():
        return False
    # The chief's own differ in what is of a host (its paths, its devices), never in these.
    here, planned = targets.plain(OmegaConf.load(rundir.config)), read_json(rundir.cluster)
    if planned is None or Cluster.from_json(planned).spec() != cluster.spec():
        return False
    ours = targets.plain(config)
    return all(here.get(key) == ours[key] for key in _DECISIVE)


def _say(text: str) -> None:
    print(text, file=sys.stderr)
