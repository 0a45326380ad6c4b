"""Compares what there is with the golden files, or writes them anew: ``python -m tests.golden``.

Without names, or patterns of names, all cases. With ``--write`` what has changed is printed as
well; a commit that changes a file of them says why.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
import time

from tests.golden import kept, numbers, running


def compare_numbers(name: str, write: bool = False) -> list[str]:
    """Return what differs from the file of a case."""
    path = kept.FOLDER / f"{name}.json"
    with running.folder():
        now = json.loads(kept.text(numbers.trained(name)))
    lines = ["there is no file of it"]
    if path.exists():
        exact = write or kept.is_the_machine()
        lines = kept.differences(json.loads(path.read_text()), now, exact)
    if write and lines:
        path.parent.mkdir(exist_ok=True)
        path.write_text(kept.text(now))
    return kept.few([f"{name}: {line}" for line in lines])


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.golden", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="or a pattern, such as 'ps_*'")
    parser.add_argument("--write", action="store_true", help="write the files anew")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    arguments = parser.parse_args()
    every = {name: compare_numbers for name in numbers.cases()}
    chosen = [n for n in every if any(fnmatch.fnmatch(n, p) for p in arguments.names or ["*"])]
    if not chosen:
        parser.error(f"there is no case {' '.join(arguments.names)}")
    if arguments.list:
        print(*chosen, sep="\n")
        return 0
    if arguments.write and kept.MACHINE.exists() and not kept.is_the_machine() and arguments.names:
        parser.error("the other files were made on a machine of another kind: write all of them")
    if arguments.write:
        kept.MACHINE.write_text(json.dumps(kept.machine(), indent=1) + "\n")
    running.ready()
    differ = 0
    for number, name in enumerate(chosen, 1):
        begin = time.monotonic()
        try:
            lines = every[name](name, arguments.write)
        except AssertionError as error:
            lines = [str(error)]
        differ += bool(lines)
        what = "differs" if lines else "is as it was"
        print(f"{number}/{len(chosen)} {name} {what} ({time.monotonic() - begin:.1f} s)")
        print(*(f"  {line}" for line in lines), sep="\n", end="\n" if lines else "", flush=True)
    print(f"{len(chosen)} cases, {differ} {'written' if arguments.write else 'differ'}")
    return int(bool(differ) and not arguments.write)


if __name__ == "__main__":
    sys.exit(main())
