"""Variants of files that runs leave: a small damage, or a value of another kind at any node."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

DEEP = 5000
#: In the place of a node; the first two are put into the text, which json itself cannot make.
_DEEP, _HUGE = "\0deep", "\0huge"
STRANGE: list[Any] = [
    _DEEP, _HUGE, None, True, False, 0, -1, 1, 2**53 + 1, 2**63, 10**400, -(10**400), 0.5, -0.0,
    1e308, 1e-320, float("nan"), float("inf"), -float("inf"), "", "nan", "x", "../x", "/etc/passwd",
    ".", "..", "a/b", "é\u202e\x1b[31m", "\ud800", "\0", "${oc.env:HOME}", "=1+1", "<script>",
    "x" * 5000, [], {}, [[]], [None], {"": None}, {"a": {"a": {"a": []}}}, ["x", 1], {"x": 1},
]  # fmt: skip


def nodes(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each node below ``value``: what holds it, and under which name or number."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from nodes(value[key])


def tree(value: Any, chance: random.Random) -> Any:
    """Return ``value`` with one to three nodes removed, renamed, or replaced."""
    changed = copy.deepcopy(value)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        places = list(nodes(changed))
        if not places or chance.random() < 0.03:
            return chance.choice(STRANGE)
        holder, key = chance.choice(places)
        act = chance.random()
        if act < 0.15:
            del holder[key]
        elif act < 0.2 and isinstance(holder, dict):
            holder[chance.choice(("", "../x", "x" * 300, "\ud800", "é", "event"))] = holder.pop(key)
        elif act < 0.25 and isinstance(holder, list):
            holder.extend([holder[key]] * chance.choice((1, 50)))
        elif act < 0.35:
            holder[key] = copy.deepcopy(chance.choice(places)[0])
        else:
            holder[key] = copy.deepcopy(chance.choice(STRANGE))
    return changed


def text(value: Any, indent: int | None = None) -> bytes:
    """Return ``value`` as JSON, with what json cannot make."""
    plain = json.dumps(value, indent=indent)
    plain = plain.replace(json.dumps(_DEEP), "[" * DEEP + "]" * DEEP)
    return plain.replace(json.dumps(_HUGE), "9" * 5000).encode()


def raw(data: bytes, chance: random.Random) -> bytes:
    """Return ``data`` with bits turned, a part missing, doubled, of zeros, or of other bytes."""
    found = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 8))):
        at = chance.randrange(len(found) + 1)
        end = min(len(found), at + chance.choice((1, 1, 4, 16, 300)))
        act = chance.randrange(7)
        if act == 0:
            del found[at:]
        elif act == 1:
            del found[at:end]
        elif act == 2:
            found[at:at] = found[at:end]
        elif act == 3:
            found[at:end] = bytes(end - at)
        elif act == 4:
            found[at:at] = chance.choice(_PARTS)
        elif act == 5:
            found[at:end] = chance.randbytes(end - at)
        elif at < len(found):
            found[at] ^= 1 << chance.randrange(8)
    return bytes(found)


_PARTS = [
    b"\0", b"\n", b"\r", b"\n\n", b"{", b"}", b"[", b"]", b'"', b":", b",", b"\xff\xfe",
    b"\xed\xa0\x80",
    b"&a ", b"*a", b"!!python/object/apply:os.system [id]", b"<<: ", b"? ", b"- ", b"${", b"}${",
    b"\\ud800", b"NaN", b"1e999", b"\xef\xbb\xbf", b"{" * 3000, b"[" * 3000, b"x" * 5000, b"---\n",
    b"\t", b"#", b"%YAML 9.9\n", b"a: &a [1]\nb: *a\n",
]  # fmt: skip


def of_json(data: bytes, chance: random.Random) -> bytes:
    """Return a variant of a JSON file."""
    if chance.random() < 0.4:
        return raw(data, chance)
    return text(tree(json.loads(data), chance), 1)


def of_lines(data: bytes, chance: random.Random) -> bytes:
    """Return a variant of a file with one JSON value in each line."""
    if chance.random() < 0.4:
        return raw(data, chance)
    lines = data.splitlines()
    for _ in range(chance.choice((1, 2, 5))):
        at = chance.randrange(len(lines))
        lines[at] = of_json(data.splitlines()[at], chance).replace(b"\n", b" ")
    return b"\n".join(lines) + chance.choice((b"\n", b"", b"{"))


def of_yaml(data: bytes, chance: random.Random) -> bytes:
    """Return a variant of a YAML file."""
    import yaml

    if chance.random() < 0.4:
        return raw(data, chance)
    changed = tree(yaml.safe_load(data), chance)
    try:
        return yaml.safe_dump(changed).encode(errors="surrogatepass")
    except yaml.YAMLError:  # it cannot be written
        return text(changed)


Variant = Callable[[bytes, random.Random], bytes]
