"""References between keys."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from dtrain.config import tree
from dtrain.errors import UsageError


def test_what_is_sound_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTRAIN_ENV", "HOME")
    config = OmegaConf.create(
        {"a": 1, "b": "${a}", "c": {"d": "x${..b}", "e": [1, "${c.d}"], "f": "${oc.env:HOME}"}}
    )
    tree.check_sizes(config)
    tree.check_references(config)


@pytest.mark.parametrize("first", ["xx", "", [1, 2]])
@pytest.mark.parametrize("reference", ["${.a%d}${.a%d}", "${m.a%d}${m.a%d}"])
def test_doubling_ends(first: object, reference: str) -> None:
    values = {f"a{i + 1}": reference % (i, i) for i in range(40)}
    config = OmegaConf.create({"m": {"a0": first, **values}})
    with pytest.raises(UsageError, match=r"^m\.a1\d=.*stands for more than 100,000"):
        tree.check_sizes(config)
