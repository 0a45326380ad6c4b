"""The newest run of this folder, for messages of commands that lack one."""

from __future__ import annotations

from pathlib import Path

from dtrain.run.folder import short

#: Commands whose first argument is a run.
ON_RUNS = ("evaluate", "predict", "export", "promote", "serve", "replay", "checkpoint", "sync")


def run(folder: str = "outputs") -> str | None:
    """Return the newest run below ``folder`` as it is typed; None where there is none."""
    found = [path.parent for path in Path(folder).glob("*/*/command.json")]
    return short(max(found, key=lambda path: path.parts[-2:])) if found else None


def hint(command: str, folder: str = "outputs") -> str:
    """Return a command on the newest run below ``folder``, or on one that is to be named."""
    if command == "compare":
        return f"python -m dtrain compare {folder}"
    return f"python -m dtrain {command} {run(folder) or 'outputs/DATE/TIME_NAME'}"
