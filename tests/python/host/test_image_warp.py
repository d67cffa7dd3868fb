"""``hetero::cv_warp_affine``, ``cv_warp_perspective`` and ``pil_affine``: the bytes of the pinned cv2 and Pillow."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from counters import counting
from helpers import needs_hetero
from pixels import CASES, Case, cases
from torch import Tensor

import torch_hetero  # noqa: F401

cv2 = pytest.importorskip("cv2")
np = pytest.importorskip("numpy")
Image = pytest.importorskip("PIL.Image")

BORDERS = {"constant": 0, "replicate": 1, "reflect": 2, "wrap": 3, "reflect_101": 4}
VALUE = [10.0, 20.5, 300.0, -4.0]
MODES = {1: "L", 3: "RGB", 4: "CMYK"}

warp_affine = torch.ops.hetero.cv_warp_affine
warp_perspective = torch.ops.hetero.cv_warp_perspective
pil_affine = torch.ops.hetero.pil_affine


def some_matrix(generator: np.random.Generator, image: np.ndarray, rows: int) -> np.ndarray:
    """Rotations, shifts, random numbers, and matrices that cannot be inverted."""
    height, width = image.shape[:2]
    matrix = np.eye(3)
    center = (width * generator.random(), height * generator.random())
    matrix[:2] = cv2.getRotationMatrix2D(center, generator.random() * 360, generator.random() * 2 + 0.1)
    kind = generator.integers(12)
    if kind < 3:
        matrix[:2] = generator.normal(0, 1, (2, 3)) * [1, 1, 20]
    elif kind == 3:
        matrix[:] = 0
    elif kind == 4:
        matrix[:] = 1
    elif kind == 5:
        matrix = np.eye(3)
        matrix[:2, 2] = generator.integers(-5, 5, 2)
    elif kind == 6:
        matrix *= 1e6
    if rows == 3:
        matrix[2, :2] = generator.normal(0, 0.5 / max(height, width), 2)
    return matrix[:rows]


def by_cv2(case: Case, matrices: np.ndarray, flags: int, border: int) -> Tensor:
    function = cv2.warpAffine if matrices.shape[1] == 2 else cv2.warpPerspective
    results = [
        function(image, matrix, (case.width, case.height), flags=flags, borderMode=border, borderValue=VALUE)
        for image, matrix in zip(case.images, matrices, strict=True)
    ]
    return torch.from_numpy(np.stack(results).reshape(len(results), case.height, case.width, -1))


@pytest.mark.parametrize("rows", [2, 3], ids=["affine", "perspective"])
@pytest.mark.parametrize("border", BORDERS)
@pytest.mark.parametrize("flags", [0, 1, 16, 17], ids=["nearest", "linear", "nearest_inverse", "linear_inverse"])
def test_bytes_are_those_of_cv2(flags: int, border: str, rows: int) -> None:
    function = warp_affine if rows == 2 else warp_perspective
    generator = np.random.default_rng(flags)
    for case in cases(seed=rows * 8 + BORDERS[border], channels=(1, 2, 3, 4), count=CASES // 4):
        matrices = np.stack([some_matrix(generator, image, rows) for image in case.images])
        made = function(case.tensors, torch.from_numpy(matrices), case.size, flags, BORDERS[border], VALUE)
        assert torch.equal(made, by_cv2(case, matrices, flags, BORDERS[border])), matrices


@pytest.mark.parametrize("filter", [0, 2, 3], ids=["nearest", "bilinear", "bicubic"])
def test_bytes_are_those_of_pillow(filter: int) -> None:
    generator = np.random.default_rng(filter)
    for number, case in enumerate(cases(seed=filter)):
        coefficients = np.stack([some_coefficients(generator, image) for image in case.images])
        channels = case.images[0].shape[2]
        fill = (None, [10, 20, 30, 40][:channels])[number % 2]
        results = []
        for image, numbers in zip(case.images, coefficients, strict=True):
            source = Image.fromarray(image[:, :, 0] if channels == 1 else image, MODES[channels])
            color = None if fill is None else fill[0] if channels == 1 else tuple(fill)
            size = (case.width, case.height)
            moved = source.transform(size, Image.Transform.AFFINE, tuple(numbers), filter, fillcolor=color)
            results.append(np.asarray(moved).reshape(case.height, case.width, channels))
        made = pil_affine(case.tensors, torch.from_numpy(coefficients), case.size, filter, fill or [])
        assert torch.equal(made, torch.from_numpy(np.stack(results))), coefficients


def some_coefficients(generator: np.random.Generator, image: np.ndarray) -> np.ndarray:
    height, width = image.shape[:2]
    angle = generator.random() * 2 * np.pi
    cosine, sine = np.cos(angle), np.sin(angle)
    shift_x, shift_y = generator.normal(0, width / 2), generator.normal(0, height / 2)
    numbers = np.array([cosine, sine, shift_x, -sine, cosine, shift_y])
    kind = generator.integers(8)
    if kind == 0:
        numbers[[1, 3]] = 0
    elif kind == 1:
        numbers = np.round(numbers)
    elif kind == 2:
        numbers = np.round(2 * numbers) / 2
    elif kind == 3:
        numbers *= 3000
    elif kind == 4:
        numbers = generator.normal(0, 1, 6) * [1, 1, 20, 1, 1, 20]
    return numbers


@pytest.mark.parametrize("filter", [0, 2, 3], ids=["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("angle", [17.0, 90.0, 211.5])
def test_coefficients_of_a_rotation_give_pillows_rotation(angle: float, filter: int) -> None:
    image = next(cases(seed=3, channels=(3,))).images[0]
    height, width = image.shape[:2]
    sine, cosine = np.sin(-np.radians(angle)), np.cos(-np.radians(angle))
    matrix = [round(cosine, 15), round(sine, 15), 0.0, round(-sine, 15), round(cosine, 15), 0.0]
    center_x, center_y = width / 2, height / 2
    matrix[2] = matrix[0] * -center_x + matrix[1] * -center_y + matrix[2] + center_x
    matrix[5] = matrix[3] * -center_x + matrix[4] * -center_y + matrix[5] + center_y
    numbers = torch.tensor([matrix], dtype=torch.float64)
    made = pil_affine([torch.from_numpy(image)], numbers, [height, width], filter, [])
    expected = Image.fromarray(image).transform((width, height), Image.Transform.AFFINE, matrix, filter)
    assert np.array_equal(made[0].numpy(), np.asarray(expected))
    if angle != 90.0:  # Pillow turns these by whole pixels
        assert np.array_equal(made[0].numpy(), np.asarray(Image.fromarray(image).rotate(angle, filter)))


def calls(case: Case, move: Callable[[Tensor], Tensor]) -> list[Tensor]:
    generator = np.random.default_rng(1)
    images = [move(tensor) for tensor in case.tensors]
    affine, perspective = (
        move(torch.from_numpy(np.stack([some_matrix(generator, image, rows) for image in case.images])))
        for rows in (2, 3)
    )
    coefficients = move(torch.from_numpy(np.stack([some_coefficients(generator, image) for image in case.images])))
    return [
        warp_affine(images, affine, case.size, 1, 4, []),
        warp_perspective(images, perspective, case.size, 1, 0, [7.0]),
        pil_affine(images, coefficients, case.size, 3, []),
    ]


@needs_hetero
def test_calls_on_the_device_are_recorded() -> None:
    for case in cases(seed=6, count=8):
        with counting() as seen:
            there = calls(case, lambda tensor: tensor.to("hetero"))
        assert (seen.recorded, seen.straight) == (3, 0)
        for made, expected in zip(there, calls(case, lambda tensor: tensor), strict=True):
            assert torch.equal(made.cpu(), expected)


def test_results_do_not_depend_on_threads() -> None:
    case = next(cases(seed=9, channels=(3,)))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = calls(case, lambda tensor: tensor)
        torch.set_num_threads(4)
        together = calls(case, lambda tensor: tensor)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


@pytest.mark.parametrize("device", ["cpu", pytest.param("hetero", marks=needs_hetero)])
def test_wrong_arguments_are_one_sentence(device: str) -> None:
    image = torch.zeros(4, 5, 3, dtype=torch.uint8, device=device)
    matrices = torch.eye(3, dtype=torch.float64, device=device)[None, :2]
    coefficients = torch.zeros(1, 6, dtype=torch.float64, device=device)
    with pytest.raises(ValueError, match="cv_warp_affine: flags must be INTER_NEAREST or INTER_LINEAR.*not 2"):
        warp_affine([image], matrices, [2, 2], 2, 0, [])
    with pytest.raises(ValueError, match="cv_warp_affine: border_mode must be 0 to 4, not 5"):
        warp_affine([image], matrices, [2, 2], 1, 5, [])
    with pytest.raises(ValueError, match="cv_warp_affine: border_value has at most 4 values, not 5"):
        warp_affine([image], matrices, [2, 2], 1, 0, [1.0] * 5)
    with pytest.raises(ValueError, match="cv_warp_affine: border_value must be finite, not nan"):
        warp_affine([image], matrices, [2, 2], 1, 0, [float("nan")])
    with pytest.raises(TypeError, match="cv_warp_affine: matrices must be float64, not Float"):
        warp_affine([image], matrices.float(), [2, 2], 1, 0, [])
    with pytest.raises(RuntimeError, match=r"cv_warp_perspective: matrices must be \[1, 3, 3\], not \[1, 2, 3\]"):
        warp_perspective([image], matrices, [2, 2], 1, 0, [])
    with pytest.raises(TypeError, match="cv_warp_affine: image 0 must be uint8, not Float"):
        warp_affine([image.float()], matrices, [2, 2], 1, 0, [])
    with pytest.raises(RuntimeError, match=r"cv_warp_affine: size is too large: \[2, 32767\]"):
        warp_affine([image], matrices, [2, 32767], 1, 0, [])
    with pytest.raises(ValueError, match=r"pil_affine: filter must be 0, 2 or 3 \(NEAREST, BILINEAR, BICUBIC\), not 1"):
        pil_affine([image], coefficients, [2, 2], 1, [])
    with pytest.raises(ValueError, match="pil_affine: fill must have a value for each of 3 channels, or none, not 1"):
        pil_affine([image], coefficients, [2, 2], 0, [1.0])
    with pytest.raises(ValueError, match="pil_affine: fill must be whole numbers from 0 to 255, not 1.5"):
        pil_affine([image], coefficients, [2, 2], 0, [1.5] * 3)
    assert warp_affine([image], matrices, [2, 2], 1, 0, []).shape == (1, 2, 2, 3)


def test_places_that_are_no_numbers_come_from_outside() -> None:
    image = torch.full((4, 5, 3), 9, dtype=torch.uint8)
    for number in (float("nan"), float("inf"), -float("inf"), 1e300):
        for filter in (0, 2, 3):
            numbers = torch.full((1, 6), number, dtype=torch.float64)
            assert (pil_affine([image], numbers, [3, 3], filter, [5.0] * 3) == 5).all()
        matrices = torch.full((1, 3, 3), number, dtype=torch.float64)
        for flags in (16, 17):
            warp_affine([image], matrices[:, :2], [3, 40], flags, 2, [])
            warp_perspective([image], matrices, [3, 40], flags, 3, [])
