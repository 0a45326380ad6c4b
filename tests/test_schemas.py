"""The files of runs as they are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from dtrain.errors import DamagedFile
from dtrain.run import schemas


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert schemas.read(tmp_path / "result.json", schemas.Result) is None
    assert schemas.glance(tmp_path / "result.json", schemas.Result) is None


def test_a_damaged_file_is_named_or_outlived(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    for content, message in (("{", "is not valid JSON"), ('{"status": 1}', "status 1 is none of")):
        path.write_text(content)
        with pytest.raises(DamagedFile, match=f"{path}.*{message}"):
            schemas.read(path, schemas.Result)
        assert schemas.glance(path, schemas.Result) is None
    path.write_text('{"status": "FAILED"}')
    assert schemas.read(path, schemas.Result) == schemas.glance(path, schemas.Result)


def test_paths_of_a_sweep_stay_in_it(tmp_path: Path) -> None:
    for folder in ("..", ".", "", "a/b", "/etc", "a\\u0000", "\\u202e", "x" * 300):
        (tmp_path / "sweep.json").write_text(
            '{"name": "s", "status": "x", "jobs": [{"number": 0, "status": "x", "differs": {},'
            f' "folder": "{folder}"}}]}}'
        )
        with pytest.raises(DamagedFile, match=r"jobs\[0\].folder"):
            schemas.read(tmp_path / "sweep.json", schemas.Sweep)
