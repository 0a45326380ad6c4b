"""What nobody had named: stores, texts and addresses that reach further than they seem to."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any

from tests.hostile import forge
from tests.hostile.harness import Case, Ended, Place


def _artifacts_elsewhere(place: Place) -> None:
    """A store that came with its outputs says that artifacts belong to another place."""
    with closing(sqlite3.connect(place.outputs / "mlflow.db")) as store, store:
        store.execute(
            "UPDATE experiments SET artifact_location = ?", [(place.canary / "folder").as_uri()]
        )


def _another_database(place: Place) -> None:
    """The store that a run names is a database of another program's."""
    path = place.canary / "app.db"
    with closing(sqlite3.connect(path)) as store, store:
        store.execute("CREATE TABLE mail (text TEXT)")
    forge.edit_yaml(
        place.stopped / "config.yaml", lambda c: c["tracking"].update(uri=f"sqlite:///{path}")
    )


def _of_another_run(place: Place) -> None:
    """A folder says that its MLflow run is that of another run of the user's."""
    about = json.loads((place.other / "tracking.json").read_text())
    about["token"] = "0" * 32
    (place.stopped / "tracking.json").write_text(json.dumps(about))
    shutil.copy(place.outputs / "mlflow.db", place.root / "before.db")


def _rows(path: Any, run_id: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as store:
        return [
            store.execute(f"SELECT {what} FROM {table} WHERE run_uuid = ? ORDER BY 1", [run_id])
            .fetchall()
            for what, table in (("status, name, end_time", "runs"), ("key, value, step", "metrics"),
                                ("key, value", "params"))
        ]  # fmt: skip


def _other_run_is_whole(place: Place, ended: Ended) -> Iterable[str]:
    run_id = json.loads((place.other / "tracking.json").read_text())["run_id"]
    before, after = (
        _rows(path, run_id) for path in (place.root / "before.db", place.outputs / "mlflow.db")
    )
    if before != after:
        yield f"changed another run in MLflow: {before} {after}"


#: Texts that a search for passwords or addresses takes long with, unless it is written well.
_TEXTS = {
    "beginnings of addresses": "http://" * 150_000,
    "addresses without an end": "://a:" * 200_000,
    "names of keys": "api_key=" * 120_000,
    "questions": "?a=" * 300_000,
    "one long word": "a" * 1_000_000,
    "one long name": "aA1" * 300_000 + "=x",
    "blanks": " " * 1_000_000,
    "brackets": "${" * 400_000,
}


def _error(text: str) -> Callable[[Place], None]:
    def build(place: Place) -> None:
        forge.edit(place.run / "result.json", lambda result: result.update(error=text))

    return build


def _key(text: str) -> Callable[[Place], None]:
    def build(place: Place) -> None:
        def change(config: dict[str, Any]) -> None:
            config["model"][text[:200_000]] = text[:200_000]

        forge.edit_yaml(place.run / "config.yaml", change)

    return build


def _a_home(place: Place) -> None:
    """The key of the user's commands is something else."""
    for path in [*place.home.rglob("key"), place.home / ".local/state/dtrain/key"]:
        forge.remove(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(place.canary / "file.txt")


def _group_of_a_bomb(place: Place) -> None:
    """Presets that include each other, twice each: a defaults list of 2**30."""
    for number in range(30):
        forge.preset(place, "model", (
            f"defaults:\n  - b{number + 1}@x: \n  - /model@x{number}: b{number + 1}\n"
            f"  - /model@y{number}: b{number + 1}\n  - _self_\n"), f"b{number}")  # fmt: skip
    forge.preset(place, "model", "a: 1\n", "b30")
    forge.preset(place, "model", "defaults:\n  - b0\n  - _self_\na: 1\n")


def _regular_expression(place: Place) -> None:
    place.words = ("hardware.remat=['(a+)+$','(((((a*)*)*)*)*)*b']",)


CASES = [
    Case("a store has its artifacts elsewhere", _artifacts_elsewhere,
         ("sync finished", "sync sweep"), (0, 1, 2)),
    Case("a store is another program's", _another_database, ("sync",), (1, 2)),
    Case("a folder has the MLflow run of another", _of_another_run, ("sync",), (0, 1, 2),
         look=_other_run_is_whole),
    *(
        Case(f"an error of {what}", _error(text), ("compare finished", "sync finished"), (0, 1, 2))
        for what, text in _TEXTS.items()
    ),
    *(
        Case(f"a key of {what}", _key(text),
             ("compare finished", "sync finished", "resume finished"), (0, 1, 2))
        for what, text in _TEXTS.items()
    ),
    Case("the user's key is a link", _a_home, ("new", "resume", "sync"), (0, 2)),
    Case("presets that include each other", _group_of_a_bomb, ("preset dry", "preset shown"), (2,),
         exits={"preset shown": (0, 2)}),
    Case("regular expressions without an end", _regular_expression, ("typed", "typed dry"), (0, 2)),
]  # fmt: skip
