"""YAML as dtrain writes it, and what is refused of any other."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from dtrain.errors import DamagedFile
from dtrain.files import reading

CONF = Path(__file__).parent.parent / "conf"
SCALARS = [
    "1e-3", "1e3", ".5", ".5e3", "1_0", "0x1f", "0o17", "010", "1:30", "1:30.5", "yes", "on",
    "off", "True", "null", "~", "NULL", "2020-01-01", "1.", "+.inf", "-.INF", ".nan", "1e5_0",
    "'1'", "0b11", "<<", "1.5e", "y", "no", "12:30:45", "-1", "+1", "-", ".", "..", "1.e3",
    "1e+3", "-1e-3", "0.1", "\"x\"", "text", "a:b", "0", "00", "08", "9_9.5",
]  # fmt: skip


def test_values_are_those_that_omegaconf_reads(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    for text in [*(p.read_text() for p in CONF.rglob("*.yaml")), *(f"a: {s}\n" for s in SCALARS)]:
        path.write_text(text)
        try:
            expected = repr(OmegaConf.to_container(OmegaConf.load(path)))
        except Exception:
            with pytest.raises(DamagedFile):
                reading.read_plain(path)
            continue
        assert repr(reading.read_plain(path)) == expected, text


REFUSED = {
    "anchors": ("a: &x [1]\nb: *x\n", "has an alias"),
    "a tag": ("a: !!python/object/apply:os.system [id]\n", "is not valid YAML"),
    "a deep list": ("a: " + "[" * 99 + "]" * 99, "is nested deeper than 64"),
    "a deeper list": ("[" * 100_000, "is nested deeper than 64"),
    "a key twice": ("a: 1\nb: 2\na: 3\n", "line 3: duplicate key a"),
    "a list": ("- 1\n", "is not a mapping"),
    "nothing": ("", "is not a mapping"),
    "two documents": ("a: 1\n---\nb: 1\n", "is not valid YAML"),
    "a key that is a list": ("? [1]\n: 2\n", "is not valid YAML"),
    "half a character": ('a: "\\ud800"\n', "is not valid YAML"),
    "a zero": ("a: \0\n", "is not valid YAML"),
    "digits": ("a: " + "9" * 5000 + "\n", "is not valid YAML"),
    "a tab": ("a:\n\t- 1\n", "is not valid YAML"),
    "no UTF-8": (b"a: \xff\n", "is not valid YAML"),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(text: str | bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DamagedFile, match=message):
        reading.read_plain(path)
