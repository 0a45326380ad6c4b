"""The same command from an installed wheel, in an empty directory."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from dtrain.run.folder import RunDir

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(ROOT)],
        check=True,
    )
    [wheel] = folder.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "dtrain/conf/config.yaml" in names
    shipped = {name for name in names if name.startswith("dtrain/experiments/")}
    assert shipped == {f"dtrain/experiments/{p.name}" for p in ROOT.glob("experiments/*.yaml")}
    assert "dtrain/plugins/hydra_plugins/dtrain_sweep.py" in names
    assert not [n for n in names if n.startswith(("tests/", "outputs/"))]
    target = folder / "site"
    subprocess.run([*pip, "install", "--no-deps", "--target", str(target), str(wheel)], check=True)
    return target


def test_the_console_script(installed: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [str(installed / "bin" / "dtrain"), "strategy=mirrored", "trainer.epochs=1"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [cluster] = tmp_path.glob("outputs/*/*/cluster.json")
    rundir = RunDir(cluster.parent)
    assert rundir.model.exists()
    assert (tmp_path / "outputs" / "mlflow.db").exists()
    swept = subprocess.run(
        [str(installed / "bin" / "dtrain"), "-m", "strategy=one_device,mirrored", "dry_run=true"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert swept.returncode == 0, swept.stderr
    assert "2 jobs" in swept.stdout
    where = subprocess.run(
        [sys.executable, "-c", "import dtrain; print(dtrain.__file__)"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert str(installed) in where.stdout
