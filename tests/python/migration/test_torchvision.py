"""Strategies of torchvision's functionals, and transforms that call them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from helpers import needs_hetero
from strategy_checks import (
    CALLS,
    check_examples,
    check_one_batch,
    check_parameters,
    reason_of,
    shared_tests,
    strategies_of,
)

from torch_hetero.migration import PipelineMigrator, evaluate
from torch_hetero.migration.evaluate import run_batch
from torch_hetero.migration.spec import from_tensor, spec_of, to_tensor
from torch_hetero.migration.strategies import pillow_sampling
from torch_hetero.migration.strategy import Strategy, find

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("torchvision")

import torchvision.transforms as v1  # noqa: E402
from torchvision import tv_tensors  # noqa: E402
from torchvision.transforms import v2  # noqa: E402

STRATEGIES = strategies_of("strategies.torchvision", "strategies.torchvision_geometry")
FUNCTIONAL = {1: "torchvision.transforms.functional", 2: "torchvision.transforms.v2.functional"}


def bytes_(channels: int = 3, height: int = 12, width: int = 10, seed: int = 0) -> torch.Tensor:
    data = np.random.default_rng(seed).integers(0, 256, (channels, height, width), dtype=np.uint8)
    return torch.from_numpy(data)


def photo(mode: str = "RGB", seed: int = 0, size: tuple[int, int] = (60, 50)) -> Any:
    data = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(data).convert(mode)


RGB, BYTES, FLOATS = photo(), bytes_(), bytes_() / 255.0
TV_IMAGE = tv_tensors.Image(bytes_(3, 50, 60))


test_random_calls_are_within_the_stated_tolerance, test_calls_share_batches = shared_tests(STRATEGIES, on_hetero=8)


@pytest.mark.parametrize(
    "name", ["resized_crop", "adjust_brightness", "adjust_contrast", "adjust_saturation", "rgb_to_grayscale"]
)
@pytest.mark.parametrize("version", [1, 2])
def test_formulas_of_devices_without_kernels_have_the_same_bytes(
    name: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pillow_sampling, "has_kernels", lambda device: False)
    check_examples(find(f"{FUNCTIONAL[version]}.{name}"), "cpu", CALLS)


def test_photographs_of_all_sizes_and_orders_of_jitter_are_one_batch_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    monkeypatch.setattr(evaluate, "run_batch", lambda steps, *rest: sizes.append(len(steps)) or run_batch(steps, *rest))
    photos = [photo(seed=n, size=(40 + 3 * n, 60 - 2 * n)) for n in range(8)]
    transform = v1.Compose([v1.RandomResizedCrop(20), v1.ColorJitter(0.3, 0.3, 0.3), v1.ToTensor()])
    torch.manual_seed(0)
    expected = torch.stack([transform(image) for image in photos])
    functional = FUNCTIONAL[1]
    names = ("resized_crop", "adjust_brightness", "adjust_contrast", "adjust_saturation", "to_tensor")
    torch.manual_seed(0)
    with PipelineMigrator({f"{functional}.{name}": "hetero" for name in names}):
        got = torch.stack([transform(image) for image in photos]).numpy()
    np.testing.assert_array_equal(got, expected.numpy())
    assert sizes == [8] * (1 + 3 + 1) + [1]  # and the stack


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_parameters_are_the_originals(strategy: Strategy) -> None:
    check_parameters(strategy)


def test_both_versions_have_the_functionals_of_images() -> None:
    counts = {version: sum(s.values[0].version == version for s in STRATEGIES) for version in (1, 2)}
    assert counts[1] >= 30
    assert counts[2] >= 30


@pytest.mark.parametrize("name", ["rotate", "affine", "perspective", "resized_crop", "adjust_contrast", "adjust_gamma"])
@pytest.mark.parametrize("version", [1, 2])
def test_pil_images_have_pillows_bits_whatever_tensors_have(name: str, version: int) -> None:
    strategy = find(f"{FUNCTIONAL[version]}.{name}")
    assert not strategy.tolerance.exact
    assert strategy.tolerance_of(("image", None), (spec_of(RGB),)).exact


EACH_ITS_OWN: dict[str, Callable[[Any, int], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "crop": lambda data, n: ((data, n, 2 * n, 7, 5), {}),
    "resized_crop": lambda data, n: ((data, n, 2 * n, 22 - n, 20 + n, (8, 6)), {}),
    "adjust_brightness": lambda data, n: ((data, 0.3 * n), {}),
    "adjust_contrast": lambda data, n: ((data, 0.3 * n), {}),
    "adjust_saturation": lambda data, n: ((data, 0.3 * n), {}),
    "adjust_hue": lambda data, n: ((data, 0.1 * n), {}),
    "adjust_gamma": lambda data, n: ((data, 0.5 * n), {}),
    "adjust_sharpness": lambda data, n: ((data, 0.5 * n), {}),
    "posterize": lambda data, n: ((data, n + 1), {}),
    "solarize": lambda data, n: ((data, 50 * n), {}),
    "gaussian_blur": lambda data, n: ((data, 5, 0.3 + n), {}),
    "affine": lambda data, n: ((data, 7.0 * n + 1, [n, 0], 1.0 + 0.1 * n, 2.0 * n), {"fill": n + 1}),
    "rotate": lambda data, n: ((data, 7.0 * n + 1), {"interpolation": v1.InterpolationMode.BILINEAR}),
    "perspective": lambda data, n: (
        (data, [[0, 0], [29, 0], [29, 29], [0, 29]], [[n, 0], [29, n], [29 - n, 29], [0, 29]]), {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["image", "tensor"])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("name", EACH_ITS_OWN)
def test_calls_with_settings_of_their_own_share_a_batch(
    name: str, version: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = [photo(seed=n, size=(32, 30)) if kind == "image" else bytes_(3, 30, 32, n) for n in range(5)]
    calls = [EACH_ITS_OWN[name](data, number) for number, data in enumerate(inputs)]
    check_one_batch(f"{FUNCTIONAL[version]}.{name}", calls, monkeypatch)


def test_erased_regions_of_their_own_share_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [((bytes_(seed=n), n, 1, 2 + n, 3, torch.full((1, 1, 1), n, dtype=torch.uint8)), {}) for n in range(5)]
    check_one_batch(f"{FUNCTIONAL[1]}.erase", calls, monkeypatch)


REASONS = [
    (1, "to_tensor", (Image.new("I", (3, 3)),), {}, "images of mode 'I' stay on the CPU"),
    (1, "to_tensor", (np.zeros((2, 2, 2, 2), np.uint8),), {},
     "only arrays [height, width] and [height, width, channels] are migrated"),
    (1, "pil_to_tensor", (Image.new("1", (3, 3)),), {}, "images of mode '1' stay on the CPU"),
    (2, "pil_to_tensor", (BYTES,), {}, "tensors stay on the CPU"),
    (2, "to_image", (BYTES,), {}, "tensors stay on the CPU"),
    (1, "to_pil_image", (FLOATS, "LAB"), {}, "the mode 'LAB' stays on the CPU"),
    (1, "to_pil_image", (np.zeros((2, 2), np.uint8),), {}, "arrays stay on the CPU"),
    (1, "convert_image_dtype", (BYTES, torch.float16), {}, "float16 tensors stay on the CPU"),
    (2, "convert_image_dtype", (tv_tensors.Image(BYTES),), {}, "classes of tensors stay on the CPU"),
    (2, "to_dtype", (FLOATS, torch.int64, True), {}, "the conversion is not safe"),
    (1, "normalize", (FLOATS, [0.5], [0.5], True), {}, "inplace= is given"),
    (2, "normalize", (FLOATS, [0.5], [0.0]), {}, "a deviation is 0"),
    (2, "normalize", (BYTES, [0.5], [0.5]), {}, "uint8 tensors stay on the CPU"),
    (1, "normalize", (FLOATS, [0.5, 0.5], [0.5]), {}, "means or deviations are not one for each channel"),
    (1, "resize", (RGB, 20), {"antialias": False}, "antialias=False has no effect on images; the original warns"),
    (1, "resize", (BYTES, [4, 4], v1.InterpolationMode.LANCZOS), {}, "the interpolation 'lanczos' is not of tensors"),
    (1, "resize", (BYTES, 8), {"max_size": 8}, "max_size is not above the size"),
    (2, "resize", (BYTES, None), {}, "there is no size"),
    (2, "resize", (BYTES, [1, 2, 3]), {}, "a size has one number, or two without max_size"),
    (1, "center_crop", (BYTES, 0), {}, "the result has no pixels"),
    (1, "crop", (BYTES, 50, 0, 3, 3), {}, "crops that are all outside stay on the CPU"),
    (1, "crop", (BYTES[0], 0, 0, 3, 3), {}, "only tensors [channels, height, width] are migrated"),
    (1, "resized_crop", (BYTES, -1, 0, 3, 3, 5), {}, "the part is not in the image"),
    (2, "resized_crop", (BYTES, 0, 0, 3, 3, 5), {"antialias": False}, "without antialias= parts stay on the CPU"),
    (1, "resized_crop", (FLOATS, 0, 0, 3, 3, [5, 1]), {},
     "results of one column stay on the CPU: PyTorch repeats their first row"),
    (1, "resized_crop", (BYTES, 0, 0, 3, 3, 5, v1.InterpolationMode.BICUBIC), {},
     "parts of bytes by 'bicubic' stay on the CPU in version 1"),
    (1, "pad", (BYTES, -1), {}, "negative padding stays on the CPU"),
    (2, "pad", (BYTES, 20), {"padding_mode": "reflect"}, "the padding is larger than the image"),
    (2, "pad", (BYTES, 1), {"fill": [1, 2]}, "the fill is not one number for each channel"),
    (1, "hflip", (np.zeros((3, 3)),), {}, "arrays stay on the CPU"),
    (1, "hflip", (tv_tensors.Image(BYTES),), {},
     "version 1 makes plain tensors of classes of tensors; that stays on the CPU"),
    (2, "vertical_flip", (BYTES[None],), {}, "only tensors [channels, height, width] are migrated"),
    (2, "horizontal_flip", (tv_tensors.Mask(BYTES),), {}, "tensors of class Mask stay on the CPU"),
    (1, "rotate", (BYTES, float("inf")), {}, "the angle is no finite number"),
    (1, "rotate", (BYTES, 5), {"fill": [1, 2]}, "the fill is not one number for each channel"),
    (2, "rotate", (BYTES, 5, v1.InterpolationMode.BICUBIC), {}, "the interpolation 'bicubic' stays on the CPU"),
    (1, "affine", (BYTES, 5, [0], 1, 0), {}, "translations are two numbers"),
    (1, "perspective", (BYTES, [[0, 0]], [[0, 0]]), {}, "there are not four points, or eight coefficients"),
    (1, "gaussian_blur", (BYTES, 4), {}, "kernel sizes are odd"),
    (1, "gaussian_blur", (BYTES, 31), {}, "the kernel is larger than the image"),
    (2, "gaussian_blur", (BYTES, 3, -1.0), {}, "deviations are one or two numbers above 0"),
    (1, "adjust_brightness", (bytes_(4), 0.5), {}, "tensors of 4 channels stay on the CPU"),
    (1, "adjust_brightness", (BYTES, -0.5), {}, "brightness_factor is below 0"),
    (1, "adjust_contrast", (BYTES, float("nan")), {}, "contrast_factor is no finite number"),
    (2, "adjust_contrast", (bytes_(1, 300, 300), 0.5), {}, "tensors of more than 65,793 pixels stay on the CPU"),
    (1, "adjust_saturation", (BYTES.double(), 0.5), {}, "float64 tensors stay on the CPU"),
    (1, "adjust_hue", (BYTES, 0.6), {}, "hue_factor is not from -0.5 to 0.5"),
    (1, "adjust_gamma", (BYTES, -1), {}, "gamma is below 0"),
    (2, "adjust_sharpness", (bytes_(2), 0.5), {}, "tensors of 2 channels stay on the CPU"),
    (1, "rgb_to_grayscale", (BYTES, 2), {}, "there is no result of such a number of channels"),
    (1, "to_grayscale", (BYTES,), {}, "tensors stay on the CPU"),
    (2, "grayscale_to_rgb", (bytes_(4),), {}, "tensors of 4 channels stay on the CPU"),
    (2, "permute_channels", (BYTES, [0, 1]), {}, "the permutation is not of the channels"),
    (1, "invert", (photo("RGBA"),), {}, "images of mode 'RGBA' stay on the CPU"),
    (1, "posterize", (BYTES, 9), {}, "bits are 0 to 8"),
    (2, "solarize", (FLOATS, 2.0), {}, "the threshold is above white"),
    (1, "autocontrast", (bytes_(2),), {}, "tensors of 2 channels stay on the CPU"),
    (1, "equalize", (FLOATS,), {}, "float32 tensors stay on the CPU"),
    (1, "erase", (BYTES, 0, 0, 2, 2, bytes_(3, 2, 2)), {},
     "values of more than one number for each channel stay on the CPU"),
    (2, "erase", (BYTES, 0, 0, 2, 2, bytes_(1, 1, 1), True), {}, "inplace= is given"),
    (1, "five_crop", (BYTES, 50), {}, "the crops are larger than the image"),
    (1, "ten_crop", (BYTES, (1, 2, 3)), {}, "a size has one or two numbers"),
    (1, "elastic_transform", (BYTES, torch.zeros(1, 3, 3, 2)), {},
     "the displacement is no tensor [1, height, width, 2]"),
]  # fmt: skip


@pytest.mark.parametrize(("version", "name", "positional", "keywords", "reason"), REASONS)
def test_calls_that_stay_on_the_cpu_say_why(
    version: int, name: str, positional: Any, keywords: Any, reason: str
) -> None:
    assert reason_of(f"{FUNCTIONAL[version]}.{name}", *positional, **keywords) == reason


def test_images_of_tv_tensors_become_tensors_and_back() -> None:
    image = tv_tensors.Image(BYTES)
    tensor = to_tensor(image)
    assert type(tensor) is torch.Tensor
    assert type(from_tensor(tensor, spec_of(image))) is tv_tensors.Image


NAMES_1 = "resized_crop hflip adjust_brightness adjust_contrast adjust_saturation adjust_hue rotate to_tensor normalize"
NAMES_2 = (
    "resized_crop horizontal_flip adjust_brightness adjust_contrast adjust_saturation adjust_hue to_dtype normalize"
)


def chain(module: Any, first: list[Any]) -> Any:
    return module.Compose(
        [
            *first,
            module.RandomResizedCrop(24, antialias=True),
            module.RandomHorizontalFlip(),
            module.ColorJitter(0.4, 0.4, 0.4, 0.1),
        ]
    )


CHAINS = {
    "v1 of images": (1, NAMES_1, RGB, lambda: v1.Compose(
        [chain(v1, []), v1.RandomRotation(20), v1.ToTensor(), v1.Normalize([0.5], [0.5])])),
    "v2 of tensors": (2, NAMES_2, bytes_(3, 50, 60), lambda: v2.Compose(
        [chain(v2, []), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5], [0.5])])),
    "v2 of images": (2, NAMES_2.removesuffix(" to_dtype normalize"), RGB, lambda: chain(v2, [])),
    "v2 of tv_tensors": (2, NAMES_2.removesuffix(" to_dtype normalize"), TV_IMAGE, lambda: chain(v2, [])),
    "v2 of images as tv_tensors": (2, f"to_image {NAMES_2}", RGB, lambda: v2.Compose(
        [chain(v2, [v2.ToImage()]), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5], [0.5])])),
}  # fmt: skip


@needs_hetero
@pytest.mark.parametrize("name", CHAINS)
def test_transforms_draw_the_same_numbers_and_return_the_same_bits(name: str) -> None:
    version, names, data, make = CHAINS[name]
    transform = make()
    torch.manual_seed(5)
    originals = [transform(data) for _ in range(4)]
    classed = [isinstance(original, tv_tensors.Image) for original in originals]
    expected = [np.asarray(original) for original in originals]
    state = torch.get_rng_state()
    torch.manual_seed(5)
    migrator = PipelineMigrator(
        {f"{FUNCTIONAL[version]}.{function}": "hetero" for function in names.split()}
    ).activate()
    try:
        results = [transform(data) for _ in range(4)]
        assert [isinstance(result, tv_tensors.Image) for result in results] == classed
        assert torch.equal(torch.get_rng_state(), state)
        for result, original in zip(results, expected, strict=True):
            np.testing.assert_array_equal(np.asarray(result), original)
        total = migrator.report.total()
    finally:
        migrator.deactivate()
    prefix = f"{FUNCTIONAL[version]}."
    ran = {key.removeprefix(prefix) for key, counts in total.items() if counts.device_calls and prefix in key}
    assert ran == set(names.split())


@needs_hetero
def test_registries_of_functionals_are_as_before_when_a_plan_ends() -> None:
    from torchvision.transforms.v2.functional._utils import _KERNEL_REGISTRY as registry

    before = {function: dict(kernels) for function, kernels in registry.items()}
    migrator = PipelineMigrator({f"{FUNCTIONAL[2]}.resize": "hetero"}).activate()
    assert len(registry) == len(before) + 1
    migrator.deactivate()
    assert registry == before


@pytest.fixture
def darker() -> Iterator[Callable[[], Any]]:
    """Makes handles of a `tv_tensors.Image`."""
    migrator = PipelineMigrator({f"{FUNCTIONAL[2]}.adjust_brightness": "hetero"}).activate()
    yield lambda: v2.functional.adjust_brightness(TV_IMAGE, 0.5)
    migrator.deactivate()


DARKER = v2.functional.adjust_brightness(TV_IMAGE, 0.5)
OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "added": lambda image: image + 1,
    "cloned": lambda image: image.clone(),
    "converted": lambda image: image.to(torch.float32),
    "flipped": lambda image: image.flip(-1),
    "written": lambda image: image.__setitem__(0, 7) or image,
    "copied": copy.deepcopy,
    "collated": lambda image: torch.utils.data.default_collate([image, image]),
    "pickled": lambda image: pickle.loads(pickle.dumps(image)),
    "by a functional without a rule": v2.functional.vertical_flip,
    "by two": lambda image: v2.functional.adjust_brightness(v2.functional.vertical_flip(image), 0.5),
    "as numpy": np.asarray,
    "of a size": lambda image: torch.tensor([*image.shape, image.ndim, len(image)]),
}


@needs_hetero
@pytest.mark.parametrize("name", OPERATIONS)
def test_handles_of_tv_tensors_are_used_as_tv_tensors(name: str, darker: Callable[[], Any]) -> None:
    expected, result = OPERATIONS[name](DARKER.clone()), OPERATIONS[name](darker())
    assert isinstance(result, tv_tensors.Image) == isinstance(expected, tv_tensors.Image)
    np.testing.assert_array_equal(np.asarray(result), np.asarray(expected))


@needs_hetero
def test_handles_of_tv_tensors_are_handed_over_on_the_device(darker: Callable[[], Any]) -> None:
    moved = darker().to("hetero")
    assert (type(moved), moved.device.type) == (tv_tensors.Image, "hetero")
    assert torch.equal(moved.cpu().as_subclass(torch.Tensor), DARKER.as_subclass(torch.Tensor))
