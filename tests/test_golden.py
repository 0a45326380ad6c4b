"""What users see is as the golden files have it: a sample here, all of them by ``make golden``."""

from __future__ import annotations

import json

import pytest

from tests.golden import __main__ as golden
from tests.golden import faces, kept, numbers
from tests.sampled import sampled

SAMPLE = [f"numbers/{name}" for name in numbers.SAMPLE] + [f"faces/{n}" for n in faces.SAMPLE]


@pytest.mark.parametrize("name", sampled(golden.files(), *SAMPLE))
def test_it_is_as_it_was(name: str) -> None:
    if name.startswith("faces/") and kept.machine()["python"] != "3.11":
        pytest.skip("argparse and tracebacks lay out their text in other ways")
    lines = golden.compare(name)
    assert not lines, "\n".join(["see tests/golden: python -m tests.golden --write", *lines])


def test_each_file_is_of_a_case_and_each_case_has_one() -> None:
    there = {path for folder in (kept.FOLDER, faces.FOLDER) for path in folder.iterdir()}
    assert there == {*golden.files().values()}


def test_the_tables_are_as_large_as_they_should_be() -> None:
    lines = [line for scene in faces.scenes().values() for line in scene]
    calls = [line for line in lines if line.startswith(">>> ")]
    commands = [line for line in lines if not line.startswith((">>> ", "! ", "mlflow"))]
    assert len(commands) >= 150 and len(calls) >= 40 and len(numbers.cases()) >= 60


def test_a_difference_is_a_sentence() -> None:
    path = kept.FOLDER / "one_device_mlp.json"
    before, now = (json.loads(path.read_text()) for _ in range(2))
    assert kept.differences(before, now, exact=True) == []
    now["points"][9]["loss"] *= 1 + 1e-7
    name = next(iter(now["arrays"]))
    now["arrays"][name] = now["arrays"][name][:-1] + "x"
    loss, array = kept.differences(before, now, exact=True)
    values = f"{now['points'][9]['loss']} for {before['points'][9]['loss']}"
    assert loss == f"loss at step 10: {values}"
    assert array.startswith(f"array {name}: F32 ")
    assert kept.differences(before, now, exact=False) == []
    now["points"][9]["loss"] *= 1.001
    del now["points"][49]["val_loss"]
    now["notices"].append("new")
    lines = kept.differences(before, now, exact=False)
    assert [line.partition(":")[0] for line in lines] == [
        "loss at step 10", "val_loss at step 50", "notice 'new'",
    ]  # fmt: skip
    assert lines[1].startswith("val_loss at step 50: nothing for ")
    assert kept.few([*"abcdefg"]) == [*"abcde", "... and 2 more"]
