"""Run folders from elsewhere: what is no file, links, bombs of YAML, and secrets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.hostile import forge
from tests.hostile.harness import STOPPED, Case, Place

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


def spoilt(path: Path, field: tuple[Any, ...], value: Any) -> None:
    """Put a value of another type at a field."""

    def change(whole: Any) -> None:
        node = whole
        for key in field[:-1]:
            node = node[key]
        node[field[-1]] = value

    forge.edit(path, change)


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
    *_kinds(), *_yaml(), *PLANTED, *OWN, *OTHERS,
]  # fmt: skip
