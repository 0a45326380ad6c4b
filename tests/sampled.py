"""Cases of which ``make test`` runs a few, and ``make test-faults`` all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def sampled(cases: Iterable[Any], *kept: Any) -> list[Any]:
    """Return the parameters of a test; those that are not ``kept`` are for ``make test-faults``.

    Args:
        cases: all of them; a tuple has several parameters.
        kept: some of them.
    """
    found = list(cases)
    assert all(case in found for case in kept), kept
    return _marked(found, lambda place: found[place] in kept)


def thinned(cases: Iterable[Any], stride: int) -> list[Any]:
    """Return as :func:`sampled`; one case of ``stride`` is kept."""
    return _marked(list(cases), lambda place: place % stride == 0)


def _marked(found: list[Any], kept: Callable[[int], bool]) -> list[Any]:
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if kept(place) else pytest.mark.faults,
        )
        for place, case in enumerate(found)
    ]
