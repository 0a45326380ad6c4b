"""A real browser, headless; and the documents' screenshots: ``python -m tests.browser SWEEP``."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

REPO = Path(__file__).parent.parent
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 60_000.0  # milliseconds for what a page has to show


def executable() -> str | None:
    """Return the browser of this machine, None where it has none that we know."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def browser(width: int = 1400, height: int = 1000) -> Iterator[Any]:
    """Open a page of an own size in a fresh profile."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=executable())
        page = opened.new_page(viewport={"width": width, "height": height})
        page.set_default_timeout(PATIENCE)
        yield page
        opened.close()


@contextmanager
def ui(folder: Path) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Run ``python -m dtrain ui`` in ``folder``; yield it and what it printed when it was ready."""
    environment = {**os.environ, "PYTHONPATH": str(REPO), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "dtrain", "ui"], cwd=folder, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None
    lines: list[str] = []
    try:
        for line in process.stdout:  # which ends where it does
            lines.append(line.rstrip())
            if "Uvicorn running on" in line:
                break
        yield process, lines
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)
        process.stdout.close()


def address(lines: list[str], name: str) -> str:
    """Return the address that a line of the UI's output tells."""
    return next(line.split()[1] for line in lines if line.startswith(f"{name}:"))


def compared(page: Any, count: int) -> None:
    """Wait until MLflow's page shows the comparison of ``count`` runs."""
    page.get_by_text(re.compile(f"^Comparing {count} Runs from 1 Experiment$")).wait_for()
    page.get_by_role("link", name="val_loss", exact=True).wait_for()


def screenshots(sweep: Path, docs: Path) -> None:
    """Take the pictures of the documents of a sweep, the newest in its store."""
    with ui(sweep.absolute().parents[3]) as (_, lines), browser(1400, 1720) as page:
        page.goto(address(lines, "compare"))
        page.get_by_role("button", name="Close", exact=True).click()
        page.reload()  # the plot takes the room that there is when it is drawn
        compared(page, len(list(sweep.glob("*/result.json"))))
        page.get_by_role("switch", name="Parameters - Show diff only").click()
        page.get_by_text("Run details", exact=True).click()  # to be folded: there is little room
        page.get_by_text("Comparing").first.scroll_into_view_if_needed()
        page.screenshot(path=docs / "compare.png")
    with browser(1280, 1180) as page:
        page.goto((sweep.absolute() / "comparison.html").as_uri())
        page.screenshot(path=docs / "comparison.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sweep", type=Path)
    screenshots(parser.parse_args().sweep, REPO / "docs")
