"""Commands on a run at an address: it is fetched before, and what they add is copied after."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from dtrain import errors
from dtrain.controller import remote
from dtrain.controller.commands import failures
from dtrain.errors import UsageError
from dtrain.files import addresses

#: Commands that write into the folder of the run.
_ADD = ("evaluate", "predict", "export", "promote")


def main(command: ModuleType, given: list[str]) -> int:
    """Run a command and return its exit code.

    Args:
        command: of :mod:`dtrain.controller.commands`.
        given: its command line.
    """
    try:
        words = remote.arguments(given, ("",))
    except UsageError as error:
        return failures.report(error, "")
    code = int(command.main(words))
    if command.__name__.rpartition(".")[2] in _ADD:
        for word in filter(addresses.is_far, words):
            if not remote.push(_run(Path(word).absolute())) and code == errors.OK:
                code = errors.FAILED
    return code


def _run(folder: Path) -> Path:
    """Return the folder of the run that a folder is, or that a checkpoint is of."""
    return folder.parent.parent if folder.parent.name == "checkpoints" else folder
