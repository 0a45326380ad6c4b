"""Versions, whichever distribution a package was installed from."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
import types
from collections.abc import Iterable
from pathlib import Path

import pytest

from dtrain.host.packages import version


def distribution(folder: Path, name: str, number: str, packages: str = "") -> None:
    info = folder / f"{name.replace('-', '_')}-{number}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")
    (info / "top_level.txt").write_text(packages)


def test_of_what_is_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    distribution(tmp_path, "madeup", "1.0", "madeup")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert version("madeup") == "1.0"
    module = types.ModuleType("madeup")
    monkeypatch.setitem(sys.modules, "madeup", module)
    assert version("madeup") == "1.0", "it does not say"
    module.__version__ = "2.0-dev1"  # type: ignore[attr-defined]
    assert version("madeup") == "2.0-dev1"
    assert version("madeup-of-nobody") is None


def test_a_run_installs_no_tests() -> None:
    """A gigabyte of them, of which ``make run`` on a fresh machine has no use."""
    root = Path(__file__).parents[1]
    made = subprocess.run(
        ["make", "--dry-run", "--always-make", "run"], cwd=root, capture_output=True, text=True
    )
    assert "pip install" in made.stdout and "[test]" not in made.stdout, made.stderr


@pytest.mark.parametrize("wheel", ["tensorflow-cpu", "tensorflow-tpu", "tf-nightly"])
def test_of_another_wheel(wheel: str, tmp_path: Path) -> None:
    """In a process that finds no other distributions, and NumPy and OmegaConf where they are."""
    distribution(tmp_path, wheel, "2.99.1", "tensorflow\n")
    distribution(tmp_path, "keras-nightly", "3.98", "keras\n")
    code = (
        "import dtrain.run.identity as i, importlib.metadata as m, sys; "
        f"found = list(m.distributions(path=[{str(tmp_path)!r}])); "
        "m.Distribution.discover = classmethod(lambda cls, context=None, **k: "
        "iter([d for d in found if k.get('name') in (None, d.name)])); "
        "print(sorted(i.versions('tensorflow').items())); "
        "assert 'tensorflow' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "('keras', '3.98')" in done.stdout and "('tensorflow', '2.99.1')" in done.stdout


@pytest.mark.task
def test_in_a_task() -> None:
    import keras
    import tensorflow as tf

    from dtrain.run import identity

    found = identity.versions("tensorflow")
    assert (found["tensorflow"], found["keras"]) == (tf.__version__, keras.__version__)


@pytest.mark.parametrize("package", ["tensorflow", "keras"])
def test_what_is_allowed_is_what_is_tested(package: str) -> None:
    """The oldest by ``make test-versions``, the newest by the constraints."""
    root = Path(__file__).parents[1]
    required = tomllib.loads((root / "pyproject.toml").read_text())["project"]["dependencies"]
    bounds = "\n".join(required)
    found = re.search(rf"^{package}>=(\d+)\.(\d+),<(\d+)\.(\d+)$", bounds, re.M)
    assert found is not None, bounds
    major, oldest, _, above = map(int, found.groups())
    tested = re.search(
        rf"^OLDEST :=.*\b{package}==(\d+)\.(\d+)\.", (root / "Makefile").read_text(), re.M
    )
    assert tested is not None and tuple(map(int, tested.groups())) == (major, oldest)
    newest = re.search(rf"^{package}==(\d+)\.(\d+)\.", (root / "constraints.txt").read_text(), re.M)
    assert newest is not None and tuple(map(int, newest.groups())) == (major, above - 1)


def test_what_is_imported_is_declared() -> None:
    """And what each run installs is imported."""
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]

    def named(lists: Iterable[list[str]]) -> set[str]:
        names = {re.split(r"[\[><=]", each)[0] for names in lists for each in names}
        return {name.lower().replace("_", "-") for name in names}

    needed = named([project["dependencies"]])
    declared = needed | named(extras[name] for name in extras if name not in ("test", "docs"))
    of = importlib.metadata.packages_distributions()
    imported = set()
    for path in (root / "dtrain").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [str(node.module)]
            imported |= {name.split(".")[0] for name in names}
    makers = {name: named([of.get(name, [name])]) for name in imported}
    # IPython is there where its cells are, and google is a namespace.
    for name in imported - {*sys.stdlib_module_names, "dtrain", "IPython", "google"}:
        assert makers[name] & declared, name
    assert not needed - set().union(*makers.values())
