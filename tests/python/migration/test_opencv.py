"""cv2: the bytes of its functions, which calls stay on the CPU and why, and what shares a batch."""

from __future__ import annotations

import inspect
import itertools
import re
from typing import Any

import numpy as np
import pytest
import torch
from strategy_checks import (
    CALLS,
    DEVICES,
    check_examples,
    check_one_batch,
    reason_of,
    shared_tests,
    strategies_of,
)

cv2 = pytest.importorskip("cv2")

from torch_hetero.migration.strategies import opencv  # noqa: E402
from torch_hetero.migration.strategies.opencv_color import FROM, OPERATED, TO  # noqa: E402
from torch_hetero.migration.strategy import Strategy, find  # noqa: E402
from torch_hetero.migration.trial import trial  # noqa: E402

STRATEGIES = strategies_of(*[f"strategies.opencv_{name}" for name in
                             ("geometry", "color", "arithmetic", "filters", "warps")])  # fmt: skip
TARGETS = {parameter.id for parameter in STRATEGIES}
RANDOM = np.random.default_rng(0)
IMAGE = RANDOM.integers(0, 256, (12, 10, 3), dtype=np.uint8)
GRAY = np.ascontiguousarray(IMAGE[:, :, 0])
FLOATS = RANDOM.random((12, 10)).astype(np.float32)
COLUMNS, ROWS = (RANDOM.random((5, 6)).astype(np.float32) * 9 for _ in range(2))
EYE = np.eye(2, 3)


test_random_calls_are_computed_as_cv2_does, test_calls_share_batches = shared_tests(STRATEGIES)


@pytest.mark.parametrize("name", ["cvtColor", "GaussianBlur", "resize", "warpAffine"])
def test_the_host_computes_for_devices_without_kernels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opencv, "has_kernels", lambda image: False)
    check_examples(find(f"cv2.{name}"), DEVICES[-1], 10)


def test_sixty_functions_have_strategies() -> None:
    assert len(TARGETS) >= 60


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_parameters_are_cv2s_in_its_order(strategy: Strategy) -> None:
    """A call by position means the same. cv2's documentation has its signatures."""
    name = strategy.target.removeprefix("cv2.")
    documented = re.findall(rf"^\s*\.?\s*{name}\((.*?)\) ->", getattr(cv2, name).__doc__, re.MULTILINE)
    signatures = [re.sub(r"[\[\]\s]", "", text).split(",") for text in documented]
    ours = list(inspect.signature(eval(f"lambda {strategy.parameters}: 0")).parameters)
    assert ours in signatures


@pytest.mark.parametrize("code", sorted({**OPERATED, **TO, **FROM}))
def test_all_colors_are_converted_as_cv2_does(code: int) -> None:
    """Of 2^24 colors each with a full run, else some."""
    step = 1 if CALLS >= 1000 else 251
    colors = np.arange(0, 1 << 24, step, dtype=np.uint32)
    width = 4096 if step == 1 else 333
    colors = colors[: len(colors) // width * width].reshape(-1, width)
    channels = 4 if code in (10, 11) else 3
    image = np.stack([(colors >> shift & 255).astype(np.uint8) for shift in (0, 8, 16, 4)[:channels]], 2)
    (outcome,) = trial(find("cv2.cvtColor"), [((image, code), {})])
    assert outcome.reason is None
    assert outcome.wrong == 0


LAYOUTS = {
    "rows backward": lambda image: image[::-1],
    "channels backward": lambda image: image[..., ::-1],
    "a crop": lambda image: image[2:9, 1:8],
    "every second": lambda image: image[::2, ::2],
    "columns first": np.asfortranarray,
    "read only": lambda image: np.broadcast_to(image[:, :1], image.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("target", "arguments"),
    [("cv2.flip", (1,)), ("cv2.blur", ((3, 3),)), ("cv2.cvtColor", (6,)), ("cv2.resize", ((7, 5),)), ("cv2.add", (9,)),
     ("cv2.warpAffine", (EYE, (9, 9))), ("cv2.erode", (None,))],
)  # fmt: skip
def test_images_of_any_layout_are_computed(target: str, arguments: tuple[Any, ...], layout: str) -> None:
    (outcome,) = trial(find(target), [((LAYOUTS[layout](IMAGE), *arguments), {})])
    assert outcome.reason is None
    assert outcome.wrong == 0


def one_by_one(target: str, first: tuple[Any, ...], *settings: tuple[Any, ...]) -> Any:
    """Returns a parameter of pytest: calls with the same data, and settings of their own."""
    return pytest.param(target, [((*first, *entry), {}) for entry in settings], id=target)


@pytest.mark.parametrize(
    ("target", "calls"),
    [
        one_by_one("cv2.threshold", (IMAGE,), (3, 200, 0), (100.7, 300, 0), (-5, 7.5, 0)),
        one_by_one("cv2.addWeighted", (IMAGE,), (0.3, IMAGE, 0.7, 0), (1.5, IMAGE, -0.2, 9)),
        one_by_one("cv2.add", (IMAGE,), ((1, 2, 3),), (40,), (-3.5,)),
        one_by_one("cv2.convertScaleAbs", (IMAGE,), (None, 0.5, 3), (None, -1.5, 100)),
        one_by_one("cv2.copyMakeBorder", (IMAGE, 1, 2, 3, 4, 0), (None, (1, 2, 3)), (None, 9), (None, (300, -2, 0))),
        one_by_one("cv2.extractChannel", (IMAGE,), (0,), (2,), (1,)),
        one_by_one("cv2.inRange", (IMAGE,), ((0, 0, 0), (99, 99, 200)), ((50, 3, 0), (255, 255, 255))),
        one_by_one("cv2.applyColorMap", (GRAY,), (2,), (11,), (0,)),
        one_by_one("cv2.LUT", (GRAY,), (np.arange(256, dtype=np.uint8),), (np.arange(256, dtype=np.uint8)[::-1],)),
        one_by_one("cv2.GaussianBlur", (IMAGE, (5, 5)), (0.7,), (1.9,)),
        one_by_one("cv2.filter2D", (IMAGE, -1), (np.full((3, 3), 0.1),), (np.full((3, 3), -0.07),)),
        one_by_one("cv2.sepFilter2D", (IMAGE, -1), (COLUMNS[0, :3], ROWS[0, :3]), (COLUMNS[1, :3], ROWS[1, :3])),
        one_by_one("cv2.warpAffine", (IMAGE,), (EYE, (8, 8)), (EYE * 0.7, (8, 8)), (EYE + 0.3, (8, 8))),
        one_by_one("cv2.remap", (IMAGE,), (COLUMNS, ROWS, 1), (ROWS, COLUMNS, 1)),
        one_by_one("cv2.normalize", (IMAGE,), (None, 0, 255, 32), (None, 10, 20, 32)),
        one_by_one("cv2.bilateralFilter", (IMAGE, 5), (10.0, 2.0), (90.0, 3.0)),
        one_by_one("cv2.getRectSubPix", (IMAGE, (3, 2)), ((4.3, 5.1),), ((2.0, 6.6),)),
        pytest.param("cv2.resize", [((IMAGE[: 5 + size], (6, 4)), {}) for size in range(4)], id="cv2.resize"),
    ],
)
def test_samples_with_settings_of_their_own_share_a_batch(
    target: str, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_one_batch(target, calls, monkeypatch)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("min", (FLOATS,)), ("max", (FLOATS,)), ("compare", (FLOATS, 2)), ("absdiff", (FLOATS,)),
     ("convertScaleAbs", (None, 99)),
     # Not cv2.THRESH_TRUNC, which on some processors depends on where in memory the image begins and ends.
     *[("threshold", (0.5, 1.0, kind)) for kind in (0, 1, 3, 4)]],
)  # fmt: skip
def test_no_number_is_what_cv2_makes_of_it(name: str, arguments: tuple[Any, ...]) -> None:
    image = np.where(FLOATS < 0.3, np.float32("nan"), FLOATS)
    (outcome,) = trial(find(f"cv2.{name}"), [((image, *arguments), {})])
    assert outcome.reason is None
    assert outcome.accepted


WIDE = IMAGE.astype(np.int64)
IS_WIDE = "int64 images stay on the CPU"


@pytest.mark.parametrize(
    ("target", "arguments", "reason"),
    [
        ("LUT", (IMAGE, np.zeros(7, np.uint8)),
         "lut= is no table of 256 entries for one channel or for the image's"),
        ("GaussianBlur", (IMAGE, (4, 4), 1), "ksize= is no pair of odd integers or zeros"),
        ("Laplacian", (IMAGE, 2), "ddepth=2 stays on the CPU"),
        ("Scharr", (IMAGE, -1, 1, 1), "Scharr's kernel has one first derivative"),
        ("Sobel", (IMAGE, -1, 1, 0, None, 9), "ksize=9 stays on the CPU"),
        ("absdiff", (IMAGE, GRAY), "the images differ in size or dtype"),
        ("add", (IMAGE, 1, None, GRAY), "mask= is given"),
        ("addWeighted", (IMAGE, float("nan"), IMAGE, 1, 0), "alpha=, beta= or gamma= is no finite number"),
        ("applyColorMap", (IMAGE, 99), "colormap= is none of cv2's"),
        ("bilateralFilter", (IMAGE, 31, 9, 9), "a diameter beyond 25 stays on the CPU"),
        ("bitwise_and", (FLOATS, FLOATS), "float32 images stay on the CPU"),
        ("bitwise_not", (IMAGE, None, GRAY), "mask= is given"),
        ("bitwise_or", (IMAGE, "mask"), "src2= is no array, no number and no sequence of up to four"),
        ("bitwise_xor", (IMAGE, (1, 2)),
         "a sequence of neither four numbers nor one for each channel stays on the CPU"),
        ("blur", (IMAGE, (3, 3), None, (0, 1)), "anchor= is not the middle of the kernel"),
        ("boxFilter", (IMAGE, 4, (3, 3)), "means of integers stay on the CPU"),
        ("calcHist", ([IMAGE, IMAGE], [0], None, [256], [0, 256]), "images= is no list of one image"),
        ("compare", (IMAGE, (1, 2, 3), 0), "a number for each channel stays on the CPU"),
        ("convertScaleAbs", (IMAGE, None, float("inf")), "alpha= or beta= is no finite number"),
        ("copyMakeBorder", (IMAGE, 1, 1, 1, 1, 5), "border type 5 is none that is extrapolated"),
        ("cvtColor", (IMAGE, 46), "code=46 stays on the CPU"),
        ("cvtColor", (GRAY, 6), "code=6 does not take 1 channels"),
        ("dilate", (IMAGE, None, None, (5, 5)), "anchor= is not within the kernel"),
        ("divide", (2.0, IMAGE, None, "x"), "scale= is no finite number"),
        ("equalizeHist", (IMAGE,), "images with 3 channels stay on the CPU"),
        ("erode", (IMAGE, np.zeros((3, 3), np.uint8)), "kernel= is empty or has more than 2,500 elements"),
        ("exp", (IMAGE,), "uint8 images stay on the CPU"),
        ("extractChannel", (IMAGE, 3), "there is no channel 3"),
        ("filter2D", (IMAGE, -1, np.ones((13, 13))), "kernels of 130 elements and more stay on the CPU"),
        ("flip", (IMAGE, 1, IMAGE.copy()), "dst= is given"),
        ("flip", (WIDE, 1), IS_WIDE),
        ("flip", (IMAGE[0, 0], 1), "it is no image"),
        ("getRectSubPix", (IMAGE, (3, 3), (0, 0)), "patches at the image's border stay on the CPU"),
        ("hconcat", ([IMAGE, IMAGE[:5]],), "the images differ in size or dtype"),
        ("inRange", (IMAGE, GRAY, GRAY), "lowerb= or upperb= is no number and no sequence of up to four"),
        ("integral", (IMAGE, None, 5), "sdepth=5 stays on the CPU"),
        ("log", (IMAGE,), "uint8 images stay on the CPU"),
        ("magnitude", (FLOATS, FLOATS[:5]), "the images differ in size or dtype"),
        ("max", (IMAGE, WIDE), IS_WIDE),
        ("medianBlur", (IMAGE, 257), "ksize=257 stays on the CPU"),
        ("merge", ([GRAY, GRAY[:4]],), "the images differ in size or dtype"),
        ("min", (WIDE, IMAGE), IS_WIDE),
        ("morphologyEx", (IMAGE, 7, None), "op=7 stays on the CPU"),
        ("multiply", (IMAGE, IMAGE, None, 1, 5), "dtype= is not the images'"),
        ("normalize", (IMAGE, None, 1, 0, 2), "norm_type=2 is not NORM_MINMAX"),
        ("pow", (FLOATS, float("nan")), "power= is no finite number"),
        ("pyrDown", (IMAGE, None, (5, 6)), "dstsize= is given"),
        ("pyrUp", (IMAGE, None, None, 1), "borderType= is given"),
        ("reduce", (IMAGE, 0, 4), "rtype=4 stays on the CPU"),
        ("remap", (IMAGE, COLUMNS, ROWS, 2), "interpolation=2 stays on the CPU"),
        ("repeat", (IMAGE, 0, 1), "ny= or nx= is no integer from 1 to 32767"),
        ("resize", (IMAGE, None, None, 0.33, 0.5), "factors that do not give a whole size stay on the CPU"),
        ("rotate", (IMAGE, 3), "rotateCode=3 is unknown"),
        ("scaleAdd", (IMAGE, None, IMAGE), "alpha= is no finite number"),
        ("sepFilter2D", (IMAGE, -1, COLUMNS[0], ROWS[0].astype(float)),
         "kernelX= and kernelY= are not floats of one type"),
        ("split", (WIDE,), IS_WIDE),
        ("sqrt", (IMAGE,), "uint8 images stay on the CPU"),
        ("subtract", (torch.zeros(3, 3, dtype=torch.uint8), 1), "cv2 takes arrays, and this is a tensor"),
        ("threshold", (GRAY, 0, 255, 8), "type=8 stays on the CPU"),
        ("transpose", (WIDE,), IS_WIDE),
        ("vconcat", ((IMAGE, IMAGE[:, :5]),), "the images differ in size or dtype"),
        ("warpAffine", (IMAGE, EYE, (8, 8), None, 2), "flags=2 stay on the CPU"),
        ("warpPerspective", (IMAGE, EYE, (8, 8)), "M= is no matrix of floats [3, 3]"),
    ],
)  # fmt: skip
def test_other_calls_stay_on_the_cpu_for_a_reason(target: str, arguments: tuple[Any, ...], reason: str) -> None:
    assert reason_of(f"cv2.{target}", *arguments) == reason


UNUSUAL = [None, "x", float("nan"), -1, 0, 2.5, 10**9, True, [], (), (1,), (1, 2), {}, np.zeros(3), IMAGE, FLOATS,
           np.zeros((2, 3, 0), np.uint8), np.uint8(3), np.zeros((4, 4), bool)]  # fmt: skip


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_unusual_argument_has_a_reason_or_the_original_takes_it(strategy: Strategy) -> None:
    """Whatever is recorded, the original computes, to the same result."""
    names = list(inspect.signature(eval(f"lambda {strategy.parameters}: 0")).parameters)
    positional, keywords = next(iter(strategy.examples(np.random.default_rng(5))))
    for (place, name), argument in itertools.product(enumerate(names), UNUSUAL):
        changed = list(positional)
        if place < len(positional):
            changed[place] = argument
        named = dict(keywords) if place < len(positional) else {**keywords, name: argument}
        try:
            strategy.bind(*changed, **named)
        except TypeError:
            continue
        (outcome,) = trial(strategy, [(tuple(changed), named)])
        assert outcome.accepted, (name, argument)
