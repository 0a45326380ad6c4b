"""SLURM's lists of hosts: written out, and compared with SLURM's own where there is one."""

from __future__ import annotations

import random
import shutil
import subprocess

import pytest

from dtrain.controller.launchers.cluster_env.slurm import MOST, hosts, tasks

LISTS = {
    "n1": ["n1"],
    "n1,n10": ["n1", "n10"],
    "n[1-2],n10": ["n1", "n2", "n10"],
    "n[1-2,05-10]": ["n1", "n2", "n05", "n06", "n07", "n08", "n09", "n10"],
    "n[008-011]": ["n008", "n009", "n010", "n011"],
    "n[09-10],n[99-101]": ["n09", "n10", "n99", "n100", "n101"],
    "x[1-2]y[3]": ["x1y3", "x2y3"],
    "r[1-2]n[01-02]-ib": ["r1n01-ib", "r1n02-ib", "r2n01-ib", "r2n02-ib"],
    "gpu-[3].cluster": ["gpu-3.cluster"],
    "[1-3]": ["1", "2", "3"],
    "a-1,b[2,4]": ["a-1", "b2", "b4"],
    "host-a.example.org,host-b": ["host-a.example.org", "host-b"],
}


@pytest.mark.parametrize("text", LISTS)
def test_a_list(text: str) -> None:
    assert hosts(text) == LISTS[text]


@pytest.mark.skipif(shutil.which("scontrol") is None, reason="SLURM's scontrol is not installed")
def test_lists_as_slurm_itself_reads_them() -> None:
    draw = random.Random(0)

    def bracket() -> str:
        ranges = []
        for _ in range(draw.randint(1, 3)):
            first = draw.randint(0, 120)
            width = draw.choice((1, 1, 2, 3))
            last = first + draw.randint(0, 12)
            ranges.append(draw.choice((f"{first:0{width}}", f"{first:0{width}}-{last:0{width}}")))
        return f"[{','.join(ranges)}]"

    def name() -> str:
        parts = [draw.choice(("n", "node", "rack-a", "x1y"))]
        for _ in range(draw.randint(0, 2)):
            parts += [bracket(), draw.choice(("", "n", "-ib"))]
        return "".join(parts)

    texts = [",".join(name() for _ in range(draw.randint(1, 3))) for _ in range(60)]
    for text in [*LISTS, *texts]:
        done = subprocess.run(
            ["scontrol", "show", "hostnames", text], capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            assert hosts(text) == done.stdout.split(), text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "has a bracket that does not end, one in another, or a space"),
        ("n1 n2", "has a bracket that does not end, one in another, or a space"),
        ("n[1-2", "has a bracket that does not end, one in another, or a space"),
        ("n]1", "has a bracket that does not end, one in another, or a space"),
        ("n[1,[2]]", "has a bracket that does not end, one in another, or a space"),
        (",", "names no host"),
        ("n[]", "'' in brackets is no range of numbers"),
        ("n[a-b]", "'a-b' in brackets is no range of numbers"),
        ("n[1-]", "'1-' in brackets is no range of numbers"),
        ("n[3-1]", "'3-1' in brackets is no range of up to 65,536 numbers"),
        ("n[0-99999999]", "'0-99999999' in brackets is no range of up to 65,536 numbers"),
        ("n[1-300]m[1-300]", "stands for more than 65,536 hosts"),
    ],
)
def test_what_is_no_list(text: str, problem: str) -> None:
    with pytest.raises(ValueError) as caught:
        hosts(text)
    assert str(caught.value) == problem


def test_numbers_of_tasks() -> None:
    assert tasks("2(x3),1") == [2, 2, 2, 1]
    assert tasks("4") == [4]
    for text, problem in {
        "": "'' is no number of tasks",
        "2(x)": "'2(x)' is no number of tasks",
        "-1": "'-1' is no number of tasks",
        f"1(x{MOST + 1})": "stands for more than 65,536 hosts",
    }.items():
        with pytest.raises(ValueError) as caught:
            tasks(text)
        assert str(caught.value) == problem
