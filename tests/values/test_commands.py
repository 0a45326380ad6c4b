"""Values that nobody means, through the command line: exit 2, one sentence, nothing left."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from dtrain.config import check, schema
from dtrain.errors import UsageError
from dtrain.host import commands
from tests.test_schema import node

#: Contents of a preset that no line of ``mistakes.txt`` can have.
PRESETS = {
    "a: " + "[" * 5000 + "]" * 5000: "error: ",
    "a: " + "x" * 2**22: "is longer than 4,194,304 bytes",
    "a: \udcff": "'utf-8' codec",
}


@pytest.mark.parametrize("text", PRESETS, ids=lambda text: repr(text[:40]))
def test_presets_that_are_none(text: str, dtrain: Any) -> None:
    Path("model").mkdir()
    Path("model/mine.yaml").write_bytes(text.encode(errors="surrogateescape"))
    run = dtrain("--config-dir", ".", "model=mine", "dry_run=true")
    assert run.code == 2 and PRESETS[text] in run.output and "Traceback" not in run.output


def _is_ours(word: str) -> bool:
    """Say whether a word chooses no option that only a user's project has."""
    group, _, option = word.partition("=")
    experiments = [path.stem for path in schema.folder("experiments").glob("*.yaml")]
    options = {**{name: schema.options(name) for name in schema.GROUPS}, "experiment": experiments}
    return group != "project" and option in options.get(group, [option])


def _commands() -> list[list[str]]:
    """Return the overrides of the commands that the documents show and that begin a run."""
    root = Path(schema.__file__).parents[3]
    pages = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages).replace("\\\n", " ")
    lines = re.findall(r"^(?:\$ )?(?:\S*/)?python -m dtrain (.+)$", text, re.M)
    typed = [
        shlex.split(each, comments=True) for each in dict.fromkeys(lines) if "HOST:PORT" not in each
    ]
    other = ("resume=", "fork=", "sweep.resume=", "hydra.", "-")
    trains = [words for words in typed if words and words[0] not in commands.names()]
    return [w for w in trains if all(_is_ours(word) and not word.startswith(other) for word in w)]


@pytest.mark.parametrize("words", _commands(), ids=" ".join)
def test_commands_of_the_documents_are_taken(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {
        "MY_KEY": "k" * 20, "MY_PASSWORD": "p" * 20, "MLFLOW_EXPERIMENT_NAME": "mine",
        "MLFLOW_TRACKING_URI": "http://127.0.0.1:5000",
    }  # fmt: skip
    for name, value in {**given, "DTRAIN_ENV": ",".join(given)}.items():
        monkeypatch.setenv(name, value)
    config = node(*words)
    try:
        check.check(config)
    except UsageError as error:
        assert "batch_size=63" in str(error)
