"""Patterns that models make and that fusion takes as one: results within PyTorch's default tolerances of CPU, and the pattern was taken.

Each pattern runs three times: at first sight, planned, and replayed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from counters import Seen, counting
from helpers import DEVICE
from torch import Tensor, nn


def compare(build: Callable[[str], Callable[[], list[Tensor]]]) -> Seen:
    """Runs what `build` makes for a device, on CPU once and on hetero three times. Returns what was counted on hetero."""
    expected = build("cpu")()
    run = build(DEVICE)
    with counting() as seen:
        for _ in range(3):
            actual = [tensor.cpu() for tensor in run()]
            torch.testing.assert_close(actual, expected)
    return seen


def module(make: Callable[[], nn.Module], device: str) -> nn.Module:
    torch.manual_seed(5)
    return make().to(device)


def random(*sizes: int, device: str, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(7)).to(dtype).to(device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [1, 8, 70])
def test_bias_and_activation_follow_a_product_as_one_kernel(rows: int, dtype: torch.dtype) -> None:
    def build(device: str) -> Callable[[], list[Tensor]]:
        linear = module(lambda: nn.Linear(160, 256, dtype=dtype), device)
        x, residual = (random(2, rows, n, device=device, dtype=dtype) for n in (160, 256))
        return lambda: [(F.gelu(linear(x)) + residual).detach()]

    # Tail, activation and sum; at first sight nothing is fused.
    assert compare(build).fused_nodes >= 2 * 3


def test_a_product_alone_keeps_its_bias() -> None:
    def build(device: str) -> Callable[[], list[Tensor]]:
        linear = module(lambda: nn.Linear(64, 64), device)
        x = random(10, 64, device=device)
        return lambda: [linear(x).softmax(0).detach()]

    assert "tail joined" not in compare(build).fusion


def test_training_through_a_product_with_bias_and_activation() -> None:
    def build(device: str) -> Callable[[], list[Tensor]]:
        model = module(lambda: nn.Sequential(nn.Linear(32, 48), nn.GELU(), nn.Linear(48, 8)), device)
        x = random(20, 32, device=device)

        def step() -> list[Tensor]:
            loss = model(x).square().mean()
            return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]

        return step

    assert compare(build).fusion["tail joined"] >= 1


def test_what_a_bias_is_changed_to_counts() -> None:
    linear, x = nn.Linear(64, 300).to(DEVICE), torch.randn(9, 64).to(DEVICE)
    with torch.no_grad():
        for step in range(4):
            y = F.relu(linear(x))
            linear.bias.add_(1)
            expected = F.relu(F.linear(x.cpu(), linear.weight.cpu(), linear.bias.cpu() - 1))
            torch.testing.assert_close(y.cpu(), expected, msg=f"step {step}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, 6, 40])
def test_projections_of_one_input_run_together(tokens: int, dtype: torch.dtype) -> None:
    class Projections(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value = nn.Linear(192, 256), nn.Linear(192, 128), nn.Linear(192, 128)
            self.gate, self.up = nn.Linear(192, 320, bias=False), nn.Linear(192, 320, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            heads = [project(x).softmax(-1) for project in (self.query, self.key, self.value)]
            return torch.cat([*heads, F.silu(self.gate(x)) * self.up(x)], dim=-1)

    def build(device: str) -> Callable[[], list[Tensor]]:
        model = module(Projections, device).to(dtype).requires_grad_(False)
        x = random(1, tokens, 192, device=device, dtype=dtype)
        return lambda: [model(x)]

    # Three with a bias and two without.
    assert compare(build).batched_nodes >= 5
