"""Batch norms by the statistics of the batch, and their gradients: near to float64, and PyTorch's bits unfused."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from convolution_models import ran
from helpers import assert_same
from torch import nn

NORMS = "batch norms in training"
GRADIENTS = "gradients of batch norms"

MAKERS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: nn.BatchNorm2d(24),
    "without weights": lambda: nn.BatchNorm2d(24, affine=False),
    "without statistics": lambda: nn.BatchNorm2d(24, track_running_stats=False),
    "cumulative": lambda: nn.BatchNorm2d(24, momentum=None),
    "another epsilon": lambda: nn.BatchNorm2d(24, eps=0.1, momentum=0.7),
}


def trained(norm: nn.Module, x: torch.Tensor, weights: torch.Tensor) -> list[torch.Tensor]:
    """The result, the gradients and the statistics of a step, on the CPU."""
    x = x.detach().requires_grad_()
    result = norm(x)
    (result * weights).sum().backward()
    found = [result.detach(), x.grad, *(one.grad for one in norm.parameters()), *norm.buffers()]
    return [one.cpu() for one in found]


def dense(x: torch.Tensor) -> torch.Tensor:
    """As the device has it."""
    return x.contiguous() if 0 in x.stride() else x


def samples() -> list[torch.Tensor]:
    """Of 24 channels, in several layouts."""
    torch.manual_seed(0)
    images = torch.randn(3, 24, 7, 5) * 2 + 3
    return [images, images.to(memory_format=torch.channels_last), images.transpose(2, 3), images[:1].expand(3, 24, 7, 5),
            torch.randn(1, 24, 40, 40), torch.randn(2, 24, 1, 1)]


@pytest.mark.parametrize("name", MAKERS)
def test_a_step_is_near_to_the_truth(name: str) -> None:
    for x in samples():
        weights = torch.randn_like(x)
        norm = MAKERS[name]().train()
        there, truth = copy.deepcopy(norm).to("hetero"), copy.deepcopy(norm).double()
        expected = trained(truth, x.double(), weights.double())
        for one, other in zip(trained(there, x.to("hetero"), weights.to("hetero")), expected, strict=True):
            torch.testing.assert_close(one.double(), other.double(), rtol=1e-4, atol=1e-4)


def test_unfused_a_step_has_pytorchs_bits(unfused: None) -> None:
    for x in samples():
        weights = torch.randn_like(x)
        norm = nn.BatchNorm2d(24)
        there = copy.deepcopy(norm).to("hetero")
        for one, other in zip(trained(there, x.to("hetero"), weights.to("hetero")), trained(norm, dense(x), weights),
                              strict=True):
            assert_same(one, other)


def test_kernels_of_norms_run_in_either_layout() -> None:
    for x in samples()[:2]:
        norm = nn.BatchNorm2d(24).to("hetero")
        found = ran(lambda norm=norm, x=x: trained(norm, x.to("hetero"), x.to("hetero")))
        assert (found[NORMS], found[GRADIENTS]) == (1, 1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes_are_pytorchs(dtype: torch.dtype) -> None:
    x = torch.randn(2, 24, 6, 6).to(dtype)
    norm = nn.BatchNorm2d(24).to(dtype)
    there = copy.deepcopy(norm).to("hetero")
    for one, other in zip(trained(there, x.to("hetero"), x.to("hetero")), trained(norm, x, x), strict=True):
        torch.testing.assert_close(one, other)


def test_rows_and_volumes_have_norms_too() -> None:
    for norm, x in ((nn.BatchNorm1d(9), torch.randn(17, 9)), (nn.BatchNorm1d(9), torch.randn(3, 9, 21)),
                    (nn.BatchNorm3d(9), torch.randn(2, 9, 3, 4, 5)),
                    (nn.BatchNorm3d(9), torch.randn(2, 9, 3, 4, 5).to(memory_format=torch.channels_last_3d))):
        there, truth = copy.deepcopy(norm).to("hetero"), copy.deepcopy(norm).double()
        weights = torch.randn_like(x)
        expected = trained(truth, x.double(), weights.double())
        for one, other in zip(trained(there, x.to("hetero"), weights.to("hetero")), expected, strict=True):
            torch.testing.assert_close(one.double(), other.double(), rtol=1e-4, atol=1e-4)


def test_gradients_of_given_statistics_and_of_gradients() -> None:
    torch.manual_seed(0)
    for training in (False, True):
        norm = nn.BatchNorm2d(8).train(training)
        there = copy.deepcopy(norm).to("hetero")
        x = torch.randn(2, 8, 5, 5)
        seconds = []
        for module, data in ((norm, x), (there, x.to("hetero"))):
            data = data.detach().requires_grad_()
            (first,) = torch.autograd.grad(module(data).pow(3).sum(), data, create_graph=True)
            (second,) = torch.autograd.grad(first.square().sum(), data)
            seconds.append(second.cpu())
        torch.testing.assert_close(seconds[1], seconds[0], rtol=1e-3, atol=1e-3)


def test_only_the_gradients_that_are_asked_for() -> None:
    x = torch.randn(2, 8, 5, 5)
    for of_input, of_weight in ((True, False), (False, True)):
        found = []
        for device in ("cpu", "hetero"):
            torch.manual_seed(0)
            norm = nn.BatchNorm2d(8).to(device).requires_grad_(of_weight)
            data = x.clone().to(device).requires_grad_(of_input)
            norm(data).pow(3).sum().backward()
            found.append([one.grad.cpu() for one in (data, *norm.parameters()) if one.requires_grad])
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)


def test_no_images_and_one_number_are_pytorchs_errors_and_values() -> None:
    norm = nn.BatchNorm2d(8).to("hetero")
    with pytest.raises(ValueError, match="more than 1 value"):
        norm(torch.randn(1, 8, 1, 1).to("hetero"))
    empty = norm(torch.randn(0, 8, 3, 3).to("hetero"))
    assert empty.cpu().shape == (0, 8, 3, 3)
    values = torch.full((1, 8, 4, 4), float("nan"))
    assert norm(values.to("hetero")).isnan().all()
