"""``python -m tests.zoo`` writes the table of ``docs/zoo.md``; see ``tests/zoo_table.py``."""

from tests.zoo_table import main

if __name__ == "__main__":
    raise SystemExit(main())
