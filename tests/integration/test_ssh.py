"""launcher=ssh with real OpenSSH servers, each in a network namespace: ``make test-ssh``."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain.run import checkpoint, failure, journal
from dtrain.run.folder import RunDir, read_json
from tests import servers
from tests.conftest import QUICK
from tests.integration.test_failures import until
from tests.servers import Cluster, Command

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(servers.lacking() is not None, reason=str(servers.lacking())),
]

ENDLESS = ("trainer.epochs=100000", "checkpoint.every_epochs=null", "checkpoint.every_steps=200")
BATCH = "trainer.batch_size=36"
MULTIWORKER = ("launcher.hosts=[a,b,c]", "strategy=multiworker", BATCH)
PS = ("launcher.hosts=[a:2,b,c]", "strategy=ps", "strategy.update=sync", BATCH)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with servers.cluster(tmp_path) as found:
        yield found


def points(rundir: RunDir) -> dict[int, float]:
    return {
        e["step"]: e["metrics"]["loss"]
        for e in journal.read(rundir.journal)
        if e["event"] == "metrics" and "loss" in e["metrics"]
    }


def ended(command: Command, code: int = 0) -> dict[str, Any]:
    """Wait for a command; return its result."""
    assert command.wait() == code, command.output
    return read_json(command.rundir.result) or {}


def trained(command: Command) -> Command:
    """Wait for its first checkpoint."""

    def saved() -> bool:
        assert command.process.poll() is None, command.output
        with contextlib.suppress(ValueError):
            return bool(checkpoint.steps(command.rundir.checkpoints))
        return False

    until(saved, lambda: command.output, 120)
    return command


def steps(command: Command) -> int:
    return int((read_json(command.rundir.progress) or {}).get("step", 0))


def gone(cluster: Cluster, seconds: float = 10) -> None:
    until(lambda: not cluster.left(), cluster.left, seconds)


def hidden(cluster: Cluster, name: str = "mine") -> None:
    """Have no other host see the folder of a command."""
    folder = cluster.folder / name
    folder.mkdir()
    for server in cluster.servers.values():
        server.hide(folder)


@pytest.fixture
def alone(cluster: Cluster) -> dict[int, float]:
    """The losses of one device, over ssh too: that it is another host changes nothing."""
    command = cluster.start(*QUICK, "launcher.hosts=[a]", BATCH, name="alone")
    ended(command)
    return points(command.rundir)


@pytest.mark.parametrize("disk", ["a shared disk", "disks of their own"])
@pytest.mark.parametrize("given", [MULTIWORKER, PS], ids=["multiworker", "ps"])
def test_it_equals_one_device(
    given: tuple[str, ...], disk: str, cluster: Cluster, alone: dict[int, float]
) -> None:
    if disk != "a shared disk":
        hidden(cluster)
    # A proxy in the environment of the hosts comes between no tasks.
    setup = f"export PYTHONPATH={servers.ROOT} http_proxy=http://127.0.0.1:9"
    command = cluster.start(*QUICK, *given, f"launcher.setup=['{setup}']")
    result = ended(command)
    assert result["status"] == "FINISHED"
    assert points(command.rundir) == pytest.approx(alone, abs=1e-5) and alone
    assert checkpoint.steps(command.rundir.checkpoints), "it came back"
    assert {path.stem for path in command.rundir.logs.iterdir()} >= {"chief-0", "worker-0"}
    gone(cluster)


def test_nothing_secret_is_on_a_command_line(cluster: Cluster) -> None:
    hidden(cluster)
    command = cluster.start(
        *QUICK, *MULTIWORKER, *ENDLESS, "launcher.variables=[MY_TOKEN]", MY_TOKEN="hush-hush-4711"
    )
    trained(command)
    lines = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True).stdout
    assert "dtrain.agent" in lines and "hush-hush" not in lines
    command.process.send_signal(signal.SIGINT)
    assert command.wait() == 75, command.output
    held = [p for p in command.rundir.path.rglob("*") if p.is_file()]
    assert not [p for p in held if b"hush-hush" in p.read_bytes()]


def test_a_task_has_the_variables_that_are_named(cluster: Cluster) -> None:
    command = cluster.start(
        *QUICK, "launcher.hosts=[a]", "launcher.variables=[MINE]",
        "strategy._target_=tests.agents.Reverses", MINE="abcdef", DTRAIN_TRUST="tests",
    )  # fmt: skip
    assert "fedcba" in ended(command, 1)["failure"]["reason"]


def test_ctrl_c_saves_and_a_resume_continues_on_other_hosts(cluster: Cluster) -> None:
    hidden(cluster)
    command = trained(cluster.start(*QUICK, *MULTIWORKER, *ENDLESS))
    command.process.send_signal(signal.SIGINT)
    assert command.wait() == 75, command.output
    rundir = command.rundir
    step = checkpoint.steps(rundir.checkpoints)[-1]
    assert (read_json(rundir.result) or {})["step"] == step, "what was saved last came back"
    gone(cluster)
    again = cluster.start(
        f"resume={rundir.path}", "launcher.hosts=[c,b]", "hardware.hosts=2",
        f"trainer.epochs={step // 3 + 2}",
    )  # fmt: skip
    assert again.wait() == 0, again.output
    result = read_json(rundir.result) or {}
    assert result["status"] == "FINISHED" and result["step"] > step
    found = [e["step"] for e in journal.read(rundir.journal) if e["event"] == "metrics"]
    assert sorted(found) == found, "each step once"
    gone(cluster)


def test_a_killed_launcher_leaves_nothing(cluster: Cluster) -> None:
    times = int(os.environ.get("DTRAIN_TEST_TIMES", "3"))
    for number in range(times):
        command = cluster.start(*QUICK, *MULTIWORKER, *ENDLESS, name=f"kill-{number}")
        if number % 3:
            trained(command)
        else:  # in the midst of the start
            until(lambda: len(cluster.left()) == 3, cluster.left, 60)
        command.process.kill()
        command.process.wait()
        gone(cluster, 10)


def test_two_jobs_of_one_user(cluster: Cluster) -> None:
    one = trained(cluster.start(*QUICK, *MULTIWORKER, *ENDLESS, name="one"))
    other = trained(cluster.start(*QUICK, *MULTIWORKER, *ENDLESS, name="other"))
    before = steps(other)
    one.process.send_signal(signal.SIGINT)
    assert one.wait() == 75, one.output
    until(lambda: steps(other) > before + 100, lambda: other.output, 60)
    other.process.send_signal(signal.SIGINT)
    assert other.wait() == 75, other.output
    gone(cluster)


@pytest.mark.parametrize("host", ["login", "b"])
def test_a_link_that_is_back_after_5_s(host: str, cluster: Cluster) -> None:
    # TensorFlow's own patience is 10 s: on a busy machine that may be over.
    command = trained(cluster.start(*QUICK, *MULTIWORKER, *ENDLESS, "launcher.max_restarts=2"))
    which = cluster.login if host == "login" else cluster.servers[host].host
    which.cut()
    time.sleep(5)  # of the fault itself
    which.heal()
    before = steps(command)
    until(lambda: steps(command) > before + 200, lambda: command.output, 120)
    assert command.process.poll() is None, command.output
    assert "is lost with its host" not in command.output
    command.process.send_signal(signal.SIGINT)
    assert command.wait() == 75, command.output


@pytest.mark.parametrize("host", ["login", "b", "a"])
def test_a_link_that_is_gone(host: str, cluster: Cluster) -> None:
    hidden(cluster)
    command = trained(cluster.start(*QUICK, *MULTIWORKER, *ENDLESS))
    which = cluster.login if host == "login" else cluster.servers[host].host
    which.cut()
    since = time.monotonic()
    assert command.wait(90) == 1, command.output
    assert time.monotonic() - since < 60 + 5, command.output
    result = read_json(command.rundir.result) or {}
    assert result["status"] == "FAILED"
    if host != "login":
        assert f"(host {host})" in str(failure.sentence(result["failure"])), result
    until(lambda: not cluster.left(), cluster.left, 30)
    assert checkpoint.steps(command.rundir.checkpoints)


def test_a_slow_network_that_loses_packets(cluster: Cluster, alone: dict[int, float]) -> None:
    hidden(cluster)
    cables = [server.host.slow(50, 5) for server in cluster.servers.values()]
    try:
        command = cluster.start(*QUICK, *MULTIWORKER, name="mine")
        assert command.wait(400) == 0, command.output
        assert points(command.rundir) == pytest.approx(alone, abs=1e-5)
        gone(cluster, 20)
    finally:
        for cable in cables:
            cable.kill()
            cable.wait()


def test_a_death_and_a_restart(cluster: Cluster) -> None:
    hidden(cluster)
    command = trained(cluster.start(*QUICK, *MULTIWORKER, *ENDLESS, "launcher.max_restarts=2"))
    victim = cluster.servers["b"].host
    for pid in victim.processes():
        if b"dtrain.agent" in Path(f"/proc/{pid}/cmdline").read_bytes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    until(lambda: "restart 1 of 2" in command.output, lambda: command.output, 60)
    before = steps(command)
    until(lambda: steps(command) > before + 300, lambda: command.output, 60)
    command.process.send_signal(signal.SIGINT)
    assert command.wait() == 75, command.output
    gone(cluster)


# --- one sentence each

HOSTS = "launcher.hosts=[a,b]"


def refused(command: Command) -> str:
    assert command.wait() == 2, command.output
    assert not list(command.folder.glob("outputs/*/*")), "nothing is left behind"
    [said] = [line for line in command.output.splitlines() if line.startswith("error: ")]
    return said


def test_sentences(cluster: Cluster) -> None:
    two = (*QUICK, HOSTS, "strategy=multiworker", BATCH)
    cluster.know("b")
    assert "launcher.hosts=b: cannot be used: its host key is not known" in refused(
        cluster.start(*two)
    )
    cluster.know()
    (cluster.folder / "known_hosts").write_text(
        f"b {cluster.servers['a'].key.with_suffix('.pub').read_text()}"
        f"a {cluster.servers['a'].key.with_suffix('.pub').read_text()}"
    )
    assert "b: cannot be used: its host key is another than" in refused(cluster.start(*two))
    cluster.know()
    server = cluster.servers["b"]
    server.close()
    assert "no OpenSSH server listens there" in refused(cluster.start(*two))
    server.start("PubkeyAuthentication no", "PasswordAuthentication yes")
    assert "takes none of your keys, and a password cannot be asked for" in refused(
        cluster.start(*two)
    )
    server.close()
    server.start()
    for python, said in (
        ("/usr/bin/nothing", "its Python cannot be started"),
        ("/usr/bin/python3", "lacks a package that dtrain needs"),
    ):
        assert said in refused(cluster.start(*two, f"launcher.python={python}"))
    bare = ("launcher.python=/usr/bin/python3", "launcher.setup=[]")
    assert "dtrain is not installed" in refused(cluster.start(*two, *bare))
    cluster.know(options="Host q\n HostName q.invalid\nHost d\n HostName 10.77.0.99\n")
    said = refused(cluster.start(*two, "launcher.hosts=[a,q,d]"))
    assert "there is no host of this name (nor can d)" in said


def test_another_version(cluster: Cluster) -> None:
    other = cluster.folder / "other"
    subprocess.run(["cp", "-r", str(servers.ROOT / "dtrain"), str(servers.ROOT / "conf"),
                    str(servers.ROOT / "experiments"), f"{other}/"]
                   if other.mkdir() is None else [], check=True)  # fmt: skip
    init = other / "dtrain" / "__init__.py"
    two = (*QUICK, HOSTS, "strategy=multiworker", BATCH,
           f"launcher.setup=['export PYTHONPATH={other}']")  # fmt: skip
    init.write_text(init.read_text() + "\n# mine\n")
    assert "its code of dtrain is another than this machine's" in refused(cluster.start(*two))
    init.write_text(init.read_text().replace("__version__ = ", "__version__ = '0.0.1'  # "))
    assert "has dtrain 0.0.1, and this machine" in refused(cluster.start(*two))


def test_a_firewall(cluster: Cluster) -> None:
    rules = "table inet f { chain i { type filter hook input priority 0; }\n}\n"
    rules += "add rule inet f i tcp dport 1024-65535 tcp flags & (syn | ack) == syn drop\n"
    space = cluster.servers["b"].host.space
    subprocess.run(["ip", "netns", "exec", space, "nft", rules], check=True)
    said = refused(cluster.start(*QUICK, HOSTS, "strategy=multiworker", BATCH))
    assert "a does not reach 10.77.0.3:" in said and "a firewall?" in said


MINE = """
def build(input_shape, classes):
    from dtrain import models
    return models.mlp(input_shape, classes, units=[7])
"""


def test_the_users_own_modules_are_compared_or_sent(cluster: Cluster) -> None:
    hidden(cluster)
    (cluster.folder / "mine" / "own_code").mkdir()
    (cluster.folder / "mine" / "own_code" / "__init__.py").write_text(MINE)
    quick = [word for word in QUICK if not word.startswith("model")]
    words = (*quick, HOSTS, "strategy=multiworker", BATCH, "model=custom",
             "model._target_=own_code.build")  # fmt: skip
    said = refused(cluster.start(*words, DTRAIN_TRUST="own_code"))
    assert "the module own_code is not there, on a" in said
    command = cluster.start(*words, "launcher.sync=true", DTRAIN_TRUST="own_code")
    assert ended(command)["status"] == "FINISHED"
    gone(cluster)


def test_other_data_on_one_host(cluster: Cluster) -> None:
    data = cluster.folder / "data"
    for name, scale in (("a", 1.0), ("b", 2.0), ("c", 1.0)):
        own = cluster.folder / f"data-{name}"
        own.mkdir()
        rows = np.arange(64, dtype=np.float32).reshape(32, 2) * scale
        np.savez(own / "d.npz", x=rows, y=np.arange(32) % 2)
        cluster.servers[name].close()
        cluster.servers[name].start(instead=(own, data))
    data.mkdir(exist_ok=True)
    (data / "d.npz").write_bytes((cluster.folder / "data-a" / "d.npz").read_bytes())
    words = [word for word in QUICK if not word.startswith("dataset")]
    command = cluster.start(
        *words, *MULTIWORKER, "trainer.batch_size=6", "dataset=npz", f"dataset.path={data}/d.npz"
    )
    assert command.wait() == 2, command.output
    assert "worker-0" in command.output and "data" in command.output
