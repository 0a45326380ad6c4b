"""``python -m dtrain [COMMAND] ...``: without a command it trains.

Kept light: a task process may import it, and must not get Hydra by it.
"""

from __future__ import annotations

import importlib
import sys

#: Each is a module of :mod:`dtrain.controller.commands`.
COMMANDS = ("compare", "ui", "sync", "checkpoint")


def main() -> int:
    """Run the command line and return its exit code."""
    if len(sys.argv) > 1 and sys.argv[1] in COMMANDS:
        command = importlib.import_module(f"dtrain.controller.commands.{sys.argv[1]}")
        return command.main(sys.argv[2:])
    from dtrain.host import terminal

    with terminal.lasting():
        try:
            with terminal.interrupting():
                from dtrain.controller.cli import main as controller

                return controller()
        except KeyboardInterrupt:
            return terminal.stopped(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
