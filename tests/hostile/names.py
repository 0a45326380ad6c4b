"""Names of runs, and paths that are typed: what is no file name, and what is no folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from tests.hostile import forge
from tests.hostile.configs import attack
from tests.hostile.harness import Case, Ended, Place

_NAMED = ("experiment dry", "typed", "resume", "sweep resume", "typed sweep", "fork", "typed dry",
          "experiment")  # fmt: skip
_NAMES: dict[str, Any] = {
    "above": "../x", "above at its end": "x/..", "above and back": "x/../../../../../canary/y",
    "absolute": "/tmp/dtrain-hostile", "here": ".", "its parent": "..", "nested": "a/b",
    "long": "x" * 300, "long in bytes": "\u00e9" * 200, "of two lines": "a\nb",
    "with escapes": "\x1b]0;x\x07", "with a control of 8 bits": "a\x9b31m", "of tabs": "\t",
    "from right to left": "a\u202egnp.exe", "of nothing": "",
}  # fmt: skip
#: Odd, and a file name all the same.
_ODD: dict[str, Any] = {
    "an option": "-rf", "the user's home": "~", "hidden": ".x", "of blanks": "  ",
    "a device": "con", "with a backslash": "a\\b", "HTML": "<script>alert(1)</script>",
    "a formula": "=cmd", "of percents": "%n%s", "a number": 7, "true": True,
}  # fmt: skip

# --- what a path that is typed may lead to


def _at(make: Callable[[Place, Path], object]) -> Callable[[Place], None]:
    """Type a path where something was made."""

    def build(place: Place) -> None:
        place.it = "it"
        make(place, place.work / "it")

    return build


def _typed(text: str) -> Callable[[Place], None]:
    return lambda place: setattr(place, "it", text)


def _kind(kind: str, folder: bool = False) -> Callable[[Place], None]:
    return _at(lambda place, path: forge.KINDS[kind](path, place, folder))


_PATHS = ("resume it", "fork it", "sweep resume it", "sync it", "compare it", "checkpoint it",
          "ui it")  # fmt: skip


def _bad_paths() -> Iterable[Case]:
    kinds = ("a link to a file elsewhere", "a link to nothing elsewhere", "a link to itself",
             "a pipe", "a socket", "a link to an endless device", "an empty file",
             "a huge file")  # fmt: skip
    for kind in kinds:
        yield Case(f"a path that is typed is {kind}", _kind(kind), _PATHS, (1, 2))
    texts = {
        "nothing": "", "a blank": " ", "the root": "/", "a device": "/dev/null",
        "long": "x" * 5000, "long in parts": "x/" * 3000, "of the kernel": "/proc/self/fd",
        "with escapes": "\x1b]0;x\x07", "of two lines": "a\nb", "a list": "[a,b]",
        "a table": "{a: b}", "a reference to a secret": "${oc.env:HOSTILE_API_KEY}",
        "a reference to itself": "${resume}", "from right to left": "\u202ex",
        "an address": "http://127.0.0.1:1/x",
    }  # fmt: skip
    for what, text in texts.items():
        # What lies below the root is none of dtrain's: it may be slow, and nothing is written.
        commands = tuple(c for c in _PATHS if not (what == "the root" and c == "compare it"))
        yield Case(f"a path that is typed is {what}", _typed(text), commands, (1, 2))


# --- folders of which the names do harm


def _runs_called(*names: bytes) -> Callable[[Place], None]:
    def build(place: Place) -> None:
        for name in names:
            target = os.path.join(os.fsencode(place.outputs), b"2026-01-02", name)
            shutil.copytree(os.fsencode(place.run), target)

    return build


class _Inert(HTMLParser):
    """Notes what of a page could run or load anything."""

    def __init__(self) -> None:
        super().__init__()
        self.problems: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        if tag in ("iframe", "object", "embed", "link", "base", "img", "form", "foreignobject"):
            self.problems.append(f"the page has <{tag}>")
        for name, value in attrs:
            if name.startswith("on"):
                self.problems.append(f"the page has {name}={value}")
            local = (value or "").startswith("#")
            if name in ("src", "href", "xlink:href", "action") and not local:
                self.problems.append(f"the page loads {value}")
            if "javascript:" in (value or ""):
                self.problems.append(f"the page has {value}")


def inert(folder: str) -> Callable[[Place, Ended], Iterable[str]]:
    """Return what looks whether a comparison runs and loads nothing but its own script."""

    def look(place: Place, ended: Ended) -> Iterable[str]:
        path = place.root / folder / "comparison.html"
        if ended.code != 0 or not path.is_file():
            return
        parser = _Inert()
        parser.feed(path.read_text(encoding="utf-8"))
        yield from parser.problems
        if parser.scripts != 1:
            yield f"the page has {parser.scripts} scripts"
        if "Content-Security-Policy" not in path.read_text(encoding="utf-8"):
            yield "the page has no policy"

    return look


_HTML = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"' onload=alert(1) x='"


def _html(place: Place) -> None:
    """Put HTML wherever a page could take it from."""
    forge.edit_yaml(place.run / "config.yaml", lambda config: config.update(
        name=_HTML, objective=_HTML, extra={_HTML: _HTML}))  # fmt: skip
    forge.edit(place.run / "result.json", lambda result: result.update(
        error=_HTML, status=_HTML, metrics={_HTML: 1}))  # fmt: skip
    journal = place.run / "journal.jsonl"
    journal.write_text(journal.read_text().replace("val_accuracy", _HTML.replace('"', '\\"')))


def _html_sweep(place: Place) -> None:
    def change(sweep: dict[str, Any]) -> None:
        sweep.update(name=_HTML, status=_HTML, objective=_HTML)
        for job in sweep["jobs"]:
            job.update(differs={_HTML: _HTML}, status=_HTML, error=_HTML)

    forge.edit(place.sweep / "sweep.json", change)


def _nested(depth: int) -> Callable[[Place], None]:
    def build(place: Place) -> None:
        here = os.open(place.outputs, os.O_RDONLY)
        for _ in range(depth):
            os.mkdir("d", dir_fd=here)
            below = os.open("d", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
        os.close(here)

    return build


def _many(count: int) -> Callable[[Place], None]:
    def build(place: Place) -> None:
        folder = place.outputs / "2026-02-02"
        folder.mkdir()
        small = {"config.yaml": "name: x\nobjective: loss\n", "cluster.json": '{"tasks": []}'}
        for number in range(count):
            (folder / str(number)).mkdir()
            for name, text in small.items():
                (folder / str(number) / name).write_text(text)

    return build


def _many_words(place: Place) -> None:
    """The user's own outputs hold many other commands, none of them this one."""
    for number in range(3000):
        folder = place.outputs / "2026-02-02" / str(number)
        folder.mkdir(parents=True)
        (folder / "command.json").write_text(
            '{"format": 2, "overrides": ["seed=6"], "config_dir": null}'
        )


def _unrelated(kind: str) -> Callable[[Place], None]:
    return lambda place: forge.replace(place.other / "command.json", kind, place)


def _loops(place: Place) -> None:
    (place.outputs / "2026-01-02" / "loop").symlink_to("..")
    (place.outputs / "2026-01-02" / "self").symlink_to("self")
    (place.outputs / "2026-01-02" / "out").symlink_to(place.root)


def _output_dir(value: str) -> Callable[[Place], None]:
    return lambda place: setattr(place, "words", (f"output_dir={value}",))


def _output_dir_is(kind: str) -> Callable[[Place], None]:
    def build(place: Place) -> None:
        place.words = ("output_dir=it",)
        forge.KINDS[kind](place.work / "it", place, False)

    return build


CASES = [
    *(
        attack(f"a name that is {what}", lambda place, name=name: {"name": name}, *_NAMED)
        for what, name in _NAMES.items()
    ),
    attack("a name that is null", lambda place: {"name": None}, *_NAMED),
    attack("a name that is a list", lambda place: {"name": ["a"]}, *_NAMED),
    *(
        attack(f"a name that is {what}", lambda place, name=name: {"name": name},
               "typed", "experiment", "typed sweep", codes=(0, 2))
        for what, name in _ODD.items()
    ),
    *_bad_paths(),
    *(
        Case(f"output_dir is {kind}", _output_dir_is(kind), ("typed", "typed sweep", "typed dry"),
             (2,), exits={"typed dry": (0, 2)})
        for kind in ("a link to a file elsewhere", "a link to itself", "a pipe", "a socket",
                     "an empty file", "a link to an endless device")
    ),
    *(
        Case(f"output_dir is {value!r:.20}", _output_dir(value),
             ("typed", "typed sweep", "typed dry"), (2,), exits={"typed dry": (0, 2)})
        for value in ("/dev/null/x", "/proc/self/x", "x" * 300, "a/" * 3000)
    ),
    Case("runs with names of escapes", _runs_called(b"\x1b[31mrun", b"\x1b]0;x\x07", b"a\xc2\x9bm"),
         ("compare all", "auto"), (0, 1, 2), exits={"auto": (0,)}),
    Case("a run whose name is no UTF-8", _runs_called(b"\xff\xfe"),
         ("compare all", "auto"), (0, 1, 2), exits={"auto": (0,)}),
    Case("runs with names of HTML and formulas", _runs_called(
        b"<script>alert(1)<", b'"onload="alert(1)', b"=cmd|x", b"@x", b"a\nb", b"a\rb"),
        ("compare all", "auto"), (0, 1, 2), exits={"auto": (0,)}, look=inert("work/outputs")),
    Case("a run of HTML", _html, ("compare finished", "compare all"), (0, 1, 2),
         look=inert("work/outputs/2026-01-02/10-00-00_run")),
    Case("a sweep of HTML", _html_sweep, ("compare sweep",), (0, 1, 2),
         look=inert("work/outputs/multirun/2026-01-02/12-00-00_sweep")),
    Case("folders 1,500 deep", _nested(1500), ("compare all", "auto"), (0, 1, 2),
         exits={"auto": (0,)}),
    Case("10,000 runs", _many(10_000), ("compare all", "auto"), (0, 2), slow=True),
    Case("3,000 other commands", _many_words, ("auto",), (0,), slow=True),
    Case("folders in circles", _loops, ("compare all", "auto"), (0,)),
    *(
        Case(f"the command of another run is {kind}", _unrelated(kind), ("auto",), (0,))
        for kind in forge.KINDS
    ),
]  # fmt: skip
