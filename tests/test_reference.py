"""The page of all keys and the schemas of editors are what the code gives."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator
from omegaconf import OmegaConf
from referencing import Registry, Resource

from dtrain.config import help as key_help
from dtrain.config import schema
from tests import reference
from tests.options import options

CONF = schema.folder("conf")
SCHEMAS = reference.DOCS / "schemas"
COMMANDS = "## Commands"


def test_the_files_are_what_the_generator_gives() -> None:
    for path, text in reference.files().items():
        found = path.read_text(encoding="utf-8")
        if sys.version_info[:2] != (3, 11):  # argparse lays out its help in other ways
            found, text = (each.split(COMMANDS)[0] for each in (found, text))
        assert found == text, f"{path.name} is old: python -m tests.reference"
    pages = {"reference.md", "coming-from.md", "backends.md"}
    made = {path.name for path in reference.files()} - pages
    assert {path.name for path in SCHEMAS.iterdir()} == made


def test_every_key_and_every_option_is_there() -> None:
    text = (reference.DOCS / "reference.md").read_text(encoding="utf-8")
    keys = set(re.findall(r"^\| `([\w.]+)`(?: \(default\))? \|", text, re.M))
    every = key_help.keys()
    known = {key for key in every if not key.endswith("._target_")}
    known -= {"strategy.mesh"}  # a table of its own keys stands for it
    known |= {option.name for group in schema.GROUPS for option in options(group)}
    assert {key for key in keys if not key.startswith("hydra.sweeper.")} == known


# --- schemas of editors


def problems(name: str, node: Any) -> str:
    contents = {path.name: json.loads(path.read_text()) for path in SCHEMAS.glob("*.json")}
    resources = [(file, Resource.from_contents(each)) for file, each in contents.items()]
    whole = contents[f"{name}.json"]
    Draft7Validator.check_schema(whole)
    validator = Draft7Validator(whole, registry=Registry().with_resources(resources))
    return "; ".join(error.message for error in validator.iter_errors(node))


FILES = [
    *((path, str(path.parent.relative_to(CONF)).replace("/", "-"))
      for path in sorted(CONF.rglob("*.yaml")) if path.parent != CONF),
    (CONF / "config.yaml", "experiment"),
    *((path, "experiment") for path in sorted(schema.folder("experiments").glob("*.yaml"))),
]  # fmt: skip


@pytest.mark.parametrize(("path", "name"), FILES, ids=lambda each: getattr(each, "stem", each))
def test_shipped_files_fit_their_schema(path: Path, name: str) -> None:
    node: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    name = name.replace("strategy-rules", "strategy")  # where the rules of a mesh are put
    assert not problems(name, node)
    if node:
        misspelt = {f"{key}x" if key != "_target_" else key: each for key, each in node.items()}
        is_open = path.stem == "custom"
        assert bool(problems(name, misspelt)) != is_open


@pytest.mark.parametrize(
    ("name", "node", "told"),
    [
        ("trainer", {"epoch": 3}, "'epoch' is not one of"),
        ("trainer", {"epochs": 0}, "0 is not valid under any"),
        ("trainer", {"epochs": "${oc.env:EPOCHS}"}, ""),
        ("optimizer", {"defaults": ["sgd"], "learning_rte": 0.1}, "'learning_rte' is not one of"),
        ("optimizer", {"_target_": "mine.Lion", "sharpness": 0.1}, ""),
        ("hardware", {"precision": "float23"}, "'float23' is not valid under any"),
        ("experiment", {"trainer": {"epoch": 3}}, "'epoch' is not one of"),
        ("experiment", {"checkpoint": {"keeps": 3}}, "'keeps' was unexpected"),
        ("experiment", {"modle": {}}, "'modle' was unexpected"),
        ("strategy", {"mesh": {"batches": 2}}, "'batches' was unexpected"),
    ],
)
def test_what_an_editor_marks(name: str, node: dict[str, Any], told: str) -> None:
    found = problems(name, node)
    assert told in found if told else not found


# --- the shell


def test_bash_completes_options_keys_and_commands() -> None:
    """By the script that the command prints, as a shell calls it."""
    script = """
        eval "$(dtrain --shell-completion install=bash)"
        for line in "dtrain strategy=mi" "dtrain model=mlp trainer.validation_b" \
            "dtrain pred" "dtrain predict outputs/a work" "dtrain predict outputs/a format=p"; do
            COMP_LINE=$line COMP_POINT=${#line} COMP_WORDS=($line)
            COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
            hydra_bash_completion
            echo "${COMPREPLY[@]}"
        done
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script], env={**os.environ, "PATH": path},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.stdout.split() == [
        "strategy=mirrored", "trainer.validation_batch_size=", "predict", "workers=",
        "format=parquet",
    ], done  # fmt: skip
