"""Configurations that try to run, write, delete or send; each brought in every way there is."""

from __future__ import annotations

import base64
import dataclasses
import json
import marshal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.hostile import forge
from tests.hostile.harness import Case, Place

#: A preset of a group, an experiment file, words that are typed, and those of a forged folder.
BY_FILE = ("preset dry", "experiment", "preset sweep", "preset", "experiment dry", "preset shown")
BY_WORDS = ("typed dry", "resume", "sweep resume", "typed", "fork", "typed sweep", "resume dry",
            "sweep resume dry", "fork dry", "typed shown")  # fmt: skip
_SHOWN = {name: (0, 2) for name in ("preset shown", "experiment shown", "typed shown")}

Node = dict[str, Any]


def words(node: Any, key: str = "") -> list[str]:
    """Return the words that make a configuration what ``node`` is."""
    if isinstance(node, dict) and node and "_target_" not in node:
        return [word for name, value in node.items()
                for word in words(value, f"{key}.{name}" if key else name)]  # fmt: skip
    return [f"++{key}={_value(node)}"]


def _value(node: Any) -> str:
    if isinstance(node, dict):
        return "{" + ",".join(f"{_key(k)}:{_value(v)}" for k, v in node.items()) + "}"
    if isinstance(node, list):
        return "[" + ",".join(map(_value, node)) + "]"
    if isinstance(node, str):
        return json.dumps(node) if '"' not in node else "'" + node.replace("'", "\\'") + "'"
    return "null" if node is None else str(node).lower() if isinstance(node, bool) else str(node)


def _key(name: str) -> str:
    return name if name.isidentifier() else f"'{name}'"


def attack(
    name: str, made: Callable[[Place], Node], *only: str, codes: tuple[int, ...] = (2,),
    says: str | None = None, slow: bool = False, forks: tuple[int, ...] = (),
) -> Case:  # fmt: skip
    """Return the case of a configuration.

    Args:
        name: what it is.
        made: returns what it adds to the configuration.
        only: the commands, where not all.
        codes, says, slow: as of :class:`Case`.
        forks: further codes of a fork, which has the place that is typed for what it makes.
    """

    def build(place: Place) -> None:
        node = made(place)
        text = "# @package _global_\n"
        forge.preset(place, "experiment", text + yaml.safe_dump(node, sort_keys=False))
        whole = {**node, "model": node.get("model", forge.MODEL)}
        forge.preset(place, "model", text + yaml.safe_dump(whole, sort_keys=False))
        place.words = tuple(words(node))
        forge.forge_words(place, *place.words)

    exits = _SHOWN | dict.fromkeys(("fork", "fork dry"), codes + forks)
    return Case(name, build, only or (*_by_file(made), *BY_WORDS), codes, says, exits, slow=slow)


def _by_file(made: Callable[[Place], Node]) -> tuple[str, ...]:
    """Return the commands with files: what follows in the defaults of all hides a preset's."""
    node = made(Place(Path("/nowhere"), None, 1, 1, make=False))
    hidden = node.keys() - {"model", "dataset", "strategy", "hydra"}
    hidden |= node.get("hydra", {}).keys() & {"run", "sweep", "output_subdir"}
    return tuple(n for n in BY_FILE if not hidden or n.startswith("experiment"))


def _touch(place: Place) -> str:
    return f"touch {place.canary}/ran"


def _copy(place: Place) -> Node:
    return {
        "_target_": "shutil.copyfile",
        "src": str(place.canary / "file.txt"), "dst": str(place.canary / "ran"),
    }  # fmt: skip


def _handlers(**handler: Any) -> Node:
    return {"version": 1, "disable_existing_loggers": False, "handlers": {"x": handler},
            "root": {"handlers": ["x"], "level": "DEBUG"}}  # fmt: skip


def _log_to(place: Place) -> Node:
    return _handlers(**{
        "class": "logging.FileHandler", "filename": str(place.canary / "file.txt"), "mode": "w",
    })  # fmt: skip


def _target(where: str, **node: Any) -> Callable[[Place], Node]:
    """Return what puts a node at a key; a text may name the canary, {canary}, and the {port}."""

    def made(place: Place) -> Node:
        text = json.dumps(node).replace("{canary}", str(place.canary))
        value = json.loads(text.replace("{port}", str(place.port)))
        found: Any = value.get("node", value)
        for name in reversed(where.split(".")):
            found = [found] if name == "[]" else {name: found}
        result: Node = found
        return result

    return made


def _code() -> str:
    code = compile("open('/tmp/dtrain-hostile-ran', 'w')", "x", "eval")
    return base64.b64encode(marshal.dumps(code)).decode()


# --- Hydra's own part of the configuration

HYDRA = [
    attack("a callback of Hydra copies a file",
           lambda place: {"hydra": {"callbacks": {"x": _copy(place)}}}),
    attack("a callback of Hydra runs a command",
           _target("hydra.callbacks.x", _target_="os.system", command="touch {canary}/ran")),
    attack("a callback of Hydra's own pickles the job",
           _target("hydra.callbacks.x",
                   _target_="hydra.experimental.callbacks.PickleJobInfoCallback")),
    attack("a handler of job_logging empties a file",
           lambda place: {"hydra": {"job_logging": _log_to(place)}}),
    attack("a handler of hydra_logging empties a file",
           lambda place: {"hydra": {"hydra_logging": _log_to(place)}}),
    attack("a handler of job_logging is made by a function",
           lambda place: {"hydra": {"job_logging": _handlers(
               **{"()": "subprocess.Popen", "args": _touch(place), "shell": True})}}),
    attack("a handler of hydra_logging is made by a function",
           lambda place: {"hydra": {"hydra_logging": _handlers(
               **{"()": "os.system", "command": _touch(place)})}}),
    attack("a handler sends the secret",
           lambda place: {"hydra": {"job_logging": {
               **_handlers(**{"class": "logging.handlers.HTTPHandler",
                              "host": f"127.0.0.1:{place.port}",
                              "url": "/${oc.env:HOSTILE_API_KEY}"}),
               "loggers": {"hydra": {"level": "DEBUG"}}}}}),
    attack("env_set trusts a package",
           lambda place: {"hydra": {"job": {"env_set": {"DTRAIN_TRUST": "os,tests"}}},
                          "model": {"_target_": "os.system", "command": _touch(place)}}),
    attack("env_set loads a library",
           lambda place: {"hydra": {"job": {"env_set": {
               "LD_PRELOAD": f"{place.canary}/file.txt", "PYTHONPATH": str(place.canary)}}}}),
    attack("output_subdir writes elsewhere",
           lambda place: {"hydra": {"output_subdir": "x", "run": {"dir": str(place.canary)}}}),
    attack("run.dir with chdir",
           lambda place: {"hydra": {"job": {"chdir": True}, "run": {"dir": str(place.canary)}}}),
    attack("a launcher of Hydra's runs a command",
           _target("hydra.launcher", _target_="os.system", command="touch {canary}/ran"),
           "preset sweep", "typed sweep", "sweep resume", "sweep resume dry"),
    attack("a sweeper of Hydra's runs a command",
           _target("hydra.sweeper", _target_="os.system", command="touch {canary}/ran"),
           "preset sweep", "typed sweep", "sweep resume", "sweep resume dry"),
    attack("a list of callbacks of Hydra",
           _target("hydra.callbacks", node=[{"_target_": "os.system", "command": "true"}])),
]  # fmt: skip

# --- names that run, write, delete, load or download, wherever a name may stand

TARGETS = [
    attack("a model removes a folder",
           _target("model", _target_="dtrain.controller.folders.remove", path="{canary}/folder")),
    attack("a callback overwrites a file", _target(
        "trainer.callbacks.[]", _target_="dtrain.run.folder.write_text", path="{canary}/file.txt",
        text="")),
    attack("a metric overwrites a file", _target(
        "trainer.metrics.[]", _target_="dtrain.run.checkpoint.disk.write", path="{canary}/file.txt",
        data="")),
    attack("a data set removes a file", _target(
        "dataset", _target_="dtrain.files.writing.remove", path="{canary}/file.txt")),
    attack("a loss starts a process", _target(
        "trainer.loss", _target_="dtrain.host.forkserver.Process", target="x")),
    attack("a metric of loaded code", _target(
        "trainer.metrics.[]", _target_="keras.src.utils.python_utils.func_load", code=_code())),
    attack("a data set is downloaded", _target(
        "dataset", _target_="keras.utils.get_file", fname="{canary}/ran",
        origin="http://127.0.0.1:{port}/x")),
    attack("a model removes a folder by Keras", _target(
        "model", _target_="keras.src.utils.file_utils.rmtree", path="{canary}/folder")),
    attack("a model copies a file by Keras", _target(
        "model", _target_="keras.src.utils.file_utils.copy", src="{canary}/file.txt",
        dst="{canary}/ran")),
    attack("a model is loaded unsafely", _target(
        "model", _target_="keras.models.load_model", filepath="{canary}/file.txt",
        safe_mode=False)),
    attack("a model is loaded unsafely by its other name", _target(
        "model", _target_="keras.saving.load_model", filepath="{canary}/file.txt",
        safe_mode=False)),
    attack("a callback turns safety off", _target(
        "trainer.callbacks.[]", _target_="keras.config.enable_unsafe_deserialization")),
    attack("a layer is deserialized", _target(
        "model", _target_="keras.layers.deserialize", config={"class_name": "Lambda"})),
    attack("a metric is deserialized", _target(
        "trainer.metrics.[]", _target_="keras.metrics.deserialize",
        config={"module": "os", "class_name": "function", "config": "system"})),
    attack("a model is made of JSON", _target(
        "model", _target_="keras.models.model_from_json", json_string="{}")),
    attack("a model is made by a class method", _target(
        "model", _target_="keras.Sequential.from_config", config={})),
    attack("a SavedModel as a layer", _target(
        "model", _target_="keras.layers.TFSMLayer", filepath="{canary}/folder")),
    attack("a module inside a trusted one", _target(
        "model", _target_="dtrain.datasets.np.fromfile", file="{canary}/file.txt")),
    attack("the built-ins of a trusted module", _target(
        "model", _target_="dtrain.models.__builtins__.exec", source="1")),
    attack("the globals of a trusted function", _target(
        "model", _target_="dtrain.models.mlp.__globals__.get", key="x")),
    attack("a method of a class that is trusted", _target(
        "trainer.callbacks.[]", _target_="keras.callbacks.Callback.__subclasses__")),
    attack("the command line as a model", _target("model", _target_="dtrain.__main__.main")),
    attack("the synchronisation as a model", _target(
        "model", _target_="dtrain.controller.commands.sync.sync", path="{canary}", to="http://127.0.0.1:{port}")),
    attack("the interpreter's exit as an optimizer", _target("optimizer", _target_="sys.exit")),
    attack("a command as a strategy", _target(
        "strategy", _target_="subprocess.run", name="x", args="touch {canary}/ran")),
    attack("a command as a launcher", _target(
        "launcher", _target_="os.system", command="touch {canary}/ran"),
        "typed dry", "experiment dry", "resume dry"),
    attack("a command nested in an argument", _target(
        "model", **forge.MODEL,
        extra=[{"a": {"_target_": "os.system", "command": "touch {canary}/ran"}}])),
    attack("a command in an augmentation", _target(
        "dataset.augment", _target_="os.system", command="touch {canary}/ran")),
    attack("a command in a schedule", _target(
        "optimizer.learning_rate", _target_="os.system", command="touch {canary}/ran")),
    attack("a partial command", _target(
        "trainer.callbacks.[]", _target_="keras.callbacks.LambdaCallback",
        on_epoch_end={"_target_": "os.system", "_partial_": True})),
    attack("a name by a reference", lambda place: {
        "name": "os.system",
        "model": {"_target_": "${name}", "command": _touch(place)}}),
    attack("a name by a default of the environment", lambda place: {
        "model": {"_target_": "${oc.env:NO_SUCH_VARIABLE,os.system}", "command": _touch(place)}}),
    attack("a name that is decoded", lambda place: {
        "model": {"_target_": "${oc.decode:os.system}", "command": _touch(place)}}),
    attack("a node that is decoded", lambda place: {
        "trainer": {"loss": "${oc.decode:'{_target_: os.system, command: x}'}"}}),
    attack("a node that is created", lambda place: {
        "trainer": {"loss": "${oc.create:{_target_:os.system,command:x}}"}}),
    *(
        attack(f"the name {name!r:.40}", _target("model", _target_=name))
        for name in (
            "", ".", "dtrain", "dtrain.", "dtrain..models.mlp", ".dtrain.models.mlp",
            "dtrain.models.mlp ", "dtrain.models.mlp\n", "\uff44train.models.mlp",
            "dtrain/models.mlp",
            "dtrain.models.\x1b[31mmlp", "keras.layers." + "x." * 5000 + "y", "kerasx.boom",
            "tests_evil.boom", "dtrain_evil.boom",
        )
    ),
    attack("a list as a name", _target("model", _target_=["os", "system"])),
    attack("a table as a name", _target("model", _target_={"a": "os.system"})),
    attack("a number as a name", _target("model", _target_=1)),
]  # fmt: skip

# --- callbacks that write where they like

WRITES = [
    attack(f"{name} writes elsewhere: {path}",
           _target("trainer.callbacks.[]", _target_=f"keras.callbacks.{name}", **{key: path}))
    for name, key, path in (
        ("ModelCheckpoint", "filepath", "{canary}/ran.keras"),
        ("CSVLogger", "filename", "{canary}/file.txt"),
        ("CSVLogger", "filename", "../../../../canary/file.txt"),
        ("BackupAndRestore", "backup_dir", "{canary}/folder"),
        ("TensorBoard", "log_dir", "{canary}/folder"),
    )
]  # fmt: skip

# --- kinds: what is no model where a model is wanted, and so on

WRONG_KINDS = [
    attack(f"{name} as {where}", _target(where, _target_=name))
    for where, name in (
        ("model", "keras.callbacks.EarlyStopping"),
        ("dataset", "dtrain.models.mlp"),
        ("optimizer", "keras.losses.MeanSquaredError"),
        ("trainer.callbacks.[]", "keras.layers.Dense"),
        ("trainer.metrics.[]", "keras.callbacks.CSVLogger"),
        ("trainer.loss", "keras.callbacks.EarlyStopping"),
    )
] + [
    attack(f"{name} as {where}", _target(where, _target_=name),
           "typed dry", "experiment dry", "resume dry")
    for where, name in (
        ("launcher", "dtrain.models.mlp"),
        ("launcher", "dtrain.controller.launchers.Launcher"),
        ("launcher", "dtrain.controller.launchers.base.Launcher"),
        ("strategy", "dtrain.models.mlp"),
    )
]  # fmt: skip

# --- references: loops, bombs, and what they may not read out

_SECRET = "${oc.env:HOSTILE_API_KEY}"


def _bomb(place: Place) -> Node:
    model = {**forge.MODEL, "x0": "ha" * 10}
    model |= {f"x{n}": f"${{model.x{n - 1}}}" * 10 for n in range(1, 12)}
    return {"model": model}


REFERENCES = [
    attack("a reference to itself", lambda place: {"name": "${name}"}),
    attack("references in a circle",
           lambda place: {"name": "${objective}", "objective": "${output_dir}",
                          "output_dir": "${name}"}, forks=(0,)),
    attack("a reference to a whole that holds it",
           lambda place: {"model": {**forge.MODEL, "x": "${model}"}}),
    attack("a list that refers to itself",
           lambda place: {"model": {**forge.MODEL, "units": "${model.units}"}}),
    attack("references that double", _bomb),
    attack("a resolver that is not there", lambda place: {"name": "${os.system:touch}"}),
    attack("a reference to nothing", lambda place: {"name": "${no.such.key}"}),
    attack("a reference without an end", lambda place: {"name": "${oc.env:HOME"},
           "experiment", "experiment dry"),
    attack("references nested deeply", lambda place: {"name": "${" * 2000 + "}" * 2000},
           "experiment", "experiment dry"),
    attack("a variable named by the secret",
           lambda place: {"name": "${oc.env:" + _SECRET + "}"}),
    attack("a key named by the secret", lambda place: {"name": "${oc.select:" + _SECRET + "}"}),
    attack("the secret as a number", lambda place: {"seed": _SECRET}),
    attack("the secret decoded", lambda place: {"seed": "${oc.decode:'[" + _SECRET + "'}"}),
    attack("the secret as a choice", lambda place: {"objective_mode": _SECRET}),
    attack("the secret as a name of a function",
           lambda place: {"model": {"_target_": f"dtrain.models.{_SECRET}"}}, codes=(0, 2)),
    attack("the secret as a key of a model",
           lambda place: {"model": {**forge.MODEL, "units": _SECRET}}),
    attack("the secret sent by an address", lambda place: {
        "tracking": {"uri": f"http://127.0.0.1:{place.port}/{_SECRET}"}},
        "resume", "fork", "sweep resume", says="HOSTILE_API_KEY"),
    attack("the secret sent as a password", lambda place: {
        "tracking": {"uri": f"http://x:{_SECRET}@127.0.0.1:{place.port}"}},
        "resume", "fork", "sweep resume", says="HOSTILE_API_KEY"),
    attack("the secret as a name of an experiment", lambda place: {
        "tracking": {"experiment": _SECRET,
                     "uri": f"http://127.0.0.1:{place.port}"}},
        "resume", "fork", "sweep resume", says="HOSTILE_API_KEY"),
    attack("data at an address", lambda place: {
        "dataset": {"path": f"http://127.0.0.1:{place.port}/x.npz"}},
        "resume", "resume dry", "fork", "fork dry", "sweep resume", "sweep resume dry",
        says="dataset.path=http://127.*: "),  # of a dataset that takes no path, here
]  # fmt: skip

#: The first of each table were found in use, and stay in the default suite.
CASES = [
    dataclasses.replace(case, kept=number < kept)
    for table, kept in ((HYDRA, 5), (TARGETS, 12), (WRITES, 2), (WRONG_KINDS, 2), (REFERENCES, 0))
    for number, case in enumerate(table)
]
