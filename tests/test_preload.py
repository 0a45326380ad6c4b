"""What tasks share with the warm server that they are forked from."""

from __future__ import annotations

import gc
import sys

import pytest


@pytest.mark.task
def test_garbage_is_not_looked_for_among_what_was_imported() -> None:
    assert "keras" in sys.modules
    assert gc.isenabled()
    assert gc.get_freeze_count() > 100_000
