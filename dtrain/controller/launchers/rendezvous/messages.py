"""What the commands of one cluster send each other, as bytes: parsed, and proven to be a peer's.

Each side of a connection begins with a line of its own random bytes. From these and the cluster's
key both derive the keys of this one connection, one for each direction; every later line begins
with a code of its text and its number (HMAC-SHA-256). So each side knows the key, no line is of
another connection, comes twice or in another order, and none is read before it is proven. Nothing
is encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Callable
from typing import Any

from dtrain.files import reading

#: Bytes of a message, of a line with its code, and of the first lines of a connection.
LONGEST = 1 << 20
CODE = 64
LONGEST_LINE = CODE + LONGEST
GREETING = 128
#: Bytes of an error's text, or of one of its parts, that another host is sent.
TEXT = 4000

Message = dict[str, Any]

_MAGIC = b"dtrain-cluster-2 "


def _text(value: Any) -> bool:
    return isinstance(value, str) and value.replace("\n", "").isprintable()


def _texts(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _code(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 255


def _step(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _name(value: Any) -> bool:
    return isinstance(value, str) and is_name(value)


def _address(value: Any) -> bool:
    """Say whether ``value`` is ``host:port``, ``:port`` of a host that is known, or nothing."""
    return (
        isinstance(value, str)
        and re.fullmatch(r"([\w.:\[\]-]{0,260}:[0-9]{1,5})?", value) is not None
    )


def _addresses(value: Any) -> bool:
    return isinstance(value, list) and all(map(_address, value))


def _job(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{32}", value) is not None


#: Each kind of message, with its fields and what they may be. ``proof`` is the chief's first one:
#: it says nothing but that it knows the key. ``beat`` says that its sender is alive, and how far
#: the job is.
KINDS: dict[str, dict[str, Callable[[Any], bool]]] = {
    "proof": {},
    "beat": {"step": _step},
    "hello": {"task": _text, "dtrain": _text, "facts": _texts, "address": _address},
    "stop": {},
    "left": {"code": _code, "lines": _text, "signal": _code},
    "place": {"day": _name, "name": _name, "job": _job, "addresses": _addresses},
    "problem": {"key": _text, "value": _text, "problem": _text, "accepted": _text, "hint": _text},
    "error": {"error": _text},
    "ended": {"code": _code},
}


def is_name(text: str) -> bool:
    """Say whether ``text`` is the name of a file or folder, one component and no hidden one."""
    return reading.component(text) is None and not text.startswith(".")


def parse(data: bytes) -> Message | None:
    """Return the message that ``data`` is, with all fields of its kind; None if it is none."""
    if len(data) > LONGEST:
        return None
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    kind = value.get("kind") if isinstance(value, dict) else None
    fields = KINDS.get(kind) if isinstance(kind, str) else None
    if fields is None or value.keys() != {"kind", *fields}:
        return None
    return value if all(check(value[name]) for name, check in fields.items()) else None


def make(kind: str, **fields: Any) -> bytes:
    """Return a message as :func:`parse` takes it: long texts are cut, odd characters replaced."""
    checks = KINDS[kind]
    for name, value in fields.items():
        if checks[name] is _text:
            fields[name] = "".join(c if _text(c) else "?" for c in str(value)[:TEXT])
    return json.dumps({"kind": kind, **fields}).encode()


def shorten_facts(facts: dict[str, str]) -> dict[str, str]:
    """Return facts that fit in a message: of a long text its beginning, and what tells it apart."""
    return {key: text if len(text) <= TEXT else _shortened(text) for key, text in facts.items()}


def _shortened(text: str) -> str:
    digest = hashlib.sha256(text.encode(errors="replace")).hexdigest()
    return f"{text[:200]}... ({len(text)} characters, sha256 {digest})"


def greeting(nonce: bytes) -> bytes:
    """Return the line that a side of a connection begins with."""
    return _MAGIC + nonce.hex().encode() + b"\n"


def nonce_of(line: bytes) -> bytes | None:
    """Return the random bytes of the other side's :func:`greeting`, None if it is no such line."""
    found = re.fullmatch(re.escape(_MAGIC) + rb"([0-9a-f]{64})", line)
    return bytes.fromhex(found[1].decode()) if found else None


class Seal:
    """Proves the messages of one direction of one connection.

    Args:
        key: the cluster's.
        sender: ``chief`` or ``peer``.
        nonces: the chief's random bytes and the peer's.
    """

    def __init__(self, key: bytes, sender: str, nonces: tuple[bytes, bytes]):
        own = b"\0".join([_MAGIC, sender.encode(), *nonces])
        self._key = hmac.digest(key, own, hashlib.sha256)
        self._number = 0

    def close(self, data: bytes) -> bytes:
        """Return the line that carries ``data``."""
        return self._next(data) + data + b"\n"

    def open(self, line: bytes) -> bytes | None:
        """Return what a line carries, None if it is not the next one of this connection."""
        code, data = line[:CODE], line[CODE:]
        return data if hmac.compare_digest(self._next(data), code) else None

    def _next(self, data: bytes) -> bytes:
        numbered = self._number.to_bytes(8, "big") + data
        self._number += 1
        return hmac.digest(self._key, numbered, hashlib.sha256).hex().encode()
