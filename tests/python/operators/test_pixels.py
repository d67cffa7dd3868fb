"""Kernels of images with their channels last: PyTorch's bits, whatever the layout."""

from __future__ import annotations

import itertools
import re

import pytest
import torch
from convolution_models import ran
from counters import counting
from torch import nn
from torch.nn import functional as F

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def last(images: torch.Tensor) -> torch.Tensor:
    return images.to(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kernel", "stride", "padding", "dilation", "ceil"), [
    (3, 2, 1, 1, False), (2, 2, 0, 1, True), ((2, 3), (3, 1), (1, 0), (2, 1), True), (3, 2, 0, 2, True), (5, 1, 2, 1, False)])
def test_maxima_and_their_places(dtype: torch.dtype, kernel: object, stride: object, padding: object, dilation: object,
                                 ceil: bool) -> None:
    for batch, channels in itertools.product((1, 3), (1, 3, 64)):
        images = torch.randn(batch, channels, 14, 17).to(dtype)
        for x in (images, last(images), images[:, :, ::2]):
            expected = F.max_pool2d(x, kernel, stride, padding, dilation, ceil, return_indices=True)
            actual = F.max_pool2d(x.to("hetero"), kernel, stride, padding, dilation, ceil, return_indices=True)
            for one, other in zip(actual, expected, strict=True):
                assert torch.equal(one.cpu(), other)
                assert one.stride() == other.stride()


def test_maxima_of_no_numbers_and_infinities() -> None:
    values = torch.tensor([0.0, -0.0, 1.0, float("inf"), -float("inf"), float("nan")])
    x = last(values[torch.randint(6, (2, 20, 9, 9))])
    for one, other in zip(F.max_pool2d(x.to("hetero"), 3, 2, 1, return_indices=True),
                          F.max_pool2d(x, 3, 2, 1, return_indices=True), strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=0, atol=0, equal_nan=True)


def test_windows_outside_the_image() -> None:
    for channels in (3, 64):
        x = last(torch.randn(2, channels, 2, 5))
        expected = F.max_pool2d(x, (2, 1), 1, (1, 0), (3, 1), return_indices=True)
        actual = F.max_pool2d(x.to("hetero"), (2, 1), 1, (1, 0), (3, 1), return_indices=True)
        assert torch.equal(actual[0].cpu(), expected[0])
        assert torch.equal(actual[1].cpu(), expected[1])


def test_gradients_go_to_the_places() -> None:
    x = last(torch.randn(2, 16, 9, 9))
    gradients = []
    for device in ("cpu", "hetero"):
        leaf = x.to(device).detach().requires_grad_()
        F.max_pool2d(leaf, 3, 2, 1).square().sum().backward()
        gradients.append(leaf.grad.cpu())
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [[5, 64, 1], [64], [0, 32, 32], list(range(1, 40))])
def test_concatenations(dtype: torch.dtype, channels: list[int]) -> None:
    parts = [torch.randn(2, count, 6, 7).to(dtype) for count in channels]
    for layout in (last, torch.Tensor.contiguous):
        arranged = [layout(part) for part in parts]
        expected = torch.cat(arranged, 1)
        actual = torch.cat([part.to("hetero") for part in arranged], 1)
        assert torch.equal(actual.cpu(), expected)
        assert actual.stride() == expected.stride()
    mixed = [last(part) if i % 2 else part for i, part in enumerate(parts)]
    assert torch.equal(torch.cat([part.to("hetero") for part in mixed], 1).cpu(), torch.cat(mixed, 1))


def test_concatenations_of_other_types_and_along_other_dimensions() -> None:
    a, b = last(torch.randn(2, 8, 6, 6)), last(torch.randint(9, (2, 8, 6, 6)))
    assert torch.equal(torch.cat([a.to("hetero"), b.to("hetero")], 1).cpu(), torch.cat([a, b], 1))
    for dimension in range(4):
        parts = [a, a[:, :, :, :], a * 2]
        expected = torch.cat(parts, dimension)
        assert torch.equal(torch.cat([part.to("hetero") for part in parts], dimension).cpu(), expected)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
def test_copies_into_the_other_layout(dtype: torch.dtype) -> None:
    for shape in ((1, 3, 40, 41), (2, 1, 5, 5), (2, 70, 9, 9), (1, 3, 1, 1)):
        x = torch.randn(shape)
        target = last(torch.empty(shape, dtype=dtype))
        there = last(torch.empty(shape, dtype=dtype, device="hetero"))
        assert torch.equal(there.copy_(x.to("hetero")).cpu(), target.copy_(x))


@torch.no_grad()
def test_norms_over_pixels_are_fused() -> None:
    norm = nn.BatchNorm2d(24).eval()
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    x = last(torch.randn(2, 24, 40, 40))
    expected = F.silu(norm(x))
    there, on_device = norm.to("hetero"), x.to("hetero")
    for _ in range(4):
        with counting() as seen:
            actual = F.silu(there(on_device)).cpu()
    assert seen.fused_nodes == 2
    torch.testing.assert_close(actual, expected)


@torch.no_grad()
@pytest.mark.parametrize("parts", [2, 3, 4, 5])
def test_norms_behind_concatenations(parts: int) -> None:
    """Each piece of the concatenation is a part of the group."""
    norm = nn.BatchNorm2d(24 * parts).eval()
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    x = last(torch.randn(2, 24, 40, 40))
    expected = torch.relu(norm(torch.cat([x * i for i in range(parts)], 1)))
    there, on_device = norm.to("hetero"), x.to("hetero")
    for _ in range(4):
        actual = torch.relu(there(torch.cat([on_device * i for i in range(parts)], 1))).cpu()
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("keep", [False, True])
def test_means(dtype: torch.dtype, keep: bool) -> None:
    for shape in ((1, 64, 112, 112), (3, 20, 7, 7), (2, 1, 5, 5), (2, 8, 1, 1)):
        x = last((torch.randn(shape) + 1).to(dtype))
        for dimensions in ((2, 3), (-1, -2), (1, 2), (3,)):
            expected = x.mean(dimensions, keepdim=keep)
            actual = x.to("hetero").mean(dimensions, keepdim=keep)
            torch.testing.assert_close(actual.cpu(), expected)
            assert actual.stride() == expected.stride()


def test_kernels_of_images_run() -> None:
    images = last(torch.randn(2, 32, 16, 16)).to("hetero")
    assert ran(lambda: images.mean((2, 3)).cpu())["means over pixels"] == 1
    x = last(torch.randn(2, 32, 16, 16))
    there = x.to("hetero")
    kernels = ran(lambda: torch.cat([F.max_pool2d(there, 2), *there[:, :, ::2, ::2].chunk(5, 1)], 1).cpu())
    assert kernels["maxima of pixels"] == 1
    to, rows = last(torch.empty(1, 3, 8, 8, device="hetero")), torch.randn(1, 3, 8, 8).to("hetero")
    assert ran(lambda: to.copy_(rows).cpu())["images whose channels were put last"] == 1
    parts = [last(torch.randn(1, 40, 8, 8)).to("hetero") for _ in range(6)]
    assert ran(lambda: torch.cat(parts, 1).cpu())["concatenations of rows"] == 1


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Bits, sizes and strides."""
    assert actual.stride() == expected.stride() and actual.dtype == expected.dtype
    torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=0, equal_nan=True)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
@pytest.mark.parametrize("shape", [(1, 16, 5, 7), (2, 33, 1, 9), (3, 1, 6, 4), (2, 8, 1, 1), (1, 3, 100, 90)])
@pytest.mark.parametrize("how", [
    {"scale_factor": 2}, {"scale_factor": 3}, {"scale_factor": 2.5}, {"scale_factor": 0.5}, {"scale_factor": (1, 7)},
    {"size": (11, 4)}, {"size": (10, 14)}, {"scale_factor": 2.001}, {"scale_factor": (1.005, 2)}, {"scale_factor": 2.3, "recompute_scale_factor": True}], ids=str)  # fmt: skip
def test_the_nearest_pixels(dtype: torch.dtype, shape: tuple[int, ...], how: dict) -> None:
    images = torch.randn(shape).to(dtype)
    for x in (images, last(images), images.transpose(2, 3), images[:, :, :, ::2]):
        try:
            expected = F.interpolate(x, **how)
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match=str(error)[:20]):
                F.interpolate(x.to("hetero"), **how).cpu()
            continue
        for _ in range(3):  # run, planned, replayed
            same(F.interpolate(x.to("hetero"), **how), expected)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [*DTYPES, torch.int64, torch.bool, torch.uint16, torch.complex64])
@pytest.mark.parametrize("shuffle", [F.pixel_shuffle, F.pixel_unshuffle])
@pytest.mark.parametrize("shape", [(1, 16, 4, 6), (2, 36, 1, 1), (0, 4, 2, 2), (3, 4, 6, 4), (4, 2, 6), (2, 2, 4, 4, 2)])
def test_shuffled_pixels(dtype: torch.dtype, shuffle: object, shape: tuple[int, ...]) -> None:
    images = (torch.randn(shape) * 9).abs().to(dtype)
    for x in (images, last(images)) if len(shape) == 4 else (images,):
        for factor in (1, 2, 3, 0, -2, 2**32, 2**63 - 1):
            try:
                expected = shuffle(x, factor)  # type: ignore[operator]
            except (RuntimeError, ValueError) as error:
                with pytest.raises(type(error), match=re.escape(str(error)[:20])):
                    shuffle(x.to("hetero"), factor).cpu()  # type: ignore[operator]
                continue
            for _ in range(3):
                source = x.to("hetero")
                result = shuffle(source, factor)  # type: ignore[operator]
                same(result, expected)
                result.zero_()
                assert torch.equal(source.cpu(), x)  # a tensor of its own


@pytest.mark.parametrize("shuffle", [F.pixel_shuffle, F.pixel_unshuffle])
def test_gradients_of_shuffled_pixels(shuffle: object) -> None:
    x, weight = torch.randn(2, 16, 4, 4), torch.randn(2, 16 * 16)
    grads = []
    for device in ("cpu", "hetero"):
        leaf = x.detach().clone().to(device).requires_grad_()
        (shuffle(leaf, 2).flatten(1) * weight.to(device)).sum().backward()  # type: ignore[operator]
        grads.append(leaf.grad.cpu())
    assert torch.equal(*grads)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
@pytest.mark.parametrize("slopes", [1, 16])
def test_leaky_slopes_that_are_learned(dtype: torch.dtype, slopes: int) -> None:
    x, weight = torch.randn(2, 16, 9, 9).to(dtype), torch.randn(slopes).to(dtype)
    x[0, 0, 0, :4] = torch.tensor([-0.0, float("nan"), float("inf"), -float("inf")])
    weight[-1] = float("inf")
    for images in (x, last(x)):
        expected = F.prelu(images, weight)
        for _ in range(3):
            same(F.prelu(images.to("hetero"), weight.to("hetero")), expected)
            same(F.prelu(images.to("hetero"), weight.to("hetero")) * 2, expected * 2)
    grads = []
    for device in ("cpu", "hetero"):
        leaf = x[1:].detach().clone().to(device).requires_grad_()
        slope = weight[:1].detach().clone().to(device).fill_(0.25).requires_grad_()
        F.prelu(leaf, slope).sum().backward()
        grads.append((leaf.grad.cpu(), slope.grad.cpu()))
    torch.testing.assert_close(*grads)
