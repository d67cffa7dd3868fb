"""Group norms: near to float64 in either layout, and PyTorch's bits unfused."""

from __future__ import annotations

import copy

import pytest
import torch
from convolution_models import ran
from helpers import assert_same
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

NORMS = "group norms"


def samples() -> list[torch.Tensor]:
    """Of 24 channels, in several layouts; signals, images, volumes, and one number for each channel."""
    torch.manual_seed(0)
    images = torch.randn(3, 24, 7, 5) * 2 + 3
    return [images, images.to(memory_format=torch.channels_last), images.transpose(2, 3), torch.randn(1, 24, 40, 40),
            torch.randn(2, 24), torch.randn(2, 24, 9), torch.randn(2, 24, 9).transpose(1, 2).contiguous().transpose(1, 2),
            torch.randn(1, 24, 3, 4, 5), torch.randn(0, 24, 3, 3)]


@pytest.mark.parametrize("groups", [1, 6, 24])
@pytest.mark.parametrize("affine", [False, True])
def test_results_and_gradients_are_near_to_the_truth(groups: int, affine: bool) -> None:
    norm = nn.GroupNorm(groups, 24, affine=affine)
    if affine:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    truth, there = copy.deepcopy(norm).double(), copy.deepcopy(norm).to("hetero")
    for x in samples():
        with torch.no_grad():
            assert_close(there(x.to("hetero")).cpu().double(), truth(x.double()), rtol=1e-4, atol=1e-4)
        if x.numel() == 0:
            continue
        given = x.detach().double().requires_grad_()
        moved = x.detach().to("hetero").requires_grad_()
        truth(given).square().sum().backward()
        there(moved).square().sum().backward()
        assert moved.grad is not None
        assert_close(moved.grad.cpu().double(), given.grad, rtol=1e-3, atol=1e-3)


def test_unfused_norms_have_pytorchs_bits(unfused: None) -> None:
    for x in samples():
        assert_same(F.group_norm(x.to("hetero"), 6).cpu(), F.group_norm(x, 6))


class Blocks(nn.Module):
    """Convolutions, each behind a norm and an activation, and one of the sums of both."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        convolution = nn.Conv1d if rank == 1 else nn.Conv2d
        self.first = convolution(3, 24, 3, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(6, 24) for _ in range(3))
        self.convolutions = nn.ModuleList(convolution(24, 24, 3, padding=1) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What is largest of each channel."""
        hidden = self.first(x)
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            hidden = hidden + convolution(F.silu(norm(hidden)))
        return hidden.flatten(2).amax(-1)


@torch.no_grad()
@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_programs_of_norms_between_convolutions(rank: int, precision: str) -> None:
    torch.manual_seed(1)
    model = Blocks(rank).eval()
    for batch in (1, 3):
        x = torch.randn(batch, 3, *[12] * rank)
        expected = copy.deepcopy(model).double()(x.double())
        program = torch.hetero.compile(model, (x,), precision=precision)
        near = {"rtol": 1e-4, "atol": 1e-4} if precision == "float32" else {"rtol": 5e-2, "atol": 1e-1}
        for _ in range(2):
            assert_close(program(x).double(), expected, **near)


@torch.no_grad()
def test_kernels_of_norms_run_between_images_of_one_layout() -> None:
    model = Blocks(2).eval()
    x = torch.randn(1, 3, 12, 12)
    program = torch.hetero.compile(model, (x,))
    program(x)
    assert ran(lambda: program(x)).get(NORMS) == 3


TAILS = {
    "mean": lambda hidden: hidden.mean((2, 3)),
    "extrema": lambda hidden: hidden.max(3)[0].amin(1),
    "tokens": lambda hidden: F.gelu(hidden.flatten(2).transpose(1, 2)),
    "flat": lambda hidden: F.group_norm(hidden.flatten(2), 4).square(),
}


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("way", ["lazily", "compiled"])
def test_gradients_of_norms_behind_large_images(tail: str, way: str) -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(3, 16, 3), nn.GroupNorm(4, 16))
    truth, there = copy.deepcopy(layers).double(), copy.deepcopy(layers).to("hetero")
    # Images are large beside filters, so they have their channels last in both passes.
    x = torch.randn(4, 3, 64, 64)

    def loss_of(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
        return TAILS[tail](model(images)).square().sum()

    def loss(images: torch.Tensor) -> torch.Tensor:
        return loss_of(there, images)

    loss_of(truth, x.double()).backward()
    torch._dynamo.reset()
    step = torch.compile(loss, backend="hetero", dynamic=False) if way == "compiled" else loss
    for _ in range(2):
        there.zero_grad()
        step(x.to("hetero")).backward()
        for one, other in zip(there.parameters(), truth.parameters(), strict=True):
            assert one.grad is not None
            assert other.grad is not None
            bound = 1e-4 * other.grad.abs().max().item() + 1e-4
            assert_close(one.grad.cpu().double(), other.grad, rtol=1e-3, atol=bound)


@torch.no_grad()
@pytest.mark.parametrize("shape", [(1, 6, 4, 8, 8), (6, 4, 8, 8), (1, 24, 64), (1, 24, 4, 16)])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_norms_of_other_views_of_an_image(shape: tuple[int, ...], precision: str) -> None:
    convolution = nn.Conv2d(3, 24, 3, padding=1)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = convolution

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.group_norm(self.convolution(x).view(shape), 2)

    x = torch.randn(1, 3, 8, 8)
    expected = Model()(x)
    bound = 1e-4 if precision == "float32" else 5e-2
    found = torch.hetero.compile(Model(), (x,), precision=precision)(x)
    assert_close(found.float(), expected, rtol=bound, atol=bound)


@torch.no_grad()
def test_what_only_the_operator_takes_is_as_on_the_cpu() -> None:
    x, constant = torch.randn(2, 6, 10), torch.ones(1, 4, 5)
    for call in (lambda t: torch.native_group_norm(t, None, None, 2, 12, 5, 4, 1e-5),
                 lambda t: torch.native_group_norm(t, None, None, 2, 6, 10, 3, 1e-5)):
        for one, other in zip(call(x.to("hetero")), call(x), strict=True):
            assert_close(one.cpu(), other)
    found = torch.native_group_norm(constant.to("hetero"), None, None, 1, 4, 5, 2, 0.0)
    for one, other in zip(found, torch.native_group_norm(constant, None, None, 1, 4, 5, 2, 0.0), strict=True):
        assert_close(one.cpu(), other, equal_nan=True)
