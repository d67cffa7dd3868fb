"""Gates: pointwise operators over parts of tensors. They are fused where eager's loops over rows are whole vectors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from counters import counting
from helpers import DEVICE, needs_hetero
from torch.nn import functional as F

pytestmark = needs_hetero

FUNCTIONS = {
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "softplus": F.softplus,
    "elu": F.elu,
    "scaled sum": lambda x: torch.add(x, x, alpha=0.3),
}
# Shapes, the dimension that is halved, and whether halves of floats have rows of whole vectors.
HALVED = [
    ((3, 64, 96), 1, True), ((5, 7, 128), 2, True), ((2, 300, 256), 2, True), ((1, 128, 200), 1, True),
    ((4, 64, 34), 2, False), ((700, 48), 1, False), ((64, 2, 96), 1, True), ((2, 64, 16, 16), 1, True),
]  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("shape", "dimension", "whole"), HALVED)
def test_gates_have_eagers_bits(dtype: torch.dtype, name: str, shape: tuple[int, ...], dimension: int,
                                whole: bool) -> None:
    def gated(x: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor] = FUNCTIONS[name]) -> torch.Tensor:
        half, gate = x.chunk(2, dimension)
        return half * function(gate)

    images = (torch.randn(shape) * 3).to(dtype)
    turned = images.transpose(-1, -2).contiguous().transpose(-1, -2)
    for x in (images, turned):
        expected, there = gated(x), x.to(DEVICE)
        for _ in range(4):
            with counting() as seen:
                actual = gated(there).cpu()
            assert torch.equal(actual, expected)
        if x is images and dtype == torch.float32:
            assert (seen.fused_nodes == 2) == whole


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gates_by_gelu_are_near_eagers(dtype: torch.dtype) -> None:
    x = (torch.randn(3, 40, 256) * 3).to(dtype)

    def gated(x: torch.Tensor) -> torch.Tensor:
        half, gate = x.chunk(2, -1)
        return half * F.gelu(gate)

    for _ in range(4):
        torch.testing.assert_close(gated(x.to(DEVICE)).cpu(), gated(x))
