"""What tests on the simulated accelerator share: models, and what it holds."""

from __future__ import annotations

import torch
from torch import nn

from torch_hetero import _C

MIB = 1 << 20


class Layers(nn.Module):
    """Equal layers, each with one large weight."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x


class Block(nn.Module):
    """A product, and pointwise work and a norm behind it that fuse."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.gelu(self.linear(x)) * 0.5 + x
        return self.norm(y * y.sigmoid())


class Heads(torch.nn.Module):
    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.heads = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Tanh(), torch.nn.Linear(width, 8))
            for _ in range(count)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([head(x) for head in self.heads], dim=1)


def accelerator_peak() -> int:
    return _C.accelerator_stats()["peak_bytes"]
