"""``python -m dtrain.sync RUN_DIR``: ship a run folder to MLflow, whatever is missing there."""

from __future__ import annotations

import argparse
import sys
import time

from omegaconf import DictConfig, OmegaConf

from dtrain import errors, journal
from dtrain.cluster import Cluster
from dtrain.controller.tracking import Shipper, uri
from dtrain.errors import UsageError
from dtrain.rundir import RunDir, read_json


def sync(path: str, to: str | None = None) -> str:
    """Make MLflow hold what the journal of one run holds; what it has is not written twice.

    Args:
        path: the run folder.
        to: tracking URI, instead of the run's own.

    Returns:
        The URI that it was shipped to.

    Raises:
        UsageError: ``path`` is no run folder.
    """
    rundir = RunDir(path)
    config = OmegaConf.load(rundir.config) if rundir.config.is_file() else None
    cluster = read_json(rundir.cluster)
    if not isinstance(config, DictConfig) or cluster is None:
        raise UsageError(
            "RUN_DIR", path, "is not a run folder", "a folder with config.yaml and journal.jsonl",
            "python -m dtrain.sync outputs/DATE/TIME_NAME",
        )  # fmt: skip
    if to is not None:
        config.tracking.uri = to
    events = journal.read(rundir.journal)
    result = read_json(rundir.result) or {}
    started = result.get("started") or (events[0]["time"] if events else time.time())
    shipper = Shipper(config, rundir, Cluster.from_json(cluster))
    shipper.open(started)
    shipper.ship(events)
    # No result: the controller was killed and could not say how the run ended.
    shipper.close(result.get("status", "KILLED"), started + result.get("seconds", 0.0))
    return uri(config)


def main() -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m dtrain.sync", description=__doc__)
    parser.add_argument("run_dir", metavar="RUN_DIR")
    parser.add_argument("--uri", help="tracking URI, instead of the run's own")
    arguments = parser.parse_args()
    try:
        address = sync(arguments.run_dir, arguments.uri)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except Exception as error:  # whatever a server, a driver or a proxy may raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        print(f"error: {arguments.run_dir} could not be shipped: {reason}", file=sys.stderr)
        return errors.FAILED
    print(f"shipped to {address}")
    return errors.OK


if __name__ == "__main__":
    sys.exit(main())
