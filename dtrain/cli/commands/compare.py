"""``python -m dtrain compare RUN ...``: runs side by side: a table, a page with plots, CSV.

It prints the table, and writes comparison.html, comparison.csv and curves.csv. Exit codes: 0 done,
1 a store or a disk failed, or bits=true found a difference, 2 wrong usage.

    python -m dtrain compare outputs
    python -m dtrain compare ONE OTHER baseline=ONE metric=val_accuracy to=FOLDER
    python -m dtrain compare ONE OTHER bits=true
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from dtrain import errors
from dtrain.cli.registry import RUNS, command
from dtrain.compare import bits, write_all
from dtrain.compare.comparison import Comparison, compare
from dtrain.compare.load import is_id, of_folders, of_ids
from dtrain.config.fields import Line, Options
from dtrain.config.fields import Path as PathText
from dtrain.errors import refuse
from dtrain.host import answer, pyproject
from dtrain.run.folder import RunDir
from dtrain.tracking.mlflow.store import embedded


class CompareOptions(Options):
    """Options of ``compare``."""

    baseline: Line | None = None
    """The run to compare with: its name in the table, its folder or id, or an override
    (strategy=one_device: for each run the one with otherwise the same overrides); null: that of
    the sweep."""
    metric: Line | None = None
    """Metric of curves and differences; null: loss."""
    to: PathText | None = None
    """Folder of the files; null: the one folder that is given, else the current one."""
    bits: bool = False
    """Compare points and weights of two run folders bit by bit, and write no files."""
    uri: Line | None = Field(None, alias="tracking.uri")
    """Tracking store of the ids; null: the embedded one in ./outputs."""


def _find(runs: list[str], options: CompareOptions) -> Comparison:
    ids = [each for each in runs if is_id(each)]
    folders = [Path(each) for each in runs if each not in ids]
    found, sweep = of_folders(folders) if folders else ([], None)
    if ids:
        store = options.uri or embedded(pyproject.output_dir())
        found += of_ids(ids, store)
        sweep = None
    return compare(found, sweep, options.baseline, options.metric)


def _compare_bits(folders: list[str]) -> int:
    runs = [RunDir(each) for each in folders]
    if len(runs) != 2 or not all(run.journal.is_file() for run in runs):
        refuse("bits", "compares two run folders", " ".join(folders), accepted="two run folders",
               hint="python -m dtrain compare ONE OTHER bits=true")  # fmt: skip
    lines, same = bits.report(runs[0], runs[1])
    print(*lines, sep="\n")
    return errors.OK if same else errors.FAILED


@command(RUNS, CompareOptions)
def main(runs: list[str], options: CompareOptions) -> int:
    """Compare runs, and return the exit code."""
    if options.bits:
        return _compare_bits(runs)
    one = Path(runs[0])
    output = Path(options.to or (one if len(runs) == 1 and one.is_dir() else ""))
    lines = write_all(_find(runs, options), output)
    print(*lines, sep="\n")
    answer.note(table="\n".join(filter(None, lines)))
    print(f"page: {output / 'comparison.html'}")
    return errors.OK
