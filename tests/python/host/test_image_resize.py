"""``hetero::cv_resize`` and ``hetero::pil_resize``: the bytes of the pinned cv2 and Pillow."""

from __future__ import annotations

import pytest
import torch
from counters import counting
from helpers import needs_hetero
from pixels import Case, cases
from torch import Tensor

import torch_hetero  # noqa: F401

cv2 = pytest.importorskip("cv2")
np = pytest.importorskip("numpy")
Image = pytest.importorskip("PIL.Image")

INTERPOLATIONS = {
    "nearest": 0,
    "linear": 1,
    "cubic": 2,
    "area": 3,
    "lanczos4": 4,
    "linear_exact": 5,
    "nearest_exact": 6,
}
FILTERS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}
MODES = {1: "L", 3: "RGB", 4: "CMYK"}

cv_resize = torch.ops.hetero.cv_resize
pil_resize = torch.ops.hetero.pil_resize


def by_cv2(case: Case, interpolation: int) -> Tensor:
    results = [cv2.resize(image, (case.width, case.height), interpolation=interpolation) for image in case.images]
    return torch.from_numpy(np.stack(results).reshape(len(results), case.height, case.width, -1))


def by_pillow(case: Case, boxes: np.ndarray, resample: int) -> Tensor:
    results = []
    for image, box in zip(case.images, boxes, strict=True):
        mode = MODES[image.shape[2]]
        source = Image.fromarray(image[:, :, 0] if mode == "L" else image, mode)
        resized = source.resize((case.width, case.height), resample, tuple(box))
        results.append(np.asarray(resized).reshape(case.height, case.width, -1))
    return torch.from_numpy(np.stack(results))


def whole_boxes(case: Case) -> np.ndarray:
    return np.array([(0, 0, image.shape[1], image.shape[0]) for image in case.images], dtype=np.float64)


def some_boxes(case: Case, seed: int) -> np.ndarray:
    """Parts of images, of which some have whole corners."""
    generator = np.random.default_rng(seed)
    boxes = []
    for image in case.images:
        height, width = image.shape[:2]
        (left, right), (upper, lower) = np.sort(generator.random(2)) * width, np.sort(generator.random(2)) * height
        box = np.array([left, upper, right, lower])
        boxes.append(np.where([True, True, False, False], np.floor(box), np.ceil(box)) if seed % 2 else box)
    return np.stack(boxes)


@pytest.fixture
def without_ipp():
    """cv2's own kernels, where the wheel would call Intel's library, which rounds differently."""
    before = cv2.ipp.useIPP()
    cv2.ipp.setUseIPP(False)
    yield
    cv2.ipp.setUseIPP(before)


@pytest.mark.parametrize("name", [name for name in INTERPOLATIONS if name != "cubic"])
def test_bytes_are_those_of_cv2(name: str) -> None:
    for case in cases(seed=len(name), channels=(1, 2, 3, 4)):
        assert torch.equal(
            cv_resize(case.tensors, case.size, INTERPOLATIONS[name]), by_cv2(case, INTERPOLATIONS[name])
        ), [image.shape for image in case.images]


def test_cubic_bytes_are_those_of_cv2_without_ipp(without_ipp) -> None:
    for case in cases(seed=1):
        assert torch.equal(cv_resize(case.tensors, case.size, cv2.INTER_CUBIC), by_cv2(case, cv2.INTER_CUBIC))


def test_cubic_bytes_differ_from_ipp_by_one_at_most() -> None:
    for case in cases(seed=2):
        made = cv_resize(case.tensors, case.size, cv2.INTER_CUBIC).int()
        assert (made - by_cv2(case, cv2.INTER_CUBIC).int()).abs().max() <= 1


@pytest.mark.parametrize("name", ["nearest", "linear", "cubic", "area", "lanczos4"])
def test_floats_are_close_to_those_of_cv2(name: str) -> None:
    for case in cases(seed=3, count=40):
        floats = Case([image.astype(np.float32) / 255 for image in case.images], case.height, case.width)
        made = cv_resize(floats.tensors, floats.size, INTERPOLATIONS[name])
        assert made.dtype == torch.float32
        torch.testing.assert_close(made, by_cv2(floats, INTERPOLATIONS[name]), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", FILTERS)
def test_bytes_are_those_of_pillow(name: str) -> None:
    for seed, case in enumerate(cases(seed=4)):
        boxes = whole_boxes(case) if seed % 3 == 0 else some_boxes(case, seed)
        made = pil_resize(case.tensors, torch.from_numpy(boxes), case.size, FILTERS[name])
        assert torch.equal(made, by_pillow(case, boxes, FILTERS[name])), [image.shape for image in case.images]


@pytest.mark.parametrize(("height", "width"), [(30, 20), (20, 30), (40, 40), (13, 39), (25, 33), (24, 33), (26, 33)])
def test_both_orders_of_passes_are_pillows(height: int, width: int) -> None:
    generator = np.random.default_rng(height)
    case = Case([generator.integers(0, 256, (40, 40, 3), dtype=np.uint8)], height, width)
    boxes = whole_boxes(case)
    made = pil_resize(case.tensors, torch.from_numpy(boxes), case.size, 3)
    assert torch.equal(made, by_pillow(case, boxes, 3))


def test_results_do_not_depend_on_threads() -> None:
    generator = np.random.default_rng(0)
    images = [torch.from_numpy(generator.integers(0, 256, (200, 150, 3), dtype=np.uint8)) for _ in range(3)]
    boxes = torch.tensor([[0.0, 0, 150, 200]] * 3, dtype=torch.float64)
    before = torch.get_num_threads()
    made = []
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            made.append([cv_resize(images, [90, 140], i) for i in INTERPOLATIONS.values()])
            made[-1] += [pil_resize(images, boxes, [90, 140], i) for i in FILTERS.values()]
    finally:
        torch.set_num_threads(before)
    for others in made[1:]:
        assert all(torch.equal(a, b) for a, b in zip(made[0], others, strict=True))


def test_views_are_resized_as_copies() -> None:
    whole = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (60, 70, 4), dtype=np.uint8))
    boxes = torch.tensor([[0.0, 0, 20, 30]], dtype=torch.float64)
    views = {
        "crop": whole[5:35, 10:30],
        "channels": whole[5:35, 10:30, :3],
        "flipped": whole.flip(1)[5:35, 10:30],
        "every second row": whole[0:60:2, :20],
        "transposed": whole.transpose(0, 1)[:30, :20],
        "the last pixels": whole[30:, 50:],
        "expanded": whole[:1, :1].expand(30, 20, 4),
    }
    for name, view in views.items():
        dense = view.clone(memory_format=torch.contiguous_format)
        for size in ([11, 9], [50, 47]):
            assert torch.equal(cv_resize([view], size, 1), cv_resize([dense], size, 1)), name
            assert torch.equal(pil_resize([view], boxes, size, 3), pil_resize([dense], boxes, size, 3)), name


@needs_hetero
def test_calls_on_the_device_are_recorded() -> None:
    for case in cases(seed=6, count=12):
        there = [tensor.to("hetero") for tensor in case.tensors]
        boxes = torch.from_numpy(whole_boxes(case))
        with counting() as seen:
            linear = cv_resize(there, case.size, 1)
            bicubic = pil_resize(there, boxes.to("hetero"), case.size, 3)
        assert (seen.recorded, seen.straight) == (2, 0)
        assert torch.equal(linear.cpu(), cv_resize(case.tensors, case.size, 1))
        assert torch.equal(bicubic.cpu(), pil_resize(case.tensors, boxes, case.size, 3))


@needs_hetero
def test_a_pipeline_is_planned_as_one_program() -> None:
    case = next(cases(seed=7, channels=(3,)))

    def pipeline(images: list[Tensor]) -> Tensor:
        batch = cv_resize(images, [32, 48], 1).permute(0, 3, 1, 2).float() / 255
        return (batch - 0.5) / 0.25

    there = [tensor.to("hetero") for tensor in case.tensors]
    with counting() as seen:
        made = pipeline(there)
    assert (seen.recorded > 1, seen.straight) == (True, 0)
    torch.testing.assert_close(made.cpu(), pipeline(case.tensors))


@pytest.mark.parametrize("device", ["cpu", pytest.param("hetero", marks=needs_hetero)])
def test_wrong_arguments_are_one_sentence(device: str) -> None:
    image = torch.zeros(4, 5, 3, dtype=torch.uint8, device=device)
    boxes = torch.tensor([[0.0, 0, 5, 4]], dtype=torch.float64, device=device)
    with pytest.raises(RuntimeError, match=r"cv_resize: image 1 must be \[height, width, channels\], not \[4, 5\]"):
        cv_resize([image, image[:, :, 0]], [2, 2], 1)
    with pytest.raises(TypeError, match="cv_resize: image 0 must be uint8 or float32, not Int"):
        cv_resize([image.int()], [2, 2], 1)
    with pytest.raises(TypeError, match="cv_resize: image 1 is Float, and image 0 is Byte"):
        cv_resize([image, image.float()], [2, 2], 1)
    with pytest.raises(RuntimeError, match="cv_resize: image 1 has 2 channels, and image 0 has 3"):
        cv_resize([image, image[:, :, :2]], [2, 2], 1)
    with pytest.raises(RuntimeError, match=r"cv_resize: image 0 has no pixel: \[0, 5, 3\]"):
        cv_resize([image[:0]], [2, 2], 1)
    with pytest.raises(RuntimeError, match=r"must be a positive height and width, not \[0, 2\]"):
        cv_resize([image], [0, 2], 1)
    with pytest.raises(ValueError, match="cv_resize: interpolation must be 0 to 6, not 7"):
        cv_resize([image], [2, 2], 7)
    with pytest.raises(TypeError, match="cv_resize: INTER_LINEAR_EXACT takes uint8 images, not Float"):
        cv_resize([image.float()], [2, 2], 5)
    with pytest.raises(TypeError, match="pil_resize: image 0 must be uint8, not Float"):
        pil_resize([image.float()], boxes, [2, 2], 2)
    with pytest.raises(TypeError, match="pil_resize: boxes must be float64, not Float"):
        pil_resize([image], boxes.float(), [2, 2], 2)
    with pytest.raises(RuntimeError, match=r"pil_resize: boxes must be \[2, 4\], not \[1, 4\]"):
        pil_resize([image, image], boxes, [2, 2], 2)
    with pytest.raises(ValueError, match="pil_resize: filter must be 0 to 5, not 6"):
        pil_resize([image], boxes, [2, 2], 6)
    for box in ([-1.0, 0, 5, 4], [0.0, 0, 6, 4], [3.0, 0, 2, 4], [0.0, 0, float("nan"), 4]):
        with pytest.raises(ValueError, match=r"pil_resize: box 0 \(.*\) does not fit into an image of 5 x 4"):
            pil_resize([image], torch.tensor([box], dtype=torch.float64, device=device), [2, 2], 2).cpu()
    assert cv_resize([image], [2, 2], 1).shape == (1, 2, 2, 3)


@needs_hetero
def test_a_box_that_does_not_fit_does_not_spoil_other_values() -> None:
    image = torch.full((4, 5, 3), 7, dtype=torch.uint8).to("hetero")
    bad = torch.tensor([[0.0, 0, 9, 4]], dtype=torch.float64).to("hetero")
    wrong, right = pil_resize([image], bad, [2, 2], 2), cv_resize([image], [2, 2], 1)
    with pytest.raises(ValueError, match="does not fit"):
        wrong.cpu()
    assert (right.cpu() == 7).all()
