"""The documentation's site in a real browser: ``python -m tests.site SITE FOLDER``: pictures."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dtrain.config import schema
from tests import browser

ROOT = schema.folder("conf").parent
#: Widths and heights of a desktop's window and a phone's.
SIZES = {"desktop": (1400, 1000), "phone": (390, 844)}
PICTURED = ("index", "reference", "choose-a-strategy", "coming-from")


def zensical() -> str | None:
    """Return the program that builds the site, None where it is not installed."""
    beside = Path(sys.executable).with_name("zensical")
    return str(beside) if beside.exists() else shutil.which("zensical")


def build(folder: Path) -> Path:
    """Build the site in ``folder`` and return where it is; ``docs/`` is left alone."""
    program = zensical()
    assert program is not None
    shutil.copytree(ROOT / "docs", folder / "docs")
    shutil.copy(ROOT / "zensical.toml", folder)
    subprocess.run(
        [program, "build", "--strict"], cwd=folder, check=True, capture_output=True, timeout=300
    )
    return folder / "site"


@contextmanager
def opened(size: str) -> Iterator[tuple[Any, list[str]]]:
    """Open a page; yield it and what went wrong: errors of the console, requests to any host."""
    problems: list[str] = []
    with browser.browser(*SIZES[size]) as page:
        page.set_default_timeout(30_000)
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        # What is under way when a page is left, such as its icon, is aborted.
        page.on("requestfailed", lambda request: problems.append(f"failed: {request.url}")
                if request.failure != "net::ERR_ABORTED" else None)  # fmt: skip
        page.on("request", lambda request: problems.append(f"request: {request.url}")
                if not request.url.startswith(("file:", "data:", "blob:")) else None)  # fmt: skip
        page.on("console", lambda line: problems.append(f"{line.type}: {line.text}")
                if line.type in ("error", "warning") else None)  # fmt: skip
        yield page, problems


def found(page: Any, words: str) -> list[str]:
    """Search for ``words`` and return the texts of what is found, the best first."""
    page.keyboard.press("Control+k")
    page.get_by_role("combobox", name="Search").fill(words)
    results = page.get_by_role("listbox").locator("li")
    results.filter(has_text=re.compile(words.split()[-1], re.I)).first.wait_for()
    return [text.strip() for text in results.all_inner_texts()]


def pictures(site: Path, folder: Path) -> None:
    """Take a picture of some pages in each size."""
    for size in SIZES:
        with opened(size) as (page, problems):
            for name in PICTURED:
                page.goto((site.absolute() / f"{name}.html").as_uri())
                page.screenshot(path=folder / f"{size}-{name}.png")
            print(size, problems or "no problem")


if __name__ == "__main__":
    pictures(Path(sys.argv[1]), Path(sys.argv[2]))
