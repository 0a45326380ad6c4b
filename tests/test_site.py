"""The documentation's site: it is built, asks no host for anything, and its search finds."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tests import browser, site

pytestmark = pytest.mark.skipif(site.zensical() is None, reason="Zensical is not installed")
in_browser = pytest.mark.skipif(
    browser.executable() is None, reason=f"none of {browser.NAMES} is installed"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return site.build(tmp_path_factory.mktemp("docs"))


class Links(HTMLParser):
    """What a page loads and leads to, and the places in it that can be led to."""

    def __init__(self, text: str):
        super().__init__()
        self.loaded: list[str] = []
        self.linked: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.ids |= {given["id"]} if given.get("id") else set()
        if tag in ("script", "img", "iframe") and given.get("src"):
            self.loaded.append(str(given["src"]))
        if tag == "link" and given.get("href") and given.get("rel") != "canonical":
            self.loaded.append(str(given["href"]))
        if tag == "a" and given.get("href"):
            self.linked.append(str(given["href"]))


def test_pages_load_nothing_from_elsewhere_and_links_lead_to_a_place(built: Path) -> None:
    pages = {path: Links(path.read_text(encoding="utf-8")) for path in built.rglob("*.html")}
    assert len(pages) > 40
    for path, page in pages.items():
        if path.name == "404.html":  # for a server, whose root it is relative to
            continue
        for address in page.loaded:
            assert not re.match(r"(https?:)?//", address), f"{path.name} loads {address}"
        for address in page.linked:
            parts = urlsplit(address)
            if parts.scheme or "../tests/" in address:  # files of a checkout, not of the site
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            assert target.exists(), f"{path.name} leads to {address}"
            anchor = unquote(parts.fragment)
            assert not anchor or target not in pages or anchor in pages[target].ids, address


@in_browser
@pytest.mark.parametrize("size", site.SIZES)
def test_the_site_opens_as_files_and_its_search_finds(built: Path, size: str) -> None:
    with site.opened(size) as (page, problems):
        for name in ("index", "reference", "coming-from"):
            page.goto((built / f"{name}.html").as_uri())
            shown: Any = page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert shown, f"{name} is wider than the window"
        for words, place in (
            ("learning rate warmup", "warmup"),
            ("preemption", "preemption"),
            ("MultiWorkerMirroredStrategy", "tf.distribute"),
            ("early stopping", "callbacks"),
            ("freeze layers", "fine-tuning"),
            ("out of memory", "memory"),
            ("hyperparameter search", "sweeps"),
            ("port in use", "troubleshooting"),
            ("checkpoint best only", "checkpoints"),
            ("multi GPU", "strategies"),
        ):
            page.goto((built / "index.html").as_uri())
            assert place in " ".join(site.found(page, words)).lower(), words
        assert not problems
