"""The files of a comparison: a page of HTML that needs nothing else, and two tables.

They replace those of an earlier comparison and nothing else: its page is known by its beginning,
and tables are of one where they lie beside it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from dtrain.compare import comparison, plots
from dtrain.compare.comparison import Comparison
from dtrain.errors import DamagedFile, refuse
from dtrain.files import reading, writing

PAGE, RUNS, CURVES = "comparison.html", "comparison.csv", "curves.csv"
_BYTES = 1 << 28  # of the largest page that is read
# The policy lets the file load nothing at all, whatever a name in it tries.
_HEAD = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width">
"""
_STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1240px; padding: 0 1em }
h1 { font-size: 1.5em } h2 { font-size: 1.15em; margin: 2em 0 .5em }
.table { overflow-x: auto }
table { border-collapse: collapse; font-size: .9em; font-variant-numeric: tabular-nums }
th, td { padding: .25em .7em; text-align: left; white-space: nowrap }
th { cursor: pointer; border-bottom: 1px solid #8888 } tr:hover td { background: #8882 }
.n { text-align: right }
i { display: inline-block; width: .8em; height: .8em; border-radius: 50%; margin-right: .5em }
.legend { font-size: .85em; line-height: 1.7 }
.legend span { display: inline-block; margin-right: 1.4em; cursor: default }
.plots { display: flex; flex-wrap: wrap; gap: 1em }
.plots svg { flex: 1 1 480px; max-width: 600px; height: auto }
.picked svg g[class^=run-] { opacity: .12 } .picked svg g.on { opacity: 1 }
p, li { opacity: .85; margin: .3em 0 }
"""
_SCRIPT = """
const body = document.querySelector('tbody'), heads = [...document.querySelectorAll('th')];
heads.forEach((head, at) => head.onclick = () => {
  const down = head.dataset.down = head.dataset.down === '1' ? '0' : '1';
  const key = row => row.cells[at].dataset.value;
  const order = (a, b) => isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b;
  [...body.rows].sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    return x === '' || y === '' ? (x === '') - (y === '') : order(x, y) * (down === '1' ? 1 : -1);
  }).forEach(row => body.append(row));
});
document.querySelectorAll('[data-run]').forEach(each => {
  const lines = document.querySelectorAll('g.run-' + each.dataset.run);
  const pick = on => () => {
    document.body.classList.toggle('picked', on);
    lines.forEach(line => line.classList.toggle('on', on));
  };
  each.onmouseenter = pick(true);
  each.onmouseleave = pick(false);
});
"""


def page(found: Comparison) -> str:
    """Return the HTML of a comparison."""
    title = "Comparison" if found.sweep is None else f"Sweep {found.sweep['name']}"
    colours = plots.colours(len(found.runs))
    parts = [
        f"{_HEAD}<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        *_sweep(found),
        *_table(found, colours),
        _list([*comparison.remarks(found), *comparison.failures(found)]),
        *_legend(found, colours),
    ]
    for section in plots.sections(found):
        parts.append(f"<h2>{escape(section.title)}</h2>")
        parts.append(f'<div class="plots">{"".join(section.plots)}</div>')
        parts += [f"<p>{escape(note)}</p>" for note in section.notes]
    return "\n".join([*parts, f"<script>{_SCRIPT}</script></body></html>\n"])


def _sweep(found: Comparison) -> list[str]:
    if found.sweep is None:
        return []
    done = sum(run.status == "FINISHED" for run in found.runs)
    return [f"<p>{escape(str(found.sweep['status']))}: {done} of {len(found.runs)} finished</p>"]


def _table(found: Comparison, colours: Sequence[str]) -> list[str]:
    columns = comparison.columns(found)
    kinds = [' class="n"' if column.format else "" for column in columns]
    heads = (f"<th{k}>{escape(c.head)}</th>" for k, c in zip(kinds, columns, strict=True))
    lines = ['<div class="table"><table><thead><tr>', *heads, "</tr></thead><tbody>"]
    shown = [column.cells() for column in columns]
    for index, colour in enumerate(colours):
        cells = []
        for column, kind, texts in zip(columns, kinds, shown, strict=True):
            value = "" if column.values[index] is None else str(column.values[index])
            mark = f'<i style="background:{colour}"></i>' if column is columns[0] else ""
            cells.append(
                f'<td{kind} data-value="{escape(value)}">{mark}{escape(texts[index])}</td>'
            )
        lines.append(f'<tr data-run="{index}">{"".join(cells)}</tr>')
    return [*lines, "</tbody></table></div>"]


def _list(lines: list[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def _legend(found: Comparison, colours: Sequence[str]) -> list[str]:
    names = (
        f'<span data-run="{index}"><i style="background:{colour}"></i>{escape(label[:60])}</span>'
        for index, (colour, label) in enumerate(zip(colours, found.labels(), strict=True))
    )
    return [f'<p class="legend">{"".join(names)}</p>']


def write(folder: Path, page: str, tables: Mapping[str, str]) -> None:
    """Write all files of a comparison.

    Args:
        folder: that they go to; it need not exist.
        page: the HTML.
        tables: the others, by their names.

    Raises:
        UsageError: a file of another origin has the name of one of these.
        OSError: one cannot be written.
    """
    is_ours = _is_page(folder / PAGE)
    for path in (folder / name for name in (PAGE, *tables)):
        if os.path.lexists(path) and not (is_ours and path.is_file() and not path.is_symlink()):
            refuse("to", f"{path} is not from an earlier comparison", folder,
                   hint=f"to=FOLDER, or give {path.name} another name")  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    # ORDER: killed after the first, the others are still known.
    for name, text in {PAGE: page, **tables}.items():
        writing.write_bytes(folder / name, text.encode())


def _is_page(path: Path) -> bool:
    try:
        return reading.read_bytes(path, _BYTES).startswith(_HEAD.encode())
    except (FileNotFoundError, NotADirectoryError, DamagedFile):
        return False
