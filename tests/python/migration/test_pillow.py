"""Strategies of PIL: the bits of libImaging."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from strategy_checks import (
    CALLS,
    check_examples,
    check_one_batch,
    check_parameters,
    reason_of,
    shared_tests,
    step_of,
    strategies_of,
)

from torch_hetero.migration.evaluate import evaluate
from torch_hetero.migration.record import results
from torch_hetero.migration.spec import BANDS, from_tensor, spec_of
from torch_hetero.migration.strategies import pillow_filters, pillow_pixels, pillow_sampling
from torch_hetero.migration.strategy import Strategy, find
from torch_hetero.migration.trial import source_of

Image = pytest.importorskip("PIL.Image")
ImageFilter = pytest.importorskip("PIL.ImageFilter")

STRATEGIES = strategies_of("strategies.pillow", "strategies.pillow_operations")


def noise(width: int, height: int, mode: str = "RGB", seed: int = 0) -> Any:
    data = np.random.default_rng(seed).integers(0, 256, width * height * BANDS[mode], dtype=np.uint8)
    return Image.frombytes(mode, (width, height), data.tobytes())


RGB, GREY, RGBA = noise(9, 7), noise(9, 7, "L"), noise(9, 7, "RGBA")
WIDE = noise(11, 7)


test_random_calls_have_pillows_bytes, test_calls_share_batches = shared_tests(STRATEGIES, on_hetero=8)


def test_all_strategies_are_exact() -> None:
    assert all(parameter.values[0].tolerance.exact for parameter in STRATEGIES)


@pytest.mark.parametrize("name", ["Image.Image.resize", "Image.Image.rotate", "Image.Image.transform", "ImageOps.fit"])
def test_formulas_of_devices_without_kernels_have_pillows_bytes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pillow_sampling, "has_kernels", lambda device: False)
    check_examples(find(f"PIL.{name}"), "cpu", CALLS)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_parameters_are_the_originals(strategy: Strategy) -> None:
    check_parameters(strategy)


EACH_ITS_OWN: dict[str, Callable[[Any, int], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "Image.Image.crop": lambda image, n: ((image, (n, 2 * n, n + 5, 2 * n + 4)), {}),
    "Image.Image.resize": lambda image, n: ((image, (8, 6), 2), {"box": (n, 0.5 * n, n + 20, 20)}),
    "Image.Image.rotate": lambda image, n: ((image, 10.0 + n, 2), {"fillcolor": (n, 0, 9)}),
    "Image.Image.transform": lambda image, n: ((image, (9, 9), 0, (1, 0.1 * n, n, 0.1, 1, -1), 3), {}),
    "Image.Image.filter": lambda image, n: ((image, ImageFilter.GaussianBlur(0.5 + n / 10)), {}),
    "Image.Image.point": lambda image, n: ((image, lambda value: value * n), {}),
    "Image.blend": lambda image, n: ((image, image.transpose(0), 0.4 * n), {}),
    "ImageOps.solarize": lambda image, n: ((image, 50 * n), {}),
    "ImageOps.posterize": lambda image, n: ((image, n + 1), {}),
    "ImageOps.expand": lambda image, n: ((image, 3, (n, n, 0)), {}),
    "ImageChops.add": lambda image, n: ((image, image.transpose(0), 1.0 + n, n), {}),
}


@pytest.mark.parametrize("name", EACH_ITS_OWN)
def test_calls_with_settings_of_their_own_share_a_batch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [EACH_ITS_OWN[name](noise(30, 24, seed=number), number) for number in range(5)]
    check_one_batch(f"PIL.{name}", calls, monkeypatch)


REASONS = [
    ("Image.Image.resize", (RGB, (3, 3)), {"reducing_gap": 2.0}, "reducing_gap= is given"),
    ("Image.Image.resize", (RGB, (3, 3), 6), {}, "the filter 6 stays on the CPU"),
    ("Image.Image.resize", (RGB, (0, 3)), {}, "the result has no pixels"),
    ("Image.Image.resize", (RGB, (3, 3)), {"box": (0, 0, 10, 7)}, "the box is not in the image"),
    ("Image.Image.resize", (Image.new("I", (3, 3)), (2, 2)), {}, "images of mode 'I' stay on the CPU"),
    ("Image.Image.resize", (Image.new("RGB", (0, 3)), (2, 2)), {}, "an image has no pixels"),
    ("Image.Image.crop", (RGB, (4, 0, 2, 2)), {}, "the box is not in order"),
    ("Image.Image.crop", (RGB, (2, 0, 2, 2)), {}, "the result has no pixels"),
    ("Image.Image.transpose", (RGB, 7), {}, "the method is unknown"),
    ("Image.Image.rotate", (RGB, 5, 1), {}, "the filter 1 stays on the CPU"),
    ("Image.Image.transform", (RGB, (3, 3), 4, []), {}, "meshes and transforms that are objects stay on the CPU"),
    ("Image.Image.transform", (RGB, (3, 3), 0), {}, "there is no data"),
    ("Image.Image.transform", (RGB, (3, 3), 0, (1e5, 1, 1, 1, 1, 1)), {}, "coordinates beyond 32,767 stay on the CPU"),
    (
        "Image.Image.transform", (RGB, (3, 3), 0, (float("nan"), 0, 0, 0, 1, 0), 2), {},
        "the coefficients are not finite numbers, 6 or 8 of them",
    ),
    ("Image.Image.filter", (RGB, ImageFilter.ModeFilter()), {}, "the filter ModeFilter stays on the CPU"),
    ("Image.Image.filter", (RGB, ImageFilter.RankFilter(7, 3)), {},
     "ranks of more than 5x5 pixels stay on the CPU, but for the median"),
    (
        "Image.Image.filter", (noise(4, 4, "HSV"), ImageFilter.BoxBlur(1)), {},
        "blurs of images of mode 'HSV' stay on the CPU",
    ),
    ("Image.Image.filter", (RGB, ImageFilter.BoxBlur(5000)), {}, "blurs of more than 1,000 pixels stay on the CPU"),
    ("Image.Image.reduce", (RGB, 0), {}, "the box is not in the image"),
    ("Image.Image.reduce", (RGB, 300), {}, "blocks of more than 32,767 pixels stay on the CPU"),
    ("Image.Image.convert", (RGB, "P"), {}, "the mode 'P' stays on the CPU"),
    ("Image.Image.convert", (RGB, "L", (1, 0, 0, 0)), {}, "matrix= is given"),
    ("Image.Image.point", (GREY, list(range(256)), "1"), {}, "mode= is given"),
    ("Image.Image.point", (RGB, list(range(256))), {}, "the table has another length than the image's values"),
    ("Image.Image.getchannel", (RGB, "A"), {}, "there is no such channel"),
    ("Image.Image.split", (Image.new("P", (3, 3)),), {}, "images of mode 'P' stay on the CPU"),
    ("Image.merge", ("RGB", (GREY, GREY)), {}, "the mode 'RGB' stays on the CPU, or the bands are not its number"),
    ("Image.merge", ("LA", (GREY, noise(3, 3, "L"))), {}, "the bands have different sizes"),
    ("Image.blend", (RGB, WIDE, 0.5), {}, "the images have different sizes or modes"),
    ("Image.blend", (RGB, RGB, float("nan")), {}, "alpha is not finite"),
    ("Image.composite", (RGB, RGB, noise(9, 7)), {}, "masks of mode 'RGB' stay on the CPU"),
    ("Image.composite", (RGB, RGB, noise(3, 3, "L")), {}, "the mask has another size"),
    ("Image.alpha_composite", (RGB, RGB), {}, "images of mode 'RGB' stay on the CPU"),
    ("Image.fromarray", (np.zeros((3, 3), np.float32),), {}, "only arrays of bytes are migrated"),
    ("Image.fromarray", (np.zeros((3, 3, 3), np.uint8), "LAB"), {}, "the mode 'LAB' stays on the CPU"),
    ("ImageOps.invert", (RGBA,), {}, "images of mode 'RGBA' stay on the CPU"),
    ("ImageOps.posterize", (RGB, 0), {}, "bits are 1 to 8"),
    ("ImageOps.solarize", (RGBA,), {}, "images of mode 'RGBA' stay on the CPU"),
    ("ImageOps.equalize", (RGB, GREY), {}, "mask= is given"),
    ("ImageOps.autocontrast", (RGB,), {"ignore": 3}, "ignore= is given"),
    ("ImageOps.autocontrast", (RGB, 200), {}, "cutoffs are percentages"),
    ("ImageOps.colorize", (GREY, "black", "white"), {"blackpoint": 9, "whitepoint": 3}, "the points are not in order"),
    (
        "ImageOps.colorize", (GREY, "blakc", "white"), {},
        "the colour is not understood: unknown color specifier: 'blakc'",
    ),
    ("ImageOps.grayscale", (Image.new("F", (3, 3)),), {}, "images of mode 'F' stay on the CPU"),
    ("ImageOps.flip", (Image.new("1", (3, 3)),), {}, "images of mode '1' stay on the CPU"),
    ("ImageOps.mirror", (Image.new("P", (3, 3)),), {}, "images of mode 'P' stay on the CPU"),
    ("ImageOps.crop", (RGB, (1, 2, 3)), {}, "a border is an integer, or two or four of them"),
    ("ImageOps.scale", (RGB, -1), {}, "the factor is not above 0"),
    ("ImageOps.contain", (RGB, (0, 3)), {}, "the result has no pixels"),
    ("ImageOps.cover", (RGB, (0, 3)), {}, "the result has no pixels"),
    ("ImageOps.fit", (RGB, (0, 3)), {}, "the result has no pixels"),
    ("ImageOps.expand", (RGB, -1), {}, "negative borders stay on the CPU"),
    ("ImageOps.pad", (RGB, (0, 3)), {}, "the result has no pixels"),
    ("ImageChops.lighter", (RGB, WIDE), {}, "the images have different sizes or modes"),
    ("ImageChops.add", (RGB, RGB, 0.0), {}, "the scale is 0 or not finite"),
    ("ImageChops.subtract", (RGB, RGB, 1.0, 0.5), {}, "the offset is no small integer"),
    ("ImageChops.invert", (Image.new("I", (3, 3)),), {}, "images of mode 'I' stay on the CPU"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "positional", "keywords", "reason"), REASONS)
def test_calls_that_stay_on_the_cpu_say_why(name: str, positional: Any, keywords: Any, reason: str) -> None:
    assert reason_of(f"PIL.{name}", *positional, **keywords) == reason


def test_images_with_a_transparent_colour_stay_on_the_cpu() -> None:
    image = RGB.copy()
    image.info["transparency"] = (1, 2, 3)
    reason = reason_of("PIL.Image.Image.convert", image, "RGBA")
    assert reason == "images with a transparent colour stay on the CPU"


@pytest.mark.parametrize("mode", BANDS)
def test_images_become_tensors_and_back(mode: str) -> None:
    image = noise(5, 3, mode)
    source = source_of(image)
    assert source.spec == spec_of(image)
    assert from_tensor(source.data, source.spec).tobytes() == image.tobytes()


COLOURS = [("RGB", "HSV"), ("HSV", "RGB"), ("RGB", "YCbCr"), ("YCbCr", "RGB"), ("RGB", "L"), ("RGB", "CMYK")]


@pytest.mark.parametrize(("source", "target"), COLOURS)
def test_colours_are_converted_as_pillow_does(source: str, target: str) -> None:
    """Every colour in a full run, each 61st otherwise."""
    codes = np.arange(0, 1 << 24, 1 if CALLS >= 1000 else 61, dtype=np.uint32)
    codes = codes[: len(codes) // 256 * 256]
    colours = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], 1).astype(np.uint8).reshape(-1, 256, 3)
    expected = np.array(Image.fromarray(colours, source).convert(target)).reshape(*colours.shape[:2], -1)
    for part in range(0, len(colours), 4096):
        batch = torch.from_numpy(colours[None, part : part + 4096])
        got = pillow_pixels.convert(batch, pillow_pixels.conversion(source, target))[0].numpy()
        np.testing.assert_array_equal(got, expected[part : part + 4096])


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("scale", [0.05, 0.4, 0.9, 1.3, 4.0])
@pytest.mark.parametrize("kind", list(pillow_sampling.FILTERS))
def test_large_images_are_resized_with_pillows_bytes(
    kind: int, scale: float, kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = noise(211, 173)
    size = (int(211 * scale), int(173 * scale * 0.8) + 1)
    monkeypatch.setattr(pillow_sampling, "has_kernels", lambda device: kernels)
    (value,) = results(step_of(find("PIL.Image.Image.resize"), (image, size, kind), {}))
    evaluate([value], torch.device("cpu"))
    np.testing.assert_array_equal(value.row[0][0].numpy(), np.array(image.resize(size, kind)))


@pytest.mark.parametrize("count", [9, 25])
def test_the_selection_network_selects(count: int) -> None:
    random = np.random.default_rng(0)
    for place in range(count):
        values = random.integers(0, 9, (count, 50))
        expected = np.sort(values, 0)[place]
        for low, high in pillow_filters.selection(count, place):
            values[[low, high]] = np.minimum(values[low], values[high]), np.maximum(values[low], values[high])
        np.testing.assert_array_equal(values[place], expected)
