"""``hetero::cv_gaussian_blur``, ``cv_box_blur`` and ``cv_median_blur``: the bytes of the pinned cv2."""

from __future__ import annotations

import pytest
import torch
from counters import counting
from helpers import needs_hetero
from pixels import CASES, cases
from torch import Tensor

import torch_hetero  # noqa: F401

cv2 = pytest.importorskip("cv2")
np = pytest.importorskip("numpy")

BORDERS = {"constant": 0, "replicate": 1, "reflect": 2, "reflect_101": 4}

box_blur = torch.ops.hetero.cv_box_blur
median_blur = torch.ops.hetero.cv_median_blur


def gaussian_blur(images: Tensor, ksize: list[int], sigmas: list[float], border: int) -> Tensor:
    """The operator, with the same sigmas for all images."""
    numbers = torch.tensor(sigmas, dtype=torch.float64)
    numbers = numbers.expand(len(images), 2) if images.dim() == 4 else numbers
    return torch.ops.hetero.cv_gaussian_blur(images, ksize, numbers.to(images.device), border)


def images(seed: int, count: int) -> list[np.ndarray]:
    return [image for case in cases(seed, count=count) for image in case.images]


def same(made: Tensor, expected: np.ndarray) -> bool:
    return torch.equal(made, torch.from_numpy(expected).reshape(made.shape))


@pytest.mark.parametrize("border", BORDERS)
def test_gaussian_bytes_are_those_of_cv2(border: str) -> None:
    generator = np.random.default_rng(1)
    mode = BORDERS[border]
    for image in images(seed=mode, count=CASES):
        width, height = (2 * int(n) + 1 for n in generator.integers(0, 17 if generator.integers(9) == 0 else 6, 2))
        sigma = [float(generator.choice([0, 0, 0.3, 1, 1.7, 5])), 0.0]
        sigma[1] = float(generator.choice([0, 1.2])) if sigma[0] else 0.0
        expected = cv2.GaussianBlur(image, (width, height), sigma[0], sigmaY=sigma[1], borderType=mode)
        made = gaussian_blur(torch.from_numpy(image), [width, height], sigma, mode)
        assert same(made, expected), (image.shape, width, height, sigma)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.3])
def test_a_gaussian_without_a_size_has_that_of_its_sigma(sigma: float) -> None:
    image = images(seed=5, count=1)[0]
    made = gaussian_blur(torch.from_numpy(image), [0, 0], [sigma, 0.0], 4)
    assert same(made, cv2.GaussianBlur(image, (0, 0), sigma))


@pytest.mark.parametrize("device", ["cpu", pytest.param("hetero", marks=needs_hetero)])
def test_images_of_a_batch_have_sigmas_of_their_own(device: str) -> None:
    batch = noise(6, 13, 17, 3)
    sigmas = [[0.6, 0.0], [0.6, 0.0], [2.0, 0.5], [0.9, 0.9], [0.6, 0.0], [0.0, 0.0]]
    for size in ([5, 9], [0, 0]):
        count = 6 if size[0] else 5
        numbers = torch.tensor(sigmas[:count], dtype=torch.float64)
        made = torch.ops.hetero.cv_gaussian_blur(batch[:count].to(device), size, numbers.to(device), 4).cpu()
        for image, blurred, (across, down) in zip(batch, made, sigmas, strict=False):
            assert same(blurred, cv2.GaussianBlur(image.numpy(), tuple(size), across, sigmaY=down))


@needs_hetero
def test_batches_with_other_sigmas_are_one_plan() -> None:
    batch = noise(4, 13, 17, 3).to("hetero")
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        with counting() as seen:
            sigmas = torch.rand(4, 2, generator=generator, dtype=torch.float64).to("hetero") + 0.5
            torch.ops.hetero.cv_gaussian_blur(batch, [5, 5], sigmas, 4).cpu()
    assert (seen.plans_made, seen.plans_replayed, seen.straight) == (0, 1, 0)


@pytest.mark.parametrize("border", BORDERS)
def test_box_bytes_are_those_of_cv2(border: str) -> None:
    generator = np.random.default_rng(2)
    mode = BORDERS[border]
    for image in images(seed=mode + 10, count=CASES):
        width, height = (int(n) for n in generator.integers(1, generator.choice([4, 12, 35]), 2))
        expected = cv2.blur(image, (width, height), borderType=mode)
        assert same(box_blur(torch.from_numpy(image), [width, height], mode), expected), (image.shape, width, height)


@pytest.mark.parametrize("size", [3, 5, 7, 15, 17, 31])
def test_median_bytes_are_those_of_cv2(size: int) -> None:
    for image in images(seed=size, count=CASES // 2):
        assert same(median_blur(torch.from_numpy(image), size), cv2.medianBlur(image, size)), image.shape


def calls(batch: Tensor) -> list[Tensor]:
    return [
        gaussian_blur(batch, [5, 7], [0.0, 0.0], 4),
        box_blur(batch, [4, 3], 1),
        box_blur(batch, [30, 20], 0),
        median_blur(batch, 5),
        median_blur(batch, 21),
    ]


def noise(*sizes: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, sizes, dtype=np.uint8))


def test_a_batch_is_its_images() -> None:
    batch = noise(3, 70, 41, 3)
    alone = [calls(image) for image in batch]
    for i, made in enumerate(calls(batch)):
        assert torch.equal(made, torch.stack([results[i] for results in alone]))
    view = batch[:, 5:60:2, 3:30]
    assert all(torch.equal(a, b) for a, b in zip(calls(view), calls(view.contiguous()), strict=True))
    for empty in (batch[:0], batch[:, :0], batch[:, :, :0]):
        assert all(made.shape == empty.shape for made in calls(empty))


def test_results_do_not_depend_on_threads() -> None:
    batch = noise(2, 150, 40, 3)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = calls(batch)
        torch.set_num_threads(4)
        together = calls(batch)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


@needs_hetero
def test_calls_on_the_device_are_recorded() -> None:
    batch = noise(2, 40, 30, 3)
    there = batch.to("hetero")
    with counting() as seen:
        made = calls(there)
    assert (seen.recorded, seen.straight) == (5, 0)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(made, calls(batch), strict=True))


@pytest.mark.parametrize("device", ["cpu", pytest.param("hetero", marks=needs_hetero)])
def test_wrong_arguments_are_one_sentence(device: str) -> None:
    batch = torch.zeros(2, 4, 5, 3, dtype=torch.uint8, device=device)
    with pytest.raises(ValueError, match="cv_gaussian_blur: ksize must be odd and 1 to 1023, not 4"):
        gaussian_blur(batch, [4, 3], [0.0, 0.0], 4)
    with pytest.raises(ValueError, match="cv_gaussian_blur: ksize must be odd and 1 to 1023, not 0"):
        gaussian_blur(batch, [0, 3], [0.0, 0.0], 4).cpu()
    with pytest.raises(ValueError, match="cv_gaussian_blur: border must not be BORDER_WRAP"):
        gaussian_blur(batch, [3, 3], [0.0, 0.0], 3)
    with pytest.raises(ValueError, match="cv_gaussian_blur: sigmas must be finite, not nan and 0"):
        gaussian_blur(batch, [3, 3], [float("nan"), 0.0], 4).cpu()
    with pytest.raises(RuntimeError, match=r"cv_gaussian_blur: sigmas must be \[2, 2\], not \[2\]"):
        torch.ops.hetero.cv_gaussian_blur(batch, [3, 3], torch.zeros(2, dtype=torch.float64, device=device), 4)
    with pytest.raises(TypeError, match="cv_gaussian_blur: sigmas must be float64, not Float"):
        torch.ops.hetero.cv_gaussian_blur(batch, [3, 3], torch.zeros(2, 2, device=device), 4)
    with pytest.raises(ValueError, match="cv_box_blur: ksize must be 1 to 1023, not 0"):
        box_blur(batch, [0, 3], 4)
    with pytest.raises(ValueError, match="cv_median_blur: ksize must be odd and 1 to 1023, not 2"):
        median_blur(batch, 2)
    with pytest.raises(TypeError, match="cv_median_blur: images must be uint8, not Float"):
        median_blur(batch.float(), 3)
    with pytest.raises(RuntimeError, match=r"cv_box_blur: images must be \[images, height, width, channels\]"):
        box_blur(batch[0, 0], [3, 3], 4)
