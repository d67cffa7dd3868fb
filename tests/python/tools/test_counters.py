"""Counters: each row of ops/settings/counters.def is in the snapshot, in the report and in the tests' own `Seen`."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from counters import counting, snapshot
from helpers import DEVICE, needs_hetero

import torch_hetero

pytestmark = needs_hetero

ROWS = torch_hetero._C.counter_rows()
FIGURES = [row for row in ROWS if row["kind"] not in ("group", "table")]


def figure(figures: dict[str, Any], row: dict[str, str]) -> Any:
    """The value of a row in a snapshot or a report."""
    return figures[row["group"]][row["name"]] if row["group"] else figures[row["name"]]


def test_every_row_is_in_a_snapshot_and_in_the_report() -> None:
    counted, told = snapshot(), torch.hetero.explain().as_dict()
    for row in FIGURES:
        number = float if row["kind"] == "seconds" else int
        assert type(figure(counted, row)) is number and type(figure(told, row)) is number, row
    for row in ROWS:
        if row["kind"] in ("group", "table"):
            assert isinstance(counted[row["name"]], dict) and isinstance(told[row["name"]], dict), row


def test_every_row_is_documented_once() -> None:
    told = inspect.getdoc(torch.hetero.Report) or ""
    for row in ROWS:
        assert row["text"] and f" {row['name']}: {row['text']}." in told, row
    places = [(row["group"], row["name"]) for row in FIGURES]
    assert len(set(places)) == len(places)


def test_reset_counters_sets_every_counter_to_zero() -> None:
    (torch.ones(3, device=DEVICE) + 1).tolist()
    assert snapshot()["nodes"]["typed"] > 0
    torch.hetero.reset_counters()
    counted = snapshot()
    for row in FIGURES:
        assert row["kind"] == "level" or figure(counted, row) == 0, row


def test_a_difference_of_reports_keeps_levels_and_subtracts_counters() -> None:
    before = torch.hetero.explain()
    kept = torch.ones(1000, device=DEVICE) + 1
    kept.tolist()
    after = torch.hetero.explain()
    difference = after - before
    assert difference.memory["peak_bytes"] == after.memory["peak_bytes"]
    assert difference.nodes["typed"] == after.nodes["typed"] - before.nodes["typed"] > 0
    assert difference.flushes == {"copy to another device": 1}


def test_tests_ask_for_a_counter_by_its_field() -> None:
    with counting() as seen:
        (torch.ones(3, device=DEVICE) + 1).tolist()
    for row in ROWS:
        if row["field"]:
            assert getattr(seen, row["field"]) >= 0
    with pytest.raises(AttributeError, match="typed_nodes"):
        _ = seen.no_such_counter
