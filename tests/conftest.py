"""Fixtures: the command line in this process, test functions in forked ones."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dtrain.config import trust
from dtrain.host.frameworks import FRAMEWORKS
from dtrain.run import failure, journal
from dtrain.run.folder import RunDir, read_json
from tests import warm


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "task(devices=1, backend='tensorflow'): run in a forked process of the backend"
    )
    # Where Python is to keep no bytecode, each command of a test would compile dtrain anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # What one test has compiled for JAX, the others need not: small operations most of all.
    cache = tempfile.mkdtemp(prefix="dtrain-jax-")
    config.add_cleanup(lambda: shutil.rmtree(cache, ignore_errors=True))
    os.environ["JAX_COMPILATION_CACHE_DIR"] = cache
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    # Under `nohup`, or behind an `&` of a script, they are ignored, and each command that a test
    # starts would ignore them too: a handler, unlike that, is not inherited.
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    # Two processes of the suite share two cores: more threads would wait for each other, spinning.
    # The campaigns have TensorFlow's own choice, as users do.
    if str(config.getoption("markexpr")).startswith("not faults"):
        os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
    # The suite runs as a process that has not imported TensorFlow, as the controller does; the
    # server begins to import it while tests are collected.
    if hasattr(config, "workerinput") or not config.getoption("numprocesses"):
        warm.warm(warm.ENVIRONMENT)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    marker = pyfuncitem.get_closest_marker("task")
    if marker is None:
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    devices = arguments.get("devices", marker.kwargs.get("devices", 1))
    backend = arguments.get("backend", marker.kwargs.get("backend", "tensorflow"))
    need(backend)
    warm.call(pyfuncitem.obj, devices, arguments, backend=backend)
    return True


def need(backend: str) -> None:
    """Skip a test of a backend that is not installed; here none is imported."""
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")


@pytest.fixture(autouse=True)
def _own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    trust.begin([], None)  # of an earlier command of this process nothing is left
    path = list(sys.path)
    # Not by `monkeypatch`, which a test may send to another process.
    with pytest.MonkeyPatch.context() as patch:
        # The key that run folders are signed with is the user's, and none of the tests'.
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))
        # And so is the cache of what is made of datasets.
        patch.setenv("DTRAIN_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        yield
    sys.path[:] = path
    for name in FRAMEWORKS:
        assert name not in sys.modules, f"the controller's process must not import {name}"


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow store with tables and nothing in them: making those takes seconds."""
    from dtrain.tracking.mlflow.store import import_mlflow

    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    import_mlflow().tracking.MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def store(tmp_path: Path, empty_store: Path) -> Path:
    """Give the test an embedded store that it need not make."""
    (tmp_path / "outputs").mkdir()
    return Path(shutil.copy(empty_store, tmp_path / "outputs" / "mlflow.db"))


@dataclasses.dataclass
class Run:
    """What one command did."""

    code: int
    output: str
    rundir: RunDir | None

    @property
    def result(self) -> dict[str, Any]:
        assert self.rundir is not None, self.output
        return read_json(self.rundir.result) or {}

    @property
    def error(self) -> str | None:
        """Why it failed, as every view says it."""
        assert self.rundir is not None, self.output
        return failure.sentence(self.result["failure"], self.rundir.path)

    def events(self, kind: str) -> list[dict[str, Any]]:
        assert self.rundir is not None, self.output
        return [e for e in journal.read(self.rundir.journal) if e["event"] == kind]

    def points(self, name: str) -> dict[int, float]:
        """Return the points of one metric, by step."""
        return {
            e["step"]: e["metrics"][name] for e in self.events("metrics") if name in e["metrics"]
        }

    @property
    def log(self) -> str:
        return self.rundir.log("chief-0").read_text() if self.rundir else ""


class Commands:
    """Runs dtrain's command line in the test's folder.

    Args:
        command: returns exit code and output of a command line.
    """

    def __init__(self, command: Callable[[list[str]], tuple[int, str]]):
        self._command = command

    def __call__(self, *arguments: str) -> Run:
        before = _folders()
        code, output = self._command(["dtrain", *arguments])
        new = _folders() - before
        resumed = next((a[7:] for a in arguments if a.startswith("resume=")), None)
        found = new.pop() if new else resumed
        return Run(code, output, RunDir(found) if found else None)


def _folders() -> set[str]:
    # Not by a glob: a run that is at work may remove what that is about to look into.
    return {folder for folder, _, names in os.walk("outputs") if "cluster.json" in names}


@pytest.fixture
def dtrain(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Runs command lines of trainings in the suite's process."""
    return Commands(functools.partial(_command, "dtrain.cli.app", capfd, monkeypatch))


@pytest.fixture
def on_jax(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Runs command lines of trainings, or with a command, in the suite's process, where JAX is."""
    need("jax")
    return Commands(functools.partial(_command, "dtrain.__main__", capfd, monkeypatch))


@pytest.fixture
def on_torch(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Runs command lines of trainings, or with a command, in the suite's process, with PyTorch."""
    need("torch")
    return Commands(functools.partial(_command, "dtrain.__main__", capfd, monkeypatch))


def _command(
    module: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", words)
    capfd.readouterr()
    try:
        code = importlib.import_module(module).main()
    except SystemExit as error:
        code = error.code
    captured = capfd.readouterr()
    return int(code or 0), captured.out + captured.err


#: A run of a second or two: few examples, a small model, no tracking.
QUICK = (
    "tracking=none",
    "model=mlp",
    "model.units=[16]",
    "dataset=synthetic",
    "dataset.shape=[8]",
    "dataset.examples=128",
    "dataset.validation_examples=50",
    "dataset.classes=4",
    "trainer.batch_size=32",
    "trainer.epochs=2",
    "trainer.log_every_steps=1",
    "report=false",
    "launcher.stall_timeout=120",  # a job that hangs fails its test, and the suite goes on
)


@pytest.fixture
def quick() -> tuple[str, ...]:
    return QUICK


@pytest.fixture
def user_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write a module of a user's own into the current folder, trusted."""

    def write(source: str, name: str = "mine") -> None:
        (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.setenv("DTRAIN_TRUST", name)

    return write


@pytest.fixture(scope="module")
def storage() -> Iterator[str]:
    """A server of S3's on loopback, in a process of its own; yield its address."""
    code = (
        "import sys; from moto.server import ThreadedMotoServer\n"
        "server = ThreadedMotoServer('127.0.0.1', 0, verbose=False); server.start()\n"
        "print(server.get_host_and_port()[1], flush=True); sys.stdin.read(); server.stop()"
    )
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code], stdin=subprocess.PIPE, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.stdin.close()


@pytest.fixture
def bucket(storage: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """A bucket called ``bucket``, of boto3."""
    import boto3
    import fsspec

    for name, value in {
        "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "canary-0451-secret",
        "AWS_ENDPOINT_URL": storage, "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": str(tmp_path / "none"), "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    made = boto3.resource("s3").Bucket("bucket")
    made.create()
    yield made
    made.objects.delete()
    made.delete()
    fsspec.filesystem("s3").clear_instance_cache()
