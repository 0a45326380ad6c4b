"""The current directory comes after all that is installed, in each process that dtrain starts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dtrain
from dtrain.host import python_path
from dtrain.host.commands import names
from tests.conftest import QUICK

ROOT = Path(dtrain.__file__).parent.parent
#: Writes down that it was imported, and fails.
CANARY = "open({path!r}, 'a').write(__name__ + '\\n')\nraise SystemError('a canary')\n"
#: Installed, of the standard library, optional, and packages that scan for others.
NAMES = (
    "keras", "tensorflow", "hydra", "omegaconf", "numpy", "mlflow", "json", "yaml", "rich", "jax",
    "optuna", "sitecustomize", "hydra_plugins", "torch", "pandas", "google", "multiprocessing",
    "selectors", "socket", "pickle", "pathlib", "typing", "sklearn", "h5py", "absl", "argparse",
)  # fmt: skip


@pytest.fixture
def canaries(tmp_path: Path) -> Path:
    """Put packages of well-known names into the current directory; return what they write."""
    ran = tmp_path / "ran"
    for name in NAMES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(CANARY.format(path=str(ran)))
    # A part of a namespace package, and a plugin of MLflow's.
    (tmp_path / "hydra_plugins" / "evil.py").write_text(CANARY.format(path=str(ran)))
    plugin = tmp_path / "evil-1.0.dist-info"
    plugin.mkdir()
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (plugin / "entry_points.txt").write_text(
        "[mlflow.tracking_store]\nhttp=hydra_plugins.evil:x\n"
        "[mlflow.run_context_provider]\nx=hydra_plugins.evil:x\n"
    )
    return ran


def command(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(ROOT), **os.environ, **variables}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=300, env=environment
    )


@pytest.mark.parametrize("words", [["--help"], *([each, "--help"] for each in names())])
def test_a_package_of_the_current_directory_is_not_imported(
    words: list[str], canaries: Path
) -> None:
    done = command("-m", "dtrain", *words)
    assert done.returncode == 0, done.stderr
    assert not canaries.exists(), canaries.read_text()


@pytest.mark.faults
def test_nor_by_a_run_and_its_tasks(canaries: Path, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("width = 5\n")
    (tmp_path / "mine.py").write_text(
        "import keras\n\ndef build(input_shape, classes):\n    import helper\n"
        "    return keras.Sequential([keras.Input(input_shape), keras.layers.Dense(helper.width)])"
    )
    without = [word for word in QUICK if not word.startswith(("model", "tracking"))]
    done = command(
        "-m", "dtrain", *without, "trainer.epochs=1", "model=custom", "model._target_=mine.build",
        DTRAIN_TRUST="mine",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not canaries.exists(), canaries.read_text()


def test_a_checkout_that_is_not_installed(tmp_path: Path) -> None:
    """It is found by the current directory alone; a folder called keras in it is not Keras."""
    for name in ("dtrain", "conf", "experiments"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    ran = tmp_path / "ran"
    for name in ("keras", "hydra", "numpy"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(CANARY.format(path=str(ran)))
    where = "import dtrain, sys; sys.exit(0 if dtrain.__file__.startswith(sys.argv[1]) else 1)"
    if command("-c", where, str(tmp_path), PYTHONPATH="").returncode:
        pytest.skip("another dtrain is installed")
    done = command("-m", "dtrain", *QUICK, "trainer.epochs=1", PYTHONPATH="")
    assert done.returncode == 0, done.stderr
    assert not ran.exists(), ran.read_text()


def test_who_finds_what_lies_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setenv("DTRAIN_TRUST", "tfirst.inner")
    (tmp_path / "tfirst.py").write_text("import tsecond\n")
    (tmp_path / "tsecond.py").write_text("def late():\n    import tthird\n    return tthird\n")
    (tmp_path / "tthird.py").write_text("")
    python_path.offer()
    python_path.offer()
    assert sys.meta_path.count(python_path._finder) == 1
    try:
        with pytest.raises(ModuleNotFoundError):
            import tsecond  # noqa: F401 nobody trusts it, and this test is not from here
        import tfirst  # type: ignore[import-not-found, unused-ignore]

        assert tfirst.tsecond.late().__name__ == "tthird"
        with pytest.raises(ModuleNotFoundError):
            import tfourth  # noqa: F401
    finally:
        for name in ("tfirst", "tsecond", "tthird"):
            sys.modules.pop(name, None)


def test_variables_of_an_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    python_path.granted.set(None)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    assert python_path.environment() == {"PYTHONSAFEPATH": "1", "DTRAIN_STARTED": ""}
    monkeypatch.setattr(os, "environ", {**os.environ, **python_path.environment()})
    python_path.settle()
    assert not {"PYTHONSAFEPATH", "DTRAIN_STARTED"} & set(os.environ)
    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # the user's own
    assert python_path.environment() == {}


def test_variables_for_a_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.setattr(python_path, "_checkout", ["x"])
    monkeypatch.setattr(os, "environ", {**os.environ, "PYTHONPATH": "/a"})
    monkeypatch.setattr(sys, "path", [str(ROOT), "/a", "/b"])
    os.environ.update(python_path.environment())
    assert os.environ["PYTHONPATH"] == f"/a{os.pathsep}{ROOT}"
    python_path.settle()
    assert os.environ["PYTHONPATH"] == "/a"
    assert sys.path == ["/a", "/b", str(ROOT)]
