"""Sigmoid and SiLU in fused kernels, whose exponential is generated code: they have eager's bits over the whole range."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

COUNT = 1 << 21  # whole vectors for each thread, as eager computes the entries behind them in another way


def floats_of_all_sizes() -> torch.Tensor:
    """Float32 of every sign and exponent, NaN and infinities among them, shape (COUNT,)."""
    bits = torch.arange(COUNT, dtype=torch.int64) * 2049 % (1 << 32)
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, -104, -103.99, 88.72, 88.73, 100, 104, 1e-45])
    x = (bits - (1 << 31)).to(torch.int32).view(torch.float32)
    x[: len(special)] = special
    return x


@pytest.mark.parametrize("function", [torch.sigmoid, F.silu])
def test_fused_kernels_have_eagers_bits(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = floats_of_all_sizes()
    expected = function(x * 1.0)
    actual = function(x.to("hetero") * 1.0).cpu()
    same = (actual.view(torch.int32) == expected.view(torch.int32)) | (actual.isnan() & expected.isnan())
    assert same.all(), f"of {x[~same][:5]}: {actual[~same][:5]} in place of {expected[~same][:5]}"
