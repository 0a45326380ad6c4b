"""What the user names in a command may be called; what a folder from elsewhere names may not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dtrain.config import private, targets, trust
from dtrain.errors import UsageError
from dtrain.host import python_path
from dtrain.tracking.delivery import Delivery

PACKAGE = """
import builtins, functools, os, subprocess
from functools import partial
from os import system
import tother
from tother import make
import dtrain.files.writing as writing

def create_model(name="x", **more):
    return name

class Net:
    load = classmethod(lambda cls: cls())
"""
KEY = "model._target_"


@pytest.fixture(autouse=True)
def _packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install ``ttimm`` and ``tother``, in a distribution of another name; put ``loose`` beside."""
    monkeypatch.delenv("DTRAIN_TRUST", raising=False)
    site = tmp_path / "site"
    (site / "ttimm_models-1.0.dist-info").mkdir(parents=True)
    for name, text in {
        "site/ttimm_models-1.0.dist-info/METADATA":
            "Metadata-Version: 2.1\nName: ttimm-models\nVersion: 1.0\n",
        "site/ttimm_models-1.0.dist-info/top_level.txt": "ttimm\ntother\n",
        "site/ttimm.py": PACKAGE, "site/tother.py": "def make():\n    return 3\n",
        "site/loose.py": "def make():\n    return 4\n",
        "tmine.py": "import os\nimport tother\ndef build():\n    return 5\n",
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(site))
    yield
    for name in ("ttimm", "tother", "loose", "tmine"):
        sys.modules.pop(name, None)


def call(target: str, key: str = "model") -> Any:
    trust.check({key: {"_target_": target}})
    return targets.instantiate({"_target_": target}, key)


def test_an_installed_package_that_the_user_names(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'ttimm' is not trusted.*DTRAIN_TRUST=ttimm"):
        call("ttimm.create_model")
    trust.begin(["model=custom", "model._target_=ttimm.create_model"])
    assert call("ttimm.create_model") == "x"
    trust.begin(["model={_target_: ttimm.Net.load}", "trainer.loss={_target_: tother.make}"])
    assert type(call("ttimm.Net.load")).__name__ == "Net" and call("tother.make") == 3
    (tmp_path / "presets" / "model").mkdir(parents=True)
    (tmp_path / "presets" / "model" / "net.yaml").write_text("_target_: ttimm.make\n")
    trust.begin(["model=net"], str(tmp_path / "presets"))
    assert call("ttimm.make") == 3, "another installed package defines it"
    trust.begin(["+launcher._target_=tmine.build"])
    assert call("tmine.build", "launcher") == 5


@pytest.mark.parametrize(
    "target",
    [
        "os.system", "builtins.eval", "subprocess.run", "functools.partial", "posix.system",
        "ttimm.os.system", "ttimm.system", "ttimm.builtins.eval", "ttimm.subprocess.run",
        "ttimm.functools.partial", "ttimm.partial", "tmine.os.system", "keras.utils.get_file",
        "keras.utils.io_utils.os.system", "ttimm.writing.write_bytes",
        "dtrain.files.writing.remove", "loose.make", "ttimm.Net.__subclasses__",
        "ttimm.create_model.__globals__.clear",
        "tmine.tother.make.__call__", "keras.layers.Lambda", "keras.saving.load_model",
    ],
)  # fmt: skip
def test_what_runs_code_of_others_is_refused_when_typed(target: str) -> None:
    trust.begin([f"model._target_={target}"])
    with pytest.raises(UsageError, match=rf"model\._target_={target}: "):
        call(target)
    with pytest.raises(UsageError):
        trust.locate(target, KEY)


def test_a_folder_from_elsewhere_names_nothing() -> None:
    words = ["model=custom", "model._target_=ttimm.create_model"]
    trust.begin(["resume=run"])
    private.accept("resume", "run", private.sign_command(words, None, None), ["resume=run"])
    assert call("ttimm.create_model") == "x", "one of the user's own"
    trust.begin(["resume=run"])
    forged = {"overrides": words, "config_dir": None, "signature": "forged"}
    private.accept("resume", "run", forged, ["resume=run"])
    for target in ("ttimm.create_model", "tmine.tother.make", "os.system", "tmine.os.system"):
        with pytest.raises(UsageError):
            call(target)
    assert call("tmine.build") == 5, "the user's own project, as ever"
    with pytest.raises(UsageError):
        call("tmine.build", "launcher")


def test_what_is_typed_beside_the_words_of_a_folder_from_elsewhere() -> None:
    words = ["fork=run", "model._target_=ttimm.create_model"]
    theirs = ["model=custom", "+trainer.callbacks=[{_target_: ttimm.create_model}]"]
    trust.begin(words)
    private.accept("fork", "run", {"overrides": theirs}, words)
    assert call("ttimm.create_model") == "x"
    with pytest.raises(UsageError, match="'ttimm' is not trusted"):
        trust.check({"trainer": {"callbacks": [{"_target_": "ttimm.create_model"}]}})


def test_tasks_may_call_what_their_command_has_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    trust.begin(["model._target_=ttimm.make"])
    trust.check({"model": {"_target_": "ttimm.make"}})
    for name, value in python_path.handed().items():
        monkeypatch.setenv(name, value)
    python_path.granted.set(None)
    assert targets.instantiate({"_target_": "ttimm.make"}, "model") == 3
    for target in ("ttimm.create_model", "ttimm.os.system", "os.system"):
        with pytest.raises(UsageError):
            trust.locate(target, KEY)


def test_one_command_leaves_nothing_to_the_next() -> None:
    trust.begin(["model._target_=ttimm.create_model", "name=${oc.env:HOME}"])
    assert call("ttimm.create_model") == "x" and private.allowed("HOME")
    with trust.begun():
        assert not private.allowed("HOME")
    assert private.allowed("HOME")
    trust.begin(["model=cnn"])
    assert not private.allowed("HOME")
    with pytest.raises(UsageError):
        call("ttimm.create_model")
    assert {kind.package for kind in trust.EVERY} < set(trust.KNOWN)


def test_a_thread_of_a_command_reads_what_the_command_may() -> None:
    trust.begin(["name=${oc.env:HOME}"])
    delivery = Delivery("nowhere", lambda last: private.allowed("HOME"), lambda: None, print)
    assert delivery.finish(("FINISHED", 1.0))
