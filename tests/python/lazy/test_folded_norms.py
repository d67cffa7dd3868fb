"""Convolutional networks in inference, lazily and compiled: norms in packed weights, channels last; and when not."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from convolution_models import PACKED, Residual, Signals, close, kept, ran, with_statistics
from helpers import assert_same, in_threads
from torch import nn

OFTEN = 12  # runs after which weights are packed


def lazily(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).to("hetero")


def compiled(model: nn.Module) -> Callable[..., torch.Tensor]:
    return torch.compile(lazily(model), backend="hetero", dynamic=False)


def settled(model: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> torch.Tensor:
    """The result once weights are packed."""
    there = [x.to("hetero") for x in inputs]
    for _ in range(OFTEN):
        result = model(*there).cpu()
    return result


def block(channels: int = 8, **settings: bool) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels, **settings), nn.ReLU())


@torch.no_grad()
@pytest.mark.parametrize("way", [lazily, compiled])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_network_of_all_kinds_gives_what_float64_gives(way: Callable, batch: int) -> None:
    model = with_statistics(Residual())
    there = way(model)
    x = torch.randn(batch, 3, 64, 64)
    close(settled(there, x), model, x)
    again = torch.randn(batch, 3, 64, 64)
    close(settled(there, again), model, again)


@torch.no_grad()
@pytest.mark.parametrize("way", [lazily, compiled])
def test_norms_are_folded_and_no_convolution_reorders_images(way: Callable) -> None:
    model = with_statistics(nn.Sequential(block(16), nn.Conv2d(16, 16, 3, groups=4), nn.BatchNorm2d(16), nn.SiLU(),
                                          nn.Conv2d(16, 8, 3, 2, bias=False), nn.BatchNorm2d(8, affine=False)))
    there, x = way(model), torch.randn(2, 3, 32, 32)
    settled(there, x)
    on_device = x.to("hetero")
    kernels = ran(lambda: there(on_device).cpu())
    assert kept(kernels) == 3
    torch.hetero.config.keep_plans = True
    try:
        there(on_device).cpu()
        nodes = [node for node in torch.hetero.programs()[-1]["nodes"] if node["live"]]
    finally:
        torch.hetero.config.keep_plans = False
    assert [node["op"] for node in nodes] == [
        "hetero::convolution_norm", "aten::relu", "hetero::convolution_norm", "aten::silu", "hetero::convolution_norm"]
    assert nodes[0]["shape"] == "f32[2,16,32,32]{16384,1,512,16}+0"


@torch.no_grad()
@pytest.mark.parametrize("name", ["0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var"])
def test_a_change_of_any_of_the_six_tensors_is_seen(name: str) -> None:
    model = with_statistics(block())
    there, x = lazily(model), torch.randn(1, 3, 16, 16)
    settled(there, x)
    for change in range(12):
        for one in (model, there):
            tensor = one.state_dict()[name]
            tensor.mul_(1.25).add_(0.1)
        close(settled(there, x) if change % 3 else there(x.to("hetero")).cpu(), model, x)


@torch.no_grad()
def test_statistics_and_biases_that_are_parts_of_one_tensor_are_told_apart() -> None:
    weight = torch.randn(8, 3, 3, 3)
    tensors = [torch.randn(3, 8) for _ in range(4)] + [torch.rand(3, 8) + 0.5]
    x = torch.randn(1, 3, 16, 16)

    def norm(domain: int, x: torch.Tensor, weight: torch.Tensor, tensors: list[torch.Tensor]) -> torch.Tensor:
        shift, scale, bias, mean, variance = (tensor[domain] for tensor in tensors)
        y = torch.nn.functional.conv2d(x, weight, shift, padding=1)
        return torch.nn.functional.batch_norm(y, mean, variance, scale, bias, False)

    there = [tensor.to("hetero") for tensor in tensors]
    weight_there, x_there = weight.to("hetero"), x.to("hetero")
    for domain in (0, 1, 0, 2, 1):
        for _ in range(OFTEN):
            actual = norm(domain, x_there, weight_there, there).cpu()
            torch.testing.assert_close(actual, norm(domain, x, weight, tensors), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_norms_that_change_take_no_more_memory() -> None:
    model = with_statistics(nn.Sequential(nn.Conv2d(256, 512, 3, padding=1), nn.BatchNorm2d(512)))
    there, x = lazily(model), torch.randn(1, 256, 2, 2).to("hetero")
    settled(there, x)
    changes = torch.hetero.config.packed_bytes // model[0].weight.nbytes + 2
    for _ in range(changes):
        there[1].running_mean.add_(0.1)
        there(x).cpu()
    assert kept(ran(lambda: there(x).cpu())) == 1


@torch.no_grad()
def test_one_filter_may_have_several_norms() -> None:
    convolution = nn.Conv2d(3, 8, 3)
    norms = nn.ModuleList(with_statistics(nn.BatchNorm2d(8)) for _ in range(12))
    for index, norm in enumerate(norms):
        norm.running_mean += index
    there, norms_there = lazily(convolution), lazily(norms)
    x = torch.randn(1, 3, 16, 16)
    for _ in range(OFTEN):
        for norm, norm_there in zip(norms, norms_there, strict=True):
            close(norm_there(there(x.to("hetero"))).cpu(), nn.Sequential(convolution, norm), x)
    kernels = ran(lambda: [norm(there(x.to("hetero"))).cpu() for norm in norms_there])
    assert kept(kernels) == len(norms)


@torch.no_grad()
def test_training_between_inferences_is_seen() -> None:
    model = with_statistics(block())
    there, x = lazily(model), torch.randn(4, 3, 16, 16)
    for _ in range(10):
        for one, batch in ((model, x), (there, x.to("hetero"))):
            one.train()
            one(batch)
            one.eval()
        close(settled(there, x), model, x)


@torch.no_grad()
def test_results_of_convolutions_may_be_kept_written_and_read_twice() -> None:
    model = with_statistics(block())
    convolution, norm = model[0], model[1]
    there = lazily(model)
    x = torch.randn(1, 3, 16, 16)
    for _ in range(OFTEN):
        made = there[0](x.to("hetero"))
        normed = there[1](made)
        close(normed.cpu(), nn.Sequential(convolution, norm), x)
        close(made.cpu(), convolution, x)
        both = there[0](x.to("hetero"))
        both = there[1](both) + both
        assert torch.allclose(both.cpu(), model[1](model[0](x)) + model[0](x), atol=1e-4)
        given = x.to("hetero")
        made = there[0](given)
        given.zero_()
        close(there[1](made).cpu(), nn.Sequential(convolution, norm), x)
        viewed = there[0](x.to("hetero"))[:, :, ::2]
        assert torch.allclose(there[1](viewed).cpu(), norm(convolution(x)[:, :, ::2]), atol=1e-4)


@torch.no_grad()
def test_sizes_that_change() -> None:
    model = with_statistics(nn.Sequential(block(), nn.Conv2d(8, 4, 3, padding=1), nn.BatchNorm2d(4)))
    there = lazily(model)
    for _ in range(3):
        for batch, height, width in ((1, 16, 16), (2, 16, 16), (1, 9, 5), (3, 1, 1), (1, 1, 7), (0, 4, 4)):
            x = torch.randn(batch, 3, height, width)
            for _ in range(3):
                result = there(x.to("hetero")).cpu()
                assert torch.allclose(result, model(x), atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("way", [lazily, compiled])
def test_images_with_a_depth(way: Callable) -> None:
    model = with_statistics(nn.Sequential(
        nn.Conv3d(3, 8, 3, (1, 2, 2), 1, bias=False), nn.BatchNorm3d(8), nn.ReLU(), nn.MaxPool3d(2),
        nn.Conv3d(8, 8, (1, 3, 3), dilation=(1, 2, 1), groups=2), nn.ReLU(), nn.Conv3d(8, 4, 1), nn.BatchNorm3d(4),
        nn.AdaptiveAvgPool3d((2, 1, 1)), nn.Flatten()))
    there, x = way(model), torch.randn(2, 3, 8, 24, 24)
    close(settled(there, x), model, x)
    on_device = x.to("hetero")
    # Those with a norm. The other runs by what is measured to be the fastest.
    assert ran(lambda: there(on_device).cpu()).get(PACKED, 0) >= 2
    program = torch.hetero.compile(model, (x,))
    close(program(x), model, x)


@torch.no_grad()
@pytest.mark.parametrize("way", [lazily, compiled])
def test_signals(way: Callable) -> None:
    model = with_statistics(Signals())
    there, x = way(model), torch.randn(2, 3, 64)
    close(settled(there, x), model, x)
    on_device = x.to("hetero")
    # Those with a norm. The others run by what is measured to be the fastest.
    kernels = ran(lambda: there(on_device).cpu())
    assert kept(kernels) >= 2
    program = torch.hetero.compile(model, (x,))
    close(program(x), model, x)


@torch.no_grad()
@pytest.mark.parametrize("way", [lazily, compiled])
def test_transposed_convolutions(way: Callable) -> None:
    model = with_statistics(nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.ConvTranspose2d(8, 6, 3, 2, 1, output_padding=1), nn.ReLU(),
        nn.ConvTranspose2d(6, 4, 2, groups=2, bias=False), nn.ReLU(), nn.Conv2d(4, 3, 1)))
    there, x = way(model), torch.randn(2, 3, 14, 11)
    close(settled(there, x), model, x)
    program = torch.hetero.compile(model, (x,))
    close(program(x), model, x)


@torch.no_grad()
def test_norms_behind_other_things_stay() -> None:
    for model, x in (
        (nn.Sequential(nn.ConvTranspose2d(3, 4, 2, 2), nn.BatchNorm2d(4)), torch.randn(1, 3, 8, 8)),
        (nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4)), torch.randn(2, 3, 20)),
        (nn.Sequential(nn.ReLU(), nn.BatchNorm2d(3)), torch.randn(1, 3, 8, 8)),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)), torch.randn(2, 3, 8, 8)),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).double(), torch.randn(2, 3, 8, 8).double()),
    ):
        if getattr(model[1], "track_running_stats", True):
            with_statistics(model)
        there = lazily(model.eval())
        assert torch.allclose(settled(there, x), model(x), atol=1e-4)


def test_gradients_are_those_of_eager() -> None:
    model = with_statistics(block())
    there, x = lazily(model), torch.randn(2, 3, 16, 16)
    for _ in range(OFTEN):
        for one, batch in ((model, x), (there, x.to("hetero"))):
            one.zero_grad()
            one(batch).square().mean().backward()
    for mine, theirs in zip(there.parameters(), model.parameters(), strict=True):
        assert torch.allclose(mine.grad.cpu(), theirs.grad, atol=1e-4)


@torch.no_grad()
def test_weights_that_somebody_else_may_write_are_not_folded() -> None:
    model = with_statistics(block())
    there, x = lazily(model), torch.randn(1, 3, 16, 16)
    settled(there, x)
    shared = torch.utils.dlpack.from_dlpack(there[1].running_var)
    shared.mul_(2)
    model[1].running_var.mul_(2)
    close(settled(there, x), model, x)
    shared.mul_(2)
    model[1].running_var.mul_(2)
    close(there(x.to("hetero")).cpu(), model, x)


@torch.no_grad()
def test_without_fusion_and_under_verification_it_is_eagers_bits() -> None:
    model = with_statistics(Residual())
    there, x = lazily(model), torch.randn(1, 3, 64, 64)
    settled(there, x)
    for option in ("fusion", "verify"):
        before = getattr(torch.hetero.config, option)
        setattr(torch.hetero.config, option, option == "verify")
        try:
            for _ in range(3):
                assert_same(there(x.to("hetero")).cpu(), model(x))
        finally:
            setattr(torch.hetero.config, option, before)
        close(settled(there, x), model, x)


@torch.no_grad()
def test_deterministic_runs_have_the_same_bits() -> None:
    model = with_statistics(Residual())
    there, x = lazily(model), torch.randn(1, 3, 64, 64)
    settled(there, x)
    torch.use_deterministic_algorithms(True)
    try:
        first = there(x.to("hetero")).cpu()
        for _ in range(OFTEN):
            assert_same(there(x.to("hetero")).cpu(), first)
    finally:
        torch.use_deterministic_algorithms(False)


@torch.no_grad()
def test_verified_plans_and_no_memory_for_packed_weights() -> None:
    model = with_statistics(Residual())
    x = torch.randn(1, 3, 64, 64)
    config = torch.hetero.config
    before = config.packed_bytes, config.verify_plans
    try:
        config.verify_plans = True
        close(settled(lazily(model), x), model, x)
        config.packed_bytes = 0
        close(settled(lazily(model), x), model, x)
    finally:
        config.packed_bytes, config.verify_plans = before


@torch.no_grad()
def test_threads_share_a_model() -> None:
    model = with_statistics(block())
    there = lazily(model)

    def work(seed: int) -> None:
        x = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            for _ in range(OFTEN):
                close(there(x.to("hetero")).cpu(), model, x)

    in_threads(4, work)
