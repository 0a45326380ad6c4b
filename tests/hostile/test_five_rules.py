"""The five rules for files of others, each broken at every door that reads such a file.

No pickle. No link is followed. Sizes and depths have bounds. Nothing of another owner's folder is
imported without trust. A checkpoint has the hash that its writer gave it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from dtrain.run.folder import FORMAT
from tests.conftest import QUICK, need

BACKENDS = ("tensorflow", "jax", "torch")
WORDS = (*QUICK, "strategy=one_device", "trainer.epochs=1", "checkpoint.keep=2")
#: What is typed to make a command read the folder of a run.
DOORS: dict[str, tuple[str, ...]] = {
    "resume": ("resume=run", "trainer.epochs=2"),
    "fork": ("fork=run", "trainer.epochs=3"),
    "init.weights": (*WORDS, "init.weights=run"),
    "evaluate": ("evaluate", "run"),
    "predict": ("predict", "run", "to=predicted"),
    "export": ("export", "run"),
    "serve": ("serve", "run", "port=0"),
    "compare": ("compare", "run"),
    "replay": ("replay", "run"),
    "sync": ("sync", "run"),
    "checkpoint": ("checkpoint", "run"),
}
#: Those that read arrays of a checkpoint, and those that a signature of the user opens.
OF_ARRAYS = ("resume", "fork", "init.weights", "evaluate", "predict", "export", "serve")
OF_WORDS = ("resume", "fork", "evaluate", "predict", "export", "serve", "replay")
#: Files of a run, and the doors that read each.
READ = {
    "config.yaml": ("resume", "evaluate", "predict", "export", "serve", "compare", "replay"),
    "command.json": ("resume", "fork", "replay"),
    "journal.jsonl": ("resume", "compare"),
    "cluster.json": ("compare",),
    "code/1/record.json": ("replay",),
    "checkpoints/N/manifest.json": (*OF_ARRAYS, "checkpoint"),
    "checkpoints/N/state.safetensors": (*OF_ARRAYS, "checkpoint"),
}
HUGE = 10 << 30
SECONDS = 240.0


def command(*words: str, cwd: Path, home: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as its user does, in a process of its own that may not hang."""
    environment = {
        **os.environ, "XDG_STATE_HOME": str(home), "HOME": str(home), "DTRAIN_TRUST": "",
        "PYTHONPATH": str(Path(__file__).parents[2]), "TF_NUM_INTRAOP_THREADS": "1",
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-m", "dtrain", *words], cwd=cwd, env=environment, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        timeout=SECONDS, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    """Return the project of a run of a backend, made once."""
    made: dict[str, Path] = {}

    def project(backend: str) -> Path:
        need(backend)
        if backend not in made:
            place = made[backend] = tmp_path_factory.mktemp(backend)
            (place / "project").mkdir()
            (place / "home").mkdir()
            (place / "project" / ".gitignore").write_text("run\noutputs\n")
            git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org"]
            for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
                subprocess.run([*git, *words], cwd=place / "project", check=True)
            words = (*WORDS, f"backend={backend}", "hydra.run.dir=run")
            done = command(*words, cwd=place / "project", home=place / "home")
            assert done.returncode == 0, done.stdout
        return made[backend]

    yield project


class Place:
    """A copy of a project, beside files that no command has anything to do with."""

    def __init__(self, source: Path, root: Path):
        shutil.copytree(source, root, dirs_exist_ok=True, symlinks=True)
        self.root, self.project, self.run = root, root / "project", root / "project" / "run"
        self.home, self.canary = root / "home", root / "canary"
        self.canary.mkdir()
        (self.canary / "file.txt").write_text("of the user\n")

    def files(self, name: str) -> list[Path]:
        """Return the files of that name; of checkpoints those of all."""
        pattern = name.replace("/N/", "/[0-9]*/")
        found = sorted(self.run.glob(pattern))
        assert found, name
        return found

    def refuses(self, door: str, *codes: int) -> str:
        """Open a door: it ends soon with a sentence, and no file beside the project is another."""
        before = self._canary()
        done = command(*DOORS[door], cwd=self.project, home=self.home)
        text = done.stdout
        assert done.returncode in (codes or (1, 2)), text
        assert "is no option of" not in text, text
        assert "Traceback (most recent call last)" not in text, text
        assert "error: " in text or "damaged" in text or "DAMAGED" in text or not codes, text
        assert self._canary() == before and not (self.canary / "ran").exists(), text
        assert len(text) < 40_000
        return text

    def _canary(self) -> dict[str, Any]:
        return {
            path.name: path.stat().st_mtime_ns if path.is_file() else os.listdir(path)
            for path in self.canary.iterdir() if path.name != "pipe"
        }  # fmt: skip


def crossed(table: dict[str, tuple[str, ...]], default: int = 1) -> list[Any]:
    """Return name, door and backend: every ``default``-th in the suite, all for the campaign."""
    found = []
    for number, (name, doors) in enumerate(table.items()):
        for position, door in enumerate(doors):
            for turn, backend in enumerate(BACKENDS):
                chosen = (number + position + turn) % 3 == 0 and (number + position) % default == 0
                marks = () if chosen else (pytest.mark.faults,)
                found.append(pytest.param(name, door, backend, marks=marks))
    return found


@pytest.fixture
def place(runs: Callable[[str], Path], backend: str, tmp_path: Path) -> Place:
    return Place(runs(backend), tmp_path / "place")


# -- all doors are open for a run that is in order


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_sound_run_is_let_in(place: Place) -> None:
    for door in DOORS:
        if door not in ("serve", "sync"):  # a server would stay; MLflow takes seconds
            done = command(*DOORS[door], cwd=place.project, home=place.home)
            assert done.returncode == 0, done.stdout


# -- no pickle


class _Evil:
    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self) -> Any:
        return open, (str(self.mark), "w")


def _pickled(path: Path, mark: Path) -> None:
    """Write weights of PyTorch's form whose pickle makes a file."""
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps(_Evil(mark)))
        file.writestr("archive/version", "3\n")


@pytest.mark.parametrize(
    ("form", "backend"),
    [
        pytest.param(form, backend, marks=() if number == turn else (pytest.mark.faults,))
        for number, form in enumerate(("pt", "npz", "state"))
        for turn, backend in enumerate(BACKENDS)
    ],
)
def test_no_pickle(form: str, backend: str, place: Place) -> None:
    mark = place.canary / "ran"
    data = pickle.dumps(_Evil(mark))
    if form == "pt":
        _pickled(place.project / "evil.pt", mark)
        words = (*WORDS, f"backend={backend}", "init.weights=evil.pt")
    elif form == "npz":
        arrays = io.BytesIO()
        np.savez(arrays, x=np.array([_Evil(mark)], object), y=np.array([_Evil(mark)], object))
        (place.project / "evil.npz").write_bytes(arrays.getvalue())
        words = ("tracking=none", "dataset=npz", "dataset.path=evil.npz", f"backend={backend}")
    else:
        for path in place.files("checkpoints/N/state.safetensors"):
            path.write_bytes(data)
            _seal(path.parent, data)
        words = DOORS["resume"]
    done = command(*words, cwd=place.project, home=place.home)
    assert done.returncode in (1, 2) and "error: " in done.stdout, done.stdout
    assert not mark.exists()


def _seal(checkpoint: Path, data: bytes) -> None:
    """Give a manifest the hashes that fit, as who forges a state can."""
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    about = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest["files"]["state.safetensors"] = about
    whole = json.dumps({**manifest, "sha256": None}, sort_keys=True)
    manifest["sha256"] = hashlib.sha256(whole.encode()).hexdigest()
    (checkpoint / "manifest.json").write_text(json.dumps(manifest, indent=1))


# -- no link is followed, and what is no file is not waited for


@pytest.mark.parametrize(("name", "door", "backend"), crossed(READ, 3))
def test_no_link_is_followed(name: str, door: str, backend: str, place: Place) -> None:
    """The file elsewhere is sound: only that it is behind a link is wrong."""
    for number, path in enumerate(place.files(name)):
        target = place.canary / f"{number}.{path.name}"
        path.rename(target)
        path.symlink_to(target)
    place.refuses(door, *_LISTED.get((name, door), ()))


#: Doors that go by, and say so: a table of runs has a damaged one too; a comparison needs no
#: cluster.json.
_LISTED = {(name, "compare"): (0, 1, 2) for name in READ}


@pytest.mark.parametrize("backend", BACKENDS[:1])
@pytest.mark.parametrize("name", ["config.yaml", "journal.jsonl", "checkpoints/N/manifest.json"])
def test_a_pipe_is_not_waited_for(name: str, place: Place) -> None:
    for path in place.files(name):
        path.unlink()
        os.mkfifo(path)
    place.refuses("resume")


@pytest.mark.parametrize("backend", BACKENDS[:1])
@pytest.mark.parametrize("name", ["comparison.html", "comparison.csv", "curves.csv"])
def test_no_link_is_written_through(name: str, place: Place) -> None:
    (place.run / name).symlink_to(place.canary / "file.txt")
    place.refuses("compare", 0, 1, 2)
    assert (place.canary / "file.txt").read_text() == "of the user\n"


@pytest.mark.parametrize("backend", BACKENDS[:1])
@pytest.mark.parametrize("path", ["../../canary", "/tmp"])
def test_paths_of_a_run_stay_inside_it(path: str, place: Place) -> None:
    """A job's folder in a sweep, and a file that a manifest names."""
    (place.project / "sweep").mkdir()
    shutil.copytree(place.run, place.project / "sweep" / "0")
    sweep = {"format": FORMAT, "jobs": [{"folder": path, "status": "KILLED"}]}
    (place.project / "sweep" / "sweep.json").write_text(json.dumps(sweep))
    done = command("sweep.resume=sweep", cwd=place.project, home=place.home)
    assert done.returncode == 2 and "error: " in done.stdout, done.stdout
    for file in place.files("checkpoints/N/manifest.json"):
        manifest = json.loads(file.read_text())
        manifest["files"][f"{path}/file.txt"] = manifest["files"]["state.safetensors"]
        file.write_text(json.dumps(manifest))
    place.refuses("resume")


# -- sizes and depths have bounds


@pytest.mark.parametrize(
    ("name", "door", "backend"),
    crossed({name: doors for name, doors in READ.items() if name != "journal.jsonl"}, 5),
)
@pytest.mark.parametrize("how", ["huge", "deep"])
def test_sizes_and_depths_have_bounds(
    how: str, name: str, door: str, backend: str, place: Place
) -> None:
    for path in place.files(name):
        if how == "huge":
            with path.open("wb") as file:
                file.truncate(HUGE)
        else:
            text = b"[" * 100_000 if path.suffix != ".yaml" else b"a: " + b"[" * 100_000
            path.write_bytes(text)
    place.refuses(door, *_LISTED.get((name, door), ()))


@pytest.mark.parametrize("backend", BACKENDS[:1])
@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
            f"{chr(98 + n)}: &{chr(98 + n)} [{','.join([f'*{chr(97 + n)}'] * 10)}]\n"
            for n in range(12)),
        "a: &a [*a]\n", "a: !!python/object/apply:os.system ['touch ran']\n",
        f"seed: {'1' * 100_000}\n", "".join(f"{' ' * n}a:\n" for n in range(2_000)),
    ],
    ids=["bomb", "circle", "code", "number", "indents"],
)  # fmt: skip
def test_a_configuration_is_no_bomb(text: str, place: Place) -> None:
    (place.run / "config.yaml").write_text(text)
    place.refuses("resume")
    assert not (place.project / "ran").exists()


# -- nothing of another owner's folder is imported without trust


@pytest.mark.parametrize(
    ("name", "door", "backend"), crossed({"module": OF_WORDS, "system": OF_WORDS}, 2)
)
def test_nothing_of_another_is_imported(name: str, door: str, backend: str, place: Place) -> None:
    """Neither a module that lies in the folder, nor one of Python's; the user's project may be."""
    (place.run / "__init__.py").touch()
    mark = place.canary / "ran"
    text = f"open({str(mark)!r}, 'w')\ndef build(*_, **__): return None\n"
    (place.run / "theirs.py").write_text(text)
    target = {"module": "run.theirs.build", "system": "os.system"}[name]
    _name_model(place, target)
    place.refuses(door)


def _name_model(place: Place, name: str) -> None:
    config = yaml.safe_load((place.run / "config.yaml").read_text())
    config["model"] = {"_target_": name}
    (place.run / "config.yaml").write_text(yaml.safe_dump(config))
    command = json.loads((place.run / "command.json").read_text())
    words = [word for word in command["overrides"] if not word.startswith("model")]
    command["overrides"] = [*words, "model=custom", f"model._target_={name}"]
    (place.run / "command.json").write_text(json.dumps(command))


# -- a checkpoint has the hash that its writer gave it


@pytest.mark.parametrize(
    ("name", "door", "backend"), crossed({"byte": (*OF_ARRAYS, "checkpoint"), "hash": OF_ARRAYS}, 2)
)
def test_a_checkpoint_has_its_hash(name: str, door: str, backend: str, place: Place) -> None:
    """One byte of the state is another, or the manifest says another hash of it."""
    for path in place.files("checkpoints/N/state.safetensors"):
        if name == "byte":
            data = bytearray(path.read_bytes())
            data[-5] ^= 1
            path.write_bytes(data)
        else:
            manifest = path.parent / "manifest.json"
            old = hashlib.sha256(path.read_bytes()).hexdigest()
            manifest.write_text(manifest.read_text().replace(old, "0" * 64))
    place.refuses(door)
