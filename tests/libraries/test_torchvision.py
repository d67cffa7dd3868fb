"""torchvision and kornia on hetero: operators with kernels of the CPU, transforms, detection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kornia
import pytest
import torch
import torchvision
from on_device import assert_same, devices_of, recording
from torch import Tensor
from torchvision import ops, tv_tensors
from torchvision.transforms import v2


def boxes(count: int = 50) -> Tensor:
    corners = torch.rand(count, 2) * 20
    return torch.cat([corners, corners + 1 + torch.rand(count, 2) * 10], 1)


def test_nms_is_the_cpus() -> None:
    given, scores = boxes(), torch.rand(50)
    for classes in (None, torch.randint(3, (50,))):
        if classes is None:
            result = ops.nms(given.to("hetero"), scores.to("hetero"), 0.3)
            expected = ops.nms(given, scores, 0.3)
        else:
            result = ops.batched_nms(given.to("hetero"), scores.to("hetero"), classes.to("hetero"), 0.3)
            expected = ops.batched_nms(given, scores, classes, 0.3)
        assert result.device.type == "hetero"
        assert torch.equal(result.cpu(), expected)


POOLS: dict[str, Callable[[Tensor, list[Tensor]], Tensor]] = {
    "roi_align": lambda x, rois: ops.roi_align(x, rois, 4, spatial_scale=0.5, aligned=True),
    "roi_pool": lambda x, rois: ops.roi_pool(x, rois, 4, spatial_scale=0.5),
    "ps_roi_align": lambda x, rois: ops.ps_roi_align(x, rois, 2, spatial_scale=0.5),
    "ps_roi_pool": lambda x, rois: ops.ps_roi_pool(x, rois, 2, spatial_scale=0.5),
    "deform_conv2d": lambda x, rois: ops.deform_conv2d(
        x, torch.ones(2, 18, 16, 16, device=x.device) * 0.3, torch.ones(3, 8, 3, 3, device=x.device), padding=1
    ),
}


@pytest.mark.parametrize("name", POOLS)
def test_operators_and_their_gradients_are_the_cpus(name: str) -> None:
    features, rois = torch.randn(2, 8, 16, 16), [boxes(5), boxes(3)]
    here, there = features.clone().requires_grad_(), features.to("hetero").requires_grad_()
    expected = POOLS[name](here, rois)
    with recording() as seen:
        result = POOLS[name](there, [one.to("hetero") for one in rois])
    assert not seen.fallbacks
    assert_same(result, expected)
    expected.square().sum().backward()
    result.square().sum().backward()
    assert_same(there.grad, here.grad)


TRANSFORMS: dict[str, Callable[[], Any]] = {
    "resize": lambda: v2.Resize((20, 24), antialias=True),
    "crop": lambda: v2.CenterCrop(16),
    "flip": lambda: v2.RandomHorizontalFlip(p=1.0),
    "pipeline": lambda: v2.Compose(
        [
            v2.ToDtype(torch.float32, scale=True),
            v2.Resize(24),
            v2.Normalize([0.5] * 3, [0.2] * 3),
            v2.GaussianBlur(3, sigma=1.0),
        ]
    ),
    "jitter": lambda: v2.ColorJitter((1.2, 1.2), (0.8, 0.8), (1.1, 1.1), (0.1, 0.1)),
    "rotate": lambda: v2.RandomRotation((30, 30)),
    "posterize": lambda: v2.RandomPosterize(3, p=1.0),
    "equalize": lambda: v2.RandomEqualize(p=1.0),
    "perspective": lambda: v2.Lambda(
        lambda x: v2.functional.perspective(
            x, [[0, 0], [31, 0], [31, 31], [0, 31]], [[2, 1], [30, 2], [29, 30], [1, 28]]
        )
    ),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_are_the_cpus(name: str) -> None:
    image = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
    transform = TRANSFORMS[name]()
    torch.manual_seed(0)
    expected = transform(image)
    torch.manual_seed(0)
    result = transform(image.to("hetero"))
    tolerance = 1.0 if expected.dtype == torch.uint8 else 1e-4
    assert_same(result, expected, rtol=1e-4, atol=tolerance)


def test_transforms_take_images_with_boxes() -> None:
    image = tv_tensors.Image(torch.rand(3, 32, 32, device="hetero"))
    given = tv_tensors.BoundingBoxes(
        torch.tensor([[2.0, 3, 10, 12]], device="hetero"), format="XYXY", canvas_size=(32, 32)
    )
    result, moved = v2.Compose([v2.RandomHorizontalFlip(p=1.0), v2.Resize((64, 64))])(image, given)
    assert isinstance(moved, tv_tensors.BoundingBoxes)
    assert result.device.type == moved.device.type == "hetero"
    assert moved.tolist() == [[44.0, 6.0, 60.0, 24.0]]


@pytest.mark.parametrize("name", ["fasterrcnn_mobilenet_v3_large_320_fpn", "ssdlite320_mobilenet_v3_large"])
def test_detection_is_the_cpus(name: str) -> None:
    def detect(device: str) -> dict[str, Tensor]:
        torch.manual_seed(0)
        make = getattr(torchvision.models.detection, name)
        chosen = {"box_score_thresh": 0.0, "min_size": 64, "max_size": 64} if name.startswith("faster") else {}
        model = make(weights=None, weights_backbone=None, num_classes=3, **chosen).eval().to(device)
        assert devices_of(model) == {device}
        with torch.no_grad():
            return model([torch.rand(3, 64, 64).to(device)])[0]

    with recording(50):
        result = detect("hetero")
    expected = detect("cpu")
    assert result["boxes"].device.type == "hetero"
    assert len(result["boxes"]) == len(expected["boxes"]) > 0
    assert_same(result["scores"], expected["scores"], rtol=1e-3, atol=1e-4)


FILTERS: dict[str, Callable[[Tensor], Tensor]] = {
    "blur": lambda x: kornia.filters.gaussian_blur2d(x, (5, 5), (1.5, 1.5)),
    "sobel": kornia.filters.sobel,
    "canny": lambda x: kornia.filters.canny(x)[0],
    "hsv": kornia.color.rgb_to_hsv,
    "lab": kornia.color.rgb_to_lab,
    "rotate": lambda x: kornia.geometry.rotate(x, torch.tensor([30.0, 45.0], device=x.device)),
    "median": lambda x: kornia.filters.median_blur(x, (3, 3)),
    "ssim": lambda x: kornia.metrics.ssim(x, x.flip(0), 5),
    "harris": lambda x: kornia.feature.harris_response(x[:, :1]),
    "dilation": lambda x: kornia.morphology.dilation(x, torch.ones(3, 3, device=x.device)),
}


@pytest.mark.parametrize("name", FILTERS)
def test_kornia_is_the_cpus(name: str) -> None:
    image = torch.rand(2, 3, 24, 24)
    with recording(3):
        result = FILTERS[name](image.to("hetero"))
    assert_same(result, FILTERS[name](image), rtol=1e-3, atol=1e-4)


def test_kornias_augmentations_have_gradients() -> None:
    augment = kornia.augmentation.AugmentationSequential(
        kornia.augmentation.RandomAffine(30.0, p=1.0), kornia.augmentation.ColorJitter(0.1, 0.1, 0.1, 0.1, p=1.0)
    )
    image = torch.rand(2, 3, 16, 16, device="hetero", requires_grad=True)
    result = augment(image)
    result.sum().backward()
    assert result.device.type == image.grad.device.type == "hetero"
    assert result.shape == image.shape
    assert image.grad.isfinite().all()
