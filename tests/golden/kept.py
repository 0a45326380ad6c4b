"""What is kept of a training, as text, and how two such are compared."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import os
import platform
import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "numbers"
MACHINE = Path(__file__).parent / "machine.json"
#: Names of numbers that say how fast it went, and nothing of the model.
TIMES = re.compile(r".*(_seconds|_per_second)|system/.*")
#: Relative, and absolute, between machines of different kinds. Measured: with oneDNN's kernels for
#: SSE4.1 (ONEDNN_MAX_CPU_ISA=SSE41) and without oneDNN no number of eleven cases differs by more;
#: that of resnet does where its learning rate is 0.01.
CLOSE = 1e-6
SHOWN = 5


def machine() -> dict[str, Any]:
    """Return the kind of this machine: what may change the last bits of a number."""
    text = Path("/proc/cpuinfo").read_text()

    def of_cpu(name: str) -> str:
        found = re.search(rf"^{name}\s*: (.*)$", text, re.M)
        return found[1] if found else "unknown"

    flags = {*of_cpu("flags").split()}
    kinds = ("avx", "avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "avx_vnni")
    versions = {name: importlib.metadata.version(name) for name in ("tensorflow", "keras", "numpy")}
    return {
        "vendor": of_cpu("vendor_id"),
        "family": of_cpu("cpu family"),
        "model": of_cpu("model"),
        "instructions": [kind for kind in kinds if kind in flags],
        "python": ".".join(platform.python_version_tuple()[:2]),
        **versions,
        "onednn": True,  # as every case has it
        "onednn_max_cpu_isa": os.environ.get("ONEDNN_MAX_CPU_ISA", "all"),
    }


def is_the_machine() -> bool:
    """Whether the files were made on this kind of machine, so that every bit is compared."""
    return MACHINE.exists() and json.loads(MACHINE.read_text()) == machine()


def of_run(path: Path) -> dict[str, Any]:
    """Return what is kept of a run folder: one line of the file for each step and each array."""
    lines = (path / "journal.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines if line]
    points: dict[int, dict[str, Any]] = {}
    for event in events:
        if event["event"] == "metrics":
            of = {name: v for name, v in event["metrics"].items() if not TIMES.fullmatch(name)}
            points.setdefault(event["step"], {"epoch": event.get("epoch")}).update(of)
    evaluations = path / "evaluations.jsonl"
    after = evaluations.read_text().splitlines() if evaluations.exists() else ()
    checkpoints = sorted(int(each.name) for each in (path / "checkpoints").glob("[0-9]*"))
    return {
        "status": json.loads((path / "result.json").read_text())["status"],
        "notices": [
            event["message"].replace(str(Path.cwd()), "FOLDER")
            for event in events
            if event["event"] == "notice" and "% of the time" not in event["message"]
        ],
        "points": [{"step": step, **dict(sorted(points[step].items()))} for step in sorted(points)],
        "evaluations": [
            {"step": each["step"], **dict(sorted(each["metrics"].items()))}
            for each in map(json.loads, after)
        ],
        "checkpoints": checkpoints,
        "arrays": _arrays(path / "checkpoints" / str(checkpoints[-1]) / "state.safetensors"),
    }


def _arrays(path: Path) -> dict[str, str]:
    """Return type, shape and digest of what a file has, by https://github.com/huggingface/safetensors."""
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    found = {}
    for name, of in sorted(json.loads(data[8:begin]).items()):
        if name != "__metadata__":
            first, last = of["data_offsets"]
            digest = hashlib.sha256(data[begin + first : begin + last]).hexdigest()[:16]
            found[name] = f"{of['dtype']} {of['shape']} {digest}"
    return found


def text(value: dict[str, Any]) -> str:
    """Return as JSON, an item of a list or mapping on each line."""
    parts = []
    for key, of in value.items():
        if isinstance(of, dict):
            items = [f"{json.dumps(name)}: {json.dumps(each)}" for name, each in of.items()]
        else:
            items = [json.dumps(each) for each in of] if isinstance(of, list) else []
        ends = "{}" if isinstance(of, dict) else "[]"
        inside = ",\n".join(items)
        whole = f"{ends[0]}\n{inside}\n{ends[1]}" if items else json.dumps(of)
        parts.append(f"{json.dumps(key)}: {whole}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def differences(golden: dict[str, Any], now: dict[str, Any], exact: bool) -> list[str]:
    """Return a line for each thing that is not as it was.

    Args:
        golden: read from the file.
        now: of a run.
        exact: to the bit; otherwise numbers are close, and bytes are not compared.
    """
    old, new = _flat(golden, exact), _flat(now, exact)
    lines = []
    for name in [*old, *(name for name in new if name not in old)]:
        one, two = old.get(name), new.get(name)
        if not _same(one, two, exact):
            lines.append(f"{name}: {_said(two)} for {_said(one)}")
    return lines


def _flat(of: dict[str, Any], exact: bool) -> dict[str, Any]:
    flat: dict[str, Any] = {"status": of["status"]}
    flat |= {f"notice {text!r}": "there" for text in of["notices"]}
    for kind in ("points", "evaluations"):
        for point in of[kind]:
            place = "at step" if kind == "points" else "evaluated at step"
            flat |= {f"{n} {place} {point['step']}": v for n, v in point.items() if n != "step"}
    flat |= {f"checkpoint {step}": "there" for step in of["checkpoints"]}
    for name, array in of["arrays"].items():
        flat[f"array {name}"] = array if exact else array.rpartition(" ")[0]
    return flat


def _same(one: Any, two: Any, exact: bool) -> bool:
    if isinstance(one, float) and isinstance(two, float):
        close = 0.0 if exact else CLOSE
        return math.isclose(one, two, rel_tol=close, abs_tol=close) or (one != one and two != two)
    return bool(one == two)


def _said(value: Any) -> str:
    return "nothing" if value is None else str(value)


def few(lines: list[str]) -> list[str]:
    """Return the first lines, and how many there are besides."""
    more = [f"... and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    return [*lines[:SHOWN], *more]
