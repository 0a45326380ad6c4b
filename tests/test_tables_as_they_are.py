"""Sixty of the tables that `make campaigns` trains, each by one command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaigns import tables

#: Why a table is not trained, of those that are not.
RIGHT = ("trainer.batch_size=4: the dataset has",)
PARTS = 6


@pytest.mark.parametrize("part", range(PARTS))
def test_a_table_trains_or_is_refused_by_a_right_sentence(part: int, tmp_path: Path) -> None:
    names = tables.names()[tables.SAMPLE][part::PARTS]
    outcomes = [tables.train(path, *tables.SHORT) for path in tables.extract(tmp_path, names)]
    refused = [o for o in outcomes if o.kind != "trained"]
    assert all(o.kind == "refused" and o.sentence.startswith(RIGHT) for o in refused), [
        (o.name, o.sentence) for o in refused
    ]
    assert len(refused) <= 1
