"""Who may import whom: the contracts of pyproject.toml hold, and each of them can be broken."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dtrain

PACKAGE = Path(dtrain.__file__).parent


def modules(folder: str) -> list[Path]:
    return sorted((PACKAGE / folder).rglob("*.py"))


@pytest.mark.parametrize("arguments", [["--cfg", "job"], ["dry_run=true", "strategy=mirrored"]])
def test_questions_are_answered_without_tensorflow(arguments: list[str]) -> None:
    code = (
        "import sys; from dtrain.__main__ import main; code = main(); "
        "heavy = {'tensorflow', 'keras', 'mlflow', 'sklearn', 'pandas'} & set(sys.modules); "
        "unused = ('agents', 'k8s', 'ray', 'slurm', 'ssh'); "
        "heavy |= {name for each in unused for name in sys.modules"
        " if name.startswith(f'dtrain.launchers.{each}')}; "
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "mirrored" in done.stdout or "model:" in done.stdout


def test_a_file_holds_one_concept() -> None:
    long = {p.name: n for p in modules(".") if (n := len(p.read_text().splitlines())) > 500}
    assert not long


def contracts(folder: Path) -> str:
    """Check the contracts of the package in ``folder`` and return the report."""
    code = "import sys; from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "Contracts: " in done.stdout, done.stdout + done.stderr
    assert (done.returncode == 0) == (" 0 broken." in done.stdout)
    return done.stdout


def test_the_contracts_of_imports_hold() -> None:
    report = contracts(PACKAGE.parent)
    assert " 0 broken." in report, report


@pytest.mark.parametrize(
    ("contract", "module", "imported"),
    [
        ("Imports run one way", "run/folder.py", "dtrain.compare.comparison"),
        ("No circle", "data/sources.py", "dtrain.data.mixture"),
        ("The controller's half never imports a framework", "job/plan.py", "tensorflow"),
        ("Only the JAX backend imports JAX", "task/train/loop.py", "jax"),
        ("The JAX backend imports no other", "task/backends/jax/runtime.py", "tensorflow"),
        ("Only the torch backend imports torch", "task/model/build.py", "torch"),
        ("The torch backend imports no other", "task/backends/torch/runtime.py", "jax"),
        ("A task knows its backend", "debug.py", "dtrain.task.backends.tensorflow.steps"),
        ("The task's half never imports Hydra", "task/main.py", "hydra"),
        ("The halves meet where a launcher", "job/plan.py", "dtrain.task.model.build"),
        ("Launchers know nothing of training", "launchers/base.py", "omegaconf"),
        ("OmegaConf stays in config", "job/run.py", "omegaconf"),
    ],
)
def test_a_bad_import_breaks_its_contract(
    tmp_path: Path, contract: str, module: str, imported: str
) -> None:
    shutil.copytree(PACKAGE, tmp_path / "dtrain", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PACKAGE.parent / "pyproject.toml", tmp_path)
    with (tmp_path / "dtrain" / module).open("a") as file:
        file.write(f"\nimport {imported}\n")
    lines = [line for line in contracts(tmp_path).splitlines() if line.startswith(contract)]
    assert "BROKEN" in lines[0]
