"""The examples: small, declared, on a page each; in the campaigns they reach what the page says."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests import gallery
from tests.conftest import Commands
from tests.gallery import EXAMPLES, PAGES, ROOT, RUNS

#: Whose experiments the suite composes: `make test-faults` does it with all.
FEW = ("multi_worker", "structured_data")
EVERY = [name if name in FEW else pytest.param(name, marks=pytest.mark.faults) for name in RUNS]


def page(name: str) -> str:
    return (PAGES / f"{name}.md").read_text(encoding="utf-8")


def test_each_example_has_its_files_and_its_page() -> None:
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir()}
    assert folders - {"__pycache__", "notebook"} == set(RUNS)
    assert {path.stem for path in PAGES.iterdir()} == set(RUNS)
    listed = (ROOT / "docs/gallery.md").read_text(encoding="utf-8")
    for name in RUNS:
        files = {path.name for path in (EXAMPLES / name).iterdir()} - {"__pycache__"}
        assert files == {"__init__.py", "experiment.yaml", f"{name}.py"}
        title = page(name).partition("\n")[0].removeprefix("# ")
        assert f"[{title}](gallery/{name}.md)" in listed


@pytest.mark.parametrize("name", RUNS)
def test_a_page_shows_what_there_is(name: str) -> None:
    code = (EXAMPLES / name / f"{name}.py").read_text(encoding="utf-8")
    assert len(code.splitlines()) <= gallery.LINES
    head, mark, rest = page(name).partition(gallery.MARK)
    assert head and mark
    assert rest.startswith(gallery.source(name)), f"python -m tests.gallery {name}"
    assert (PAGES / f"{name}.svg").stat().st_size < gallery.BYTES
    [reached] = re.findall(rf"^`{RUNS[name].metric}` is (\S+) at the end", rest, re.M)
    assert RUNS[name].reached(float(reached))
    assert f"asks for {RUNS[name].bound:g} or " in rest
    assert (f" {RUNS[name].other}\n" in rest.partition("## Under another strategy")[2]) == bool(
        RUNS[name].other
    )


@pytest.mark.parametrize("name", EVERY)
def test_an_experiment_composes(
    name: str, dtrain: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    monkeypatch.setenv("DTRAIN_TRUST", "examples")
    first = shlex.split(RUNS[name].before or RUNS[name].more)  # a later one reads what this leaves
    run = dtrain("--config-dir", "examples", f"+{name}=experiment", *first, "dry_run=true")
    assert run.code == 0, run.output
    assert not Path("outputs").exists()


@pytest.mark.faults
@pytest.mark.parametrize("name", RUNS)
def test_an_example_reaches_what_its_page_says(name: str, tmp_path: Path) -> None:
    _, into = gallery.main_run(name, tmp_path)
    assert RUNS[name].reached(gallery.value(name, into))
    if RUNS[name].other:
        _, second = gallery.run(name, RUNS[name].other, tmp_path)
        if RUNS[name].alike:
            assert gallery.differences(name, into, second).first < gallery.CLOSE
        else:
            assert RUNS[name].reached(gallery.value(name, second))
