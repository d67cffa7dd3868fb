"""``hetero::cv_color``: the bytes of the pinned cv2, for all colours."""

from __future__ import annotations

import pytest
import torch
from counters import counting
from helpers import needs_hetero
from torch import Tensor

import torch_hetero  # noqa: F401

cv2 = pytest.importorskip("cv2")
np = pytest.importorskip("numpy")

CODES = {
    "BGR2GRAY": 6, "RGB2GRAY": 7, "BGR2YCrCb": 36, "RGB2YCrCb": 37, "YCrCb2BGR": 38, "YCrCb2RGB": 39, "BGR2HSV": 40,
    "RGB2HSV": 41, "BGR2LAB": 44, "RGB2LAB": 45, "BGR2HLS": 52, "RGB2HLS": 53, "HSV2BGR": 54, "HSV2RGB": 55,
    "BGR2HSV_FULL": 66, "RGB2HSV_FULL": 67,
}  # fmt: skip

color = torch.ops.hetero.cv_color


@pytest.fixture(scope="module")
def all_colors() -> np.ndarray:
    """Returns an image of all 2^24 colours."""
    number = np.arange(1 << 24, dtype=np.uint32).reshape(4096, 4096)
    return np.stack([number & 255, number >> 8 & 255, number >> 16], -1).astype(np.uint8)


@pytest.mark.parametrize("name", CODES)
def test_all_colors_are_converted_as_by_cv2(all_colors: np.ndarray, name: str) -> None:
    assert getattr(cv2, "COLOR_" + name) == CODES[name]
    expected = cv2.cvtColor(all_colors, CODES[name]).reshape(4096, 4096, -1)
    assert torch.equal(color(torch.from_numpy(all_colors), CODES[name]), torch.from_numpy(expected))


@pytest.mark.parametrize("name", CODES)
def test_rows_of_any_width_are_converted_as_by_cv2(name: str) -> None:
    generator = np.random.default_rng(CODES[name])
    for width in [*range(1, 70), 127, 255, 256, 257, 300]:
        image = generator.integers(0, 256, (7, width, 3), dtype=np.uint8)
        expected = cv2.cvtColor(image, CODES[name]).reshape(7, width, -1)
        assert np.array_equal(color(torch.from_numpy(image), CODES[name]).numpy(), expected), width


def batch(*sizes: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, sizes, dtype=np.uint8))


def test_a_batch_is_its_images() -> None:
    images = batch(3, 20, 30, 3)
    for code in CODES.values():
        assert torch.equal(color(images, code), torch.stack([color(image, code) for image in images]))
        assert torch.equal(color(images[:, 3:, 5:25], code), color(images[:, 3:, 5:25].contiguous(), code))
        for empty in (images[:0], images[:, :0], images[:, :, :0]):
            assert color(empty, code).shape == (*empty.shape[:-1], 1 if code in (6, 7) else 3)


@needs_hetero
def test_calls_on_the_device_are_recorded() -> None:
    images = batch(2, 20, 30, 3)
    there = images.to("hetero")
    with counting() as seen:
        made = color(color(there, CODES["BGR2HSV"]), CODES["HSV2BGR"])
    assert (seen.recorded, seen.straight) == (2, 0)
    assert torch.equal(made.cpu(), color(color(images, CODES["BGR2HSV"]), CODES["HSV2BGR"]))


@pytest.mark.parametrize("device", ["cpu", pytest.param("hetero", marks=needs_hetero)])
def test_wrong_arguments_are_one_sentence(device: str) -> None:
    images = torch.zeros(2, 4, 5, 3, dtype=torch.uint8, device=device)
    with pytest.raises(ValueError, match="cv_color: code 1000 is not one of the conversions it has"):
        color(images, 1000)
    with pytest.raises(ValueError, match="cv_color: code -1 is not one"):
        color(images, -1)
    with pytest.raises(RuntimeError, match="cv_color: images must have 3 channels, not 4"):
        color(images.new_zeros(2, 4, 5, 4), 6)
    with pytest.raises(TypeError, match="cv_color: images must be uint8, not Float"):
        color(images.float(), 6)
    with pytest.raises(RuntimeError, match=r"or \[height, width, channels\], not \[4, 5\]"):
        color(images[0, :, :, 0], 6)
