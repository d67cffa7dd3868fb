"""PIL.Image: methods of images and functions on them.

How a call is computed is decided in two steps. A `plan_...` function turns arguments into a `Plan`, with Pillow's own
arithmetic on numbers; the plan's kind names the function that computes a batch (`run_plan`). The strategies here, those
of `pillow_operations.py` and those of torchvision share both.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from torch_hetero.migration.spec import BANDS, Spec
from torch_hetero.migration.strategies import pillow_filters as filters
from torch_hetero.migration.strategies import pillow_pixels as pixels
from torch_hetero.migration.strategies import pillow_sampling as sampling
from torch_hetero.migration.strategy import Call, Mapped, Strategy, Tensors, Unsupported, register

__all__ = [
    "BRIGHTNESS", "COLOR", "CONTRAST", "Pillow", "Plan", "Single", "colour_of", "key_of_plan", "on_lists", "plan_copy",
    "plan_crop", "plan_enhance", "plan_resize", "plan_rotate", "plan_transform", "random_images", "run_plan", "size_of",
    "with_bands",
]  # fmt: skip

Calls = Iterator[tuple[tuple[Any, ...], dict[str, Any]]]

MODES = ("L", "LA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV")
PREMULTIPLIED = {"LA": "La", "RGBA": "RGBa"}
BLURRED = ("L", "LA", "RGB", "RGBA", "RGBX", "CMYK")


def size_of(spec: Spec) -> tuple[int, int]:
    """Returns an image's width and height."""
    return spec.shape[1], spec.shape[0]


def random_images(
    random: np.random.Generator, modes: Sequence[str] = MODES, largest: int = 24, smallest: int = 1
) -> Iterator[Any]:
    """Yields images without end; some follow others of the same size and mode, so that they share a batch."""
    from PIL import Image

    while True:
        mode = str(random.choice(modes))
        height, width = (int(size) for size in random.integers(smallest, largest, 2))
        for _ in range(int(random.integers(1, 4))):
            noise = random.integers(0, 256, height * width * BANDS[mode], dtype=np.uint8)
            if random.random() < 0.3:
                noise = np.where(noise < 128, 0, 255).astype(np.uint8)
            yield Image.frombytes(mode, (width, height), noise.tobytes())


@dataclass(frozen=True, slots=True)
class Plan:
    """How one image is computed from one.

    Attributes:
        kind: The function, a key of `RUNNERS`.
        size: Width and height of the result.
        static: Its settings that calls of one batch have in common.
        sample: The settings of this call alone.
    """

    kind: str
    size: tuple[int, int]
    static: tuple[Hashable, ...] = ()
    sample: tuple[Any, ...] = ()

    def mapped(self, source: Spec) -> Mapped:
        """Returns what `Strategy.map` returns, for a result of the source's mode."""
        return Mapped(Spec.image(self.size, source.mode), (self.kind, *self.static), self.sample)


Images = torch.Tensor | list[torch.Tensor]


def run_plan(images: Images, static: tuple[Any, ...], sample: Sequence[torch.Tensor]) -> torch.Tensor:
    """Computes images [batch, height, width, bands], or a list of them where `on_lists` says so, by mapped plans."""
    kind, *settings = static
    if on_lists(static, images[0].device):
        function, count = LISTED[kind]
        return function(list(images), sample, *settings[:count])
    return RUNNERS[kind](images, sample, *settings)


def on_lists(static: tuple[Any, ...], device: torch.device) -> bool:
    """Returns whether plans are computed by an operator that takes lists of images of any sizes."""
    kind, *settings = static
    if kind not in LISTED or not sampling.has_kernels(device):
        return False
    return settings[0] in ("L", "RGB") if kind == "enhance" else not settings[-1]


def key_of_plan(static: tuple[Any, ...], lists: bool) -> Hashable:
    """Returns what plans of one batch have in common: of those on lists, what their operators do not find out."""
    kind, *settings = static
    return (kind, *settings[: LISTED[kind][1]]) if lists else static


def with_bands(images: Images) -> Images:
    """Returns images with a dimension for bands even if there is one."""
    if isinstance(images, list):
        return [image if image.dim() == 3 else image[..., None] for image in images]
    return images if images.dim() == 4 else images[..., None]


class Pillow(Strategy):
    """A function of PIL on images of bytes. `pixels` computes; it has a dimension for bands even if there is one."""

    family = "vision"
    library = "pillow"
    versions = ("13.",)
    modes: ClassVar[tuple[str, ...]] = MODES

    def supports(self, call: Call) -> str | None:
        for name in self.data:
            given = call[name]
            for spec in given if type(given) in (list, tuple) else (given,):
                if not isinstance(spec, Spec) or spec.kind != "image":
                    return f"{name} is no image"
                if spec.mode not in self.modes:
                    return f"images of mode {spec.mode!r} stay on the CPU"
                if 0 in spec.shape:
                    return "an image has no pixels"
        return self.limits(call)

    def limits(self, call: Call) -> str | None:
        """Returns a reason not to migrate, besides images that are none."""
        return None

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> Tensors:
        results = self.pixels([with_bands(images) for images in inputs], static, sample)
        if isinstance(results, tuple):
            return tuple(images[..., 0] if images.shape[3] == 1 else images for images in results)
        return results[..., 0] if results.shape[3] == 1 else results

    def pixels(self, images: list[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> Tensors:
        """Computes a batch: each image [batch, height, width, bands]."""
        raise NotImplementedError


class Single(Pillow):
    """A function on one image, by a plan."""

    def plan(self, source: Spec, call: Call) -> Plan:
        """Returns how a call is computed; may raise `Unsupported`."""
        raise NotImplementedError

    def map(self, call: Call) -> Mapped:
        source = call[self.data[0]]
        return self.plan(source, call).mapped(source)

    def takes_lists(self, static: Any, device: torch.device) -> bool:
        return on_lists(static, device)

    def batch_key(self, static: Any, lists: bool) -> Hashable:
        return "plan of one image", key_of_plan(static, lists)

    def pixels(self, images: list[Images], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return run_plan(images[0], static, sample)


# Plans.


def plan_copy(source: Spec) -> Plan:
    """Returns the image as it is."""
    return Plan("copy", size_of(source))


def colour_of(mode: str, colour: Any) -> np.ndarray:
    """Returns a colour as bytes [bands], as `PIL.Image.new` understands it."""
    from PIL import Image

    black = (0,) * BANDS[mode]
    if colour is None or (type(colour) in (int, tuple) and colour in (0, black)):
        return np.array(black)
    try:
        return np.array(Image.new(mode, (1, 1), colour)).reshape(-1).astype(np.int64)
    except (TypeError, ValueError) as error:
        raise Unsupported(f"the colour is not understood: {error}") from None


def plan_resize(source: Spec, size: Sequence[int], kind: int, box: Sequence[float] | None = None) -> Plan:
    """Plans `Image.resize`.

    Args:
        source: The image.
        size: Width and height of the result.
        kind: Pillow's number of a filter.
        box: The part that is resized: left, top, right, bottom.
    """
    width, height = size_of(source)
    size = (int(size[0]), int(size[1]))
    whole = (0, 0, width, height)
    box = whole if box is None else tuple(box)
    if min(size) < 1:
        raise Unsupported("the result has no pixels")
    if kind not in sampling.FILTERS and kind != sampling.NEAREST:
        raise Unsupported(f"the filter {kind} stays on the CPU")
    if not (0 <= box[0] <= box[2] <= width and 0 <= box[1] <= box[3] <= height):
        raise Unsupported("the box is not in the image")
    if size == (width, height) and box == whole:
        return plan_copy(source)
    left, top, right, bottom = (np.float32(edge) for edge in box)
    if kind == sampling.NEAREST:
        places = []
        for start, stop, out, limit in ((top, bottom, size[1], height), (left, right, size[0], width)):
            step = float(stop - start) / out
            places.append(sampling.nearest_places(float(start) + step * 0.5, step, out, limit))
        return plan_pick(size, *places, np.zeros(source.channels, np.int64))
    counts = (
        sampling.taps(kind, height, size[1]) if size[1] != height or top or bottom != size[1] else 0,
        sampling.taps(kind, width, size[0]) if size[0] != width or left or right != size[0] else 0,
    )
    order = sampling.vertical_first((width, height), size)
    edges = np.array([left, top, right, bottom], np.float64)
    return Plan("resize", size, (kind, size[::-1], counts, order, source.mode in PREMULTIPLIED), (edges,))


def run_resize(
    images: torch.Tensor, sample: Sequence[torch.Tensor], kind: int, size: tuple[int, int], counts: tuple[int, int],
    vertical_first: bool, premultiplied: bool,
) -> torch.Tensor:  # fmt: skip
    if premultiplied:
        return with_premultiplied(images, ("resize", kind, size, counts, vertical_first), sample)
    return sampling.resample(images, kind, size, counts, sample[0], vertical_first)


def resize_list(
    images: list[torch.Tensor], sample: Sequence[torch.Tensor], kind: int, size: tuple[int, int]
) -> torch.Tensor:
    return torch.ops.hetero.pil_resize(images, sample[0], size, kind)


def run_parts(
    images: torch.Tensor, sample: Sequence[torch.Tensor], kind: int, size: tuple[int, int], counts: tuple[int, int],
    vertical_first: bool, premultiplied: bool,
) -> torch.Tensor:  # fmt: skip
    if premultiplied:
        return with_premultiplied(images, ("parts", kind, size, counts, vertical_first), sample)
    return sampling.resample_parts(images, kind, size, counts, sample[0], vertical_first)


def resize_parts_of_list(
    images: list[torch.Tensor], sample: Sequence[torch.Tensor], kind: int, size: tuple[int, int]
) -> torch.Tensor:
    return sampling.resize_parts_of_list(images, kind, size, sample[0])


def with_premultiplied(images: torch.Tensor, static: tuple[Any, ...], sample: Sequence[torch.Tensor]) -> torch.Tensor:
    """Computes images with alpha, by a plan without its last setting, as Pillow does."""
    return pixels.unpremultiply(run_plan(pixels.premultiply(images), (*static, False), sample))


def plan_pick(size: tuple[int, int], rows: np.ndarray, columns: np.ndarray, fill: np.ndarray) -> Plan:
    """Plans pixels by rows and columns, a colour where they are -1."""
    inside = bool(rows.min(initial=0) >= 0 and columns.min(initial=0) >= 0)
    return Plan("pick", size, (inside,), (rows, columns, fill))


def run_pick(images: torch.Tensor, sample: Sequence[torch.Tensor], inside: bool) -> torch.Tensor:
    rows, columns, fill = sample
    return sampling.pick(images, rows, columns, None if inside else fill)


def plan_crop(source: Spec, left: int, top: int, right: int, bottom: int) -> Plan:
    """Plans `Image.crop` by whole numbers. Crops of one size share a batch."""
    width, height = size_of(source)
    if right < left or bottom < top:
        raise Unsupported("the box is not in order")
    size = (right - left, bottom - top)
    if 0 in size:
        raise Unsupported("the result has no pixels")
    inside = left >= 0 and top >= 0 and right <= width and bottom <= height
    return Plan("crop", size, (size[::-1], inside), (top, left))


def run_crop(images: torch.Tensor, sample: Sequence[torch.Tensor], size: tuple[int, int], inside: bool) -> torch.Tensor:
    return sampling.crop(images, *sample, size, inside)


def plan_transpose(source: Spec, method: int) -> Plan:
    """Plans `Image.transpose`."""
    width, height = size_of(source)
    return Plan("transpose", (height, width) if method in (2, 4, 5, 6) else (width, height), (int(method),))


def run_transpose(images: torch.Tensor, sample: Sequence[torch.Tensor], method: int) -> torch.Tensor:
    turned = images.transpose(1, 2)
    return [
        images.flip(2), images.flip(1), turned.flip(1), images.flip(1, 2), turned.flip(2), turned, turned.flip(1, 2),
    ][method]  # fmt: skip


def plan_transform(
    source: Spec, size: Sequence[int], kind: str, data: Sequence[float], resample: int, fill: Any = None
) -> Plan:
    """Plans `Image.transform`.

    Args:
        source: The image.
        size: Width and height of the result.
        kind: "affine", "perspective" or "quad", whose data is as libImaging has it.
        data: Coefficients.
        resample: 0, 2 or 3: nearest, bilinear or bicubic.
        fill: The colour outside, None for zeros.
    """
    size = (int(size[0]), int(size[1]))
    if min(size) < 1:
        raise Unsupported("the result has no pixels")
    if resample not in (0, 2, 3):
        raise Unsupported(f"the filter {resample} stays on the CPU")
    premultiplied = source.mode in PREMULTIPLIED and resample != sampling.NEAREST
    matrix = np.array([float(number) for number in data])
    colour = colour_of(PREMULTIPLIED[source.mode] if premultiplied else source.mode, fill)
    if len(matrix) != (6 if kind == "affine" else 8) or not np.isfinite(matrix).all():
        raise Unsupported("the coefficients are not finite numbers, 6 or 8 of them")
    if kind == "affine" and resample == sampling.NEAREST:
        a = matrix.tolist()
        if a[1] == 0 and a[3] == 0:
            rows = sampling.nearest_places(a[5] + a[4] * 0.5, a[4], size[1], source.shape[0])
            columns = sampling.nearest_places(a[2] + a[0] * 0.5, a[0], size[0], source.shape[1])
            return plan_pick(size, rows, columns, colour)
        for x, y in ((0, 0), size, (0, size[1]), (size[0], 0)):
            if max(abs(x * a[0] + y * a[1] + a[2]), abs(x * a[3] + y * a[4] + a[5])) >= 32768.0:
                raise Unsupported("coordinates beyond 32,767 stay on the CPU")
        a[2], a[5] = a[2] + a[0] * 0.5 + a[1] * 0.5, a[5] + a[3] * 0.5 + a[4] * 0.5
        fixed = np.array([math.floor(number * 65536.0 + 0.5) for number in a])
        if not colour.any():
            return Plan("affine", size, (size[::-1], resample, False), (matrix, fixed))
        return Plan("fixed", size, (size[::-1],), (fixed, colour))
    if kind == "affine" and not colour.any():
        return Plan("affine", size, (size[::-1], resample, premultiplied), (matrix,))
    return Plan("transform", size, (size[::-1], kind, resample, premultiplied), (matrix, colour))


def run_affine(
    images: torch.Tensor, sample: Sequence[torch.Tensor], size: tuple[int, int], resample: int, premultiplied: bool
) -> torch.Tensor:
    """Affine transforms with zeros outside, for which there is a kernel."""
    if premultiplied:
        return with_premultiplied(images, ("affine", size, resample), sample)
    fill = torch.zeros(len(images), images.shape[3], dtype=images.dtype, device=images.device)
    if resample == sampling.NEAREST:
        return sampling.sample_fixed(images, size, sample[1], fill)
    return run_transform(images, (sample[0], fill), size, "affine", resample, False)


def affine_of_list(
    images: list[torch.Tensor], sample: Sequence[torch.Tensor], size: tuple[int, int], resample: int
) -> torch.Tensor:
    return torch.ops.hetero.pil_affine(images, sample[0], size, resample, [])


def run_fixed(images: torch.Tensor, sample: Sequence[torch.Tensor], size: tuple[int, int]) -> torch.Tensor:
    return sampling.sample_fixed(images, size, *sample)


SAMPLERS = {0: sampling.sample_nearest, 2: sampling.sample_bilinear, 3: sampling.sample_bicubic}


def run_transform(
    images: torch.Tensor, sample: Sequence[torch.Tensor], size: tuple[int, int], kind: str, resample: int,
    premultiplied: bool,
) -> torch.Tensor:  # fmt: skip
    matrix, fill = sample
    if premultiplied:
        images = pixels.premultiply(images)
    images = SAMPLERS[resample](images, *sampling.positions(kind, size, matrix), fill)
    return pixels.unpremultiply(images) if premultiplied else images


def plan_rotate(
    source: Spec, angle: float, resample: int = 0, expand: bool = False, center: Sequence[float] | None = None,
    translate: Sequence[float] | None = None, fill: Any = None,
) -> Plan:  # fmt: skip
    """Plans `Image.rotate`, whose arithmetic it repeats."""
    width, height = size_of(source)
    angle = angle % 360.0
    if not (center or translate):
        if angle == 0:
            return plan_copy(source)
        if angle == 180:
            return plan_transpose(source, 3)
        if angle in (90, 270) and (expand or width == height):
            return plan_transpose(source, 2 if angle == 90 else 4)
    after = (0, 0) if translate is None else translate
    middle = (width / 2, height / 2) if center is None else center
    angle = -math.radians(angle)
    cosine, sine = round(math.cos(angle), 15), round(math.sin(angle), 15)
    matrix = [cosine, sine, 0.0, round(-math.sin(angle), 15), cosine, 0.0]

    def moved(x: float, y: float) -> tuple[float, float]:
        a, b, c, d, e, f = matrix
        return a * x + b * y + c, d * x + e * y + f

    matrix[2], matrix[5] = moved(-middle[0] - after[0], -middle[1] - after[1])
    matrix[2] += middle[0]
    matrix[5] += middle[1]
    size = (width, height)
    if expand:
        corners = [moved(x, y) for x, y in ((0, 0), (width, 0), (width, height), (0, height))]
        across, down = zip(*corners, strict=True)
        size = (math.ceil(max(across)) - math.floor(min(across)), math.ceil(max(down)) - math.floor(min(down)))
        matrix[2], matrix[5] = moved(-(size[0] - width) / 2.0, -(size[1] - height) / 2.0)
    return plan_transform(source, size, "affine", matrix, resample, fill)


def plan_filter(source: Spec, given: Any) -> Plan:
    """Plans `Image.filter`."""
    from PIL import ImageFilter

    if isinstance(given, type):
        given = given()
    size = size_of(source)
    method = getattr(type(given), "filter", None)
    if method is ImageFilter.BuiltinFilter.filter:
        (width, height), scale, offset, kernel = given.filterargs
        if size[0] < width or size[1] < height:
            return plan_copy(source)
        if (width, height) not in ((3, 3), (5, 5)) or scale == 0:
            raise Unsupported("kernels are of 3x3 or 5x5 numbers, with a scale that is not 0")
        parts = tuple(float(np.float32(part) / np.float32(scale)) for part in kernel)
        if not any(parts):
            raise Unsupported("a kernel of zeros stays on the CPU")
        return Plan("convolve", size, (parts, float(offset)))
    if method is ImageFilter.RankFilter.filter:
        if given.size > 5 and given.rank not in (0, given.size**2 // 2, given.size**2 - 1):
            raise Unsupported("ranks of more than 5x5 pixels stay on the CPU, but for the median")
        return Plan("rank", size, (given.size, given.rank))
    blurs = (ImageFilter.GaussianBlur.filter, ImageFilter.BoxBlur.filter, ImageFilter.UnsharpMask.filter)
    if method in blurs:
        if source.mode not in BLURRED:
            raise Unsupported(f"blurs of images of mode {source.mode!r} stay on the CPU")
        radii = given.radius if isinstance(given.radius, (tuple, list)) else (given.radius, given.radius)
        gauss = method is not blurs[1]
        if gauss:
            radii = [filters.gaussian_radius(radius) for radius in radii]
        if max(radii) > 1000:
            raise Unsupported("blurs of more than 1,000 pixels stay on the CPU")
        settings = [filters.box_settings(radius) for radius in radii]
        wholes = tuple(whole if radius else None for radius, (whole, _, _) in zip(radii, settings, strict=True))
        parts = tuple(part for _, weight, end in settings for part in (weight, end))
        if method is blurs[2]:
            return Plan("unsharp", size, (wholes,), (*parts, int(given.percent), int(given.threshold)))
        return Plan("blur", size, (wholes, 3 if gauss else 1), parts)
    raise Unsupported(f"the filter {type(given).__name__} stays on the CPU")


def run_unsharp(
    images: torch.Tensor, sample: Sequence[torch.Tensor], wholes: tuple[int | None, int | None]
) -> torch.Tensor:
    return filters.unsharp(images, filters.box_blur(images, wholes, sample[:4], 3), sample[4], sample[5])


def plan_reduce(source: Spec, factor: Any, box: Sequence[int] | None) -> Plan:
    """Plans `Image.reduce`."""
    width, height = size_of(source)
    if not isinstance(factor, (list, tuple)):
        factor = (factor, factor)
    factor = tuple(factor)
    if factor == (1, 1):
        return plan_copy(source) if box is None else plan_crop(source, *(int(round(edge)) for edge in box))
    left, top, right, bottom = (0, 0, width, height) if box is None else box
    if min(factor) < 1 or not (0 <= left < right <= width and 0 <= top < bottom <= height):
        raise Unsupported("the box is not in the image")
    if factor[0] * factor[1] >= 1 << 15:
        raise Unsupported("blocks of more than 32,767 pixels stay on the CPU")
    size = (-(-(right - left) // factor[0]), -(-(bottom - top) // factor[1]))
    return Plan("reduce", size, (factor, (left, top, right, bottom), source.mode in PREMULTIPLIED))


def run_reduce(
    images: torch.Tensor, sample: Sequence[torch.Tensor], factor: tuple[int, int], box: tuple[int, int, int, int],
    premultiplied: bool,
) -> torch.Tensor:  # fmt: skip
    if premultiplied:
        return pixels.unpremultiply(sampling.reduce(pixels.premultiply(images), factor, box))
    return sampling.reduce(images, factor, box)


BRIGHTNESS, CONTRAST, COLOR = range(3)  # as `torch.ops.hetero.pil_enhance` numbers them


def plan_enhance(source: Spec, property: int, factor: float) -> Plan:
    """Plans `enhance` of `ImageEnhance.Brightness`, `Contrast` and `Color`. All of them share batches."""
    if abs(factor) > np.finfo(np.float32).max:
        raise Unsupported("the factor is too large for Pillow's floats")
    return Plan("enhance", size_of(source), (source.mode,), (property, factor))


def run_enhance(images: torch.Tensor, sample: Sequence[torch.Tensor], mode: str) -> torch.Tensor:
    alpha = mode in ("LA", "RGBA")
    middle = "LA" if alpha else "L"
    grey = images if mode == middle else pixels.convert(images, pixels.conversion(mode, middle))
    colourless = grey if mode == middle else pixels.convert(grey, pixels.conversion(middle, mode))
    level = pixels.mean_of(grey[..., :1])
    flat = level if mode == "L" else pixels.convert(level, pixels.conversion("L", mode))
    property = pixels.per_sample(sample[0], images)
    other = torch.where(property == COLOR, colourless, torch.where(property == CONTRAST, flat, 0))
    if alpha:
        other = torch.cat([other[..., :-1], images[..., -1:]], 3)
    return pixels.blend(other, images, sample[1])


def run_grey(images: torch.Tensor, sample: Sequence[torch.Tensor], source: str, mode: str) -> torch.Tensor:
    """Converts to mode L, or to RGB with three equal bands."""
    grey = images if source == "L" else pixels.convert(images, pixels.conversion(source, "L"))
    return grey if mode == "L" else grey.expand(*grey.shape[:3], 3)


def enhance_list(images: list[torch.Tensor], sample: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.ops.hetero.pil_enhance(images, *sample)


# What operators compute that take lists of images, and how many of a plan's settings they need.
LISTED = {
    "resize": (resize_list, 2), "parts": (resize_parts_of_list, 2), "affine": (affine_of_list, 2),
    "enhance": (enhance_list, 0),
}  # fmt: skip

RUNNERS = {
    "enhance": run_enhance,
    "grey": run_grey,
    "copy": lambda images, sample: images,
    "resize": run_resize,
    "parts": run_parts,
    "pick": run_pick,
    "crop": run_crop,
    "transpose": run_transpose,
    "affine": run_affine,
    "fixed": run_fixed,
    "transform": run_transform,
    "convolve": lambda images, sample, kernel, offset: filters.convolve(images, kernel, offset),
    "rank": lambda images, sample, size, place: filters.rank(images, size, place),
    "blur": lambda images, sample, wholes, passes: filters.box_blur(images, wholes, sample, passes),
    "unsharp": run_unsharp,
    "reduce": run_reduce,
}


# Methods of images.


@register
class Resize(Single):
    target = "PIL.Image.Image.resize"
    parameters = "self, size, resample=None, box=None, reducing_gap=None"
    data = ("self",)

    def limits(self, call: Call) -> str | None:
        return call.given("reducing_gap")

    def plan(self, source: Spec, call: Call) -> Plan:
        return plan_resize(source, call["size"], 3 if call["resample"] is None else call["resample"], call["box"])

    def examples(self, random: np.random.Generator) -> Calls:
        for number, image in enumerate(random_images(random)):
            if number % 3 == 0:
                size = tuple(int(length) for length in random.integers(1, 30, 2))
                kind = int(random.choice([0, 1, 2, 3, 4, 5]))
            keywords: dict[str, Any] = {"resample": kind} if random.random() < 0.8 else {}
            if random.random() < 0.3:
                left, right = sorted(random.uniform(0, image.width, 2).tolist())
                top, bottom = sorted(random.uniform(0, image.height, 2).tolist())
                keywords["box"] = (left, top, right, bottom)
            yield (image, size), keywords


@register
class Crop(Single):
    target = "PIL.Image.Image.crop"
    parameters = "self, box=None"
    data = ("self",)

    def plan(self, source: Spec, call: Call) -> Plan:
        box = call["box"]
        if box is None or tuple(box) == (0, 0, *size_of(source)):
            return plan_copy(source)
        if box[2] < box[0] or box[3] < box[1]:
            raise Unsupported("the box is not in order")
        return plan_crop(source, *(int(round(edge)) for edge in box))

    def examples(self, random: np.random.Generator) -> Calls:
        for number, image in enumerate(random_images(random)):
            if number % 3 == 0:
                width, height = (int(length) for length in random.integers(1, 20, 2))
            left, top = (int(place) for place in random.integers(-6, 12, 2))
            yield (image,), {} if random.random() < 0.1 else {"box": (left, top, left + width, top + height)}


@register
class Transpose(Single):
    target = "PIL.Image.Image.transpose"
    parameters = "self, method"
    data = ("self",)

    def limits(self, call: Call) -> str | None:
        return None if call["method"] in range(7) else "the method is unknown"

    def plan(self, source: Spec, call: Call) -> Plan:
        return plan_transpose(source, call["method"])

    def examples(self, random: np.random.Generator) -> Calls:
        for image in random_images(random):
            yield (image, int(random.integers(0, 7))), {}


@register
class Rotate(Single):
    target = "PIL.Image.Image.rotate"
    parameters = "self, angle, resample=0, expand=False, center=None, translate=None, fillcolor=None"
    data = ("self",)

    def plan(self, source: Spec, call: Call) -> Plan:
        return plan_rotate(
            source, call["angle"], call["resample"], call["expand"], call["center"], call["translate"],
            call["fillcolor"],
        )  # fmt: skip

    def examples(self, random: np.random.Generator) -> Calls:
        for image in random_images(random):
            angle = random.choice([0, 45, 90, 180, 270, 360, random.uniform(-400, 400)])
            keywords: dict[str, Any] = {"resample": int(random.choice([0, 2, 3])), "expand": random.random() < 0.3}
            if random.random() < 0.2:
                keywords["center"] = tuple(random.uniform(0, 9, 2).tolist())
            if random.random() < 0.2:
                keywords["translate"] = tuple(random.integers(-5, 5, 2).tolist())
            if random.random() < 0.3:
                keywords["fillcolor"] = tuple(random.integers(0, 256, len(image.getbands())).tolist())
            yield (image, float(angle)), keywords


@register
class Transform(Single):
    target = "PIL.Image.Image.transform"
    parameters = "self, size, method, data=None, resample=0, fill=1, fillcolor=None"
    data = ("self",)

    def limits(self, call: Call) -> str | None:
        if call["method"] not in (0, 1, 2, 3):
            return "meshes and transforms that are objects stay on the CPU"
        return "there is no data" if call["data"] is None else None

    def plan(self, source: Spec, call: Call) -> Plan:
        method, data, (width, height) = call["method"], tuple(call["data"]), call["size"]
        if min(width, height) < 1:
            raise Unsupported("the result has no pixels")
        kind = "affine"
        if method == 0:
            data = data[:6]
        elif method == 1:
            left, top, right, bottom = data
            data = ((right - left) / width, 0, left, 0, (bottom - top) / height, top)
        elif method == 2:
            kind, data = "perspective", data[:8]
        else:
            kind = "quad"
            (x0, y0), sw, se, ne = data[:2], data[2:4], data[4:6], data[6:8]
            across, down = 1.0 / width, 1.0 / height
            data = (
                x0, (ne[0] - x0) * across, (sw[0] - x0) * down, (se[0] - sw[0] - ne[0] + x0) * across * down,
                y0, (ne[1] - y0) * across, (sw[1] - y0) * down, (se[1] - sw[1] - ne[1] + y0) * across * down,
            )  # fmt: skip
        return plan_transform(source, (width, height), kind, data, call["resample"], call["fillcolor"])

    def examples(self, random: np.random.Generator) -> Calls:
        for number, image in enumerate(random_images(random)):
            if number % 3 == 0:
                size = tuple(int(length) for length in random.integers(1, 24, 2))
            method, resample = int(random.integers(0, 4)), int(random.choice([0, 2, 3]))
            if method == 0:
                data = (np.array([1, 0, 0, 0, 1, 0]) + random.normal(0, [0.5, 0.5, 5, 0.5, 0.5, 5])).tolist()
                if random.random() < 0.3:
                    data[1] = data[3] = 0
            elif method == 1:
                data = random.uniform(-5, 25, 4).tolist()
            elif method == 2:
                noise = random.normal(0, [0.3, 0.3, 4, 0.3, 0.3, 4, 0.01, 0.01])
                data = (np.array([1, 0, 0, 0, 1, 0, 0, 0]) + noise).tolist()
            else:
                data = random.uniform(-5, 25, 8).tolist()
            keywords: dict[str, Any] = {"resample": resample}
            if random.random() < 0.3:
                keywords["fillcolor"] = tuple(random.integers(0, 256, len(image.getbands())).tolist())
            yield (image, size, method, data), keywords


@register
class Filter(Single):
    target = "PIL.Image.Image.filter"
    parameters = "self, filter"
    data = ("self",)

    def plan(self, source: Spec, call: Call) -> Plan:
        return plan_filter(source, call["filter"])

    def examples(self, random: np.random.Generator) -> Calls:
        from PIL import ImageFilter

        kernels = [
            getattr(ImageFilter, name)
            for name in ("BLUR", "CONTOUR", "DETAIL", "EDGE_ENHANCE", "EDGE_ENHANCE_MORE", "EMBOSS", "FIND_EDGES",
                         "SHARPEN", "SMOOTH", "SMOOTH_MORE")
        ]  # fmt: skip
        for image in random_images(random, BLURRED):
            radius = float(random.choice([0.0, 0.4, 1.0, 2.5, random.uniform(0, 12)]))
            size = int(random.choice([3, 5]))
            weights = random.normal(size=size * size).tolist()
            yield (image, random.choice(np.array([
                *kernels, *kernels, ImageFilter.Kernel((size, size), weights, scale=2.0, offset=7),
                ImageFilter.GaussianBlur(radius), ImageFilter.GaussianBlur((radius, 1.5)), ImageFilter.BoxBlur(radius),
                ImageFilter.BoxBlur((radius, 0.0)), ImageFilter.UnsharpMask(radius, 120, 2),
                ImageFilter.MedianFilter(3 * size), ImageFilter.MinFilter(size), ImageFilter.MaxFilter(7),
                ImageFilter.RankFilter(size, int(random.integers(0, size * size))), ImageFilter.GaussianBlur,
            ], dtype=object))), {}  # fmt: skip


@register
class Reduce(Single):
    target = "PIL.Image.Image.reduce"
    parameters = "self, factor, box=None"
    data = ("self",)

    def plan(self, source: Spec, call: Call) -> Plan:
        return plan_reduce(source, call["factor"], call["box"])

    def examples(self, random: np.random.Generator) -> Calls:
        for image in random_images(random):
            factor = int(random.integers(1, 7)) if random.random() < 0.5 else tuple(random.integers(1, 9, 2).tolist())
            box = None
            if random.random() < 0.3:
                left, top = int(random.integers(0, image.width)), int(random.integers(0, image.height))
                box = (
                    left,
                    top,
                    int(random.integers(left, image.width)) + 1,
                    int(random.integers(top, image.height)) + 1,
                )
            yield (image, factor), {} if box is None else {"box": box}


@register
class Convert(Pillow):
    target = "PIL.Image.Image.convert"
    parameters = "self, mode=None, matrix=None, dither=None, palette=0, colors=256"
    data = ("self",)

    def limits(self, call: Call) -> str | None:
        source, mode = call["self"].mode, call["mode"]
        if mode and mode != source and pixels.conversion(source, mode) is None:
            return f"the mode {mode!r} stays on the CPU"
        return call.given("matrix")

    def map(self, call: Call) -> Mapped:
        source = call["self"]
        mode = call["mode"] or source.mode
        way = (mode,) if mode == source.mode else pixels.conversion(source.mode, mode)
        return Mapped(Spec.image(size_of(source), mode), way)

    def pixels(self, images: list[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return pixels.convert(images[0], static)

    def examples(self, random: np.random.Generator) -> Calls:
        for image in random_images(random):
            modes = [mode for mode in MODES if mode == image.mode or pixels.conversion(image.mode, mode)]
            yield (image, str(random.choice(modes))), {}


@register
class Point(Pillow):
    target = "PIL.Image.Image.point"
    parameters = "self, lut, mode=None"
    data = ("self",)

    def limits(self, call: Call) -> str | None:
        from PIL import Image

        if isinstance(call["lut"], Image.ImagePointHandler):
            return "handlers stay on the CPU"
        return call.given("mode")

    def map(self, call: Call) -> Mapped:
        source, given = call["self"], call["lut"]
        entries = [given(value) for value in range(256)] * source.channels if callable(given) else list(given)
        table = np.array([round(entry) for entry in entries])
        if table.shape != (256 * source.channels,):
            raise Unsupported("the table has another length than the image's values")
        return Mapped(source, sample=(table.clip(0, 255).astype(np.uint8).reshape(-1, 256),))

    def pixels(self, images: list[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return pixels.lookup(images[0], sample[0])

    def examples(self, random: np.random.Generator) -> Calls:
        for image in random_images(random):
            factor = float(random.uniform(0, 3))
            if random.random() < 0.5:
                yield (image, lambda value, factor=factor: value * factor - 20), {}
            else:
                yield (image, random.integers(-50, 300, 256 * len(image.getbands())).tolist()), {}


@register
class GetChannel(Pillow):
    target = "PIL.Image.Image.getchannel"
    parameters = "self, channel"
    data = ("self",)

    def number(self, call: Call) -> int:
        from PIL import ImageMode

        channel = call["channel"]
        names = ImageMode.getmode(call["self"].mode).bands
        if isinstance(channel, str):
            return names.index(channel) if channel in names else -1
        return channel if 0 <= channel < len(names) else -1

    def limits(self, call: Call) -> str | None:
        return None if self.number(call) >= 0 else "there is no such channel"

    def map(self, call: Call) -> Mapped:
        return Mapped(Spec.image(size_of(call["self"]), "L"), self.number(call))

    def pixels(self, images: list[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return images[0][..., static : static + 1]

    def examples(self, random: np.random.Generator) -> Calls:
        for image in random_images(random):
            names = image.getbands()
            number = int(random.integers(0, len(names)))
            yield (image, names[number] if random.random() < 0.5 else number), {}


@register
class Split(Pillow):
    target = "PIL.Image.Image.split"
    parameters = "self"
    data = ("self",)

    def map(self, call: Call) -> Mapped:
        source = call["self"]
        outputs = (Spec.image(size_of(source), "L"),) * source.channels
        return Mapped(outputs, build=None if len(outputs) > 1 else lambda image: (image,))

    def pixels(self, images: list[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> Tensors:
        return tuple(images[0][..., band : band + 1] for band in range(images[0].shape[3]))

    def examples(self, random: np.random.Generator) -> Calls:
        for image in random_images(random):
            yield (image,), {}


# Functions on images.


@register
class Merge(Pillow):
    target = "PIL.Image.merge"
    parameters = "mode, bands"
    data = ("bands",)
    modes = ("L",)

    def limits(self, call: Call) -> str | None:
        mode, bands = call["mode"], call["bands"]
        if mode not in MODES or type(bands) not in (list, tuple) or len(bands) != BANDS[mode]:
            return f"the mode {mode!r} stays on the CPU, or the bands are not its number"
        return None if len({band.shape for band in bands}) == 1 else "the bands have different sizes"

    def map(self, call: Call) -> Mapped:
        return Mapped(Spec.image(size_of(call["bands"][0]), call["mode"]), call["mode"])

    def pixels(self, images: list[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat(images, 3)

    def examples(self, random: np.random.Generator) -> Calls:
        for image in random_images(random):
            yield (image.mode, image.split()), {}


class Pair(Pillow):
    """A function on two images of the same size and number of bands."""

    same_mode: ClassVar[bool] = False

    def limits(self, call: Call) -> str | None:
        left, right = (call[name] for name in self.data[:2])
        if left.shape != right.shape or (self.same_mode and left.mode != right.mode):
            return "the images have different sizes or modes"
        return self.reason(call)

    def reason(self, call: Call) -> str | None:
        """Returns a reason not to migrate, for images that fit."""
        return None

    def map(self, call: Call) -> Mapped:
        return Mapped(call[self.data[0]], *self.settings(call))

    def settings(self, call: Call) -> tuple[Hashable, tuple[Any, ...]]:
        """Returns static settings and those of a sample."""
        return None, ()

    def pairs(self, random: np.random.Generator) -> Iterator[tuple[Any, Any]]:
        """Yields images that fit."""
        from PIL import Image

        for image in random_images(random, self.modes):
            noise = random.integers(0, 256, len(image.tobytes()), dtype=np.uint8)
            yield image, Image.frombytes(image.mode, image.size, noise.tobytes())

    def examples(self, random: np.random.Generator) -> Calls:
        for pair in self.pairs(random):
            yield pair, {}


@register
class Blend(Pair):
    target = "PIL.Image.blend"
    parameters = "im1, im2, alpha"
    data = ("im1", "im2")

    def reason(self, call: Call) -> str | None:
        return None if math.isfinite(call["alpha"]) else "alpha is not finite"

    def settings(self, call: Call) -> tuple[Hashable, tuple[Any, ...]]:
        return None, (float(call["alpha"]),)

    def pixels(self, images: list[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return pixels.blend(*images, *sample)

    def examples(self, random: np.random.Generator) -> Calls:
        for pair in self.pairs(random):
            yield (*pair, float(random.choice([0, 0.3, 0.5, 1, random.uniform(-1, 3)]))), {}


@register
class Composite(Pair):
    target = "PIL.Image.composite"
    parameters = "image1, image2, mask"
    data = ("image1", "image2", "mask")
    same_mode = True

    def reason(self, call: Call) -> str | None:
        mask = call["mask"]
        if mask.mode not in ("L", "LA", "RGBA"):
            return f"masks of mode {mask.mode!r} stay on the CPU"
        return None if mask.shape[:2] == call["image1"].shape[:2] else "the mask has another size"

    def pixels(self, images: list[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        upper, lower, mask = images
        return pixels.blend_mask(lower, upper, mask[..., -1:])

    def examples(self, random: np.random.Generator) -> Calls:
        from PIL import Image

        for left, right in self.pairs(random):
            mode = str(random.choice(["L", "LA", "RGBA"]))
            noise = random.integers(0, 256, left.width * left.height * BANDS[mode], dtype=np.uint8)
            yield (left, right, Image.frombytes(mode, left.size, noise.tobytes())), {}


@register
class AlphaComposite(Pair):
    target = "PIL.Image.alpha_composite"
    parameters = "im1, im2"
    data = ("im1", "im2")
    modes = ("LA", "RGBA")
    same_mode = True

    def pixels(self, images: list[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return pixels.alpha_composite(*images)


@register
class FromArray(Strategy):
    target = "PIL.Image.fromarray"
    parameters = "obj, mode=None"
    data = ("obj",)
    family = "vision"
    library = "pillow"
    versions = ("13.",)

    def mode(self, call: Call) -> str:
        source = call["obj"]
        if source.kind != "array" or source.dtype != torch.uint8 or 0 in source.shape:
            raise Unsupported("only arrays of bytes are migrated")
        default = "L" if len(source.shape) == 2 else {2: "LA", 3: "RGB", 4: "RGBA"}.get(source.channels)
        if len(source.shape) not in (2, 3) or default is None:
            raise Unsupported("only arrays [height, width] or of 2 to 4 channels are migrated")
        mode = call["mode"] or default
        if mode != default and mode not in {"RGB": ("YCbCr", "HSV"), "RGBA": ("RGBX", "CMYK")}.get(default, ()):
            raise Unsupported(f"the mode {mode!r} stays on the CPU")
        return mode

    def map(self, call: Call) -> Mapped:
        source = call["obj"]
        return Mapped(Spec.image((source.shape[1], source.shape[0]), self.mode(call)))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return inputs[0]

    def examples(self, random: np.random.Generator) -> Calls:
        for image in random_images(random):
            mode = image.mode if random.random() < 0.5 or image.mode not in ("L", "LA", "RGB", "RGBA") else None
            yield (np.array(image),), {} if mode is None else {"mode": mode}
