"""Runs side by side: a table, a page with plots, and CSV, from run folders or from MLflow."""

from __future__ import annotations

from pathlib import Path

from dtrain.compare.comparison import Comparison, compare, curves_csv, failures, runs_csv, text
from dtrain.compare.load import of_folders
from dtrain.errors import printable
from dtrain.host import packages

__all__ = ["write", "write_all"]


def write(folder: Path, baseline: str | None = None) -> list[str]:
    """Compare the runs below ``folder`` and leave the page and the CSV files there.

    Args:
        folder: of a sweep, or any with runs in it.
        baseline: a run's name, or KEY=VALUE that it alone has; by default that in ``sweep.json``.

    Returns:
        The lines of the table; a sweep itself says which of its jobs failed.

    Raises:
        UsageError: there is no run, or ``baseline`` is not one of them, or a file of another
            origin has the name of one of these.
    """
    runs, sweep = of_folders([folder])
    comparison = compare(runs, sweep, baseline)
    write_all(comparison, folder)
    return text(comparison)


def write_all(found: Comparison, folder: Path) -> list[str]:
    """Write the page and the CSV files into ``folder``; return the lines of the table.

    Raises:
        UsageError: a file of another origin has the name of one of these.
    """
    # ORDER: not above: matplotlib takes a second.
    from dtrain.compare import page

    tables = {page.RUNS: runs_csv(found), page.CURVES: curves_csv(found)}
    page.write(folder, page.page(found), tables)
    return [*text(found), *map(printable, failures(found))]


packages.make_callable(__name__)
