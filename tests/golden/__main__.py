"""Compares what there is with the golden files, or writes them anew: ``python -m tests.golden``.

Without names, or patterns of names, all cases. With ``--write`` what has changed is printed as
well; a commit that changes a file of them says why.
"""

from __future__ import annotations

import argparse
import difflib
import fnmatch
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.golden import faces, kept, numbers, running


def files() -> dict[str, Path]:
    """Return by name the file of each case."""
    return {
        **{f"numbers/{name}": kept.FOLDER / f"{name}.json" for name in numbers.cases()},
        **{f"faces/{name}": faces.FOLDER / f"{name}.txt" for name in faces.scenes()},
    }


def compare(name: str, write: bool = False) -> list[str]:
    """Run a case, and return the lines of a report on what is not as in its file.

    Args:
        name: of the case.
        write: write the file anew where something differs.
    """
    path, (kind, _, case) = files()[name], name.partition("/")
    made: Callable[[str], str] = faces.played
    if kind == "numbers":
        made = lambda case: kept.text(numbers.trained(case))  # noqa: E731
    with running.folder():
        now = made(case)
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    if not before:
        lines = ["there was no file"]
    elif kind == "numbers":
        exact = write or kept.is_the_machine()
        lines = kept.few(kept.differences(json.loads(before), json.loads(now), exact))
    else:
        two = (before.splitlines(), now.splitlines())
        lines = [*difflib.unified_diff(*two, path.name, "now", n=1, lineterm="")]
    if write and lines:
        path.parent.mkdir(exist_ok=True)
        path.write_text(now, encoding="utf-8")
    return [f"{case}: {line}" for line in lines] if kind == "numbers" else lines


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.golden", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="or a pattern, such as 'faces/*'")
    parser.add_argument("--write", action="store_true", help="write the files anew")
    parser.add_argument("--new", action="store_true", help="cases that have no file alone")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    arguments = parser.parse_args()
    patterns = arguments.names or ["*"]
    chosen = [
        name
        for name, path in files().items()
        if any(fnmatch.fnmatch(of, each) for each in patterns for of in (name, path.stem))
        and not (arguments.new and path.exists())
    ]
    if not chosen and not arguments.new:
        parser.error(f"there is no case {' '.join(patterns)}")
    if arguments.list:
        print(*chosen, sep="\n")
        return 0
    has_numbers = any(name.startswith("numbers/") for name in chosen)
    if not kept.is_the_machine():
        print("this machine is of another kind than machine.json: numbers are close, not equal")
        if arguments.write and arguments.names and has_numbers:
            parser.error("of a machine of another kind all are written, or none")
    if arguments.write and has_numbers:
        kept.MACHINE.write_text(json.dumps(kept.machine(), indent=1) + "\n", encoding="utf-8")
    running.ready()
    differ = 0
    for number, name in enumerate(chosen, 1):
        begin = time.monotonic()
        try:
            lines = compare(name, arguments.write)
        except AssertionError as error:
            lines = [str(error)]
        differ += bool(lines)
        what = "differs" if lines else "is as it was"
        print(f"{number}/{len(chosen)} {name} {what} ({time.monotonic() - begin:.1f} s)")
        print("".join(f"  {line}\n" for line in lines), end="", flush=True)
    print(f"{len(chosen)} cases, {differ} {'written' if arguments.write else 'differ'}")
    return int(bool(differ) and not arguments.write)


if __name__ == "__main__":
    sys.exit(main())
