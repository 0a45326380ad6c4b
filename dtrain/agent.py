"""``python -m dtrain.agent``: the end of a launcher on another host; not for a user to type.

Kept light: a task process may import it.
"""

from __future__ import annotations

import sys


def main() -> int:
    """Do what comes on standard input, until that ends; return the exit code."""
    from dtrain.launchers.agents import agent

    return agent.main()


if __name__ == "__main__":
    sys.exit(main())
