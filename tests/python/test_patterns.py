"""Patterns that models make and that fusion takes as one: within PyTorch's default tolerances of CPU, and taken.

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
    """Runs what `build` makes for a device, on CPU once and on hetero three times; returns what hetero counted."""
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("indices", [torch.int64, torch.int32])
def test_embeddings_their_sum_and_norm_are_one_kernel(indices: torch.dtype, dtype: torch.dtype) -> None:
    class Embeddings(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.word, self.position = nn.Embedding(97, 48, padding_idx=0), nn.Embedding(20, 48)
            self.norm = nn.LayerNorm(48)

        def forward(self, words: Tensor, positions: Tensor) -> Tensor:
            return self.norm(self.word(words) + self.position(positions))

    def build(device: str) -> Callable[[], list[Tensor]]:
        model = module(Embeddings, device).to(dtype).requires_grad_(False)
        words = torch.randint(97, (3, 7), generator=torch.Generator().manual_seed(1), dtype=indices).to(device)
        positions = torch.arange(7, dtype=indices).to(device)
        return lambda: [model(words, positions)]

    seen = compare(build)
    assert seen.fused_nodes >= 3


def test_embeddings_of_views_and_in_training() -> None:
    def build(device: str) -> Callable[[], list[Tensor]]:
        table = random(40, 64, device=device).requires_grad_()
        words = torch.randint(40, (5, 6), generator=torch.Generator().manual_seed(1)).to(device)

        def step() -> list[Tensor]:
            # Every second row, and half of each; indices across their rows.
            y = F.embedding(words.t(), table[::2, 32:].repeat(2, 1)) + F.embedding(words.t() // 2, table[::2, 32:])
            loss = (y * y).sum(-1).mean()
            return [y.detach(), loss.detach(), *torch.autograd.grad(loss, [table])]

        return step

    compare(build)


@pytest.mark.parametrize("wrong", [-1, 30, 2**40])
def test_an_index_outside_of_its_table_raises_what_cpu_raises(wrong: int) -> None:
    table, bias = torch.randn(30, 16).to(DEVICE), torch.randn(16).to(DEVICE)
    right = torch.arange(10).to(DEVICE)
    for index in (right, right, torch.tensor([1, 2, wrong, 4, 5, 6, 7, 8, 9, 10]).to(DEVICE)):
        y = F.embedding(index, table) + bias
        if index is right:
            torch.testing.assert_close(y.cpu(), table.cpu()[:10] + bias.cpu())
    with pytest.raises(IndexError, match="out of range"):
        y.cpu()
    torch.testing.assert_close((F.embedding(right, table) + bias).cpu(), table.cpu()[:10] + bias.cpu())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    "sizes", [(2, 6, 9, 7), (3, 4, 40), (5, 6), (2, 3, 4, 5, 6), (1, 3, 1, 1), (0, 3, 4, 4)], ids=str
)
def test_batch_norm_in_inference_joins_residual_and_activation(sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    def build(device: str) -> Callable[[], list[Tensor]]:
        kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[len(sizes)]
        norm = module(lambda: kind(sizes[1]), device).eval().to(dtype)
        with torch.no_grad():
            for parameter in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
                parameter.copy_(torch.rand(sizes[1], generator=torch.Generator().manual_seed(3)) + 0.5)
        x, residual = (random(*sizes, device=device, dtype=dtype) for _ in range(2))
        return lambda: [F.relu(norm(x) + residual).detach()]

    seen = compare(build)
    assert seen.fused_nodes >= (3 if len(sizes) == 4 and min(sizes) > 1 else 0)


def test_batch_norm_of_other_layouts_and_without_parameters() -> None:
    def build(device: str) -> Callable[[], list[Tensor]]:
        x = random(2, 6, 8, 8, device=device)
        mean, variance = random(6, device=device), random(6, device=device).abs()

        def run() -> list[Tensor]:
            inputs = [x, x.contiguous(memory_format=torch.channels_last), x.transpose(2, 3), x[:, :, ::2]]
            return [F.relu(F.batch_norm(value, mean, variance)) for value in inputs]

        return run

    compare(build)


def test_gradients_through_batch_norm_in_inference() -> None:
    def build(device: str) -> Callable[[], list[Tensor]]:
        norm = module(lambda: nn.BatchNorm2d(5), device).eval()
        x = random(2, 5, 6, 6, device=device).requires_grad_()

        def step() -> list[Tensor]:
            loss = F.relu(norm(x)).square().mean()
            return [loss.detach(), *torch.autograd.grad(loss, [x, norm.weight, norm.bias])]

        return step

    compare(build)
