"""Data sets that packages carry, each by one command: ``python -m tests.campaigns.carried``."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from pathlib import Path

from tests.campaigns.tables import SHORT, Outcome, train

#: Package and file, what is typed beside the path, and how the error begins where it is refused.
CARRIED: list[tuple[str, str, list[str], str]] = [
    # Its first line is no header: the number of rows, of columns, and the names of the classes.
    ("sklearn", "datasets/data/wine_data.csv", [], "dataset.path="),
    ("sklearn", "datasets/data/iris.csv", [], ""),
    ("sklearn", "datasets/data/breast_cancer.csv", [], "dataset.path="),
    ("sklearn", "datasets/data/linnerud_exercise.csv", [], ""),
    ("sklearn", "datasets/data/diabetes_data_raw.csv.gz", [], ""),
    ("sklearn", "datasets/data/digits.csv.gz", [], ""),
    ("statsmodels", "datasets/fair/fair.csv", [], ""),
    ("statsmodels", "datasets/ccard/ccard.csv", ["dataset.target=OWNRENT"], ""),
    ("statsmodels", "datasets/anes96/anes96.csv", ["dataset.target=vote"], ""),
    ("statsmodels", "datasets/star98/star98.csv", [], ""),
    ("vega_datasets", "_data/seattle-weather.csv", ["dataset.split={by: date}"], ""),
    ("vega_datasets", "_data/airports.csv", ["dataset.target=state"], ""),
    ("vega_datasets", "_data/stocks.csv", ["dataset.target=price"], ""),
    ("vega_datasets", "_data/cars.json", ["dataset.target=Origin"], ""),
    ("vega_datasets", "_data/iris.json", ["dataset.target=species"], ""),
    ("pyarrow", "tests/data/parquet/v0.7.1.parquet", ["dataset.target=price"], ""),
    ("pyarrow", "tests/data/parquet/v0.7.1.all-named-index.parquet", ["dataset.target=cut"], ""),
    ("pyarrow", "tests/data/feather/v0.17.0.version.2-compression.lz4.feather", [
        "dataset.target=a"], "dataset.inputs="),
]  # fmt: skip


def path(package: str, file: str) -> Path:
    """Return where a package has a file."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.origin is not None, f"pip install {package}"
    return Path(spec.origin).parent / file


def run(package: str, file: str, typed: list[str]) -> Outcome:
    """Train a file in the current folder."""
    dataset = "dataset=csv" if ".csv" in file else "dataset=table"
    return train(path(package, file), dataset, *SHORT, *typed)


def main() -> None:
    """Run all of them and print what became of each."""
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for package, file, typed, begin in CARRIED:
            outcome = run(package, file, typed)
            right = outcome.kind == ("refused" if begin else "trained")
            right = right and outcome.sentence.startswith(begin) if begin else right
            wrong += not right
            print(
                "" if right else "WRONG ",
                outcome.kind,
                file,
                *typed,
                outcome.sentence if outcome.kind != "trained" else outcome.metrics.get("val_loss"),
                flush=True,
            )
        os.chdir("/")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
