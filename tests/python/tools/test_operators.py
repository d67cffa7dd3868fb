"""The op table is what docs/operators.md shows, and its names are PyTorch's."""

from __future__ import annotations

import pytest
import torch
from helpers import load_module


@pytest.fixture(scope="module")
def operators():
    return load_module("scripts/operators.py")


def test_the_document_is_what_the_table_says(operators):
    assert operators.DOCUMENT.read_text() == operators.make_document()


def test_each_operator_has_one_row_of_its_own(operators):
    names = [row.symbol for row in operators.read_table() if row.kind != "FAMILY"]
    assert len(names) > 200
    assert sorted(set(names)) == sorted(names)


def test_rows_without_a_typed_recorder_name_operators_that_there_are(operators):
    known = {schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
             for schema in torch._C._jit_get_all_schemas()}
    rows = [row for row in operators.read_table() if row.kind in ("RANDOM", "BOXED")]
    assert not [row.arguments[0] for row in rows
                if row.arguments[0].startswith('"aten::') and row.arguments[0].strip('"') not in known]


def test_a_missing_lowering_is_seen_and_an_in_place_form_has_that_of_its_functional_form(operators):
    row = operators.Row("NEW", ["new_operator", "kPointwise"], "pointwise", {})
    assert row.missing(set()) == ["`out`", "lowering"]
    assert operators.Row("INPLACE", ["add__Tensor", "kPointwise"], "inplace", {}).missing({"add_Tensor"}) == []
