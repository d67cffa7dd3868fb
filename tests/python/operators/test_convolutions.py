"""Convolutions whose implementation is measured: within PyTorch's tolerances of CPU's values, and its bits unfused."""

from __future__ import annotations

import copy

import pytest
import torch
from helpers import DEVICE, assert_same
from torch import nn

STEPS = 4


def small_net() -> nn.Module:
    """Convolutions of many kinds: strided, pointwise, dilated, grouped, over one dimension, with and without bias."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=2, dilation=2, groups=4),
        nn.Conv2d(32, 64, 1, stride=2),
        nn.ReLU(),
        nn.Conv2d(64, 64, (1, 3), padding="same"),
        nn.Flatten(2),
        nn.Conv1d(64, 8, 3, stride=2),
        nn.Flatten(),
        nn.LazyLinear(10),
    )


def train(device: str) -> tuple[list[float], list[torch.Tensor]]:
    """The losses of some steps, and the parameters after them."""
    model = small_net()
    images, classes = torch.randn(6, 3, 32, 32), torch.randint(10, (6,))
    model(images)
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images.to(device)), classes.to(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [parameter.detach().cpu() for parameter in model.parameters()]


def test_a_small_net_trains_as_on_cpu() -> None:
    losses, parameters = train(DEVICE)
    expected_losses, expected_parameters = train("cpu")
    torch.testing.assert_close(losses, expected_losses, rtol=1e-4, atol=1e-4)
    # Steps amplify differences of the last bits.
    torch.testing.assert_close(parameters, expected_parameters, rtol=1e-3, atol=1e-4)


def test_unfused_a_small_net_trains_to_cpus_bits(unfused: None) -> None:
    losses, parameters = train(DEVICE)
    expected_losses, expected_parameters = train("cpu")
    assert losses == expected_losses
    for parameter, expected in zip(parameters, expected_parameters, strict=True):
        assert_same(parameter, expected)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["contiguous", "channels last"])
@pytest.mark.parametrize("batch", [1, 5])
def test_gradients_are_those_of_the_cpu_whatever_the_layout(layout: torch.memory_format, batch: int) -> None:
    torch.manual_seed(1)
    image = torch.randn(batch, 12, 9, 7).contiguous(memory_format=layout)
    weight = torch.randn(20, 12, 3, 3).contiguous(memory_format=layout)
    bias = torch.randn(20)

    def gradients(device: str) -> list[torch.Tensor]:
        leaves = [value.clone().to(device).requires_grad_() for value in (image, weight, bias)]
        output = nn.functional.conv2d(*leaves, stride=(2, 1), padding=1)
        output.square().sum().backward()
        return [output.detach().cpu()] + [leaf.grad.cpu() for leaf in leaves]

    expected = gradients("cpu")
    for _ in range(3):  # at first sight, planned, replayed
        actual = gradients(DEVICE)
        for value, other in zip(actual, expected, strict=True):
            assert value.stride() == other.stride()
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("dimensions", [1, 2])
def test_gradients_of_images_with_their_channels_last(dimensions: int) -> None:
    torch.manual_seed(0)
    make = nn.Conv1d if dimensions == 1 else nn.Conv2d
    layers = [make(24, 40, 1), make(24, 24, 3, padding=1, groups=24), make(24, 24, 5, stride=2, padding=3, groups=24),
              make(24, 24, 3, dilation=2, stride=3, groups=24, bias=False), make(24, 24, 1, groups=24),
              make(24, 48, 3, groups=24), make(24, 40, 1, stride=2)]
    x = torch.randn(3, 24, *(13, 11)[:dimensions])
    if dimensions == 2:
        x = x.to(memory_format=torch.channels_last)
    else:
        x = x.transpose(1, 2).contiguous().transpose(1, 2)
    for layer in layers:
        there, truth = copy.deepcopy(layer).to(DEVICE), copy.deepcopy(layer).double()
        found = []
        for module, images in ((there, x.to(DEVICE)), (truth, x.double())):
            for _ in range(3):
                images = images.detach().requires_grad_()
                module.zero_grad()
                module(images).pow(2).sum().backward()
            found.append([images.grad.cpu(), *(one.grad.cpu() for one in module.parameters())])
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-3)
