"""Who may import whom: the controller never TensorFlow, the task never Hydra or MLflow."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dtrain

PACKAGE = Path(dtrain.__file__).parent


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield each imported module and whether it is imported at the top of the file."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        top = node in tree.body
        if isinstance(node, ast.Import):
            yield from ((alias.name, top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, top
            yield from ((f"{node.module}.{alias.name}", top) for alias in node.names)


def modules(folder: str) -> list[Path]:
    return sorted((PACKAGE / folder).rglob("*.py"))


@pytest.mark.parametrize("arguments", [["--cfg", "job"], ["dry_run=true", "strategy=mirrored"]])
def test_questions_are_answered_without_tensorflow(arguments: list[str]) -> None:
    code = (
        "import sys; from dtrain.__main__ import main; code = main(); "
        "heavy = {'tensorflow', 'keras', 'mlflow', 'sklearn', 'pandas'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "mirrored" in done.stdout or "model:" in done.stdout


def test_no_file_holds_two_rooms() -> None:
    long = {p.name: n for p in modules(".") if (n := len(p.read_text().splitlines())) > 450}
    assert not long
