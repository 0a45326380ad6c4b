"""Writes ``docs/zoo.md``, the zoo under every strategy: ``python -m tests.zoo``.

A row is measured, and written, at a time; a model that has a row already is left alone. So a run
that was stopped goes on where it was. Models that are named, or all by ``--anew``, are measured
again.
"""

from __future__ import annotations

import argparse
import math
import os
import time
import warnings
from pathlib import Path
from typing import Any

from dtrain.run.cluster import Task
from tests import warm
from tests.test_parameter_server import servers
from tests.test_strategies import together
from tests.test_zoo import (
    ALONE,
    CLOSE,
    NAMES,
    SEVERAL,
    STEPS,
    declared,
    needs_tensorflow,
    on_one,
    refusals,
    stands_for,
)

TABLE = Path(__file__).parents[1] / "docs" / "zoo.md"
#: Heading, and what the strategy is called in ``REFUSED`` of a model.
COLUMNS = {
    "Keras' `fit`": "fit",
    "`mirrored`, 4 replicas": "mirrored 4",
    "`central_storage`, 2 replicas": "central 2",
    "`multiworker`, 2 tasks": "multiworker",
    "`ps`, `update=sync`, 2 workers": "ps",
    "`hybrid`, 2 x 2, on JAX": "hybrid",
    "`mirrored`, 2 processes, on PyTorch": "torch",
}
NO_REFEREE, OF_TENSORFLOW, DRAWS = "no referee", "uses TensorFlow", "draws"
TEXT = f"""# The zoo

Typical models of Keras users, one file each in `tests/zoo/`. Each is trained for {STEPS} steps
and validated under every strategy, and compared with `one_device`; on `one_device` it is
compared with Keras' own `fit`. A number is the largest relative difference (absolute for
values below 1), rounded up to a power of ten, over all losses, metrics and values returned
by a step or the validation, and the mean size of each weight afterwards; for `fit` it is
that of an epoch. "refused" gives the error by which dtrain rejects the model before
training. If a model cannot be compared with `fit`, its file gives the reason. "{OF_TENSORFLOW}":
its code has operations of TensorFlow, and cannot run on PyTorch. "{DRAWS}": on PyTorch each process
draws its own random numbers. The limit is {CLOSE:.0e}. The table is written by
`python -m tests.zoo`.
"""


HOSTS = [Task("chief", 0, 1), Task("worker", 0, 1)]


def rounded(difference: float) -> str:
    """Return a power of ten that is not less."""
    return f"{10.0 ** math.ceil(math.log10(difference)):.0e}" if difference else "0"


def largest(one: Any, found: Any) -> float:
    """Return the worst difference of two trainings."""
    from tests.test_zoo import worst

    pairs = [*zip(found[0], one[0], strict=True), (found[1], one[1])]
    return max(worst(a, b)[0] for a, b in pairs)


def cell(name: str, one: Any, kind: str, devices: int, strategy: Any = None) -> str:
    """Train a model under a strategy and return what the table says of it."""
    from dtrain.errors import UsageError, behind
    from tests.test_zoo import trained

    try:
        return rounded(largest(one, trained(name, kind, devices, strategy)))
    except Exception as error:
        refused = behind(error)
        if not isinstance(refused, UsageError):
            return failed(error)
        said = str(refused).partition(": ")[2].partition("; accepted: ")[0]
        return f"refused: {one_line(said)}"


def failed(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"FAILED: {one_line(lines[-1])}"


def one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "/")[:300]


def alone(name: str) -> dict[str, str]:
    """Return the cells of the strategies that are one process."""
    from tests.test_zoo import trained

    one = trained(name, "OneDevice", 1)
    return {what: cell(name, one, *of) for what, of in SEVERAL.items()}


def on_a_mesh(name: str) -> dict[str, str]:
    from tests.test_meshes import mesh, one_device
    from tests.test_zoo import trained

    warnings.filterwarnings("ignore", "Explicitly requested dtype int64")  # of a user's counter
    one = None if "hybrid" in refusals(name) else trained(name, "", 1, one_device())
    return {"hybrid": cell(name, one, "", 1, mesh())}


def on_torch(name: str) -> dict[str, str]:
    if needs_tensorflow(name) or declared(name, "DRAWS", False):
        return {"torch": OF_TENSORFLOW if needs_tensorflow(name) else DRAWS}
    ones = warm.call(on_one, 1, {"names": [name]}, 300, "torch")
    return together(of_processes, HOSTS, 2, "torch", name=name, one=ones[name])[0]


def of_processes(
    cluster: Any, task: Any, devices: list[str], name: str, one: Any
) -> dict[str, str]:
    from dtrain.task.strategies import MultiWorker

    warnings.filterwarnings("ignore", "Explicitly requested dtype int64")
    return {"torch": cell(name, one, "", 1, MultiWorker(devices))}


def beside_fit(name: str) -> dict[str, str]:
    from tests.test_zoo import differences_from_fit

    found = differences_from_fit(name)
    return {"fit": rounded(max((far for far, *_ in found.values()), default=0.0))}


def of_a_cluster(cluster: Any, task: Any, devices: list[str], name: str) -> dict[str, str]:
    from dtrain.task.strategies import MultiWorker
    from tests.test_parameter_server import strategy_of
    from tests.test_zoo import trained

    what = "ps" if any(each.role == "ps" for each in cluster.tasks) else "multiworker"
    if what == "ps":
        strategy = strategy_of(cluster, task, "sync")
    else:
        strategy = MultiWorker(devices, cluster, task, "auto")
    return {what: cell(name, trained(name, "OneDevice", 1), "Default", 1, strategy)}


def measured(name: str) -> dict[str, str]:
    """Return the cells of a model; what broke down says so in its own."""
    parts: list[tuple[list[str], Any]] = [
        ([*SEVERAL], lambda: warm.call(alone, 4, {"name": name}, timeout=300)),
        (["hybrid"], lambda: warm.call(on_a_mesh, 4, {"name": name}, 300, "jax")),
        (["multiworker"], lambda: together(of_a_cluster, HOSTS, 2, name=name)[0]),
        (["torch"], lambda: on_torch(name)),
        (["ps"], lambda: together(of_a_cluster, servers(2, 1), 2, name=name)[0]),
    ]
    if name not in ALONE:
        parts.append((["fit"], lambda: warm.call(beside_fit, 1, {"name": name}, timeout=300)))
    cells = {"fit": NO_REFEREE}
    for whats, call in parts:
        try:
            cells |= call()
        except (AssertionError, EOFError, OSError) as error:  # the process has died, or hung
            cells |= {what: failed(error) for what in whats}
    return cells


def rows() -> dict[str, dict[str, str]]:
    """Return what the table has: by model, the cells by strategy."""
    found: dict[str, dict[str, str]] = {}
    lines = TABLE.read_text().splitlines() if TABLE.exists() else []
    for line in lines:
        if line.startswith("| ["):
            model, _, *cells = line.strip("| ").split(" | ")
            name = model.partition("]")[0].strip("[`")
            found[name] = dict(zip(COLUMNS.values(), cells, strict=True))
    return found


def write(table: dict[str, dict[str, str]]) -> None:
    heads = ["model", "what it stands for", *COLUMNS]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for name in sorted(table):
        cells = [table[name][what] for what in COLUMNS.values()]
        link = f"[`{name}`](../tests/zoo/{name}.py)"
        lines.append(f"| {' | '.join([link, stands_for(name), *cells])} |")
    aside = TABLE.with_suffix(".md.new")
    aside.write_text("\n".join([TEXT, *lines, ""]))
    aside.replace(TABLE)


def problems(name: str, cells: dict[str, str]) -> list[str]:
    """Return what is wrong with a row: a difference that is too large, another refusal."""
    refused, wrong = refusals(name), []
    for what, text in cells.items():
        if what == "fit" and name in ALONE:
            if text != NO_REFEREE:
                wrong.append(f"{name}, fit: {text}; its file says FIT = False")
        elif what in refused:
            if not (text.startswith("refused: ") and refused[what] in text):
                wrong.append(f"{name}, {what}: {text}; its file says {refused[what]!r}")
        elif what == "torch" and (needs_tensorflow(name) or declared(name, "DRAWS", False)):
            if text != on_torch(name)[what]:
                wrong.append(f"{name}, torch: {text}")
        elif not text.replace("e-", "").isdigit() or float(text) > CLOSE:
            wrong.append(f"{name}, {what}: {text}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.zoo", description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="measured again; all otherwise")
    parser.add_argument("--anew", action="store_true", help="leave no row of the table as it is")
    arguments = parser.parse_args()
    if unknown := sorted({*arguments.models} - {*NAMES}):
        parser.error(f"the zoo has no {', '.join(unknown)}")
    table = {name: cells for name, cells in rows().items() if name in NAMES}
    if arguments.anew:
        table = {}
    todo = arguments.models or [name for name in NAMES if name not in table]
    os.environ["DTRAIN_TRUST"] = "tests"
    for number, name in enumerate(todo, 1):
        begin = time.monotonic()
        table[name] = measured(name)
        write(table)
        print(f"{number}/{len(todo)} {name}: {time.monotonic() - begin:.0f} s", flush=True)
        print("".join(f"  {each}\n" for each in problems(name, table[name])), end="", flush=True)
    write(table)
    wrong = [each for name in sorted(table) for each in problems(name, table[name])]
    print(f"{TABLE}: {len(table)} models, {len(wrong)} wrong", *wrong, sep="\n")
    return bool(wrong)
