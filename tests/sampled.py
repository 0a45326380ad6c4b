"""Cases of which ``make test`` runs a few, and ``make test-faults`` all."""

from __future__ import annotations

from collections.abc import Iterable
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
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if case in kept else pytest.mark.faults,
        )
        for case in found
    ]
