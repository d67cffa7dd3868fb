"""What every other test rests on: the comparison tells equal from unequal, and exclusions name tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from helpers import assert_same, difference, fresh, fresh_tree
from machines import BITS_OF_HOST_KERNELS, CPU_ALONE

UNEQUAL = {
    "value": (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0000002])),
    "sign of zero": (torch.tensor([0.0]), torch.tensor([-0.0])),
    "nan against number": (torch.tensor([float("nan")]), torch.tensor([1.0])),
    "dtype": (torch.tensor([1]), torch.tensor([1], dtype=torch.int32)),
    "shape": (torch.zeros(2, 1), torch.zeros(1, 2)),
    "complex part": (torch.tensor([1 + 2j]), torch.tensor([1 + 3j])),
    "kind": (1.0, torch.tensor(1.0)),
    "number": (1, 2),
    "type of number": (1, 1.0),
}


@pytest.mark.parametrize("case", UNEQUAL)
def test_unequal_things_are_told_apart(case: str) -> None:
    actual, expected = UNEQUAL[case]
    assert difference(actual, expected) is not None


def test_equal_things_are_equal_whatever_their_strides_and_nans() -> None:
    nan = torch.tensor([[float("nan"), 1.0], [2.0, 3.0]])
    assert_same([nan.t().contiguous().t(), 3, "x"], [nan, 3, "x"])
    assert_same(torch.zeros(1, 3).expand(2, 3), torch.zeros(2, 3))


def test_a_structure_that_differs_is_unequal() -> None:
    with pytest.raises(AssertionError):
        assert_same([torch.zeros(1)], (torch.zeros(1),))


def test_copies_keep_strides_and_share_nothing() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    for source in (base.t(), base[:, ::2], base[:1].expand(3, 4), base.diagonal(), base[1:]):
        copy = fresh(source)
        assert copy.stride() == source.stride()
        assert_same(copy.cpu(), source)
        copy.untyped_storage().resize_(0)
    assert base.sum().item() == 66


def test_one_tensor_given_twice_stays_one_tensor() -> None:
    tensor = torch.ones(2)
    first, second = fresh_tree([tensor, {"again": tensor}])
    assert first is second["again"] and first is not tensor


@pytest.mark.parametrize("excluded", sorted(CPU_ALONE | BITS_OF_HOST_KERNELS))
def test_what_runs_with_an_accelerator_leave_out_exists(excluded: str) -> None:
    file, _, test = excluded.partition("::")
    found = list(Path(__file__).parents[1].glob(f"*/{file}"))
    assert len(found) == 1, f"{len(found)} files are named {file}"
    name = test.partition("[")[0]
    assert re.search(rf"^def {name}", found[0].read_text(), re.MULTILINE), f"{file} has no test {name}..."
