"""What a dry run tells of a model that is taken apart, and that it trains nothing."""

from __future__ import annotations

from pathlib import Path


def bytes_of(output: str, name: str) -> tuple[int, int]:
    [line] = [line for line in output.splitlines() if line.strip().startswith(name)]
    whole, own = line.split()[-2:]
    return int(whole.replace(",", "")), int(own.replace(",", ""))


def test_a_dry_run_shows_the_layouts(dtrain, quick, tmp_path: Path) -> None:
    run = dtrain(*quick, "strategy=model_parallel", "hardware.devices=4", "dry_run=true")
    assert run.code == 0, run.output
    assert "mesh                 1 x 4 (batch x model)" in run.output
    words = [line.split() for line in run.output.splitlines()]
    assert ["dense/kernel", "8", "x", "16", "split", "1", "512", "128"] in words
    assert ["dense/bias", "16", "split", "0", "64", "16"] in words
    assert ["dense_1/bias", "4", "whole", "16", "16"] in words
    whole, own = 512 + 64 + 256 + 16, 128 + 16 + 64 + 16
    assert bytes_of(run.output, "all variables") == (whole, own)
    scalars = 4 + 4  # iteration, learning rate
    assert bytes_of(run.output, "optimizer") == (2 * whole + scalars, 2 * own + scalars)
    assert "nothing was started" in run.output
    assert not list(tmp_path.iterdir())


def test_a_dry_run_shows_the_layers(dtrain, quick, tmp_path: Path) -> None:
    run = dtrain(
        *quick, "strategy=layer_placement", "strategy.rules=[{layer: dense_1, device: 1}]",
        "dry_run=true",
    )  # fmt: skip
    assert run.code == 0, run.output
    words = [line.split() for line in run.output.splitlines()]
    at = words.index(["layer", "device", "bytes"])
    assert words[at + 1 :] == [
        ["flatten", "CPU:0", "0"],
        ["dense", "CPU:0", "576"],
        ["dense_1", "CPU:1", "272"],
        ["all", "variables", "CPU:0", "576"],
        ["all", "variables", "CPU:1", "272"],
        ["optimizer", "CPU:0", f"{2 * 576 + 8 + 4:,}"],  # iteration, learning rate
        ["optimizer", "CPU:1", f"{2 * 272:,}"],
        ["dry_run=true:", "nothing", "was", "started"],
    ]
    assert not list(tmp_path.iterdir())


def test_layers_of_a_model_that_nobody_made_for_this(dtrain) -> None:
    run = dtrain(
        "strategy=layer_placement", "hardware.devices=3", "dry_run=true", "tracking=none",
        "model=custom", "model._target_=keras.applications.MobileNetV2", "+model.weights=null",
        "+model.alpha=0.35", "dataset=synthetic", "dataset.shape=[32,32,3]",
        "dataset.examples=64", "dataset.validation_examples=0", "objective=loss",
    )  # fmt: skip
    assert run.code == 0, run.output
    lines = [line.split() for line in run.output.splitlines() if "all variables" in line]
    sizes = [int(line[-1].replace(",", "")) for line in lines]
    assert len(sizes) == 3
    assert max(sizes) < 0.45 * sum(sizes), "the largest layer is a tenth of it"
    found = [line.split()[1] for line in run.output.splitlines() if line.strip()[:6] == "block_"]
    assert found == sorted(found), "in runs"
    assert len(found) > 100


def test_what_is_wrong_is_told_as_by_a_run(dtrain, quick) -> None:
    mesh = (*quick, "strategy=hybrid", "dry_run=true")
    run = dtrain(*mesh, "strategy.rules=[{path: kernal, split: 0}]")
    assert run.code == 2
    assert "error: strategy.rules=kernal: no variable of this model has such a path" in run.output
    run = dtrain(*mesh, "model.classes=2")
    assert (run.code, "error: model=2 outputs: " in run.output) == (2, True)


def test_a_person_s_model_may_fail_or_die(dtrain, quick, user_code) -> None:
    user_code("import os\n\ndef fails():\n    1 / 0\n\ndef dies():\n    os._exit(3)\n")
    mesh = (*quick[2:], "strategy=hybrid", "dry_run=true", "tracking=none", "model=custom")
    mesh = tuple(word for word in mesh if not word.startswith("model.units"))
    run = dtrain(*mesh, "model._target_=mine.fails")
    assert (run.code, "error: ZeroDivisionError: division by zero" in run.output) == (1, True)
    run = dtrain(*mesh, "model._target_=mine.dies")
    assert (run.code, "the process that builds the model died" in run.output) == (1, True)
