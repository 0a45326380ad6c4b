"""``python -m dtrain``. Kept light: a task process may import it, and must not get Hydra by it."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line and return its exit code."""
    from dtrain.controller.cli import main as controller

    return controller()


if __name__ == "__main__":
    sys.exit(main())
