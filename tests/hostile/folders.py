"""Run folders from elsewhere: what is no file, what is no JSON, what has another type."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.hostile import forge
from tests.hostile.harness import SECRET_VALUE, STOPPED, Case, Place

#: Commands by the file that they read, of a run that was killed.
_READERS = {
    "config.yaml": ("resume", "compare", "sync", "fork", "checkpoint", "compare all"),
    "command.json": ("resume", "fork", "auto", "sync", "resume dry"),
    "journal.jsonl": ("resume", "compare", "sync"),
    "cluster.json": ("compare", "sync", "resume"),
    "result.json": ("compare", "sync", "resume", "auto", "compare all"),
    "progress.json": ("resume",),
    "tracking.json": ("sync",),
    "logs": ("resume",),
    "logs/chief-0.log": ("resume",),
    ".lock": ("resume", "sync"),
    "tensorboard": ("resume",),
    "model.keras": ("sync",),
    "checkpoints": ("checkpoint", "resume", "fork", "checkpoint folder"),
    "checkpoints/latest": ("resume", "checkpoint", "fork"),
    "checkpoints/2": ("checkpoint", "resume", "fork", "checkpoint one"),
    "checkpoints/2/manifest.json": ("checkpoint", "resume", "fork", "checkpoint one"),
    "checkpoints/2/state.safetensors": ("resume", "checkpoint", "fork", "checkpoint one"),
}
#: A page of other runs is made, with this one as DAMAGED; or it is refused, or said to be so.
_COMPARED = {"compare": (0, 1, 2), "compare all": (0, 1, 2)}
#: A fork goes by the command and the checkpoints alone.
_FORKED = {"fork": (0, 2)}
#: Of a run whose newest checkpoint is spoilt: it begins from the one before.
_ONE_BEFORE = {"resume": (0, 2), "fork": (0, 2), "checkpoint": (1, 2), "checkpoint folder": (1, 2),
               "checkpoint one": (1, 2)}  # fmt: skip


def _kinds() -> Iterable[Case]:
    """Yield every name of a run folder as everything but what it should be."""
    for name, commands in _READERS.items():
        for kind in forge.KINDS:
            if kind == "a huge file" and name in ("logs", "checkpoints", "checkpoints/2"):
                continue
            if kind == "an empty file" and name not in (
                "config.yaml", "command.json", "journal.jsonl", "cluster.json",
                "checkpoints/latest", "checkpoints/2/manifest.json",
            ):  # fmt: skip
                continue

            def build(place: Place, name: str = name, kind: str = kind) -> None:
                if name in ("result.json", "tracking.json"):
                    (place.stopped / name).touch()  # which a killed run lacks
                forge.replace(place.stopped / name, kind, place)

            exits: dict[str, tuple[int, ...]] = {**_COMPARED, "auto": (0,)}
            codes: tuple[int, ...] = (2,)
            if name == "config.yaml":
                exits |= {**_FORKED, "checkpoint": (0, 1, 2)}
            if name.startswith("checkpoints"):
                exits |= _ONE_BEFORE
            if name == "journal.jsonl" and kind == "an empty file":
                codes = (0,)  # as that of a run that was killed before its first step
            if name == "checkpoints":  # then there is none to be damaged
                exits |= {"resume": (0, 2), "checkpoint": (1, 2)}
            if name in (".lock", "progress.json", "logs/chief-0.log", "tensorboard", "logs"):
                codes = (0, 1, 2)  # written anew, or refused, or the job fails by it
            if name in ("model.keras", "tracking.json", "cluster.json", ".lock"):
                codes = (0, 1, 2) if name != "cluster.json" else (0, 2)
            yield Case(f"{name} is {kind}", build, commands, codes, exits=exits)


# --- texts in the place of JSON and YAML

_DEEP = 100_000
TEXTS: dict[str, bytes] = {
    "deep lists": b"[" * _DEEP,
    "deep lists that end": b"[" * _DEEP + b"]" * _DEEP,
    "deep tables": b'{"a":' * _DEEP + b"1" + b"}" * _DEEP,
    "no UTF-8": b'{"overrides": ["\xff\xfe"], "config_dir": null}',
    "a byte order mark": b'\xef\xbb\xbf{"overrides": [], "config_dir": null}',
    "UTF-16": '{"overrides": [], "config_dir": null}'.encode("utf-16"),
    "NUL bytes": b"\x00" * 512,
    "half a file": b'{"overrides": ["seed=',
    "a list": b"[]",
    "a number": b"1",
    "null": b"null",
    "a text": b'"text"',
    "NaN": b"NaN",
    "a long number": b"1" * 100_000,
    "a large exponent": b'{"step": 1e400, "status": "FINISHED", "seconds": 1e400}',
    "keys twice": b'{"status": "KILLED", "status": "FINISHED", "overrides": [], "overrides": {}}',
    "lone surrogates": b'{"status": "\\ud800", "error": "\\udfff", "overrides": ["\\ud800=1"]}',
    "escapes": b'{"status": "\\u001b]0;x\\u0007\\u001b[2J", "error": "\\u009b31m"}',
    "a text of a megabyte": b'{"status": "' + b"x" * (1 << 20) + b'"}',
}


def _texts() -> Iterable[Case]:
    for name in ("command.json", "result.json", "cluster.json", "tracking.json"):
        for what, text in TEXTS.items():

            def build(place: Place, name: str = name, text: bytes = text) -> None:
                (place.stopped / name).write_bytes(text)

            codes: tuple[int, ...] = (2,)
            exits: dict[str, tuple[int, ...]] = {**_COMPARED, "auto": (0,)}
            if what in (
                "large exponent",
                "a large exponent",
                "keys twice",
                "lone surrogates",
                "escapes",
                "a text of a megabyte",
            ):
                codes = (0, 1, 2)  # JSON it is
                exits = {**exits, "auto": (0, 2)}
            if what == "a byte order mark":
                codes = (0, 2)
            if name in ("tracking.json", "cluster.json"):
                codes = (0, 1, 2)  # found again, or planned anew
            if name == "result.json":
                exits["resume"] = (0, 2)  # it is about to be written
            if name != "command.json":
                exits["auto"] = (0, 2)
            yield Case(f"{name} holds {what}", build, _READERS[name], codes, exits=exits)


_YAML: dict[str, str] = {
    "a bomb of anchors": "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [{','.join([f'*{chr(97 + n)}'] * 10)}]\n"
        for n in range(12)),
    "a bomb of merges": "a: &a {k: v}\n" + "".join(
        f"b{n}: &b{n}\n  <<: [{','.join([f'*{p}'] * 10)}]\n  k{n}: *{p}\n"
        for n in range(12) for p in [f"b{n - 1}" if n else "a"]),
    "an anchor in itself": "a: &a [*a]\n",
    "a merge of itself": "a: &a\n  <<: *a\n",
    "a tag of Python's": "a: !!python/object/apply:os.system ['touch {canary}/ran']\n",
    "a name of Python's": "a: !!python/name:os.system\n",
    "a module of Python's": "a: !!python/module:this\n",
    "a wrong integer": "seed: !!int abc\n",
    "a wrong date": "seed: !!timestamp 2026-13-45\n",
    "a wrong base 64": "seed: !!binary '%'\n",
    "an unknown tag": "seed: !evil 1\n",
    "an unknown anchor": "seed: *x\n",
    "a long number": f"seed: {'1' * 100_000}\n",
    "deep lists": "a: " + "[" * 20_000,
    "deep lists that end": "a: " + "[" * 20_000 + "]" * 20_000,
    "deep indents": "".join(f"{' ' * n}a:\n" for n in range(2_000)),
    "a list": "- 1\n- 2\n",
    "a scalar": "text\n",
    "nothing": "# nothing\n",
    "two documents": "a: 1\n---\na: 2\n",
    "tabs": "a:\n\tb: 1\n",
    "keys twice": "seed: 1\nseed: 2\n",
    "a key that is a list": "? [1, 2]\n: x\n",
    "a key that is null": "null: x\n~: y\n",
    "control characters": "name: \"\\e[31m\\a\"\nstrategy: {name: \"\\e]0;x\\a\"}\n",
    "references in a circle": "name: ${objective}\nobjective: ${name}\n",
    "references that double": "x0: hahahahaha\n" + "".join(
        f"x{n}: " + f"${{x{n - 1}}}" * 10 + "\n" for n in range(1, 12)) + "name: ${x11}\n",
    "a reference without an end": "name: ${oc.env:HOME\n",
    "megabytes of small lines": "a:\n" + "- x\n" * 2_000_000,
}  # fmt: skip


def _yaml() -> Iterable[Case]:
    """Yield spoilt `config.yaml`: the whole file, or what stands at the end of one in order."""
    for what, text in _YAML.items():

        def build(place: Place, text: str = text) -> None:
            whole = text.replace("{canary}", str(place.canary))
            (place.stopped / "config.yaml").write_text(whole)

        def append(place: Place, text: str = text) -> None:
            path = place.stopped / "config.yaml"
            path.write_text(path.read_text() + text.replace("{canary}", str(place.canary)))

        # None of these is the configuration of a run: keys are missing, if nothing else.
        exits = {**_COMPARED, **_FORKED, "checkpoint": (0, 1, 2), "sync": (1, 2)}
        yield Case(f"config.yaml is {what}", build, _READERS["config.yaml"], (2,), exits=exits)
        exits = {name: (0, 1, 2) for name in _READERS["config.yaml"]}
        yield Case(f"config.yaml ends with {what}", append, _READERS["config.yaml"], exits=exits,
                   slow=what in ("megabytes of small lines",))  # fmt: skip


# --- JSON with other types, at every field

#: In the place of a value: what it may be replaced by.
VALUES: dict[str, Any] = {
    "null": None, "a table": {"a": {"b": 1}}, "a list": [[1], None], "a text": "\x1b[31mtext",
    "a number": 7, "minus one": -1, "a fraction": 0.5, "a large number": 10**400, "true": True,
    "a long text": "x" * 100_000, "a path": "../../../../canary/folder",
    "an absolute path": "/", "a text with NUL": "a\x00b",
}  # fmt: skip


def _fields(value: Any, prefix: tuple[Any, ...] = ()) -> Iterable[tuple[Any, ...]]:
    """Yield the keys that lead to each value below ``value``."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        yield (*prefix, key)
        if isinstance(item, dict | list):
            yield from _fields(item, (*prefix, key))


def spoilt(path: Path, field: tuple[Any, ...], value: Any) -> None:
    """Put a value of another type at a field."""

    def change(whole: Any) -> None:
        node = whole
        for key in field[:-1]:
            node = node[key]
        node[field[-1]] = value

    forge.edit(path, change)


#: What the files of a run hold; the template's have these, and a test holds them to it.
FIELDS: dict[str, tuple[tuple[Any, ...], ...]] = {
    "command.json": (("overrides",), ("overrides", 0), ("config_dir",)),
    "result.json": (
        ("status",), ("exit_code",), ("error",), ("objective",), ("metrics",),
        ("metrics", "val_accuracy"), ("step",), ("examples_per_second",), ("replicas",),
        ("started",), ("seconds",), ("restarts",),
    ),
    "cluster.json": (
        ("tasks",), ("tasks", 0), ("tasks", 0, "role"), ("tasks", 0, "index"),
        ("tasks", 0, "cores"), ("device_kind",), ("replicas",), ("environment",),
        ("environment", "KERAS_BACKEND"),
    ),
    "tracking.json": (("uri",), ("experiment_id",), ("token",), ("run_id",), ("shipped",)),
}  # fmt: skip
_FIELD_READERS = {
    "command.json": ("resume finished", "sync finished", "auto", "resume finished"),
    "result.json": ("compare finished", "sync finished", "resume finished", "compare all", "auto"),
    "cluster.json": ("compare finished", "sync finished", "resume finished"),
    "tracking.json": ("sync finished",),
}


def _types() -> Iterable[Case]:
    for name, fields in FIELDS.items():
        for number, field in enumerate(fields):
            # Each field in the default suite with one value; with all in the long campaign.
            for position, (what, value) in enumerate(VALUES.items()):

                def build(
                    place: Place, name: str = name, field: Any = field, value: Any = value
                ) -> None:
                    if name == "tracking.json":
                        given = (place.other / name).read_text()
                        (place.run / name).write_text(given)
                    spoilt(place.run / name, field, value)

                label = ".".join(map(str, field))
                # What the value means decides whether it can be passed over; never a traceback.
                codes = (0, 1, 2)
                yield Case(f"{label} of {name} is {what}", build,
                           tuple(dict.fromkeys(_FIELD_READERS[name])), codes,
                           slow=position != number % len(VALUES))  # fmt: skip


# --- the journal: a damaged line costs that line

_LINES: dict[str, bytes] = {
    "NUL bytes": b"\x00" * 4096,
    "half a line": b'{"event": "metrics", "time": 1795304715.8, "st',
    "no UTF-8": b'{"event": "metrics", "\xff": 1}',
    "a list": b"[1, 2]",
    "a number": b"7",
    "null": b"null",
    "deep lists": b"[" * _DEEP,
    "a table without event": b"{}",
    "an event of another type": b'{"event": ["metrics"], "time": 1, "step": 2}',
    "an unknown event": b'{"event": "reboot", "time": 1, "step": 2}',
    "metrics that are a list": b'{"event": "metrics", "time": 1, "step": 2, "metrics": [1]}',
    "metrics that are a text": b'{"event": "metrics", "time": 1, "step": 2, "metrics": "x"}',
    "a metric that is a table": b'{"event": "metrics", "time": 1, "step": 2, "metrics": {"a": {}}}',
    "a metric that is a text": b'{"event": "metrics", "time": 1, "step": 2, "metrics": {"a":"b"}}',
    "metrics without a step": b'{"event": "metrics", "time": 1, "metrics": {"a": 1}}',
    "a step that is a text": b'{"event": "metrics", "time": 1, "step": "2", "metrics": {"a": 1}}',
    "a step that is a list": b'{"event": "metrics", "time": 1, "step": [2], "metrics": {"a": 1}}',
    "a step below nothing": b'{"event": "metrics", "time": 1, "step": -2, "metrics": {"a": 1}}',
    "a fraction of a step": b'{"event": "metrics", "time": 1, "step": 1.5, "metrics": {"a": 1}}',
    "a huge step": b'{"event": "metrics", "time": 1, "step": 1e999, "metrics": {"a": 1}}',
    "a step of 400 digits": b'{"event": "metrics", "time": 1, "step": 1' + b"0" * 400
                            + b', "metrics": {"a": 1}}',
    "no time": b'{"event": "metrics", "step": 2, "metrics": {"a": 1}}',
    "a time that is a text": b'{"event": "start", "time": "now", "step": 0}',
    "a huge time": b'{"event": "metrics", "time": 1e300, "step": 2, "metrics": {"a": 1}}',
    "a metric with a name of 1 MB": b'{"event": "metrics", "time": 1, "step": 2, "metrics": {"'
                                    + b"a" * (1 << 20) + b'": 1}}',
    "a metric with escapes": b'{"event": "metrics", "time": 1, "step": 2, "metrics":'
                             b' {"\\u001b[31m<script>alert(1)</script>": 1}}',
    "10,000 metrics": json.dumps({"event": "metrics", "time": 1, "step": 2,
                                  "metrics": {f"m{n}": n for n in range(10_000)}}).encode(),
    "a notice with escapes": b'{"event": "notice", "time": 1, "step": 1, "message":'
                             b' "\\u001b]0;pwned\\u0007"}',
    "a start with lists": b'{"event": "start", "time": 1, "step": 0, "replicas": [[]],'
                          b' "parameters": {"a": 1}}',
    "an end of another type": b'{"event": "end", "time": 1, "status": {}, "step": [],'
                              b' "metrics": 3}',
    "a checkpoint elsewhere": b'{"event": "checkpoint", "time": 1, "step": 2, "path": "/etc"}',
    "a line of 8 MB": b'{"event": "notice", "time": 1, "step": 1, "message": "'
                      + b"x" * (8 << 20) + b'"}',
}  # fmt: skip


def _journals() -> Iterable[Case]:
    for what, line in _LINES.items():

        def build(place: Place, line: bytes = line) -> None:
            path = place.stopped / "journal.jsonl"
            lines = path.read_bytes().splitlines(keepends=True)
            path.write_bytes(b"".join([lines[0], line + b"\n", *lines[1:]]))

        yield Case(f"the journal has {what}", build, ("compare", "sync", "resume"), (0,))


# --- what is a file, and does harm all the same


def _into(name: str, where: str) -> Callable[[Place], None]:
    """Plant a link to a file of the canary at a path below the work folder."""

    def build(place: Place) -> None:
        path = place.work / where.format(run=place.stopped.relative_to(place.work),
                                         sweep=place.sweep.relative_to(place.work))  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        forge.remove(path)
        path.symlink_to(place.canary / name)

    return build


#: Names that a writer may use for a moment.
_TEMPORARY = [
    ("{run}/.result.json.tmp", ("resume",)),
    ("{run}/.config.yaml.tmp", ("resume",)),
    ("{run}/.command.json.tmp", ("resume",)),
    ("{run}/.cluster.json.tmp", ("resume",)),
    ("{run}/journal.tmp", ("resume",)),
    ("{run}/.tracking.json.tmp", ("sync",)),
    ("{run}/.tracking.json.lock", ("sync",)),
    ("{run}/.comparison.html.tmp", ("compare",)),
    ("{run}/.comparison.csv.tmp", ("compare",)),
    ("{run}/.curves.csv.tmp", ("compare",)),
    ("{sweep}/.sweep.json.tmp", ("sweep resume",)),
    ("outputs/.mlflow.db.lock", ("sync",)),
    ("outputs/.comparison.html.tmp", ("compare all",)),
]

PLANTED = [
    Case(f"a link waits at {where.format(run='RUN', sweep='SWEEP')}", _into("file.txt", where),
         commands, (0, 2))
    for where, commands in _TEMPORARY
] + [
    Case(f"{name} is a link, for a comparison", _into("file.txt", f"{{run}}/{name}"),
         ("compare",), (0, 1, 2))
    for name in ("comparison.html", "comparison.csv", "curves.csv")
]  # fmt: skip


def _own_file(name: str) -> Callable[[Place], None]:
    def build(place: Place) -> None:
        (place.stopped / name).write_text("x,y\n1,2\n")  # the user's own measurements

    return build


def _kept(name: str) -> Case:
    """Return the case of a file of the user's own where a comparison would write."""
    return Case(f"{name} is the user's own", _own_file(name), ("compare",), (0, 1, 2),
                keeps=(f"work/outputs/{STOPPED}/{name}",))  # fmt: skip


OWN = [_kept(name) for name in ("curves.csv", "comparison.csv", "comparison.html")]


def _secret_config(place: Place) -> None:
    forge.edit_yaml(place.stopped / "config.yaml", lambda config: config["tracking"].update(
        _target_="dtrain.tracking.mlflow.tracker.MLflow",
        uri=f"http://127.0.0.1:{place.port}/${{oc.env:HOSTILE_API_KEY}}"))  # fmt: skip


def _secret_name(place: Place) -> None:
    forge.edit_yaml(place.stopped / "config.yaml", lambda config: config.update(
        name="${oc.env:HOSTILE_API_KEY}", tracking={
            **config["tracking"], "uri": f"http://127.0.0.1:{place.port}"}))  # fmt: skip


def _secret_experiment(place: Place) -> None:
    def change(config: dict[str, Any]) -> None:
        config["tracking"]["experiment"] = "${oc.env:HOSTILE_API_KEY}"

    forge.edit_yaml(place.stopped / "config.yaml", change)


def _artifact(name: str) -> Callable[[Place], None]:
    """Ship a file of the user's by a link."""

    def build(place: Place) -> None:
        forge.remove(place.stopped / name)
        (place.stopped / name).symlink_to(place.canary / "secret.txt")

    return build


def _moved(place: Place) -> None:
    """The project was moved after the run, whose configuration has the old path."""

    def change(config: dict[str, Any]) -> None:
        config["output_dir"] = str(place.root / "old" / "outputs")

    forge.edit_yaml(place.stopped / "config.yaml", change)


def _another_store(place: Place) -> None:
    forge.edit_yaml(place.stopped / "config.yaml", lambda config: config["tracking"].update(
        uri=f"sqlite:///{place.canary}/new/made.db"))  # fmt: skip


def _a_file_store(place: Place) -> None:
    forge.edit_yaml(place.stopped / "config.yaml", lambda config: config["tracking"].update(
        uri=(place.canary / "folder").as_uri()))  # fmt: skip


def _held(place: Place) -> None:
    (place.stopped / ".lock").write_text("1\n\x1b[31mkill -9 -1\x1b[0m\n" * 100_000)


def _escapes_in_logs(place: Place) -> None:
    log = place.stopped / "logs" / "chief-0.log"
    log.write_text("\x1b]0;pwned\x07\x1b[2J\x9b31m" * 1000 + f"{SECRET_VALUE[:4]}\n")


def _config_dir(value: Callable[[Place], Any]) -> Callable[[Place], None]:
    def build(place: Place) -> None:
        forge.forge_words(place, config_dir=value(place))

    return build


def _pipe_of_presets(place: Place) -> str:
    os.mkfifo(place.work / "pipe")
    return "pipe"


def _presets(text: bytes) -> Callable[[Place], str]:
    def value(place: Place) -> str:
        path = forge.preset(place, "model", text, "mlp")
        forge.preset(place, "experiment", text)
        forge.preset(place, "dataset", text, "synthetic")
        return str(path.parents[1].relative_to(place.work))

    return value


_BY_WORDS = ("resume", "fork", "sweep resume", "resume dry")

OTHERS = [
    Case("config.yaml sends the secret", _secret_config, ("sync",), (2,), "HOSTILE_API_KEY"),
    Case("config.yaml names its run by the secret", _secret_name, ("sync", "compare"), (2,),
         exits={"compare": (0,)}),
    Case("config.yaml names its experiment by the secret", _secret_experiment, ("sync",), (2,),
         "HOSTILE_API_KEY"),
    *(
        Case(f"{name} is a link to a secret", _artifact(name), ("sync",), (0, 1, 2))
        for name in ("model.keras", "model.weights.h5", "result.json", "config.yaml")
    ),
    Case("the project was moved", _moved, ("sync", "compare", "resume"), (0,),
         exits={"sync": (0, 2)}),
    Case("config.yaml makes a store elsewhere", _another_store, ("sync",), (0, 1, 2)),
    Case("config.yaml makes a store of files elsewhere", _a_file_store, ("sync",), (1, 2)),
    Case("the lock holds escapes", _held, ("resume", "sync"), (0, 2)),
    Case("the log holds escapes", _escapes_in_logs, ("resume",), (0,)),
    Case("presets in a pipe", _config_dir(_pipe_of_presets), _BY_WORDS),
    Case("presets in a list", _config_dir(lambda place: ["presets"]), _BY_WORDS),
    Case("presets in a number", _config_dir(lambda place: 7), _BY_WORDS),
    Case("presets nowhere", _config_dir(lambda place: "nowhere"), _BY_WORDS),
    Case("presets in the root", _config_dir(lambda place: "/"), _BY_WORDS, (0, 2)),
    Case("presets in a text with NUL", _config_dir(lambda place: "a\x00b"), _BY_WORDS),
    Case("presets named as an option", _config_dir(lambda place: "--info"), _BY_WORDS),
    Case("presets in a package", _config_dir(lambda place: "pkg://this"), _BY_WORDS),
]  # fmt: skip

CASES = [
    *_kinds(), *_texts(), *_yaml(), *_types(), *_journals(), *PLANTED, *OWN, *OTHERS,
]  # fmt: skip
