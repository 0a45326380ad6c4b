"""Commands whose terminal goes, and that are asked to stop before they have begun."""

from __future__ import annotations

import io
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dtrain.host import terminal
from tests.integration.test_failures import until

PRINTS = """
import sys
from dtrain.host import terminal
with terminal.lasting():
    print("begun", flush=True)
    sys.stdin.readline()
    for stream in (sys.stdout, sys.stderr):
        for _ in range(1000):
            print("more of it", file=stream)
        stream.flush()
    assert sys.stdout.isatty() in (True, False)
    open("done", "w").close()
sys.stdout.write("and more")
"""


@pytest.mark.parametrize("kind", ["pipe", "terminal"])
def test_what_nobody_can_read_is_dropped(kind: str, tmp_path: Path) -> None:
    ours, theirs = os.pipe() if kind == "pipe" else pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PRINTS], stdin=subprocess.PIPE, stdout=theirs, stderr=theirs,
        cwd=tmp_path,
    )  # fmt: skip
    os.close(theirs)
    assert os.read(ours, 5) == b"begun"
    os.close(ours)
    process.communicate(b"\n", timeout=60)
    assert process.returncode == 0
    assert (tmp_path / "done").exists()


def test_what_can_be_written_is(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", None)  # as under pythonw
    with terminal.lasting():
        print("a line")
        assert sys.stderr is not None, "what is printed there does not go to standard output"
        assert sys.stdout is not stream
    assert sys.stdout is stream
    assert stream.getvalue() == "a line\n"


def test_no_file_has_the_number_of_a_standard_stream_that_is_closed() -> None:
    code = (
        "import os; os.closerange(0, 3); from dtrain.host import terminal\n"
        "with terminal.lasting(): print('dropped'); os._exit(os.open(os.devnull, os.O_RDONLY))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    assert done.returncode == 3, "the first descriptor that was free"


@pytest.mark.parametrize("number", terminal.STOPS)
def test_every_request_interrupts(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), terminal.interrupting():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_nohup_is_respected() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert set(terminal.stops()) == {signal.SIGINT, signal.SIGTERM, signal.SIGUSR2}
        with terminal.interrupting():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert signal.SIGHUP in terminal.stops()


def test_every_signal_has_a_name() -> None:
    assert terminal.name(9) == "SIGKILL"
    assert terminal.name(signal.SIGRTMIN) == "SIGRTMIN"
    assert terminal.name(signal.SIGRTMIN + 3) == "SIGRTMIN+3"
    for number in range(1, 65):
        assert terminal.name(number).startswith("SIG"), number


def test_the_exit_code_of_one_that_had_not_begun(tmp_path: Path) -> None:
    saved = tmp_path / "run" / "checkpoints"
    saved.mkdir(parents=True)
    assert terminal.stopped(["model=cnn"]) == terminal.stopped([f"resume={tmp_path}/run"]) == 1
    (saved / "latest").touch()
    assert terminal.stopped(["seed=1", f"resume={tmp_path}/run"]) == 75
    assert terminal.stopped([f"resume='{tmp_path}/run'"]) == 75
    assert terminal.stopped([f"fork={tmp_path}/run"]) == 1


def test_a_command_that_is_asked_to_stop_while_it_is_imported(tmp_path: Path) -> None:
    """No traceback, and nothing left."""
    (tmp_path / "hydra.py").write_text(
        "import pathlib, time\npathlib.Path('importing').touch()\ntime.sleep(600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "dtrain"], cwd=tmp_path, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parent.parent}"},
    )  # fmt: skip
    until((tmp_path / "importing").exists, lambda: "it does not import hydra", 60)
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=60)[1] == b""
    assert process.returncode == 1
