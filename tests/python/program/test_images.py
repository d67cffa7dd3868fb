"""Programs of convolutional networks: norms in weights, channels last, packed weights; and what keeps eager's bits."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from convolution_models import DEPTHWISE, Residual, close, kept, ran, with_statistics
from helpers import assert_same, call_of
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

PRODUCTS = ("products with", "products of few rows", "convolutions as products")


@torch.no_grad()
@pytest.mark.parametrize("batch", [1, 3])
def test_a_network_of_all_kinds_gives_what_float64_gives_and_the_same_from_its_file(batch: int, tmp_path: Path) -> None:
    model = with_statistics(Residual())
    x = torch.randn(batch, 3, 64, 64)
    program = torch.hetero.compile(model, (x,))
    result = program(x)
    close(result, model, x)
    program.save(tmp_path / "model.hetero")
    loaded = torch.hetero.load(tmp_path / "model.hetero")
    assert loaded.plan_origin == "saved with the program"
    assert_same(loaded(x), result)
    again = torch.randn(batch, 3, 64, 64)
    close(program(again), model, again)
    assert_same(loaded(again), program(again))


@torch.no_grad()
def test_convolutions_have_packed_weights_and_those_of_one_pixel_are_products() -> None:
    model = with_statistics(
        nn.Sequential(nn.Conv2d(3, 64, 3, 2, 1), nn.ReLU(), nn.Conv2d(64, 64, 3, 1, 1, groups=64), nn.ReLU(),
                      nn.Conv2d(64, 128, 1), nn.ReLU(), nn.Conv2d(128, 128, 3, 1, 1), nn.AdaptiveAvgPool2d(1)))
    x = torch.randn(1, 3, 56, 56)
    program = torch.hetero.compile(model, (x,))
    kernels = ran(lambda: program(x))
    assert kept(kernels) + kernels.get(DEPTHWISE, 0) >= 2
    assert sum(count for name, count in kernels.items() if name.startswith(PRODUCTS)) >= 1
    close(program(x), model, x)


@torch.no_grad()
@pytest.mark.parametrize("rank", [1, 2])
def test_depthwise_convolutions_have_loops_of_their_own_or_a_packed_weight(rank: int) -> None:
    convolution, norm = (nn.Conv1d, nn.BatchNorm1d) if rank == 1 else (nn.Conv2d, nn.BatchNorm2d)
    layers = []
    for settings in ({"kernel_size": 3, "padding": 1}, {"kernel_size": 5, "stride": 2, "padding": 2, "bias": False},
                     {"kernel_size": 3, "padding": 2, "dilation": 2}):
        layers += [convolution(40, 40, 1), convolution(40, 40, groups=40, **settings), norm(40), nn.ReLU6()]
    model = with_statistics(nn.Sequential(*layers))
    for batch in (1, 3):
        x = torch.randn(batch, 40, *[20] * rank)
        program = torch.hetero.compile(model, (x,))
        kernels = ran(lambda program=program, x=x: program(x))
        assert kept(kernels) + kernels.get(DEPTHWISE, 0) >= 3
        close(program(x), model, x)


class Dense(nn.Module):
    """Norms before convolutions, whose inputs others read too; pixels are reduced."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, 2, 1, bias=False)
        self.first, self.second = nn.BatchNorm2d(32), nn.BatchNorm2d(64)
        self.wider, self.last = nn.Conv2d(32, 32, 3, padding=1), nn.Conv2d(64, 48, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The mean of each of 48 channels."""
        x = self.stem(x)
        x = torch.cat([x, self.wider(F.relu(self.first(x)))], 1)
        return F.silu(self.last(F.relu(self.second(x)))).mean((2, 3))


@torch.no_grad()
@pytest.mark.parametrize("make", [Dense, Residual])
def test_programs_in_bfloat16_keep_filters_and_are_as_near_as_bfloat16_is(make: type[nn.Module]) -> None:
    model = with_statistics(make())
    x = torch.randn(2, 3, 40, 40)
    program = torch.hetero.compile(model, (x,), precision="bfloat16")
    kernels = ran(lambda: program(x))
    assert kept(kernels) + kernels.get(DEPTHWISE, 0) >= 1, kernels
    expected = copy.deepcopy(model).double()(x.double())
    error = (program(x).double() - expected).abs().max() / expected.abs().max()
    assert error < 0.03


@torch.no_grad()
@pytest.mark.parametrize("groups", [1, 4, 8])
@pytest.mark.parametrize("settings", [
    {"kernel_size": 3}, {"kernel_size": 3, "stride": 2, "padding": 1}, {"kernel_size": (1, 3), "dilation": (1, 2)},
    {"kernel_size": 1}, {"kernel_size": 1, "stride": 2}, {"kernel_size": 5, "padding": 2, "bias": False},
])  # fmt: skip
def test_any_convolution_with_a_norm_and_an_activation(groups: int, settings: dict) -> None:
    model = with_statistics(
        nn.Sequential(nn.Conv2d(8, 16, groups=groups, **settings), nn.BatchNorm2d(16), nn.GELU(),
                      nn.Conv2d(16, 8, groups=groups, **settings), nn.BatchNorm2d(8), nn.Tanh()))
    for size in ((2, 8, 17, 12), (1, 8, 9, 9)):
        x = torch.randn(size)
        close(torch.hetero.compile(model, (x,))(x), model, x)


@torch.no_grad()
@pytest.mark.parametrize("how", [
    {"scale_factor": 2}, {"scale_factor": 2, "align_corners": True}, {"size": (7, 1)}, {"size": (1, 40), "align_corners": True},
    {"scale_factor": (1.7, 0.6)}, {"scale_factor": (1.7, 0.6), "recompute_scale_factor": True}, {"size": (20, 11)},
], ids=str)  # fmt: skip
def test_images_between_convolutions_are_resized_where_their_channels_are_last(how: dict) -> None:
    class Resizes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(3, 24, 3, padding=1), nn.Conv2d(24, 8, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(F.interpolate(F.relu(self.first(x)), mode="bilinear", **how))

    model = Resizes().eval()
    x = torch.randn(2, 3, 20, 11)
    program = torch.hetero.compile(model, (x,))
    assert ran(lambda: program(x)).get("resized images") == 1
    close(program(x), model, x)
    rounded = torch.hetero.compile(model, (x,), precision="bfloat16")
    assert ran(lambda: rounded(x)).get("resized images") == 1
    torch.testing.assert_close(rounded(x).float(), model(x), rtol=0.05, atol=0.05)


@torch.no_grad()
def test_networks_that_make_images_keep_their_channels_last() -> None:
    class Makes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.middle, self.last = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 64, 3), nn.Conv2d(16, 3, 5, padding=2)
            self.slope = nn.PReLU(16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.slope(self.first(F.pad(x, (1, 1, 1, 1), "reflect")))
            x = F.interpolate(x, scale_factor=2, mode="nearest")
            x = F.pixel_shuffle(self.middle(F.pad(x, (1, 1, 1, 1), "replicate")), 2)
            return self.last(x)

    model = Makes().eval()
    x = torch.randn(2, 3, 12, 20)
    program = torch.hetero.compile(model, (x,))
    kernels = ran(lambda: program(x))
    assert kernels.get("resized images") == 1
    close(program(x), model, x)


@torch.no_grad()
@pytest.mark.parametrize("rank", [1, 3])
def test_convolutions_of_lines_and_volumes(rank: int) -> None:
    convolution, norm = (nn.Conv1d, nn.BatchNorm1d) if rank == 1 else (nn.Conv3d, nn.BatchNorm3d)
    model = with_statistics(
        nn.Sequential(convolution(4, 8, 3, padding=1), norm(8), nn.ReLU(), convolution(8, 8, 3, stride=2), norm(8)))
    x = torch.randn(2, 4, *[10] * rank)
    close(torch.hetero.compile(model, (x,))(x), model, x)


@torch.no_grad()
def test_with_fusion_off_a_program_has_the_bits_of_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    model = with_statistics(Residual())
    x = torch.randn(1, 3, 64, 64)
    monkeypatch.setattr(torch.hetero.config, "fusion", False)
    assert_same(torch.hetero.compile(model, (x,))(x), model(x))


@torch.no_grad()
def test_norms_over_the_batch_and_weights_that_change_stay() -> None:
    training = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, track_running_stats=False), nn.ReLU()).eval()
    x = torch.randn(4, 3, 9, 9)
    close(torch.hetero.compile(training, (x,))(x), training, x)

    shared = nn.Conv2d(8, 8, 3, padding=1)
    model = with_statistics(nn.Sequential(shared, nn.BatchNorm2d(8), nn.ReLU(), shared, nn.BatchNorm2d(8), shared))
    x = torch.randn(2, 8, 7, 7)
    close(torch.hetero.compile(model, (x,))(x), model, x)

    class Twice(nn.Module):
        """Reads what the convolution made before the norm, too."""

        def __init__(self) -> None:
            super().__init__()
            self.convolution, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.convolution(x)
            return self.norm(y).relu() - y

    twice = with_statistics(Twice())
    close(torch.hetero.compile(twice, (x,))(x), twice, x)


@torch.no_grad()
def test_convolutions_by_two_views_of_one_weight_have_packed_weights_of_their_own() -> None:
    weight = torch.randn(8, 12, 1, 1).to("hetero")
    a, b = torch.randn(1, 12, 9, 9), torch.randn(1, 4, 9, 9)
    for _ in range(20):
        one, other = F.conv2d(a.to("hetero"), weight), F.conv2d(b.to("hetero"), weight.view(8, 4, 3, 1))
        assert_close(one.cpu(), F.conv2d(a, weight.cpu()), rtol=1e-4, atol=1e-4)
        assert_close(other.cpu(), F.conv2d(b, weight.cpu().view(8, 4, 3, 1)), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_what_is_computed_twice_is_computed_once_with_a_norm_too() -> None:
    trunk = with_statistics(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3)))

    class Twice(nn.Module):
        """The same of the same, twice."""

        def __init__(self) -> None:
            super().__init__()
            self.trunk = trunk

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.trunk(x) * self.trunk(x)

    x = torch.randn(1, 3, 12, 12)
    program = torch.hetero.compile(Twice().eval(), (x,))
    assert str(program).count("convolution") == str(torch.hetero.compile(trunk, (x,))).count("convolution")
    close(program(x), Twice().eval(), x)


@torch.no_grad()
def test_norms_of_channels_without_variance_or_with_a_scripted_part_are_as_in_eager() -> None:
    model = with_statistics(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, eps=0.5)))
    model[1].running_var[1] = -0.5
    x = torch.randn(1, 3, 8, 8)
    assert_close(torch.hetero.compile(model, (x,))(x), model(x), rtol=1e-4, atol=1e-4, equal_nan=True)
    scripted = nn.Sequential(nn.Conv2d(3, 4, 3), torch.jit.script(nn.BatchNorm2d(4).eval())).eval()
    assert_close(torch.hetero.compile(scripted, (x,))(x), scripted(x), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_a_program_for_many_batch_sizes_has_norms_in_its_weights() -> None:
    model = with_statistics(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3)))
    batch = torch.export.Dim("batch", min=1, max=64)
    x = torch.randn(4, 3, 12, 12)
    program = torch.hetero.compile(model, (x,), dynamic=({0: batch},))
    for size in (1, 4, 17):
        x = torch.randn(size, 3, 12, 12)
        close(program(x), model, x)


class Causal(nn.Module):
    """Convolutions that see the past only, of which the last moment counts."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(32, 32, 1)  # what the caller gives stays as it is
        self.convolutions = nn.ModuleList(nn.Conv1d(32, 32, 3, dilation=2**i) for i in range(3))
        self.head = nn.Linear(32, 5)

    def forward(self, signal: torch.Tensor) -> torch.Tensor:
        signal = self.first(signal)
        for i, convolution in enumerate(self.convolutions):
            signal = signal + convolution(F.pad(signal, (2 ** (i + 1), 0))).relu()
        return self.head(signal[..., -1])


@torch.no_grad()
@pytest.mark.parametrize("batch", [1, 3])
def test_signals_of_which_a_moment_is_seen_have_their_channels_last(batch: int) -> None:
    model, x = Causal().eval(), torch.randn(batch, 32, 40)
    program = torch.hetero.compile(model, (x,))
    close(program(x), model, x)
    relus = [line for line in str(program).splitlines() if "aten::relu(" in line]
    assert len(relus) == 3
    assert all("{1280,1,32}" in line for line in relus)


@torch.no_grad()
def test_images_that_the_caller_gives_or_gets_keep_their_layout() -> None:
    model = with_statistics(nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)))
    for layout in (torch.contiguous_format, torch.channels_last):
        x = torch.randn(2, 3, 10, 10).contiguous(memory_format=layout)
        result = torch.hetero.compile(model, (x,))(x)
        assert result.stride() == model(x).stride()
        close(result, model, x)


class Tokens(nn.Module):
    """A depthwise convolution of what are tokens before and behind it, as mixed perceptrons of transformers have."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 16)
        self.convolution = nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.activation = activation

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens, and hidden ones, of a square of tokens (batch, tokens, 16)."""
        hidden = self.first(tokens)
        side = int(hidden.shape[1] ** 0.5)
        hidden = self.convolution(hidden.transpose(1, 2).view(-1, 32, side, side)).flatten(2).transpose(1, 2)
        seen = self.activation(hidden)
        return self.last(self.activation(hidden + 1)), seen


@torch.no_grad()
@pytest.mark.parametrize("way", ["lazily", "compiled", "saved"])
@pytest.mark.parametrize(
    "activation", [nn.GELU(), nn.GELU("tanh"), nn.ReLU(), nn.SiLU(), nn.Softplus(), nn.Hardswish()], ids=str)  # fmt: skip
def test_activations_of_an_image_that_is_seen_as_tokens(activation: nn.Module, way: str) -> None:
    model = Tokens(activation)
    for batch in (1, 2):
        x = torch.randn(batch, 64, 16)
        truth = copy.deepcopy(model).double()(x.double())
        expected = model(x)
        torch._dynamo.reset()
        call = call_of(way, model, x)
        for result in [call() for _ in range(3)]:
            for one, true, eager in zip(result, truth, expected, strict=True):
                assert_close(one.double(), true, rtol=1e-4, atol=1e-5)
                assert one.stride() == eager.stride()


@torch.no_grad()
def test_gelu_of_a_part_of_an_image_that_is_together_in_its_new_layout() -> None:
    weight = torch.randn(16, 3, 3, 3)

    def rows(images: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.conv2d(images, weight, padding=1)[:, :, :4].permute(0, 2, 3, 1))

    x = torch.randn(1, 3, 8, 8)
    result = torch.hetero.compile(rows, (x,))(x)
    assert_close(result, rows(x), rtol=1e-4, atol=1e-5)
    assert result.stride() == rows(x).stride()
