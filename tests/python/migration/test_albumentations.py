"""albumentations and albucore: the bytes of their functions, and a Compose that nobody changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import needs_hetero
from strategy_checks import (
    check_one_batch,
    reason_of,
    shared_tests,
    strategies_of,
)

albumentations = pytest.importorskip("albumentations")

from torch_hetero.migration import PipelineMigrator  # noqa: E402

STRATEGIES = strategies_of("strategies.albumentations")
IMAGE = np.random.default_rng(0).integers(0, 256, (12, 10, 3), dtype=np.uint8)
FLOATS = (IMAGE / 255).astype(np.float32)
GEOMETRIC = "albumentations.augmentations.geometric.functional"
PIXEL = "albumentations.augmentations.pixel.functional"
BLUR = "albumentations.augmentations.blur.functional"


test_random_calls_are_computed_as_albumentations_does, test_calls_share_batches = shared_tests(STRATEGIES)


@pytest.mark.parametrize(
    ("target", "calls"),
    [
        ("albucore.functions.multiply_add", [(IMAGE, 1.2, -9.0), (IMAGE, 0.4, 30.0)]),
        ("albucore.functions.normalize", [(IMAGE, 100.0, 0.02), (IMAGE, 90.0, 0.1)]),
        (f"{PIXEL}.gamma_transform", [(IMAGE, 0.8), (IMAGE, 1.4)]),
        (f"{PIXEL}.shift_hsv", [(IMAGE, 9, 20, -30), (IMAGE, -7, 0, 3)]),
        (f"{PIXEL}.adjust_contrast_torchvision", [(IMAGE, 0.8), (IMAGE, 1.3)]),
        (f"{PIXEL}.channel_shuffle", [(IMAGE, [2, 0, 1]), (IMAGE, [1, 0, 2])]),
        ("albumentations.augmentations.crops.functional.crop",
         [(IMAGE, 1, 2, 6, 9), (IMAGE[:9], 3, 0, 8, 7), (IMAGE[:, :8], 0, 5, 5, 12)]),
        (f"{GEOMETRIC}.resize", [(IMAGE, (6, 5), 1), (IMAGE[:7], (6, 5), 1)]),
    ],
)  # fmt: skip
def test_samples_with_settings_of_their_own_share_a_batch(
    target: str, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_one_batch(target, [(call, {}) for call in calls], monkeypatch)


@pytest.mark.parametrize(
    ("target", "arguments", "reason"),
    [
        ("albucore.functions.multiply_add", (FLOATS, 1.0, 0.1), "float32 images stay on the CPU"),
        ("albucore.functions.multiply", (IMAGE, FLOATS), "value= is an image, or not finite"),
        ("albucore.functions.normalize", (IMAGE, float("nan"), 1.0), "mean= is no finite number"),
        ("albucore.functions.from_float", (FLOATS, np.dtype("uint16")), "images of uint16 stay on the CPU"),
        (f"{GEOMETRIC}.warp_affine", (IMAGE, np.eye(3), 1, 0.0, 0, (8, 8)),
         "a warp that changes nothing stays on the CPU"),
        (f"{GEOMETRIC}.resize", (IMAGE, 5, 1), "target_shape= is no pair of integers"),
        ("albumentations.augmentations.crops.functional.crop", (IMAGE, 0, 0, 11, 5),
         "the crop is not within the image"),
        (f"{BLUR}.median_blur", (IMAGE, 12), "ksize=12 stays on the CPU"),
        (f"{PIXEL}.convolve", (FLOATS, np.eye(3, dtype=np.float32)), "images of floats stay on the CPU"),
        (f"{PIXEL}.shift_hsv", (IMAGE, 0, 0, 0), "a shift of nothing stays on the CPU"),
        (f"{PIXEL}.posterize", (IMAGE, [1, 2, 3]), "bits= is no number from 1 to 7"),
        (f"{PIXEL}.add_noise", (IMAGE, FLOATS[:5]), "the noise is not one float for each element"),
        (f"{PIXEL}.channel_shuffle", (IMAGE, [0, 0, 1]), "channels_shuffled= is no order of the channels"),
    ],
)  # fmt: skip
def test_other_calls_stay_on_the_cpu_for_a_reason(target: str, arguments: tuple[Any, ...], reason: str) -> None:
    assert reason_of(target, *arguments) == reason


@needs_hetero
def test_an_unchanged_compose_has_the_same_bytes_and_stays_on_the_device() -> None:
    """numpy.ascontiguousarray is in the plan, since albumentations calls it between transforms."""

    def results() -> list[np.ndarray]:
        transform = albumentations.Compose(
            [
                albumentations.RandomResizedCrop((24, 24)), albumentations.HorizontalFlip(),
                albumentations.RandomBrightnessContrast(p=0.7), albumentations.HueSaturationValue(),
                albumentations.GaussianBlur(), albumentations.Rotate(p=0.8), albumentations.PadIfNeeded(30, 30),
                albumentations.RandomRotate90(), albumentations.GaussNoise(p=0.3), albumentations.ColorJitter(),
                albumentations.CenterCrop(20, 20), albumentations.Normalize(),
            ],
            seed=3,
        )  # fmt: skip
        images = np.random.default_rng(0).integers(0, 256, (12, 40, 50, 3), dtype=np.uint8)
        return [transform(image=image[: 40 - index])["image"] for index, image in enumerate(images)]

    expected = results()
    plan = {parameter.id: "hetero" for parameter in STRATEGIES}
    with PipelineMigrator({**plan, "numpy.ascontiguousarray": "hetero"}):
        handles = results()
        assert all(handle._hetero_holder.data is None for handle in handles)
        got = [np.array(handle) for handle in handles]
    for left, right in zip(got, expected, strict=True):
        np.testing.assert_array_equal(left, right, strict=True)
