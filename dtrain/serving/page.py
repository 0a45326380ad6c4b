"""A page of the description: it needs nothing but itself, so that it works without the internet."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterator
from typing import Any

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       color: #1f2430; background: #fff }
h1 { font-size: 1.6rem; margin-bottom: 0 } h1 small { color: #667; font-weight: normal }
details { border: 1px solid #d8dce5; border-radius: 6px; margin: .5rem 0; background: #fbfbfd }
summary { cursor: pointer; padding: .5rem .8rem; display: flex; gap: .8rem; flex-wrap: wrap }
summary b { font: 600 13px ui-monospace, monospace; min-width: 3rem; color: #0b6e4f }
summary b.post { color: #8a4b00 } summary code { font-weight: 600 } summary span { color: #556 }
.in { padding: 0 .8rem .8rem } pre, textarea { font: 13px/1.4 ui-monospace, monospace; width: 100%;
       box-sizing: border-box; background: #f1f3f8; border: 1px solid #d8dce5; border-radius: 4px;
       padding: .5rem; white-space: pre-wrap; overflow-wrap: anywhere; max-height: 20rem;
       overflow: auto; color: inherit }
textarea { height: 9rem } button { font: inherit; padding: .2rem 1rem; margin: .4rem 0 }
table { border-collapse: collapse } td, th { text-align: left; padding: .1rem 1.2rem .1rem 0 }
@media (prefers-color-scheme: dark) {
  body { color: #dde; background: #16181d } details { background: #1c1f26; border-color: #333845 }
  pre, textarea { background: #23262e; border-color: #333845 } summary span { color: #99a }
  summary b { color: #5fc9a2 } summary b.post { color: #e0a25a } }
"""
_SCRIPT = """
for (const form of document.querySelectorAll("form")) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const out = form.querySelector("pre"), text = form.querySelector("textarea");
    const options = { method: form.dataset.method };
    if (text) {
      options.body = text.value;
      options.headers = { "content-type": "application/json" };
    }
    out.hidden = false;
    try {
      const began = performance.now();
      const answer = await fetch(form.dataset.path, options);
      const version = answer.headers.get("x-model-version");
      out.textContent = `${answer.status}` + (version ? `, version ${version}` : "") +
        `, ${(performance.now() - began).toFixed(1)} ms\\n${await answer.text()}`;
    } catch (error) { out.textContent = `no answer: ${error.message}`; }
  });
}
"""


def of(described: dict[str, Any]) -> tuple[str, str]:
    """Return the page, and the policy of what a browser may do for it.

    Args:
        described: of :func:`dtrain.serving.openapi.of`.
    """
    return "".join(_parts(described)), (
        f"default-src 'none'; connect-src 'self'; style-src {_hash(_STYLE)}; "
        f"script-src {_hash(_SCRIPT)}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _parts(described: dict[str, Any]) -> Iterator[str]:
    info = described["info"]
    title = html.escape(info["title"])
    yield (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width"><title>{title}</title><style>{_STYLE}</style></head><body>'
        f"<h1>{title} <small>version {html.escape(info['version'])}</small></h1>"
        f"<p>{html.escape(described['x-server'])}. {html.escape(info['description'])} "
        'The description for programs: <a href="openapi.json">openapi.json</a>.</p>'
    )
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            yield from _operation(path, method, operation)
    yield f"<script>{_SCRIPT}</script></body></html>\n"


def _operation(path: str, method: str, operation: dict[str, Any]) -> Iterator[str]:
    shown = html.escape(path)
    yield (
        f'<details><summary><b class="{method}">{method.upper()}</b> <code>{shown}</code> '
        f'<span>{html.escape(operation["summary"])}</span></summary><div class="in">'
        f'<form data-method="{method.upper()}" data-path="{shown}">'
    )
    body = operation.get("requestBody")
    if body is not None:
        content = body["content"]["application/json"]
        example = json.dumps(content.get("example", {}))
        schema = json.dumps(content["schema"], indent=1)
        yield (
            f"<textarea>{html.escape(example)}</textarea>"
            f"<details><summary>schema</summary><pre>{html.escape(schema)}</pre></details>"
        )
    yield "<button>Send</button><pre hidden></pre></form></div></details>"
