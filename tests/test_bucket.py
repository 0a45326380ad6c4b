"""Copies of run folders in object stores; the store is moto's server, or one in memory."""

from __future__ import annotations

import http.client
import http.server
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest

from dtrain.cli.commands import evaluate
from dtrain.errors import UsageError
from dtrain.files import addresses
from dtrain.host import python_path
from dtrain.job import remote
from dtrain.job.remote import Bucket
from dtrain.run import checkpoint
from dtrain.run.checkpoint.format import MANIFEST, STATE
from dtrain.run.mirror import Changes
from tests.conftest import QUICK
from tests.test_mirror import Training, act, check, files


@pytest.fixture
def memory() -> Iterator[str]:
    """An address of fsspec's store in memory."""
    yield "memory://runs/exp/1"
    fsspec.filesystem("memory").store.clear()


def resumed(address: str, folder: Path, before: int) -> int:
    """Fetch a run as a resume does, and check what is there; return the step."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    Bucket(address, "resume").fetch(folder)
    return check(folder, before)


@pytest.mark.parametrize("seed", range(4))
def test_a_resume_from_the_store_is_sound_after_every_change(
    tmp_path: Path, memory: str, seed: int
) -> None:
    rng = random.Random(seed)
    training = Training(tmp_path / "run", keep=1 + seed % 2)
    original, store, step = Changes(training.rundir.path), Bucket(memory, "output_dir"), 0
    for _ in range(12):
        for _ in range(rng.randrange(4)):
            act(training, rng)
        for found in original.files():
            store.apply(found)
            step = resumed(memory, tmp_path / "fetched", step)
            if rng.random() < 0.2:
                act(training, rng)
    training.end()
    for found in original.files():
        store.apply(found)
    resumed(memory, tmp_path / "fetched", step)
    assert files(tmp_path / "fetched") == files(training.rundir.path)
    assert not list(original.files()), "nothing has changed"


def looks(training: Training, copied: Callable[[], None]) -> None:
    """Save a checkpoint, the next one, which replaces it, and that one once more."""
    for again in (False, False, True):
        if not again:
            training.train()
        training.writer._last = None
        training.save()
        copied()


WRITES = ("put_file", "rm_file", "cp_file")


class Killed(BaseException):
    """The process has ended."""


def test_a_copy_that_ends_at_every_operation(
    tmp_path: Path, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = fsspec.filesystem("memory")
    at, done, kinds = 0, False, set[str]()
    while not done:
        at, count = at + 1, 0

        def counted(real: Callable[..., Any], name: str) -> Callable[..., Any]:
            def call(*given: Any, **named: Any) -> Any:
                nonlocal count
                count += 1
                kinds.add(name)
                if count == at:  # noqa: B023 - called in this turn
                    raise Killed
                return real(*given, **named)

            return call

        server.store.clear()
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        training = Training(tmp_path / "run")
        original, store, step = Changes(training.rundir.path), Bucket(memory, "output_dir"), 0

        def copied() -> None:
            nonlocal step
            for found in original.files():  # noqa: B023 - called in this turn
                store.apply(found)  # noqa: B023
                if found.path == "checkpoints/latest":
                    step = training.step  # noqa: B023

        with monkeypatch.context() as patch:
            for name in WRITES:
                patch.setattr(server, name, counted(getattr(server, name), name))
            try:
                looks(training, copied)
                done = True
            except Killed:
                pass
        resumed(memory, tmp_path / "fetched", step)
        for found in Changes(training.rundir.path).files():  # by another process, from anew
            store.apply(found)
            resumed(memory, tmp_path / "fetched", step)
        assert files(tmp_path / "fetched").items() >= files(training.rundir.path).items()
    assert at > 20 and kinds == set(WRITES)


def test_a_large_file_is_there_as_it_was_opened(tmp_path: Path, bucket: Any) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model.keras").write_bytes(os.urandom(33 << 20))
    store = Bucket("s3://bucket/r", "output_dir")
    for found in Changes(tmp_path / "run").files():
        store.apply(found)
    whole = bucket.Object("r/model.keras").get()["Body"].read()
    assert whole == (tmp_path / "run" / "model.keras").read_bytes()


@pytest.mark.parametrize(
    "address", ["az://b/x", "s3://", "s3://b/../x", "s3://b//x", "http://b/x", "s3://b/.x\n"]
)
def test_where_no_run_can_be(address: str) -> None:
    with pytest.raises(UsageError, match=r"s3://BUCKET/FOLDER"):
        addresses.local(address, "output_dir")


def test_a_place_and_its_address(tmp_path: Path) -> None:
    place = addresses.local("s3://b/x/y/", "output_dir")
    assert place == tmp_path / "outputs/remote/s3/b/x/y"
    assert addresses.address_of(place / "2026" / "r") == "s3://b/x/y/2026/r"
    for other in ("outputs/remote/az/b/x", "outputs/2026/r", "remote/s3/b", "outputs/remote/s3"):
        assert addresses.address_of(tmp_path / other) is None


# --- commands


def elsewhere(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Be another machine: one that has none of the folders."""
    (tmp_path / name).mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path / name)


def test_an_address_of_a_run_may_have_a_sign_of_equality(monkeypatch: pytest.MonkeyPatch) -> None:
    address, place = "s3://bucket/date=1/run", Path("outputs/there")
    monkeypatch.setattr(remote, "fetch_run", lambda address, key: place)
    words = [address, f"fork={address}", f"+init.weights={address}", "seed=1"]
    assert remote.arguments(words, ("", "fork", "+init.weights")) == [
        str(place), f"fork={place}", f"+init.weights={place}", "seed=1"
    ]  # fmt: skip
    copy = addresses.local(address, "RUN")
    assert addresses.is_far(address) and not addresses.is_far(str(copy)), "it may be an override"
    copy.mkdir(parents=True)
    assert addresses.is_far(str(copy)), "what is added to it goes to the address"


def test_a_run_goes_on_on_another_machine(
    dtrain: Any, tmp_path: Path, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [*QUICK, "output_dir=s3://bucket/exp"]
    run = dtrain(*given, "hydra.run.dir=s3://bucket/exp/run", "trainer.epochs=2")
    assert run.code == 0 and "output: copied to s3://bucket/exp/run" in run.output
    there = {each.key.removeprefix("exp/run/") for each in bucket.objects.all()}
    assert there == {*files(tmp_path / "outputs/remote/s3/bucket/exp/run"), "owner.json"}

    elsewhere(tmp_path, "b", monkeypatch)
    resumed = dtrain("resume=s3://bucket/exp/run", "trainer.epochs=3")
    assert resumed.code == 0, resumed.output
    assert "fetching s3://bucket/exp/run to outputs/remote/s3/bucket/exp/run" in resumed.output
    here = Path("outputs/remote/s3/bucket/exp/run").absolute()
    found, _ = checkpoint.newest(here / "checkpoints")
    assert found is not None and found.step == 12

    monkeypatch.chdir(tmp_path)  # the first machine is behind now
    stale = dtrain("resume=outputs/remote/s3/bucket/exp/run", "trainer.epochs=4")
    assert stale.code == 2 and "was resumed on another machine" in stale.output
    assert "type: resume=s3://bucket/exp/run" in stale.output
    again = dtrain("resume=s3://bucket/exp/run", "trainer.epochs=4")
    assert again.code == 0 and "what was here is " in again.output

    elsewhere(tmp_path, "whole", monkeypatch)
    whole = dtrain(*QUICK, "hydra.run.dir=run", "trainer.epochs=4")
    assert whole.code == 0
    ours, _ = checkpoint.newest(Path("run/checkpoints"))
    theirs, _ = checkpoint.newest(tmp_path / "outputs/remote/s3/bucket/exp/run/checkpoints")
    assert ours is not None and theirs is not None
    assert checkpoint.digest(ours.arrays) == checkpoint.digest(theirs.arrays)


def test_a_checkpoint_that_is_removed_stays_aside_nowhere(tmp_path: Path, memory: str) -> None:
    store, folder = Bucket(memory, "resume"), "checkpoints/3"
    server = fsspec.filesystem("memory")
    for name in (STATE, MANIFEST):
        server.pipe_file(f"runs/exp/1/checkpoints/.old-3/{name}", b"x")  # a killed upload's
    store.fetch(tmp_path / "copy")
    assert len(files(tmp_path / "copy")) == 2
    store.apply(remote.Removed(folder))
    assert store.paths() == []


def test_a_place_where_a_run_is_or_was_begun(
    tmp_path: Path, memory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    address, key = f"{memory}/run", "hydra.run.dir"
    store = Bucket(address, "output_dir")
    store.set_owner("killed as it began")
    config, words = SimpleNamespace(output_dir=str(tmp_path)), {"overrides": [], "config_dir": None}
    folder = addresses.local(address, key)
    assert remote.find(config, words, folder) is None and not folder.exists()
    with pytest.raises(UsageError, match="no run is there"):
        remote.fetch_run(address, key)
    fsspec.filesystem("memory").pipe_file("runs/exp/1/run/command.json", b"{}")
    output = remote.Uploader(folder, store)
    with pytest.raises(UsageError, match=f"holds another run.*resume={address}"):
        output.open(False)
    output.withdraw()
    assert store.owner() == "killed as it began"
    copy = remote.fetch_run(address, key)
    assert evaluate.main([address, "follow=true"]) == 2
    assert "is a copy of a run that another machine trains" in capsys.readouterr().err
    (copy / "result.json").write_text("{}")
    remote.refuse_copy(copy, address)  # it has ended


def test_a_copy_that_was_downloaded_before_takes_the_place_of_nothing_newer(
    tmp_path: Path, memory: str
) -> None:
    address, server = f"{memory}/run", fsspec.filesystem("memory")
    store = Bucket(address, "resume")
    store.set_owner("trains")
    for name in ("command.json", "checkpoints/latest"):
        server.pipe_file(f"runs/exp/1/run/{name}", b"4")
    copy = remote.fetch_run(address, "resume")
    server.pipe_file("runs/exp/1/run/checkpoints/latest", b"8")
    with pytest.raises(UsageError, match=f"{address} is newer"):
        remote.Uploader(copy, store).open(True)
    assert store.owner() == "trains"
    output = remote.Uploader(remote.fetch_run(address, "resume"), store)
    output.open(True)
    output.finish(False)
    assert store.owner() == output.name


def test_a_run_of_which_nothing_was_uploaded_is_found(
    tmp_path: Path, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = addresses.local(memory, "output_dir")
    run = below / "2026-11-28" / "a"
    run.mkdir(parents=True)
    (run / "command.json").write_text('{"overrides": [], "began": 2.0}')
    monkeypatch.setattr(remote.resume, "status_of", lambda run, *_: "None")
    assert remote.find(SimpleNamespace(output_dir=str(below)), {}, None) == str(run)


def test_a_store_that_is_not_there(
    dtrain: Any, tmp_path: Path, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = dtrain(*QUICK, "output_dir=s3://none/exp")
    assert run.code == 2 and "output_dir=s3://none/exp" in run.output
    assert "cannot be written (" in run.output and "bucket does not exist" in run.output
    assert not Path("outputs").exists()
    for key in ("resume", "fork", "sweep.resume"):
        run = dtrain(f"{key}=s3://bucket/nothing")
        assert run.code == 2 and f"{key}=s3://bucket/nothing: no run is there" in run.output


class Proxy(http.server.BaseHTTPRequestHandler):
    """Passes on requests; before, or after, one of those that write it kills a process."""

    protocol_version = "HTTP/1.1"
    server: Any

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.server.lock:
            self.server.count += self.command != "GET" and self.command != "HEAD"
            dies = self.server.count == self.server.at and self.command not in ("GET", "HEAD")
            if dies and not self.server.after:
                self.server.kill()
            if self.server.dead:
                self.close_connection = True
                return
            connection = http.client.HTTPConnection(self.server.to)
            connection.request(self.command, self.path, body, dict(self.headers))
            answer = connection.getresponse()
            data = answer.read()
            if dies:
                self.server.kill()
                self.close_connection = True
                return
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else len(data)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass


def killed_at(at: int, after: bool, storage: str, folder: Path) -> bool:
    """Train until the command is killed at a request; say whether it was."""
    server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    server.daemon_threads = True
    server.lock, server.count, server.dead = threading.Lock(), 0, False
    server.at, server.after, server.to = at, after, storage.removeprefix("http://")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = {
        **os.environ, **python_path.environment(),
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "dtrain", *KILLED], cwd=folder, env=environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip

    def kill() -> None:
        server.dead = True
        os.killpg(process.pid, signal.SIGKILL)

    server.kill = kill
    try:
        return process.wait(120) != 0
    finally:
        server.shutdown()
        server.server_close()


KILLED = [*QUICK, "output_dir=s3://bucket/exp", "trainer.epochs=3", "checkpoint.keep=1"]


@pytest.fixture
def expected(dtrain: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The digest of the last checkpoint of an undisturbed run."""
    elsewhere(tmp_path, "whole", monkeypatch)
    assert dtrain(*QUICK, "hydra.run.dir=run", "trainer.epochs=3", "checkpoint.keep=1").code == 0
    found, _ = checkpoint.newest(Path("run/checkpoints"))
    assert found is not None
    return checkpoint.digest(found.arrays)


def test_a_command_that_is_killed_in_an_upload(
    tmp_path: Path, bucket: Any, storage: str, dtrain: Any, monkeypatch: pytest.MonkeyPatch,
    expected: str,
) -> None:  # fmt: skip
    assert goes_on(8, False, tmp_path, bucket, storage, dtrain, monkeypatch, expected)
    assert len({each.key.split("/")[2] for each in bucket.objects.all()}) == 1, "it was resumed"


@pytest.mark.faults
def test_a_command_that_is_killed_at_every_request(
    tmp_path: Path, bucket: Any, storage: str, dtrain: Any, monkeypatch: pytest.MonkeyPatch,
    expected: str,
) -> None:  # fmt: skip
    at, ends = 1, 0
    while not ends:
        for after in (False, True):
            ends += not goes_on(at, after, tmp_path, bucket, storage, dtrain, monkeypatch, expected)
        at += 1
    assert at > 12


def goes_on(
    at: int, after: bool, tmp_path: Path, bucket: Any, storage: str, dtrain: Any,
    monkeypatch: pytest.MonkeyPatch, expected: str,
) -> bool:  # fmt: skip
    """Kill a run at a request, and resume it on another machine; say whether it was killed."""
    bucket.objects.delete()
    first, second = f"a-{at}-{after}", f"b-{at}-{after}"
    elsewhere(tmp_path, first, monkeypatch)
    killed = killed_at(at, after, storage, tmp_path / first)
    elsewhere(tmp_path, second, monkeypatch)
    run = dtrain(*KILLED, "resume=auto")
    assert run.code == 0, run.output
    [place] = {path.parent for path in Path("outputs/remote").rglob("result.json")}
    found, problems = checkpoint.newest(place / "checkpoints")
    assert found is not None and not problems
    assert checkpoint.digest(found.arrays) == expected
    # It is there once, and what the killed command had uploaded is of the run or gone.
    name = place.relative_to("outputs/remote/s3/bucket").as_posix()
    there = [each.key for each in bucket.objects.filter(Prefix=f"{name}/")]
    assert {each.removeprefix(f"{name}/") for each in there} == {*files(place), "owner.json"}
    if "fetching" in run.output:
        assert there == [each.key for each in bucket.objects.all()]
    fsspec.filesystem("s3").invalidate_cache()
    return killed
