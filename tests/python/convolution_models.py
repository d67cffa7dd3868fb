"""Convolutional networks that several tests run, and what they ask of them."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

PACKED = "convolutions with a packed weight"
DEPTHWISE = "depthwise convolutions"
PATCHES = "convolutions as products of patches"
WINOGRAD = "convolutions by Winograd's algorithm"


def ran(call: Callable[[], object]) -> dict[str, int]:
    """The calls of kernels of ours that it makes."""
    before = torch.hetero.explain()
    call()
    return (torch.hetero.explain() - before).own_kernels


def kept(kernels: dict[str, int]) -> int:
    """How many convolutions had a filter in a layout of its own; the fastest one is found by measuring."""
    return kernels.get(PACKED, 0) + kernels.get(PATCHES, 0) + kernels.get(WINOGRAD, 0)


def with_statistics(model: nn.Module) -> nn.Module:
    """The model for inference, with running statistics that are not 0 and 1."""
    torch.manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            if module.affine:
                nn.init.normal_(module.weight, 1, 0.2)
                nn.init.normal_(module.bias)
    return model.eval()


class Residual(nn.Module):
    """What networks have between convolutions: sums, pools, concatenations, resizing, squeeze and excite."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.depthwise = nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1, groups=16), nn.BatchNorm2d(16), nn.Hardswish())
        self.pixels = nn.Sequential(
            nn.Conv2d(16, 24, 1), nn.BatchNorm2d(24, affine=False), nn.SiLU(), nn.Conv2d(24, 16, 1))
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 4, 1), nn.ReLU(), nn.Conv2d(4, 16, 1), nn.Sigmoid())
        self.before = nn.Sequential(nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 8, 3, padding=1, dilation=1))
        self.up = nn.Sequential(nn.ConvTranspose2d(8, 8, 2, 2), nn.BatchNorm2d(8), nn.ReLU6())
        self.last = nn.Conv2d(8, 5, 3, padding="same", padding_mode="reflect")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        y = x + self.pixels(self.depthwise(x))
        y = y * self.squeeze(y)
        z = torch.cat([F.interpolate(F.avg_pool2d(y, 2), scale_factor=2), x[:, :16]], 1)
        return self.last(self.up(self.before(z))).flatten(2).transpose(1, 2)


class Signals(nn.Module):
    """What networks over signals have: causal, strided, grouped, dilated and transposed convolutions, and tokens of them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv1d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.MaxPool1d(3, 2, 1))
        self.causal = nn.Conv1d(16, 16, 3, dilation=4)
        self.depthwise = nn.Sequential(
            nn.Conv1d(16, 16, 3, padding=1, groups=16), nn.GELU(), nn.GroupNorm(4, 16), nn.Conv1d(16, 16, 1))
        self.up = nn.Sequential(nn.ConvTranspose1d(32, 8, 4, 2, 1), nn.BatchNorm1d(8), nn.LeakyReLU(0.1))
        self.places = nn.Parameter(torch.randn(1, 32, 8))
        self.norm = nn.LayerNorm(8)
        self.last = nn.Conv1d(8, 5, 5, padding="same", padding_mode="reflect")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        y = torch.relu(self.causal(F.pad(x, (8, 0)))) + x
        tokens = self.up(torch.cat([self.depthwise(y), x], 1)).transpose(1, 2) + self.places
        return self.last((tokens * torch.sigmoid(self.norm(tokens))).transpose(1, 2)).mean(2)


def close(actual: torch.Tensor, model: nn.Module, *inputs: torch.Tensor) -> None:
    """Within PyTorch's tolerances for float32 of what float64 gives, relative to the largest number."""
    expected = copy.deepcopy(model).double()(*[x.double() for x in inputs])
    scale = expected.abs().max()
    assert_close(actual.double() / scale, expected / scale, rtol=1.3e-6, atol=1e-5)
