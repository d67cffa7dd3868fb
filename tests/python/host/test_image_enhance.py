"""``hetero::pil_enhance``: the bytes of the pinned Pillow's ImageEnhance."""

from __future__ import annotations

import pytest
import torch
from counters import counting
from helpers import needs_hetero
from pixels import CASES, pixels
from torch import Tensor

import torch_hetero  # noqa: F401

np = pytest.importorskip("numpy")
Image = pytest.importorskip("PIL.Image")
ImageEnhance = pytest.importorskip("PIL.ImageEnhance")

pil_enhance = torch.ops.hetero.pil_enhance
CLASSES = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
FACTORS = (0.0, 1.0, 0.5, -0.0, 2.0, -1.0, 1e-30, 1e30, -1e30)


def by_pillow(images: list[np.ndarray], properties: list[int], factors: list[float]) -> Tensor:
    results = []
    for image, kind, factor in zip(images, properties, factors, strict=True):
        given = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
        results.append(np.array(CLASSES[kind](given).enhance(factor)).reshape(image.shape))
    return torch.from_numpy(np.stack(results))


def settings(properties: list[int], factors: list[float]) -> tuple[Tensor, Tensor]:
    return torch.tensor(properties), torch.tensor(factors, dtype=torch.float64)


@pytest.mark.parametrize("channels", [1, 3])
def test_bytes_are_those_of_pillow(channels: int) -> None:
    generator = np.random.default_rng(channels)
    made = 0
    while made < CASES:
        count = int(generator.integers(1, 5))
        height, width = (int(n) for n in generator.integers(1, int(generator.choice([4, 30, 200])) + 1, 2))
        images = [pixels(generator, height, width, channels) for _ in range(count)]
        properties = generator.integers(0, 3, count).tolist()
        factors = [
            float(generator.choice(FACTORS)) if generator.random() < 0.4 else float(generator.uniform(-0.5, 3))
            for _ in range(count)
        ]
        made += count
        got = pil_enhance([torch.from_numpy(image) for image in images], *settings(properties, factors))
        assert torch.equal(got, by_pillow(images, properties, factors)), (height, width, properties, factors)


def test_all_bytes_by_many_factors() -> None:
    ramp = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
    colours = np.concatenate([ramp, ramp[::-1], ramp.transpose(1, 0, 2)], 2)
    for factor in np.linspace(-2, 4, 61).tolist():
        for image in (ramp, colours):
            got = pil_enhance([torch.from_numpy(image)] * 3, *settings([0, 1, 2], [factor] * 3))
            assert torch.equal(got, by_pillow([image] * 3, [0, 1, 2], [factor] * 3)), factor


def test_a_crop_is_a_view() -> None:
    image = pixels(np.random.default_rng(0), 40, 50, 3)
    crop = torch.from_numpy(image)[3:20, 5:34]
    got = pil_enhance([crop], *settings([1], [1.7]))
    assert torch.equal(got, by_pillow([crop.numpy()], [1], [1.7]))


@needs_hetero
def test_calls_are_recorded() -> None:
    images = [pixels(np.random.default_rng(seed), 33, 17, 3) for seed in range(3)]
    properties, factors = settings([2, 1, 0], [0.3, 1.4, 1.1])
    with counting() as seen:
        batch = torch.from_numpy(np.stack(images)).to("hetero")
        result = pil_enhance(list(batch.unbind(0)), properties.to("hetero"), factors.to("hetero"))
        assert seen.kernels == 0
        assert torch.equal(result.cpu(), by_pillow(images, [2, 1, 0], [0.3, 1.4, 1.1]))


@pytest.mark.parametrize(
    ("shapes", "properties", "factors", "message"),
    [
        ([(4, 4, 2)], [0], [1.0], "1 or 3 channels"),
        ([(4, 4, 3), (4, 5, 3)], [0, 0], [1.0, 1.0], "image 1 is"),
        ([(4, 4, 3)], [3], [1.0], "properties must be 0 to 2, not 3"),
        ([(4, 4, 3)], [0], [float("nan")], "factors must be finite"),
        ([(4, 4, 3)], [0], [1e39], "factors must be finite"),
        ([(4, 4, 3)], [0, 1], [1.0], r"properties must be \[1\]"),
        ([(4, 4, 3)], [0], [1.0, 1.0], r"factors must be \[1\]"),
        ([(0, 4, 3)], [0], [1.0], "has no pixel"),
        ([], [], [], "there must be an image"),
    ],
)
def test_errors_say_what_is_wrong(shapes: list, properties: list, factors: list, message: str) -> None:
    with pytest.raises((RuntimeError, ValueError), match=message):
        pil_enhance([torch.zeros(shape, dtype=torch.uint8) for shape in shapes], *settings(properties, factors))
