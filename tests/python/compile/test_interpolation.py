"""Interpolation in compiled programs: the operator itself runs, and not what PyTorch computes it by."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from convolution_models import ran
from torch import nn

MODES = [
    {"mode": "bilinear", "size": (30, 17)}, {"mode": "bilinear", "scale_factor": 2.0, "align_corners": True},
    {"mode": "bilinear", "size": (9, 9), "antialias": True}, {"mode": "bicubic", "scale_factor": (1.5, 2.0)},
    {"mode": "nearest", "scale_factor": 2.0}, {"mode": "nearest-exact", "size": (7, 30)},
]  # fmt: skip


class Resizes(nn.Module):
    """An interpolation between convolutions."""

    def __init__(self, how: dict) -> None:
        super().__init__()
        self.first, self.last, self.how = nn.Conv2d(3, 24, 3, padding=1), nn.Conv2d(24, 4, 1), how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Four channels."""
        return self.last(F.interpolate(F.relu(self.first(x)), **self.how))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("how", MODES, ids=str)
def test_results_and_gradients_are_eagers(how: dict, dynamic: bool) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Resizes(how)
    there = copy.deepcopy(model).to("hetero")
    compiled = torch.compile(there, backend="hetero", dynamic=dynamic)
    for size in ((2, 3, 12, 10), (1, 3, 15, 8)):
        x = torch.randn(size)
        model(x).square().mean().backward()
        compiled(x.to("hetero")).square().mean().backward()
        torch.testing.assert_close(compiled(x.to("hetero")).cpu(), model(x), rtol=1e-4, atol=1e-5)
        for found, expected in zip(there.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(found.grad.cpu(), expected.grad, rtol=1e-3, atol=1e-5)


@torch.no_grad()
def test_the_operator_stays_whole() -> None:
    torch._dynamo.reset()
    model = Resizes(MODES[0]).to("hetero").eval()
    compiled = torch.compile(model, backend="hetero")
    x = torch.randn(1, 3, 12, 10).to("hetero")
    compiled(x).cpu()
    assert ran(lambda: compiled(x).cpu()).get("resized images") == 1
    # What PyTorch has for others is back.
    kernels = torch.ops.aten.upsample_bilinear2d.vec.py_kernels
    assert torch._C.DispatchKey.CompositeImplicitAutograd in kernels
