"""``python -m dtrain compare``: runs side by side, as a table, a page with plots, and CSV.

Exit codes: 0 done, 1 a store or a disk failed, or ``--bits`` differ, 2 wrong usage.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from dtrain import errors
from dtrain.compare import bits, load_tracked, write_all
from dtrain.compare.comparison import Comparison, compare
from dtrain.compare.load_folders import of_folders
from dtrain.controller.commands import boundary
from dtrain.controller.commands.boundary import Parser
from dtrain.errors import DtrainError, refuse
from dtrain.host import answer, pyproject
from dtrain.run.folder import RunDir


def _parser() -> Parser:
    parser = Parser(
        prog="python -m dtrain compare",
        description="Print a table of runs; write comparison.html, comparison.csv and curves.csv.",
    )
    parser.add_argument(
        "runs", nargs="+", metavar="PATH_OR_RUN_ID",
        help="a sweep, a run folder, a folder that contains such, or an MLflow run id; the id of a "
        "sweep means its jobs",
    )  # fmt: skip
    parser.add_argument(
        "--baseline", metavar="RUN|KEY=VALUE",
        help="the run to compare with: its name in the table, its folder or id, or an override "
        "(strategy=one_device; for each run the one with otherwise the same overrides); default: "
        "that of the sweep",
    )  # fmt: skip
    parser.add_argument(
        "--metric", metavar="NAME", help="metric of curves and differences; default loss"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FOLDER",
        help="folder of the files; default: the one folder given, else the current one",
    )  # fmt: skip
    parser.add_argument(
        "--bits", action="store_true",
        help="of two run folders: compare points and weights bit by bit, and write no files",
    )  # fmt: skip
    parser.add_argument(
        "--uri", help="tracking store of the ids, instead of the embedded one in ./outputs"
    )
    return parser


def _found(given: argparse.Namespace) -> Comparison:
    if "" in given.runs:  # a variable of the shell that is not set; it would be read as .
        refuse("PATH_OR_RUN_ID", "is empty", "", accepted="a folder (. is this one) or a run's id",
               typed="python -m dtrain compare outputs")  # fmt: skip
    ids = [each for each in given.runs if load_tracked.is_id(each)]
    folders = [Path(each) for each in given.runs if each not in ids]
    runs, sweep = of_folders(folders) if folders else ([], None)
    if ids:
        store = given.uri or load_tracked.embedded(Path(pyproject.output_dir()))
        runs += load_tracked.of_ids(ids, store)
        sweep = None
    return compare(runs, sweep, given.baseline, given.metric)


def _bits(given: argparse.Namespace) -> int:
    runs = [RunDir(each) for each in given.runs]
    if len(runs) != 2 or not all(run.journal.is_file() for run in runs):
        refuse("--bits", "compares two run folders", " ".join(given.runs),
               hint="python -m dtrain compare --bits ONE OTHER")  # fmt: skip
    lines, same = bits.report(runs[0], runs[1])
    print(*lines, sep="\n")
    return errors.OK if same else errors.FAILED


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: in place of those of the process.
    """
    given = _parser().parse_args(arguments)
    if given.bits:
        return boundary.answered(lambda: _bits(given), given.runs[0])
    output = given.output or Path()
    try:
        one = Path(given.runs[0])
        output = given.output or (one if len(given.runs) == 1 and one.is_dir() else Path())
        found = _found(given)
        lines = write_all(found, output)
        print(*lines, sep="\n")
        answer.note(table="\n".join(filter(None, lines)))
    except DtrainError as error:
        return boundary.report(error, "")
    except OSError as error:
        return boundary.report(error, f"{error.filename or output}: {error.strerror}")
    print(f"page: {output / 'comparison.html'}")
    return errors.OK
