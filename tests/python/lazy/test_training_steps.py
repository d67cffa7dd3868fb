"""Training steps as one program: where they are cut, and the layout of their images."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable

import pytest
import torch
from counters import counting, snapshot
from helpers import assert_same
from machines import accelerator
from torch import nn
from torch.nn import functional as F


def pending() -> int:
    return snapshot()["others"]["pending_nodes"]


class Mobile(nn.Module):
    """Small filters, activations in place, squeeze and excite, and shuffled channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6(inplace=True))
        self.depthwise = nn.Sequential(
            nn.Conv2d(16, 16, 3, 1, 1, groups=16), nn.BatchNorm2d(16), nn.Hardswish(inplace=True))
        self.pixels = nn.Sequential(
            nn.Conv2d(16, 16, 1), nn.BatchNorm2d(16), nn.LeakyReLU(), nn.Conv2d(16, 16, 1), nn.ELU())
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 4, 1), nn.ReLU(), nn.Conv2d(4, 16, 1), nn.Hardsigmoid())
        self.branch = nn.Sequential(
            nn.Conv2d(8, 8, 3, 2, 1, groups=8), nn.BatchNorm2d(8), nn.SiLU(), nn.Conv2d(8, 8, 1))
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        y = x + self.pixels(self.depthwise(x))
        y = F.channel_shuffle(F.max_pool2d(y * self.squeeze(y), 2), 2)
        left, right = y.chunk(2, 1)
        y = torch.cat([F.avg_pool2d(left, 2), self.branch(right)], 1)
        return self.head(y.mean((2, 3)))


def train(
    model: nn.Module, forward: Callable[[torch.Tensor], torch.Tensor], batches: list[torch.Tensor]
) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for x in batches:
        optimizer.zero_grad()
        loss = forward(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def gradients_read(capfd: pytest.CaptureFixture[str]) -> list[str]:
    """The first operands of gradients of convolutions and norms, as logged: with strides where they are not row-major."""
    return re.findall(r"aten::(?:convolution|native_batch_norm)_backward\(read b\d+:\S+", capfd.readouterr().err)


def test_a_step_whose_loss_is_read_last_is_one_program(unfused: None) -> None:
    there = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).to("hetero")
    batches = [torch.randn(4, 8).to("hetero") for _ in range(5)]
    train(there, there, batches)
    with counting() as seen:
        train(there, there, batches)
    assert seen.flushes == {"read scalar": 5}
    assert pending() == 0


def test_a_loop_gives_eagers_bits(unfused: None) -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.Tanh(), nn.Flatten(), nn.Linear(216, 3))
    there = copy.deepcopy(model).to("hetero")
    batches = [torch.randn(2, 3, 8, 8) for _ in range(6)]
    assert train(model, model, batches) == train(there, there, [x.to("hetero") for x in batches])
    for mine, theirs in zip(there.parameters(), model.parameters(), strict=True):
        assert_same(mine.detach().cpu(), theirs.detach())


def test_what_needs_values_that_are_held_stays_pending() -> None:
    x = torch.ones(4, device="hetero")
    for _ in range(4):
        torch.hetero.flush()
        a = x + 1
        b = a * 3  # of a value that the program has anyway
        assert a.sum().item() == 8
        assert pending() == 1
        assert b.tolist() == [6.0] * 4


def test_what_needs_a_value_that_nobody_holds_runs_with_it() -> None:
    x = torch.ones(4, device="hetero")
    for _ in range(4):
        torch.hetero.flush()
        a = x + 1
        b, total = -a, a.sum()
        del a
        assert total.item() == 8
        assert pending() == 0
        assert b.tolist() == [-2.0] * 4


def test_an_error_behind_the_value_is_raised_where_it_is_needed() -> None:
    x, index = torch.ones(4, device="hetero"), torch.tensor([9], device="hetero")
    for _ in range(4):
        a = x + 1
        b, total = a[index], a.sum()
        del a
        assert total.item() == 8
        with pytest.raises(IndexError):
            b.cpu()
    assert (x + 1).tolist() == [2.0] * 4


@torch.library.custom_op("hetero_steps::reads_a_value", mutates_args=())
def reads_a_value(x: torch.Tensor) -> torch.Tensor:
    a = torch.ones(4, device="hetero") + 1
    b, total = -a, a.sum()
    del a
    factor = total.item()
    assert b.tolist() == [-2.0] * 4
    return x * factor


@reads_a_value.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_a_kernel_that_reads_a_value_runs_nothing_of_the_program_around_it() -> None:
    x = torch.ones(4, device="hetero")
    for _ in range(4):
        made = reads_a_value(x)
        later = made * 2
        assert made.tolist() == [8.0] * 4
        assert later.tolist() == [16.0] * 4


@pytest.mark.parametrize("way", ["lazily", "compiled"])
def test_a_network_of_small_filters_trains_as_in_float64(way: str, capfd: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(3)
    model = Mobile().train()
    there, truth = copy.deepcopy(model).to("hetero"), copy.deepcopy(model).double()
    forward = there if way == "lazily" else torch.compile(there, backend="hetero", dynamic=False)
    batches = [torch.randn(2, 3, 48, 48) for _ in range(6)]
    torch.hetero.config.log = 2
    actual = train(there, forward, [x.to("hetero") for x in batches])
    torch.hetero.config.log = 0
    expected = train(truth, truth, [x.double() for x in batches])
    assert torch.allclose(torch.tensor(actual), torch.tensor(expected, dtype=torch.float32), rtol=1e-3)
    if accelerator() == "none":
        assert sum("{" in gradient for gradient in gradients_read(capfd)[-12:]) > 6


def test_images_of_large_filters_are_row_major(capfd: pytest.CaptureFixture[str]) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.Flatten(1))
    there, truth = copy.deepcopy(model).to("hetero"), copy.deepcopy(model).double()
    batches = [torch.randn(1, 3, 8, 8) for _ in range(5)]
    expected = train(truth, truth, [x.double() for x in batches])
    torch.hetero.config.log = 2
    actual = train(there, there, [x.to("hetero") for x in batches])
    torch.hetero.config.log = 0
    assert torch.allclose(torch.tensor(actual), torch.tensor(expected, dtype=torch.float32), rtol=1e-4)
    gradients = gradients_read(capfd)
    assert gradients and not any("{" in gradient for gradient in gradients)
