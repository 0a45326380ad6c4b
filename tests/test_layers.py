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
#: Modules that both halves use, lowest first; each may import those before it.
SHARED = [
    "here",
    "memory",
    "secrets",
    "errors",
    "plainyaml",
    "reading",
    "files",
    "terminal",
    "columns",
    "fields",
    "schemas",
    "rundir",
    "cluster",
    "journal",
    "kinds",
    "callables",
    "targets",
    "draws",
    "versions",
    "identity",
    "sources",
    "splits",
    "archive",
    "text",
    "datasets",
    "checkpoint",
]
#: Modules of one half each: what a task's strategy, model or data may name, and the controller's.
OF_A_TASK = ["augment", "models", "replicas", "schedules", "weights"]
OF_THE_CONTROLLER = ["__main__", "sync", "compare", "ui"]
#: Modules of ``dtrain.compare``, lowest first; each may import those before it.
COMPARE = [
    "runs", "tracked", "differs", "comparison", "table", "plots", "page", "output", "", "__main__",
]  # fmt: skip
#: Modules of the controller, lowest first; each may import those before it.
CONTROLLER = [
    "tf_config",
    "messages",
    "pace",
    "connection",
    "watch",
    "rendezvous",
    "guest",
    "cluster_key",
    "launchers.base",
    "launchers.ports",
    "launchers.inline",
    "launchers.server",
    "launchers.local",
    "launchers.env",
    "launchers.describe",
    "launchers",
    "consent",
    "private",
    "ranges",
    "forms",
    "presets",
    "schema",
    "values",
    "references",
    "preset_files",
    "sweep.space",
    "explain",
    "guard",
    "before",
    "folder",
    "resume",
    "gpus",
    "devices",
    "limits",
    "plan",
    "progress",
    "tracking.store",
    "tracking.known",
    "tracking.family",
    "tracking.shipper",
    "tracking.courier",
    "tracking.parent",
    "tracking",
    "check",
    "report",
    "supervisor",
    "result",
    "member",
    "run_files",
    "job",
    "sweep.options",
    "sweep.source",
    "sweep.search",
    "sweep.slots",
    "sweep.compose",
    "sweep.form",
    "sweep.record",
    "sweep.table",
    "sweep.report",
    "sweep.runner",
    "sweep.command",
    "sweep",
    "cli",
]
#: What starts processes or talks to other hosts knows nothing of training.
IGNORANT = CONTROLLER[: CONTROLLER.index("launchers") + 1]


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


@pytest.mark.parametrize("path", modules("controller"), ids=lambda p: p.name)
def test_the_controller_imports_no_tensorflow(path: Path) -> None:
    for name, top in imports(path):
        assert name.split(".")[0] not in ("tensorflow", "keras", "tensorboard")
        # A launcher enters the task's half inside the function that starts it.
        assert not name.startswith("dtrain.task") or (not top and "launchers" in str(path))
        assert not name.startswith(tuple(f"dtrain.{each}" for each in OF_A_TASK))


@pytest.mark.parametrize("path", modules("task"), ids=lambda p: p.name)
def test_the_task_imports_no_hydra(path: Path) -> None:
    for name, _ in imports(path):
        assert name.split(".")[0] not in ("hydra", "mlflow", "rich")
        assert not name.startswith("dtrain.controller")


@pytest.mark.parametrize("name", SHARED)
def test_shared_modules_build_on_each_other_only(name: str) -> None:
    below = SHARED[: SHARED.index(name)]
    files = modules(name) or [PACKAGE / f"{name}.py"]  # a package's build on each other
    for imported, top in (found for path in files for found in imports(path)):
        parts = imported.split(".")
        assert not (top and parts[0] in ("tensorflow", "keras", "hydra", "mlflow"))
        assert parts[0] != "dtrain" or len(parts) == 1 or parts[1] in [*below, *packages([name])]


def packages(names: list[str]) -> set[str]:
    """Return those of ``names`` that are folders with modules of their own."""
    return {name for name in names if modules(name)}


def within(folder: str, path: Path) -> str:
    """Return the module's name below ``dtrain.<folder>``; that of a package is the folder's."""
    parts = path.relative_to(PACKAGE / folder).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def test_every_module_has_its_place() -> None:
    top = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    top |= packages([*SHARED, *OF_THE_CONTROLLER])
    assert top == {*SHARED, *OF_A_TASK, *OF_THE_CONTROLLER}
    assert {within("controller", path) for path in modules("controller")} == {"", *CONTROLLER}
    assert {within("compare", path) for path in modules("compare")} == {*COMPARE}


@pytest.mark.parametrize("path", modules("controller"), ids=lambda p: p.name)
def test_the_controller_is_built_from_below(path: Path) -> None:
    name = within("controller", path)
    below = CONTROLLER[: CONTROLLER.index(name)] if name else []
    for imported, _ in imports(path):
        head, _, rest = imported.partition("dtrain.controller.")
        if not head and rest:
            assert any(rest == each or rest.startswith(f"{each}.") for each in below), imported


@pytest.mark.parametrize("path", modules("compare"), ids=lambda p: p.name)
def test_the_comparison_reads_what_runs_left(path: Path) -> None:
    below = COMPARE[: COMPARE.index(within("compare", path))]
    known = (
        "errors", "reading", "files", "secrets", "columns", "schemas", "rundir", "journal",
        "controller.forms", "controller.tracking",
    )  # fmt: skip
    for imported, top in imports(path):
        parts = imported.split(".")
        assert parts[0] not in ("tensorflow", "keras", "hydra", "mlflow"), imported
        assert parts[0] != "matplotlib" or within("compare", path) == "plots"
        assert not (top and "compare.page" in imported), "importing matplotlib takes a second"
        if parts[:2] == ["dtrain", "compare"]:
            assert len(parts) == 2 or parts[2] in below or (parts[2] == "write_all" and below)
        elif parts[0] == "dtrain" and len(parts) > 1:
            assert ".".join(parts[1:]).startswith(known), imported


@pytest.mark.parametrize("name", IGNORANT)
def test_launchers_know_nothing_of_training(name: str) -> None:
    [path] = [p for p in modules("controller") if within("controller", p) == name]
    for imported, top in imports(path):
        parts = imported.split(".")
        known = (
            "here",
            "errors",
            "reading",
            "files",
            "cluster",
            "rundir",
            "controller",
            "__version__",
        )
        assert parts[0] != "dtrain" or len(parts) == 1 or not top or parts[1] in known
        assert parts[0] not in ("omegaconf", "hydra", "mlflow", "numpy", "rich")


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
