"""The page of a report: one file of HTML that needs nothing else."""

from __future__ import annotations

import base64
import contextlib
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from dtrain import secrets
from dtrain.config.node import to_plain
from dtrain.config.tree import Config
from dtrain.errors import DamagedFile
from dtrain.files.fields import Json
from dtrain.report import svg
from dtrain.report.figures import Figure, line
from dtrain.run import code, identity, journal, schemas
from dtrain.run.folder import RunDir, read_json, write_text
from dtrain.run.samples import read_encoding

# The policy lets the file load nothing at all, whatever a name in it tries.
_HEAD = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width">
"""
_STYLE = Path(__file__).with_name("page.css").read_text()


def write(rundir: RunDir, config: Config, result: Json) -> None:
    """Write the page of a run.

    Args:
        rundir: of the run.
        config: of it.
        result: the contents of ``result.json``.

    Raises:
        OSError, DamagedFile: a file of the run cannot be read, or the page cannot be written.
    """
    record = read_json(rundir.report) or {}
    events = list(journal.read(rundir.journal))
    title = f"{config.name}: {result.get('status')}"
    parts = [f"{_HEAD}<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"]
    parts.append(f"<h1>{escape(title)}</h1>")
    parts.append(_table([], _summary(rundir, config, result)))
    parts += _scores(record)
    parts += _section("Curves", _curves(events, result))
    title = f"Predictions for the {record.get('split', 'validation')} examples"
    parts += _section(title, [Figure(**each) for each in record.get("figures", ())])
    parts += [f"<p>{escape(note)}</p>" for note in record.get("notes", ())]
    parts += ["<h2>Data</h2>", *_data(rundir, events)]
    parts += ["<h2>What was typed</h2>", f"<p><code>{escape(_typed(rundir))}</code></p>"]
    parts += ["<h2>Versions</h2>", _table([], _versions(rundir, config))]
    write_text(rundir.page, "\n".join([*parts, "</body></html>\n"]))


def _summary(rundir: RunDir, config: Config, result: Json) -> Iterator[list[Any]]:
    if result.get("best_step") is not None:
        best = f"{result['objective_name']} {_cell(result['best_objective'])}"
        yield ["best", f"{best} at step {result['best_step']}"]
    for name in ("metrics", "step", "seconds", "parameters", "replicas"):
        value = result.get(name)
        if isinstance(value, dict):
            value = "  ".join(f"{name} {_cell(each)}" for name, each in value.items())
        yield [name, value]
    yield ["strategy", f"{config.strategy.name}, backend {config.backend}"]
    yield ["model", to_plain(config.model)["_target_"]]
    yield ["run folder", str(rundir.path)]


def _scores(record: Json) -> Iterator[str]:
    """Yield the scores of a checkpoint, with their intervals and those of a baseline."""
    if "scores" in record:
        yield f"<h2>Scores of step {record['step']}</h2>"
        yield _table(
            ["score", "value", "95 % from", "to", "baseline"],
            ([name, *each.values()] for name, each in record["scores"].items()),
        )
        note = (
            f"Of {record['examples']:,} {record['split']} examples; the interval is by a bootstrap "
            f"over them. The baseline predicts {record['baseline']}."
        )
        yield f'<p class="note">{escape(note)}</p>'


def _curves(events: Iterable[Json], result: Json) -> Iterator[Figure]:
    """Yield a figure for each metric, of training and validation, and that of the learning rate."""
    points: dict[str, dict[int, float]] = {}
    for event in events:
        for name, value in event["metrics"].items() if event["event"] == "metrics" else ():
            points.setdefault(name, {})[event["step"]] = value
    wanted = [name for name in result.get("metrics") or {} if not name.startswith("test/")]
    names = list(dict.fromkeys(name.removeprefix("val_") for name in wanted))
    first = str(result.get("objective_name") or "").removeprefix("val_")
    names.sort(key=lambda name: name != first)
    best, value = result.get("best_step"), result.get("best_objective")
    mark = None if best is None or value is None else (best, f"best {_cell(value)}")
    for name in [*names, "learning_rate"]:
        rows: list[list[Any]] = []
        for part in (name, f"val_{name}"):
            if curve := points.get(part):
                steps, values = np.array(sorted(curve.items())).T
                rows += line(part, steps, values)
        if rows:
            head = ["metric", "step", name.replace("_", " ")]
            yield Figure(name.replace("_", " "), "lines", head, rows,
                         mark=mark if name == first else None)  # fmt: skip


def _section(title: str, figures: Iterable[Figure]) -> Iterator[str]:
    drawn = [_figure(figure) for figure in figures]
    if drawn:
        yield f"<h2>{escape(title)}</h2>"
        yield f'<div class="figures">{"".join(drawn)}</div>'


def _figure(figure: Figure) -> str:
    is_table = figure.kind == "table"
    draw = {"bars": _bars, "matrix": _matrix}.get(figure.kind, svg.draw)
    picture = _table(figure.head, figure.rows) if is_table else draw(figure)
    name = re.sub(r"\W+", "_", figure.title.lower()).strip("_")
    data = base64.b64encode(figure.csv().encode()).decode()
    wide = " class=wide" if is_table else ""
    return (
        f"<figure{wide}><h3>{escape(figure.title)}</h3>{picture}"
        f'<p class="note">{escape(figure.note)} '
        f'<a download="{name}.csv" href="data:text/csv;base64,{data}">CSV</a></p></figure>'
    )


def _bars(figure: Figure) -> str:
    """Return rows of a label, a bar and a number."""
    longest = max(abs(value) for _, value in figure.rows) or 1
    rows = (
        f"<tr><td>{escape(label)}</td><td class=bar><b style="
        f'"width:{max(0, value) / longest:.1%}"></b></td><td class=n>{value:.3g}</td></tr>'
        for label, value in figure.rows
    )
    return f'<div class="table"><table class="bars"><tbody>{"".join(rows)}</tbody></table></div>'


def _matrix(figure: Figure) -> str:
    """Return a table whose cells have a colour by their share of the row."""
    rows = [f"<tr>{''.join(f'<th>{escape(name)}</th>' for name in figure.head)}</tr>"]
    for label, *counts in figure.rows:
        shares = [count / (sum(counts) or 1) for count in counts]
        cells = (
            f'<td class=n style="background:rgba(31,136,229,{share:.2f})">{count}</td>'
            for share, count in zip(shares, counts, strict=True)
        )
        rows.append(f"<tr><th>{escape(label)}</th>{''.join(cells)}</tr>")
    return f'<div class="table"><table class="matrix"><tbody>{"".join(rows)}</tbody></table></div>'


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    def cells(row: Sequence[Any], tag: str) -> str:
        kinds = [" class=n" if isinstance(cell, int | float) else "" for cell in row]
        texts = (f"<{tag}{kind}>{escape(_cell(cell))}</{tag}>"
                 for kind, cell in zip(kinds, row, strict=True))  # fmt: skip
        return f"<tr>{''.join(texts)}</tr>"

    first = f"<thead>{cells(head, 'th')}</thead>" if head else ""
    body = "".join(cells(row, "td") for row in rows)
    return f'<div class="table"><table>{first}<tbody>{body}</tbody></table></div>'


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _data(rundir: RunDir, events: Iterable[Json]) -> Iterator[str]:
    """Yield what the run has recorded of its data: its splits, and the columns of a table."""
    data = next((event for event in events if event["event"] == "data"), {})
    splits = [(name, data[name]) for name in ("train", "validation") if name in data]
    rows = [[name, *(each.get(key) for key in ("examples", "structure", "digest"))]
            for name, each in splits]  # fmt: skip
    yield _table(["split", "examples", "structure", "digest"], rows)
    with contextlib.suppress(DamagedFile, OSError):
        encoding = read_encoding(rundir)
        if encoding is not None:
            columns = [[each.name, each.kind, f"{each.missing:.1%}", len(each.values) or None]
                       for each in encoding.features]  # fmt: skip
            left_out = [[name, f"left out: {why}", None, None]
                        for name, why in encoding.left_out.items()]  # fmt: skip
            yield _table(["column", "kind", "empty", "values"], [*columns, *left_out])


def _typed(rundir: RunDir) -> str:
    command = schemas.read(rundir.command, schemas.Command)
    words = command["overrides"] if command else []
    return secrets.mask(shlex.join(["python", "-m", "dtrain", *words]))


def _versions(rundir: RunDir, config: Config) -> Iterator[list[Any]]:
    """Yield versions, and the commit, as the run has recorded them; else those of here."""
    versions = identity.versions(config.backend)
    with contextlib.suppress(DamagedFile, OSError):
        if folders := code.folders(rundir.path):
            record = code.read(folders[-1])
            installed = record["packages"]
            yield ["python", installed.get("python")]
            versions = {name: installed.get(name, own) for name, own in versions.items()}
            if record["tree"] is not None:
                yield ["commit", record["tree"]["commit"]]
    yield from map(list, versions.items())
