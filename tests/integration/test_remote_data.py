"""A run whose data is at an address: fetched once, resumed, and asked for only with consent."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.test_remote import Server, server

__all__ = ["server"]  # a fixture
WORDS = ("model=mlp", "dataset=npy", "tracking=none", "trainer.epochs=1", "trainer.batch_size=20")
TOKEN = "canary-0451"


def array(values: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """Forget what a command has put into this process's environment."""
    before = set(os.environ)
    yield
    for name in set(os.environ) - before:
        del os.environ[name]


def test_of_a_run(
    dtrain: Any, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DTRAIN_CACHE", str(tmp_path / "cache"))
    server.files["/x.npy"] = array(np.random.default_rng(0).normal(size=(100, 4)))
    server.files["/y.npy"] = array(np.arange(100) % 3)
    x, y = server.at(f"x.npy?token={TOKEN}"), server.at("y.npy")
    paths = (f'dataset.path="{x}"', f"dataset.target={y}")
    run = dtrain(*WORDS, *paths)
    assert run.code == 0, run.output
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if TOKEN.encode() in path.read_bytes()]
    folder, steps = run.rundir.path, run.result["step"]

    with monkeypatch.context() as another:  # user, to whom it is sent
        another.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
        another.setenv("DTRAIN_SECRET_DATASET_PATH", TOKEN)
        server.asked.clear()
        sent = dtrain(f"resume={folder}", "trainer.epochs=2")
        assert sent.code == 2 and not server.asked, sent.output
        said = "error: dataset.path=http://127.0.0.1:"
        [line] = [one for one in sent.output.splitlines() if one.startswith(said)]
        assert "the run folder names it" in line and TOKEN not in sent.output
        sent = dtrain(f"resume={folder}", "trainer.epochs=2", paths[0])
        assert sent.code == 2 and f"dataset.target={y}: the run folder names it" in sent.output
        assert not server.asked
        forked = dtrain(f"fork={folder}", "trainer.epochs=2", *paths)
        assert forked.code == 0, forked.output

    more = dtrain(f"resume={folder}", "trainer.epochs=2")
    assert more.code == 0, more.output
    assert more.result["step"] == 2 * steps == 8
    server.files.clear()
    gone = dtrain(f"resume={folder}", "trainer.epochs=3")
    assert gone.code == 2 and "cannot be found (404 Not Found)" in gone.output
