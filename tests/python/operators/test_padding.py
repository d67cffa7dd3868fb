"""Padding with a number, which is written where the result lies: any sizes, layouts and dtypes."""

from __future__ import annotations

import random

import pytest
import torch
from helpers import assert_same
from machines import accelerator
from torch.nn import functional as F

PAD = "padding in place"


def padded(dtype: torch.dtype, seed: int) -> tuple[torch.Tensor, list[int], float]:
    """A tensor of some rank and layout, pads that may cut, and a number."""
    draw = random.Random(seed)
    rank = draw.randint(1, 5)
    torch.manual_seed(seed)
    x = torch.randn([draw.randint(1, 5) for _ in range(rank)]) * 3
    x = x.permute(draw.sample(range(rank), rank)).to(dtype)
    if draw.random() < 0.3:
        x = x[..., ::2]
    pads = []
    for size in reversed(x.shape[rank - draw.randint(1, rank) :]):
        before = draw.randint(1 - size, 3)
        pads += [before, draw.randint(max(1 - size, 1 - size - before), 3)]
    return x, pads, draw.choice([0, 1, -2.5])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.complex64])
def test_random_pads_are_eagers(dtype: torch.dtype) -> None:
    before = torch.hetero.explain()
    for seed in range(60):
        x, pads, value = padded(dtype, seed)
        if not dtype.is_floating_point and not dtype.is_complex:
            value = abs(int(value))
        expected = F.pad(x, pads, value=value)
        padded_there = F.pad(x.to("hetero"), pads, value=value)
        result = padded_there + 1
        assert padded_there.stride() == expected.stride()
        del padded_there  # a temporary, which has its place before the program runs
        assert_same(result, expected + 1)
    if accelerator() == "none":
        assert (torch.hetero.explain() - before).own_kernels[PAD] >= 50


def test_pads_of_nothing_and_of_all() -> None:
    for shape, pads, value in (((0, 3), (1, 1), 2.0), ((2, 0), (2, 1), 1.0), ((2, 3), (-3, 0), 1.0), ((2, 3), (0, 0), 1.0)):
        x = torch.randn(shape)
        assert_same(F.pad(x.to("hetero"), pads, value=value), F.pad(x, pads, value=value))


def test_gradients_and_what_is_padded_stay_apart() -> None:
    x = torch.randn(2, 3, 4)
    there = x.to("hetero").requires_grad_()
    result = F.pad(there, (1, -1, 2, 0), value=3)
    with torch.no_grad():
        there.mul_(2)
    assert_same(result.detach(), F.pad(x, (1, -1, 2, 0), value=3))
    result.sum().backward()
    here = x.clone().requires_grad_()
    F.pad(here, (1, -1, 2, 0), value=3).sum().backward()
    assert_same(there.grad, here.grad)


def test_a_conjugate_and_a_number_that_does_not_fit() -> None:
    z = torch.randn(3, dtype=torch.complex64)
    assert_same(F.pad(z.to("hetero").conj(), (1, 1)), F.pad(z.conj(), (1, 1)).resolve_conj())
    with pytest.raises(RuntimeError):
        F.pad(torch.zeros(2, dtype=torch.uint8), (1, 1), value=1e9)
    with pytest.raises(RuntimeError):
        F.pad(torch.zeros(2, dtype=torch.uint8, device="hetero"), (1, 1), value=1e9).cpu()
