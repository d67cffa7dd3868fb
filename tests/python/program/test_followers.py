"""Fused kernels that run on parts of the result before them, while it is made."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from convolution_models import close, with_statistics
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    """A function of an image and some layers."""

    def __init__(self, function: Callable[..., object], **layers: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: torch.Tensor) -> object:
        return self.function(self, x)


def depthwise(channels: int) -> nn.Conv2d:
    return nn.Conv2d(channels, channels, 3, padding=1, groups=channels)


def saved(model: nn.Module, *inputs: torch.Tensor, **options: object) -> Callable[..., torch.Tensor]:
    with torch.no_grad():
        return torch.hetero.compile(with_statistics(model), inputs, **options)


IMAGE = (2, 32, 40, 40)

NETS = {
    "an activation": lambda: Net(lambda m, x: F.hardswish(m.a(x)), a=depthwise(32)),
    "a sum with the input": lambda: Net(lambda m, x: torch.relu(m.a(x) + x), a=depthwise(32)),
    "in place": lambda: Net(lambda m, x: m.a(x).add_(1).mul_(x).relu_(), a=depthwise(32)),
    "factors of channels": lambda: Net(lambda m, x: m.a(x) * m.b.weight[0, :32] + m.b.bias[0],
                                       a=depthwise(32), b=nn.Conv2d(32, 32, 1)),
    "two results": lambda: Net(lambda m, x: (lambda y: torch.cat([torch.relu(y), torch.exp(-y * y)], 1))(m.a(x)),
                               a=depthwise(32)),
    "a result that others read": lambda: Net(lambda m, x: (lambda y: m.b(torch.relu(y)) + m.b(y))(m.a(x)),
                                             a=depthwise(32), b=nn.Conv2d(32, 32, 3, padding=1)),
    "a norm of pixels": lambda: Net(
        lambda m, x: F.layer_norm(m.a(x).permute(0, 2, 3, 1), (32,)).permute(0, 3, 1, 2), a=depthwise(32)),
    "products of pixels": lambda: Net(lambda m, x: F.gelu(m.b(F.silu(m.a(x)))) * 2,
                                      a=nn.Conv2d(32, 96, 1), b=nn.Conv2d(96, 48, 1)),
    "transposed without overlap": lambda: Net(
        lambda m, x: torch.relu(m.b(F.silu(m.a(x)))),
        a=nn.ConvTranspose2d(32, 24, 2, stride=2), b=nn.ConvTranspose2d(24, 40, (3, 1), stride=(3, 1), bias=False)),
    "dense convolutions": lambda: Net(lambda m, x: torch.relu(m.b(torch.relu(m.a(x)))),
                                      a=nn.Conv2d(32, 64, 3, padding=1), b=nn.Conv2d(64, 32, 3, stride=2)),
    "limits": lambda: Net(
        lambda m, x: m.e(F.relu6(m.d(torch.relu(m.c(F.hardtanh(m.b(m.a(x).clamp(max=0.25)), -0.5, 1)))))).clamp(min=0.1),
        a=depthwise(32), b=nn.Conv2d(32, 64, 1), c=nn.Conv2d(64, 64, 3, padding=1), d=nn.Conv2d(64, 64, 3, groups=4),
        e=nn.ConvTranspose2d(64, 16, 2, stride=2)),
    "limits in place": lambda: Net(
        lambda m, x: F.relu(m.c(F.relu6(m.b(m.a(x).relu_()), inplace=True)), inplace=True),
        a=nn.Conv2d(32, 64, 3, stride=2), b=nn.Conv2d(64, 128, 5, stride=5), c=nn.Conv2d(128, 96, 1)),
    "limits and what they limit": lambda: Net(lambda m, x: (lambda y: torch.relu(y) - y.clamp(-1, 0.5))(m.a(x)),
                                              a=nn.Conv2d(32, 64, 1)),
}


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("threads", [1, 2])
def test_results_are_those_of_separate_kernels(name: str, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        model, x = NETS[name](), torch.randn(IMAGE)
        program = saved(model, x)
        for _ in range(3):
            close(program(x), model, x)
            x = torch.randn(IMAGE)
    finally:
        torch.set_num_threads(before)


def test_an_activation_behind_a_depthwise_convolution_follows() -> None:
    model, x = NETS["an activation"](), torch.randn(IMAGE).to(memory_format=torch.channels_last)
    program = saved(model, x)
    program(x)
    before = dict(program.counts)
    close(program(x), model, x)
    assert program.counts["followed"] == before["followed"] + 1
    assert program.counts["kernels"] > before["kernels"] + 1


def test_values_that_tiles_cannot_have_are_computed_again() -> None:
    model = NETS["dense convolutions"]()
    x = torch.randn(IMAGE)
    program = saved(model, x)
    x[0, 3, 5, 5] = 1e30
    close(program(x), model, x)
    x[0, 3, 5, 5] = float("nan")
    torch.testing.assert_close(program(x), model(x), equal_nan=True)
    x = torch.randn(IMAGE)
    close(program(x), model, x)


def test_limits_are_the_end_of_kernels() -> None:
    for act in (nn.ReLU(), nn.ReLU(inplace=True), nn.ReLU6(), nn.Hardtanh(-0.5, 1.0)):
        model = nn.Sequential(depthwise(32), act)
        x = torch.randn(IMAGE).to(memory_format=torch.channels_last)
        for precision in ("float32", "bfloat16"):
            program = saved(model, x, precision=precision)
            program(x)
            before = dict(program.counts)
            program(x)
            assert program.counts["limited"] == before["limited"] + 1, (act, precision)
            assert program.counts["followed"] == before["followed"], (act, precision)


def test_a_result_seen_as_another_type_has_its_own_limits() -> None:
    x = torch.randn(IMAGE)
    model = Net(lambda m, x: m.a(x).view(torch.int32).clamp(max=1 << 29).view(torch.float32), a=depthwise(32))
    with torch.no_grad():
        torch.testing.assert_close(saved(model, x)(x), model(x))
    model = Net(lambda m, x: m.a(x).view(torch.bfloat16).clamp(max=1).view(torch.half), a=depthwise(32).half())
    x = x.half()
    with torch.no_grad():
        actual, expected = saved(model, x)(x), model(x)
    # A last bit of the sum may differ.
    off = (actual.view(torch.int16).int() - expected.view(torch.int16).int()).abs()
    assert (off <= 1).float().mean() > 0.98


def test_limits_keep_what_is_no_number() -> None:
    for layer in (depthwise(32), nn.Conv2d(32, 48, 1), nn.Conv2d(32, 48, 3), nn.Conv2d(32, 64, 3, groups=2)):
        model = Net(lambda m, x: F.relu6(m.a(x)), a=layer)
        x = torch.randn(IMAGE).to(memory_format=torch.channels_last)
        program = saved(model, x)
        x[0, 3, 5, 5], x[1, 7, 9, 2] = float("nan"), float("-inf")
        with torch.no_grad():
            torch.testing.assert_close(program(x), model(x), equal_nan=True)


def test_one_row_that_is_repeated() -> None:
    layer = nn.Linear(128, 128)
    model = Net(lambda m, x: torch.relu(m.a(x.expand(4, 128)[:1])) * 2, a=layer)
    x = torch.randn(1, 128)
    close(saved(model, x)(x), model, x)


def test_in_bfloat16() -> None:
    for name, make in NETS.items():
        model, x = make(), torch.randn(IMAGE)
        actual = saved(model, x, precision="bfloat16")(x)
        with torch.no_grad():
            expected = model(x)
        assert (actual - expected).abs().max() <= 0.05 * expected.abs().max(), name


def test_results_that_are_returned_have_their_values() -> None:
    model = Net(lambda m, x: (lambda y: (y, torch.relu(y)))(m.a(x)), a=depthwise(32))
    x = torch.randn(IMAGE)
    program = saved(model, x)
    with torch.no_grad():
        for actual, expected in zip(program(x), model(x), strict=True):
            torch.testing.assert_close(actual, expected)


def test_sizes_that_vary() -> None:
    model = NETS["an activation"]()
    x = torch.randn(IMAGE)
    program = saved(model, x, dynamic={"x": {0: "images"}})
    for images in (1, 5, 2, 8):
        x = torch.randn(images, *IMAGE[1:])
        close(program(x), model, x)
