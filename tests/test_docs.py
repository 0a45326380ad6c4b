"""The documents: commands in them run, links in them lead somewhere, files that they name exist.

Blocks of the kinds ``sh`` and ``console`` are run, each command alone in a folder with a finished
run and a finished sweep; those of the kind ``bash`` of a page in their order, in one empty folder.
What a test machine cannot run (a GPU, several hosts, files of the reader's) is in blocks of the
kind ``text``: of those, what trains is composed, as far as this machine has what it names.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

import dtrain
from dtrain.__main__ import main
from dtrain.config import schema
from dtrain.host.commands import names
from tests.conftest import QUICK

ROOT = schema.folder("conf").parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: What stands in the pages for the names of folders.
NAMES = {"TIME_NAME": "10-20-30_mlp_default", "DATE": "2026-01-31"}
#: What answers in a second or two.
ANSWERS = (
    "dry_run=true",
    "--help",
    "--version",
    "--cfg",
    "compare",
    "checkpoint",
    "data",
    "doctor",
    "export",
)
#: The one training of the default suite.
FIRST = "python -m dtrain strategy=mirrored trainer.epochs=2 tracking=none"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
_PATH = re.compile(r"(?<![\w/.-])(?:dtrain|tests|conf|docs|experiments)/[\w./-]*\w")
_MODULE = re.compile(r"(?<![\w./-])dtrain(?:\.[a-z_]+)+")


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of a page, as it is typed."""

    page: str
    text: str

    @property
    def is_quick(self) -> bool:
        return self.text == FIRST or any(word in ANSWERS for word in shlex.split(self.text))


def blocks(*kinds: str) -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        for kind, text in _BLOCK.findall(page.read_text(encoding="utf-8")):
            if kind in kinds:
                yield page, text


def commands() -> list[Command]:
    """Return each command once: in ``console`` blocks they stand after a ``$``."""
    pages: dict[str, str] = {}
    for kind, prompt in (("sh", ""), ("console", "$ ")):
        for page, text in blocks(kind):
            for line in text.replace("\\\n", " ").splitlines():
                if line.strip() and line.startswith(prompt):
                    pages.setdefault(" ".join(line.removeprefix(prompt).split()), page.name)
    return [Command(page, text) for text, page in pages.items()]


def marked(command: Command) -> object:
    marks = () if command.is_quick else pytest.mark.faults
    return pytest.param(command.text, id=f"{command.page}: {command.text}", marks=marks)


def named(text: str) -> str:
    for placeholder, name in NAMES.items():
        text = text.replace(placeholder, name)
    return text


def here(text: str, folder: Path) -> int:
    """Run a command in this process, whose tasks are forked from the warm server."""
    words = shlex.split(text)
    assert words[:3] == ["python", "-m", "dtrain"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["dtrain", *words[3:]])
        return main()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, a sweep, and the files that the pages show."""
    folder = tmp_path_factory.mktemp("docs")
    for _, text in blocks("python", "yaml"):
        name = text.removeprefix("# @package _global_\n").partition("\n")[0].removeprefix("# ")
        if re.fullmatch(r"[\w/]+\.\w+", name):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    quick = shlex.join((*QUICK, "trainer.epochs=1", "trainer.steps_per_epoch=44"))
    one = "hydra.run.dir=outputs/DATE/TIME_NAME"
    sweep = "-m hydra.sweep.dir=outputs/multirun/DATE/TIME_NAME strategy=one_device,default"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))
        for words in (one, sweep):
            assert here(f"python -m dtrain {named(words)} {quick}", folder) == 0
    return folder


@pytest.mark.parametrize("text", [marked(command) for command in commands()])
def test_commands(text: str, place: Path, tmp_path: Path) -> None:
    shutil.copytree(place, tmp_path, dirs_exist_ok=True)
    if Command("", text).is_quick:
        assert here(named(text), tmp_path) == 0
        return
    if " promote " in text:  # what it asks about is in MLflow, as a reader's run is
        done = in_bash(named("python -m dtrain sync outputs/DATE/TIME_NAME"), tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
    done = in_bash(named(text), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


#: What stops a plan here, and not on the machine of a reader.
LACKS = re.compile(
    r"no such (file|folder|dataset)|no file has such a name|cannot be found|cannot be read"
    r"|Ray is not installed|no host of this name|says nothing of the cluster|is not trusted"
    r"|no variable (MY_KEY|MLFLOW_)|PORT|'tickets' does not exist"
)


def composed() -> Iterator[tuple[str, str]]:
    """Yield page and text of the trainings that are shown, and not run by another test."""
    for page, text in blocks("text"):
        if page.name == "gallery.md" or page.parent.name == "gallery":  # tests/test_gallery.py
            continue
        for line in text.replace("\\\n", " ").splitlines():
            found = re.match(r"(?:\$ )?((?:[A-Z_]+=\w+ )?python -m dtrain .*)", line)
            words = shlex.split(found[1].partition("-m dtrain")[2]) if found else []
            # What is resumed was trained on those hosts.
            if found and words[0] not in names() and not words[0].startswith("resume="):
                yield page.name, " ".join(found[1].removesuffix(" ...").split())


@pytest.mark.faults
@pytest.mark.parametrize(("page", "text"), [*dict.fromkeys(composed())])
def test_trainings_that_are_shown(
    page: str, text: str, place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A batch that three hosts cannot share stood in two pages."""
    environment, _, words = named(text).rpartition("python -m dtrain ")
    shutil.copytree(place, tmp_path, dirs_exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        for variable in shlex.split(environment):
            patch.setenv(*variable.split("=", 1))
        code = here(f"python -m dtrain {words} dry_run=true", tmp_path)
    out, err = capfd.readouterr()
    wrong = "4 replicas cannot share it" in err and page == "configuration.md"  # shown as one
    assert code == 0 or LACKS.search(err) or wrong, out + err


SESSIONS = sorted({page.name for page, _ in blocks("bash")})


@pytest.mark.faults
@pytest.mark.parametrize("name", SESSIONS)
def test_sessions(name: str, tmp_path: Path) -> None:
    script = "\n".join(text for page, text in blocks("bash") if page.name == name)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        script = script.replace("8080", str(free.getsockname()[1]))
    done = in_bash(
        f"set -euo pipefail\ntrap 'kill $(jobs -p) 2> /dev/null' ERR\n{script}", tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def in_bash(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        ["bash", "-c", script],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=1800,
    )  # fmt: skip


def test_there_are_commands_of_all_kinds() -> None:
    texts = " ".join(command.text for command in commands())
    assert len(commands()) > 50
    for word in ("compare ", "checkpoint ", "sync ", " resume=", " fork=", " sweep.resume="):
        assert word in texts
    assert FIRST in texts
    assert SESSIONS


def test_the_overrides_of_each_task_compose() -> None:
    """Those of the tables of ``how-to.md``; of a sweep, each with its first value."""
    schema.register()
    page = (ROOT / "docs" / "how-to.md").read_text(encoding="utf-8")
    rows = [row.split(" | ") for row in page.splitlines() if row.startswith("| ")]
    given = [text for row in rows for text in re.findall(r"`([^`]+=[^`]+)`", row[1])]
    given = [text for text in given if not re.match(r"python|dtrain|[A-Z]", text)]
    assert len(given) > 40
    with initialize_config_dir(str(schema.folder("conf")), version_base="1.3"):
        for text in given:
            words = [schema.option_as_text(word) for word in shlex.split(text) if word != "-m"]
            keys = [word for word in words if "interval(" not in word]
            optional = text.startswith(("dataset.validation", "'dataset.columns"))
            first = ["dataset=parquet"] if optional else []
            if "0.001,0.01" in text:
                keys = [word.partition(",")[0] for word in keys]
            compose("config", [*first, *keys], return_hydra_config=True)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 170


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of the headings of a page."""
    text = _BLOCK.sub("", page.read_text(encoding="utf-8"))
    heads = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links(page: Path) -> None:
    text = _BLOCK.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{page.name} links to {target}, which is not there"
        assert not anchor or anchor in anchors(linked), f"{page.name}: no heading for {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_modules_that_are_named(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in _PATH.findall(text):
        if "NAME" in name:
            continue
        assert (ROOT / name).exists(), f"{page.name} names {name}, which is not there"
    for name in _MODULE.findall(text):
        parts = name.split(".")
        places = [ROOT.joinpath(*parts[:n]) for n in (len(parts), len(parts) - 1) if n > 1]
        known = any(p.is_dir() or p.with_suffix(".py").is_file() for p in places)
        known = known or (len(parts) == 2 and parts[1] in dir(dtrain))  # of the Python API
        assert known, f"{page.name} names {name}, which is not there"


def test_every_page_is_linked_from_the_readme_or_from_the_list_of_pages() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    index = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    gallery = (ROOT / "docs/gallery.md").read_text(encoding="utf-8")
    for page in PAGES[1:]:
        linked = f"({page.relative_to(ROOT)})" in readme or f"({page.name})" in index
        if page.parent == ROOT / "docs/gallery":
            linked = f"(gallery/{page.name})" in gallery
        assert linked, f"{page.name} is linked from nowhere"


def test_every_page_has_a_place_in_the_site() -> None:
    def named(nav: object) -> Iterator[str]:
        if isinstance(nav, str):
            yield nav
        elif isinstance(nav, dict | list):
            for each in nav.values() if isinstance(nav, dict) else nav:
                yield from named(each)

    site = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))
    places = sorted(named(site["project"]["nav"]))
    docs = ROOT / "docs"
    assert places == sorted(str(p.relative_to(docs)) for p in PAGES if docs in p.parents)
