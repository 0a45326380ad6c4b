"""``python -m dtrain``. Kept light: a task process may import it, and must not get Hydra by it."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line and return its exit code."""
    from dtrain import terminal

    with terminal.lasting():
        try:
            with terminal.interrupting():
                from dtrain.controller.cli import main as controller

                return controller()
        except KeyboardInterrupt:
            return terminal.stopped(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
