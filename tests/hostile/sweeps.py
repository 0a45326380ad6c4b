"""Sweeps from elsewhere: jobs whose folders lie outside, and words that are no overrides."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tests.hostile import forge
from tests.hostile.folders import spoilt
from tests.hostile.harness import Case, Place

_ALL = ("sweep resume", "compare sweep", "sync sweep", "sweep resume dry")
#: A comparison and a tracking server may do without the job.
_OTHERS = {"compare sweep": (0, 1, 2), "sync sweep": (0, 1, 2)}


def _folder(value: Callable[[Place], Any], number: int = 1) -> Callable[[Place], None]:
    """Say of a job that is not finished where it is."""

    def build(place: Place) -> None:
        spoilt(place.sweep / "sweep.json", ("jobs", number, "folder"), value(place))
        # Without a configuration: as of a job that was killed before anything was trained.
        (place.sweep / "1" / "config.yaml").unlink()

    return build


_PLACES: dict[str, Callable[[Place], Any]] = {
    "above": lambda place: "../../../../../../canary/folder",
    "another run": lambda place: "../../../../2026-01-03/09_other",
    "the other job": lambda place: "0",
    "the sweep itself": lambda place: ".",
    "its parent": lambda place: "..",
    "nothing": lambda place: "",
    "absolute": lambda place: str(place.canary / "folder"),
    "the home": lambda place: str(place.home),
    "nested": lambda place: "0/logs",
    "nested and back": lambda place: "1/../../../../../../../canary/folder",
    "with a slash at its end": lambda place: "../../../../../../canary/folder/",
    "NUL": lambda place: "1\x00/../..",
    "long": lambda place: "x" * 5000,
    "a newline": lambda place: "1\n",
    "escapes": lambda place: "\x1b[31m1",
    "a blank": lambda place: " ",
    "a number": lambda place: 1,
    "a list": lambda place: ["1"],
    "a table": lambda place: {"a": 1},
    "null": lambda place: None,
    "true": lambda place: True,
    "of the user": lambda place: "~",
    "a variable": lambda place: "${oc.env:HOME}",
    "a lone surrogate": lambda place: "\ud800",
}


def _linked(place: Place) -> None:
    """The folder of a job is a link."""
    forge.replace(place.sweep / "1", "a link to a file elsewhere", place)


def _linked_empty(place: Place) -> None:
    (place.canary / "empty").mkdir()
    forge.remove(place.sweep / "1")
    (place.sweep / "1").symlink_to(place.canary / "empty")


def _words(*words: Any) -> Callable[[Place], None]:
    return lambda place: spoilt(place.sweep / "sweep.json", ("command", "overrides"), list(words))


def _many_jobs(place: Place) -> None:
    def change(sweep: dict[str, Any]) -> None:
        sweep["jobs"] = [{**sweep["jobs"][0], "number": n, "folder": str(n)} for n in range(20_000)]

    forge.edit(place.sweep / "sweep.json", change)


def _same_numbers(place: Place) -> None:
    forge.edit(place.sweep / "sweep.json", lambda s: s["jobs"].__setitem__(1, {**s["jobs"][0]}))


def _name(name: Any) -> Callable[[Place], None]:
    return lambda place: spoilt(place.sweep / "sweep.json", ("name",), name)


def _a_log(place: Place) -> None:
    spoilt(place.sweep / "sweep.json", ("jobs", 1, "log"), "../../../../../../canary/secret.txt")
    spoilt(place.sweep / "sweep.json", ("jobs", 1, "status"), "FAILED")


def _kinds() -> Iterable[Case]:
    for kind in forge.KINDS:

        def build(place: Place, kind: str = kind) -> None:
            forge.replace(place.sweep / "sweep.json", kind, place)

        yield Case(f"sweep.json is {kind}", build, _ALL, (2,),
                   exits={"compare sweep": (0, 1, 2)})  # fmt: skip


#: Words that are no overrides, in the place of those that a run or a sweep was composed of.
WORDS: dict[str, tuple[Any, ...]] = {
    "the pickle of an earlier job": ("--experimental-rerun=../canary/job.pickle",),
    "the completion of a shell": ("--shell-completion", "install=bash"),
    "another folder of configurations": ("--config-dir=/",),
    "another path of configurations": ("--config-path", "/"),
    "another name of the configuration": ("--config-name=evil",),
    "a question for help": ("--help",),
    "a question for the version": ("--version",),
    "a question for all": ("--info", "all"),
    "a question for the job": ("--cfg", "job"),
    "a multirun": ("-m",),
    "a package": ("--package=os",),
    "no option": ("--no-such-option",),
    "one dash": ("-",),
    "two dashes": ("--",),
    "a folder of Hydra's": ("hydra.run.dir=../canary/new",),
    "a launcher of Hydra's": ("hydra/launcher=basic",),
    "a search path": ("hydra.searchpath=[pkg://evil_presets]",),
    "a search path in a file": ("hydra.searchpath=[file:///]",),
    "no strategy": ("~strategy",),
    "no hydra": ("~hydra",),
    "a file of arguments": ("@../canary/file.txt",),
    "nothing": ("",),
    "a blank": (" ",),
    "an equals sign": ("=",),
    "no key": ("=1",),
    "no value": ("seed",),
    "half a list": ("model.units=[1",),
    "a newline": ("seed=1\nseed=2",),
    "NUL": ("name=a\x00b",),
    "escapes": ("\x1b[31mseed=1",),
    "a lone surrogate": ("name=\ud800",),
    "a deep list": ("model.units=" + "[" * 5000 + "]" * 5000,),
    "a word of a megabyte": ("name=" + "x" * (1 << 20),),
    "100,000 words": tuple("seed=1" for _ in range(100_000)),
    "a number": (7,),
    "a list": (["seed=1"],),
    "null": (None,),
    "a sweep of billions": ("seed=range(1000000000)",),
    "a sweep of 30 times 2": tuple(f"+model.a{n}=1,2" for n in range(30)),
    "another output folder": ("output_dir=../canary/new",),
    "a name above": ("name=../../../../canary/new",),
    "another run": ("resume=../canary",),
    "another sweep": ("sweep.resume=../canary",),
    "a fork of elsewhere": ("fork=../canary",),
    "data in a pipe": ("dataset=npz", "dataset.path=pipe"),
    "endless data": ("dataset=text", "dataset.path=/dev/zero"),
}
#: Not refused, where Hydra takes them as what they are.
_TAKEN = {"a sweep of 30 times 2", "a search path in a file", "100,000 words",
          "another output folder", "another sweep", "two dashes", "nothing", "a blank", "a newline",
          "a lone surrogate", "a word of a megabyte", "no strategy"}  # fmt: skip


def _forged() -> Iterable[Case]:
    for what, words in WORDS.items():

        def build(place: Place, words: tuple[Any, ...] = words) -> None:
            import os

            os.mkfifo(place.work / "pipe")
            (place.canary / "job.pickle").write_bytes(
                b"cos\nsystem\n(S'touch " + str(place.canary / "ran").encode() + b"'\ntR."
            )
            package = place.work / "evil_presets"
            package.mkdir()
            (package / "__init__.py").write_text(f"open({str(place.canary / 'ran')!r}, 'w')\n")
            forge.forge_words(place, *words)

        codes = (0, 1, 2) if what in _TAKEN else (2,)
        # Another fork or another run, where one was typed: the typed one counts.
        exits = {
            "a fork of elsewhere": {"fork": (0, 2), "resume": (0, 2), "resume dry": (0, 2)},
            # Where its own new folder goes is not the run's to say.
            "a folder of Hydra's": {"fork": (0,)},
            "another run": {"resume": (0, 2), "resume dry": (0, 2), "fork": (0, 2)},
        }.get(what, {})
        yield Case(f"the command holds {what}", build,
                   ("resume", "sweep resume", "fork", "resume dry", "sweep resume dry"),
                   codes, exits=exits)  # fmt: skip


CASES = [
    *(
        Case(f"the folder of a job is {what}", _folder(value), _ALL, (0, 2), exits=_OTHERS,
             kept=what in ("above", "another run", "the sweep itself", "absolute"))
        for what, value in _PLACES.items()
    ),
    Case("the folder of a job is a link", _linked, _ALL, (2,), exits=_OTHERS),
    Case("the folder of a job is a link to an empty one", _linked_empty, _ALL, (2,), exits=_OTHERS),
    Case("20,000 jobs", _many_jobs, _ALL, (0, 2), exits=_OTHERS),
    Case("two jobs of one number", _same_numbers, _ALL, (0, 2), exits=_OTHERS),
    Case("a sweep's name leads above", _name("../../../../../canary/x"), _ALL, (0, 2),
         exits=_OTHERS),
    Case("a sweep's name is HTML", _name("<script>alert(1)</script>"), _ALL, (0, 2), exits=_OTHERS),
    Case("a sweep's name has escapes", _name("\x1b]0;x\x07"), _ALL, (0, 2), exits=_OTHERS),
    Case("a job's log is elsewhere", _a_log, _ALL, (0, 1, 2)),
    *_forged(), *_kinds(),
]  # fmt: skip
