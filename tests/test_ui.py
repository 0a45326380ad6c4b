"""MLflow's UI on the embedded store: in a real browser, and what may go wrong."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from dtrain.cli.commands import ui
from dtrain.run.folder import read_json
from dtrain.tracking.mlflow.store import import_mlflow
from tests import browser


def processes(words: str) -> list[str]:
    """Return the command lines of all processes that have ``words`` in theirs."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in found if words in line]


def test_no_store(capsys: pytest.CaptureFixture[str]) -> None:
    assert ui.main(["output_dir=nowhere"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: output_dir=nowhere: holds no tracking store (mlflow.db); ")
    assert "output_dir=FOLDER" in error


@pytest.mark.parametrize("content", [b"text" * 100, b"SQLite format 3\0" + b"x" * 5000])
def test_a_store_that_is_none(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mlflow.db").write_bytes(content)
    assert ui.main([f"output_dir={tmp_path}"]) == 2
    assert "mlflow.db cannot be used as a store (file is not a database)" in capsys.readouterr().err


@pytest.mark.parametrize("port", ["taken", "70000"])
def test_a_port_that_cannot_be_used(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1]) if port == "taken" else port
        assert ui.main([f"port={port}"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: port={port}: ")
    assert "cannot be used (" in error or "must be at most 65535" in error
    assert error.endswith("; type: port=0\n")


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_with_its_server(dtrain: Any, quick: Any, tmp_path: Path, number: int) -> None:
    tracked = read_json(dtrain(*quick, "tracking=mlflow").rundir.tracking)
    with browser.ui(tmp_path) as (server, lines):
        assert tracked["run_id"] in browser.address(lines, "compare"), lines
        assert lines[1].endswith(" (1 runs)"), lines
        address = browser.address(lines, "UI")
        with urllib.request.urlopen(f"{address}/health") as answer:
            assert answer.status == 200
        server.send_signal(number)
        assert server.wait(30) == 0
        assert not processes(f"--port {urlsplit(address).port}")


@pytest.mark.usefixtures("store")
def test_a_store_without_runs() -> None:
    assert ui.comparison(Path("outputs/mlflow.db"), "http://h:1") == "no run yet"


@pytest.mark.usefixtures("store")
@pytest.mark.skipif(browser.executable() is None, reason=f"none of {browser.NAMES} is installed")
def test_the_runs_of_a_sweep_in_a_browser(dtrain: Any, quick: Any, tmp_path: Path) -> None:
    runs = [
        dtrain(*quick, "tracking=mlflow", f"optimizer.learning_rate={rate}", f"name=run{rate}")
        for rate in ("0.004", "0.02", "0.3")
    ]
    tracked = [read_json(run.rundir.tracking) for run in runs]
    ids = [each["run_id"] for each in tracked if each is not None]
    client = import_mlflow().tracking.MlflowClient(tracked[0]["uri"])
    parent = client.create_run(tracked[0]["experiment_id"], run_name="sweep").info.run_id
    for each in ids[:2]:
        client.set_tag(each, "mlflow.parentRunId", parent)
    with browser.ui(tmp_path) as (server, lines), browser.browser() as page:
        assert lines[1].endswith(" (2 runs)"), lines
        hosts = set()
        page.on("request", lambda request: hosts.add(urlsplit(request.url).hostname))

        def shows(found: list[Any], rates: list[str]) -> None:
            browser.compared(page, len(found))
            row = page.get_by_role("row").filter(has_text=re.compile(r"^optimizer.learning_rate"))
            assert row.inner_text().split() == ["optimizer.learning_rate", *rates]
            for run in found:
                loss = f"{run.result['metrics']['val_loss']:.3f}".rstrip("0")
                assert page.get_by_text(loss, exact=True).count(), (loss, page.inner_text("body"))

        page.goto(browser.address(lines, "compare"))
        shows(runs[:2], ["0.004", "0.02"])
        # By hand: the sweep is opened, its runs are ticked, and one beside them.
        page.goto(
            f"{browser.address(lines, 'UI')}/#/experiments/{tracked[0]['experiment_id']}/runs"
        )
        page.locator(f".ag-row[row-id='{parent}']").get_by_role("button").first.click()
        for each in ids:
            page.locator(f".ag-row[row-id='{each}'] input.ag-checkbox-input").check()
        page.get_by_role("button", name="Compare", exact=True).click()
        page.wait_for_url("**/compare-runs?**")
        order = [ids.index(each) for each in re.findall(r"[0-9a-f]{32}", unquote(page.url))]
        shows([runs[n] for n in order], [("0.004", "0.02", "0.3")[n] for n in order])
        assert hosts == {"127.0.0.1"}
        port = f"--port {urlsplit(browser.address(lines, 'UI')).port}"
        assert len(processes(port)) == 2, "MLflow's command, and the server that it has started"
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0
        assert not processes(port)
