"""torchvision.transforms: functionals that move pixels, of both versions."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from torch_hetero.migration.spec import Spec
from torch_hetero.migration.strategies import pillow_sampling as sampling
from torch_hetero.migration.strategies import torchvision_tensors as tensors
from torch_hetero.migration.strategies.pillow import (
    PREMULTIPLIED,
    Calls,
    Plan,
    plan_copy,
    plan_crop,
    plan_resize,
    plan_rotate,
    plan_transform,
    plan_transpose,
    size_of,
)
from torch_hetero.migration.strategies.pillow_operations import filled_around
from torch_hetero.migration.strategies.torchvision import (
    NEARLY,
    Functional,
    channels_first,
    channels_last,
    functional,
    of_image,
    of_tensor,
)
from torch_hetero.migration.strategy import Call, Mapped, Tensors, Tolerance, Unsupported

# Numbers of Pillow's filters by the names of torchvision's interpolation modes.
FILTERS = {"nearest": 0, "nearest-exact": 0, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5, "lanczos": 1}
MODE_OF_FILTER = {0: "nearest", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming", 1: "lanczos"}

# Grids are products of floats: a coordinate near the middle between two pixels may be rounded the other way.
GRID = Tolerance(absolute=1e-4, outliers=2e-3, note="coordinates are floats, rounded in another order")
GRID_OF_BYTES = Tolerance(absolute=1.0, outliers=2e-3, note=GRID.note)


def mode_of(interpolation: Any) -> str:
    """Returns the name of an interpolation mode, or of Pillow's number of one."""
    name = (
        MODE_OF_FILTER.get(interpolation) if isinstance(interpolation, int) else getattr(interpolation, "value", None)
    )
    if name not in FILTERS:
        raise Unsupported(f"the interpolation {interpolation!r} stays on the CPU")
    return name


def random_mode(random: np.random.Generator, names: Sequence[str]) -> Any:
    """Returns one of torchvision's interpolation modes."""
    from torchvision.transforms import InterpolationMode

    return InterpolationMode(str(random.choice(names)))


class Geometry(Functional):
    """A functional that moves pixels, on tensors of any number of channels."""

    channels = None


class AnyElements(Geometry):
    """One that takes any elements as well."""

    dtypes = None


# Flips and parts.


@functional
class HorizontalFlip(AnyElements):
    names = (("hflip",), ("horizontal_flip", "hflip"))
    method = 0

    def image(self, source: Spec, call: Call) -> Mapped:
        return of_image(source, plan_transpose(source, self.method))

    def tensor(self, source: Spec, call: Call) -> Mapped:
        return of_tensor(source)

    def run_tensor(self, inputs: Sequence[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return inputs[0].flip(3 - self.method)


@functional
class VerticalFlip(HorizontalFlip):
    names = (("vflip",), ("vertical_flip", "vflip"))
    method = 1


@functional
class Crop(AnyElements):
    names = (("crop",), ("crop",))
    rest = "top, left, height, width"

    def image(self, source: Spec, call: Call) -> Mapped:
        left, top = call["left"], call["top"]
        return of_image(source, plan_crop(source, left, top, left + call["width"], top + call["height"]))

    def tensor(self, source: Spec, call: Call) -> Mapped:
        top, left, height, width = (call[name] for name in ("top", "left", "height", "width"))
        bottom, right = top + height, left + width
        if height < 1 or width < 1:
            raise Unsupported("the result has no pixels")
        if bottom <= 0 or right <= 0 or top >= source.shape[1] or left >= source.shape[2]:
            raise Unsupported("crops that are all outside stay on the CPU")
        inside = top >= 0 and left >= 0 and bottom <= source.shape[1] and right <= source.shape[2]
        return of_tensor(source, (source.shape[0], height, width), ((height, width), inside), (top, left))

    def run_tensor(self, inputs: Sequence[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        size, inside = static
        return channels_first(sampling.crop(channels_last(inputs[0]), *sample, size, inside))

    def examples(self, random: np.random.Generator) -> Calls:
        for number, data in enumerate(self.inputs(random, 8)):
            if number % 3 == 0:
                height, width = (int(length) for length in random.integers(1, 20, 2))
            top = int(random.integers(max(-4, 1 - height), 7))
            left = int(random.integers(max(-4, 1 - width), 7))
            yield (data, top, left, height, width), {}


def two(size: Any) -> tuple[int, int]:
    """Returns height and width of a size that may be one number."""
    if isinstance(size, numbers.Number):
        return int(size), int(size)
    if len(size) == 1:
        return size[0], size[0]
    if len(size) != 2:
        raise Unsupported("a size has one or two numbers")
    return size[0], size[1]


def center_place(source: Spec, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """Returns top, left, height and width of the part in the middle, which may be larger than the image."""
    height, width = source.shape[:2] if source.kind == "image" else source.shape[1:]
    starts = []
    for wanted, length in ((size[0], height), (size[1], width)):
        before = (wanted - length) // 2 if wanted > length else 0
        padded = max(wanted, length)
        starts.append(int(round((padded - wanted) / 2.0)) - before)
    return starts[0], starts[1], size[0], size[1]


class Windows(AnyElements):
    """The same part, or parts, of all images."""

    def places(self, source: Spec, call: Call) -> list[tuple[int, int, int, int]]:
        """Returns top, left, height and width of each part."""
        raise NotImplementedError

    def outputs(self, source: Spec, call: Call) -> Mapped:
        places = self.places(source, call)
        if any(min(place[2:]) < 1 for place in places):
            raise Unsupported("the result has no pixels")
        if source.kind == "image":
            specs = tuple(Spec.image((place[3], place[2]), source.mode) for place in places)
        else:
            specs = tuple(dataclasses.replace(source, shape=(source.shape[0], *place[2:])) for place in places)
        return Mapped(specs if len(specs) > 1 else specs[0], (tuple(places), self.flipped(call)))

    image = tensor = outputs

    def flipped(self, call: Call) -> int | None:
        """Returns the axis, 0 or 1, along which the parts are flipped from the sixth on."""
        return None

    def parts(self, images: torch.Tensor, static: Any, dimension: int) -> Tensors:
        places, flip = static
        turned = images if flip is None else images.flip(dimension + flip)
        results = tuple(
            tensors.window(images if number < 5 else turned, place, dimension) for number, place in enumerate(places)
        )
        return results if len(results) > 1 else results[0]

    def run_image(self, images: list[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> Tensors:
        return self.parts(images[0], static, 1)

    def run_tensor(self, inputs: Sequence[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> Tensors:
        return self.parts(inputs[0], static, 2)


@functional
class CenterCrop(Windows):
    names = (("center_crop",), ("center_crop",))
    rest = "output_size"

    def places(self, source: Spec, call: Call) -> list[tuple[int, int, int, int]]:
        return [center_place(source, two(call["output_size"]))]

    def examples(self, random: np.random.Generator) -> Calls:
        for number, data in enumerate(self.inputs(random)):
            if number % 3 == 0:
                size = random.integers(1, 30, 2).tolist()
            yield (data, size if random.random() < 0.6 else size[0]), {}


@functional
class FiveCrop(Windows):
    names = (("five_crop",), ("five_crop",))
    rest = "size"

    def places(self, source: Spec, call: Call) -> list[tuple[int, int, int, int]]:
        height, width = two(call["size"])
        down, across = source.shape[:2] if source.kind == "image" else source.shape[1:]
        if height > down or width > across:
            raise Unsupported("the crops are larger than the image")
        corners = [(0, 0), (0, across - width), (down - height, 0), (down - height, across - width)]
        return [(*corner, height, width) for corner in corners] + [center_place(source, (height, width))]

    def examples(self, random: np.random.Generator) -> Calls:
        for data in self.inputs(random, 9):
            size = random.integers(1, 9, 2).tolist()
            yield (data, size if random.random() < 0.6 else size[0]), {}


@functional
class TenCrop(FiveCrop):
    names = (("ten_crop",), ("ten_crop",))
    rest = "size, vertical_flip=False"

    def places(self, source: Spec, call: Call) -> list[tuple[int, int, int, int]]:
        return super().places(source, call) * 2

    def flipped(self, call: Call) -> int | None:
        return 0 if call["vertical_flip"] else 1

    def examples(self, random: np.random.Generator) -> Calls:
        for positional, _ in super().examples(random):
            yield positional, {"vertical_flip": bool(random.random() < 0.5)}


def fill_of(fill: Any, count: int) -> np.ndarray:
    """Returns a colour as one integer for each band, as functionals on PIL images do."""
    if fill is None:
        fill = 0
    values = [fill] * count if isinstance(fill, numbers.Number) else list(fill)
    values = values * count if len(values) == 1 else values
    if len(values) != count:
        raise Unsupported("the fill is not one number for each channel")
    return np.array([min(max(int(value), 0), 255) for value in values], np.int64)


@functional
class Pad(AnyElements):
    names = (("pad",), ("pad",))
    rest = ("padding, fill=0, padding_mode='constant'", "padding, fill=None, padding_mode='constant'")

    def edges(self, call: Call) -> tuple[int, int, int, int]:
        """Returns left, top, right and bottom."""
        padding = call["padding"]
        if isinstance(padding, int):
            edges = (padding,) * 4
        elif len(padding) in (1, 2, 4):
            edges = tuple(padding) * (4 // len(padding))
        else:
            raise Unsupported("padding has one, two or four numbers")
        if min(edges) < 0:
            raise Unsupported("negative padding stays on the CPU")
        return edges

    def common(self, source: Spec, call: Call, height: int, width: int) -> tuple[Any, tuple[int, int]]:
        edges, mode = self.edges(call), call["padding_mode"]
        if mode not in ("constant", "edge", "reflect", "symmetric"):
            raise Unsupported(f"the mode {mode!r} stays on the CPU")
        least = {"reflect": 1, "symmetric": 0}.get(mode)
        if least is not None and (max(edges[::2]) > width - least or max(edges[1::2]) > height - least):
            raise Unsupported("the padding is larger than the image")
        return (edges, mode), (height + edges[1] + edges[3], width + edges[0] + edges[2])

    def image(self, source: Spec, call: Call) -> Mapped:
        static, (height, width) = self.common(source, call, *source.shape[:2])
        mode = source.mode
        if static[1] != "constant":
            mode = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}[source.channels]  # it goes through an array
        sample = (fill_of(call["fill"], source.channels),) if static[1] == "constant" else ()
        return Mapped(Spec.image((width, height), mode), static, sample)

    def tensor(self, source: Spec, call: Call) -> Mapped:
        static, size = self.common(source, call, *source.shape[1:])
        fill = call["fill"]
        if static[1] != "constant":
            if fill is not None and not isinstance(fill, numbers.Number) and len(fill) > 1:
                raise Unsupported("a fill for each channel is only of constant padding")
            return of_tensor(source, (source.shape[0], *size), static)
        values = [0 if fill is None else fill] if fill is None or isinstance(fill, numbers.Number) else list(fill)
        if self.version == 1 and not isinstance(fill, (int, float, type(None))):
            raise Unsupported("the fill is no number")
        if len(values) not in (1, source.shape[0]):
            raise Unsupported("the fill is not one number for each channel")
        return of_tensor(source, (source.shape[0], *size), static, (np.array(values, np.float64),))

    def run_image(self, images: list[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return self.padded(images[0], static, sample)

    def run_tensor(self, inputs: Sequence[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        images = inputs[0].permute(0, 2, 3, 1)
        sample = [fill.to(images.dtype).expand(-1, images.shape[3]) for fill in sample]
        return channels_first(self.padded(images, static, sample))

    def padded(self, images: torch.Tensor, static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        edges, mode = static
        if mode == "constant":
            return filled_around(images, edges, sample[0])
        for dimension, before, after in ((1, edges[1], edges[3]), (2, edges[0], edges[2])):
            places = np.pad(np.arange(images.shape[dimension]), (before, after), mode=mode)
            images = images.index_select(dimension, torch.from_numpy(places).to(images.device))
        return images

    def examples(self, random: np.random.Generator) -> Calls:
        for data in self.inputs(random, 5):
            padding = random.integers(0, 4, int(random.choice([1, 2, 4]))).tolist()
            keywords: dict[str, Any] = {}
            if random.random() < 0.5:
                keywords["padding_mode"] = str(random.choice(["edge", "reflect", "symmetric"]))
            elif random.random() < 0.7:
                keywords["fill"] = int(random.integers(0, 256))
                if self.version == 2 and random.random() < 0.5:
                    count = data.shape[0] if isinstance(data, torch.Tensor) else len(data.getbands())
                    keywords["fill"] = random.integers(0, 256, count).tolist()
            yield (data, padding if random.random() < 0.8 else padding[0]), keywords


@functional
class Erase(Functional):
    names = (("erase",), ("erase",))
    rest = "i, j, h, w, v, inplace=False"
    more = ("v",)
    modes = ()
    channels = None
    dtypes = None

    def limits(self, call: Call) -> str | None:
        source, value = call[self.data[0]], call["v"]
        if not isinstance(value, Spec) or value.dtype != source.dtype:
            return "the value is no tensor of the image's elements"
        if len(value.shape) != 3 or value.shape[1:] != (1, 1) or value.shape[0] not in (1, source.shape[0]):
            return "values of more than one number for each channel stay on the CPU"
        if min(call[name] for name in ("i", "j", "h", "w")) < 0:
            return "negative places stay on the CPU"
        return "inplace= is given" if call["inplace"] else None

    def tensor(self, source: Spec, call: Call) -> Mapped:
        return of_tensor(source, sample=tuple(call[name] for name in ("i", "j", "h", "w")))

    def run_tensor(self, inputs: Sequence[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        images, values = inputs
        top, left, height, width = (setting[:, None] for setting in sample)
        rows = torch.arange(images.shape[2], device=images.device)
        columns = torch.arange(images.shape[3], device=images.device)
        inside = ((rows >= top) & (rows < top + height))[:, None, :, None]
        return torch.where(inside & ((columns >= left) & (columns < left + width))[:, None, None], values, images)

    def examples(self, random: np.random.Generator) -> Calls:
        for data in self.inputs(random):
            value = torch.from_numpy(random.integers(0, 9, (int(random.choice([1, data.shape[0]])), 1, 1))).to(
                data.dtype
            )
            yield (data, *(int(place) for place in random.integers(0, 14, 4)), value), {}


# Sizes.


def resized(shape: tuple[int, int], size: Any, max_size: int | None, version: int) -> tuple[int, int]:
    """Returns height and width of a result: the shorter side is `size` if that is one number."""
    height, width = shape
    short, long = min(height, width), max(height, width)
    if size is None:
        if version == 1 or not isinstance(max_size, int):
            raise Unsupported("there is no size")
        new_short, new_long = int(max_size * short / long), max_size
    elif isinstance(size, int) or len(size) == 1:
        new_short = size if isinstance(size, int) else size[0]
        new_long = int(new_short * long / short)
        if max_size is not None:
            if max_size <= new_short:
                raise Unsupported("max_size is not above the size")
            if new_long > max_size:
                new_short, new_long = int(max_size * new_short / new_long), max_size
    elif len(size) == 2 and max_size is None:
        return tuple(size)
    else:
        raise Unsupported("a size has one number, or two without max_size")
    return (new_long, new_short) if width <= height else (new_short, new_long)


def whole(mode: str) -> bool:
    """Whether PyTorch on this CPU resizes bytes as integers in version 2."""
    return mode == "bicubic" or torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


@functional
class Resize(Geometry):
    names = (("resize",), ("resize",))
    rest = "size, interpolation='bilinear', max_size=None, antialias=True"

    def limits(self, call: Call) -> str | None:
        if call[self.data[0]].kind == "image" and call["antialias"] is False:
            return "antialias=False has no effect on images; the original warns"
        return None

    def image(self, source: Spec, call: Call) -> Mapped:
        height, width = resized(source.shape[:2], call["size"], call["max_size"], self.version)
        if (height, width) == source.shape[:2]:
            return of_image(source, plan_copy(source))
        return of_image(source, plan_resize(source, (width, height), FILTERS[self.mode(call)]))

    def mode(self, call: Call) -> str:
        given = call["interpolation"]
        return given if given == "bilinear" else mode_of(given)

    def tensor(self, source: Spec, call: Call) -> Mapped:
        size, mode = resized(source.shape[1:], call["size"], call["max_size"], self.version), self.mode(call)
        if mode not in ("nearest", "nearest-exact", "bilinear", "bicubic"):
            raise Unsupported(f"the interpolation {mode!r} is not of tensors")
        if min(size) < 1:
            raise Unsupported("the result has no pixels")
        static = None if size == source.shape[1:] else (size, mode, bool(call["antialias"]))
        return of_tensor(source, (source.shape[0], *size), static)

    def run_tensor(self, inputs: Sequence[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        if static is None:
            return inputs[0]
        size, mode, antialias = static
        return tensors.resize(inputs[0], size, mode, antialias, self.version == 2 and whole(mode))

    def examples(self, random: np.random.Generator) -> Calls:
        for number, data in enumerate(self.inputs(random, 2)):
            if number % 3 == 0:
                size = random.integers(2, 30, 2).tolist()
                names = ["nearest", "nearest-exact", "bilinear", "bicubic"]
                names += ["lanczos"] if not isinstance(data, torch.Tensor) else []
                keywords: dict[str, Any] = {"interpolation": random_mode(random, names)}
                if random.random() < 0.3:
                    size, keywords["max_size"] = size[:1], 40
                elif random.random() < 0.2:
                    size = size[0]
            if isinstance(data, torch.Tensor) and keywords["interpolation"].value == "lanczos":
                continue
            plain = (
                {**keywords, "antialias": False}
                if isinstance(data, torch.Tensor) and random.random() < 0.3
                else keywords
            )
            yield (data, size), plain


@functional
class ResizedCrop(Geometry):
    names = (("resized_crop",), ("resized_crop",))
    rest = "top, left, height, width, size, interpolation='bilinear', antialias=True"
    tolerance = Tolerance(absolute=1e-5, note="floats are summed in another order")

    def limits(self, call: Call) -> str | None:
        source = call[self.data[0]]
        height, width = source.shape[:2] if source.kind == "image" else source.shape[1:]
        top, left, bottom, right = self.box(call)
        if not (0 <= top < bottom <= height and 0 <= left < right <= width):
            return "the part is not in the image"
        return None if call["antialias"] else "without antialias= parts stay on the CPU"

    def box(self, call: Call) -> tuple[int, int, int, int]:
        top, left = call["top"], call["left"]
        return top, left, top + call["height"], left + call["width"]

    def mode(self, call: Call) -> str:
        given = call["interpolation"]
        return given if given == "bilinear" else mode_of(given)

    def plan(self, source: Spec, call: Call, shape: tuple[int, int]) -> tuple[tuple[int, int], Any, tuple[Any, ...]]:
        """Returns the size, static settings and those of the sample."""
        top, left, bottom, right = self.box(call)
        part = (bottom - top, right - left)
        size = resized(part, call["size"], None, self.version)
        kind = FILTERS[self.mode(call)]
        if min(size) < 1:
            raise Unsupported("the result has no pixels")
        if size == part:
            return size, ("crop", size, True), (top, left)
        if kind == sampling.NEAREST:
            places = [
                start + sampling.nearest_places(length / out * 0.5, length / out, out, length)
                for start, length, out in ((top, part[0], size[0]), (left, part[1], size[1]))
            ]
            return size, ("pick", True), (*places, np.zeros(1, np.int64))
        # Enough for any part: parts of different sizes share a batch.
        counts = tuple(sampling.taps(kind, length, out) for length, out in zip(shape, size, strict=True))
        order = sampling.vertical_first(part[::-1], size[::-1])
        return size, ("parts", kind, size, counts, order), (np.array([top, left, *part], np.int64),)

    def image(self, source: Spec, call: Call) -> Mapped:
        size, static, sample = self.plan(source, call, source.shape[:2])
        static = (*static, source.mode in PREMULTIPLIED) if static[0] == "parts" else static
        return of_image(source, Plan(static[0], size[::-1], static[1:], sample))

    def tensor(self, source: Spec, call: Call) -> Mapped:
        mode = self.mode(call)
        if mode not in ("bilinear", "bicubic"):
            raise Unsupported(f"parts of tensors by {mode!r} stay on the CPU")
        if mode == "bicubic" and source.dtype == torch.uint8 and self.version == 1:
            raise Unsupported("parts of bytes by 'bicubic' stay on the CPU in version 1")
        size, static, sample = self.plan(source, call, source.shape[1:])
        if static[0] == "parts":
            static = static[:-1]  # widths are first on tensors
        if size[1] == 1 and static[0] == "parts" and not (source.dtype == torch.uint8 and self.version == 2):
            raise Unsupported("results of one column stay on the CPU: PyTorch repeats their first row")
        return of_tensor(source, (source.shape[0], *size), static, sample)

    def run_tensor(self, inputs: Sequence[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        (images,), (name, *settings) = inputs, static
        if name == "crop":
            return channels_first(sampling.crop(channels_last(images), *sample, *settings))
        kind, size, counts = settings
        mode = MODE_OF_FILTER[kind]
        return tensors.resize_parts(images, sample[0], size, counts, mode, self.version == 2 and whole(mode))

    def examples(self, random: np.random.Generator) -> Calls:
        for number, data in enumerate(self.inputs(random, 4)):
            if number % 3 == 0:
                size = random.integers(1, 24, 2).tolist()
            height, width = data.shape[1:] if isinstance(data, torch.Tensor) else data.size[::-1]
            top, left = int(random.integers(0, height)), int(random.integers(0, width))
            part = (int(random.integers(1, height - top + 1)), int(random.integers(1, width - left + 1)))
            names = ["bilinear", "bicubic"] if isinstance(data, torch.Tensor) else ["nearest", "bilinear", "bicubic"]
            if isinstance(data, torch.Tensor) and data.dtype == torch.uint8 and self.version == 1:
                names = names[:1]
            if isinstance(data, torch.Tensor) and size[1] == 1:
                continue
            yield (data, top, left, *part, size), {"interpolation": random_mode(random, names)}


# Transforms.


class Grid(Geometry):
    """A transform that samples tensors at a grid."""

    tolerance = GRID
    bytes_tolerance = GRID_OF_BYTES

    def fill(self, source: Spec, call: Call) -> tuple[np.ndarray, ...]:
        """Returns the colour of a tensor as a setting of the sample; none for zeros."""
        fill = call["fill"]
        if fill is None:
            return ()
        values = [float(value) for value in (fill if isinstance(fill, (tuple, list)) else [fill])]
        if len(values) not in (1, source.shape[0]):
            raise Unsupported("the fill is not one number for each channel")
        return (np.array(values),)

    def mode(self, call: Call, image: bool) -> str:
        given = call["interpolation"]
        mode = given if given in ("nearest", "bilinear") else mode_of(given)
        if mode not in ("nearest", "bilinear", *(("bicubic", "nearest-exact") if image else ())):
            raise Unsupported(f"the interpolation {mode!r} stays on the CPU")
        return mode

    def gridded(self, source: Spec, call: Call, numbers_: Sequence[float], size: tuple[int, int]) -> Mapped:
        """Returns what `tensor` returns, for coefficients of a grid."""
        fill, mode = self.fill(source, call), self.mode(call, False)
        matrix = np.array([float(number) for number in numbers_])
        if not np.isfinite(matrix).all():
            raise Unsupported("the coefficients are not finite")
        return of_tensor(source, (source.shape[0], *size), ("grid", mode, size), (matrix, *fill))

    def grid(self, matrix: torch.Tensor, source: tuple[int, int], size: tuple[int, int]) -> torch.Tensor:
        return tensors.grid_affine(matrix, source, size)

    def run_tensor(self, inputs: Sequence[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        (images,), (kind, *settings) = inputs, static
        if kind == "turn":
            return images.rot90(settings[0], (2, 3))
        mode, size = settings
        matrix, *fill = sample
        grid = self.grid(matrix, tuple(images.shape[2:]), size)
        return tensors.transform(images, grid, mode, fill[0] if fill else None, self.version)

    def random_fill(self, random: np.random.Generator, data: Any) -> dict[str, Any]:
        count = data.shape[0] if isinstance(data, torch.Tensor) else len(data.getbands())
        modes = ["nearest", "bilinear"] + ([] if isinstance(data, torch.Tensor) else ["bicubic"])
        keywords: dict[str, Any] = {"interpolation": random_mode(random, modes)}
        if random.random() < 0.5:
            keywords["fill"] = random.integers(0, 256, count).tolist() if random.random() < 0.5 else 7
        return keywords


def inverse_affine(
    center: Sequence[float], angle: float, translate: Sequence[float], scale: float, shear: Sequence[float],
    version: int,
) -> list[float]:  # fmt: skip
    """Returns the matrix from results to sources, by torchvision's own function: its roundings count."""
    if version == 1:
        from torchvision.transforms.functional import _get_inverse_affine_matrix as inverse
    else:
        from torchvision.transforms.v2.functional._geometry import _get_inverse_affine_matrix as inverse
    return inverse(center, angle, translate, scale, shear)


def from_middle(center: Sequence[float] | None, width: int, height: int) -> list[float]:
    """Returns a place relative to the middle of the image; the middle if it is None."""
    if center is None:
        return [0.0, 0.0]
    return [1.0 * (place - length * 0.5) for place, length in zip(center, (width, height), strict=True)]


@functional
class Rotate(Grid):
    names = (("rotate",), ("rotate",))
    rest = "angle, interpolation='nearest', expand=False, center=None, fill=None"

    def limits(self, call: Call) -> str | None:
        if not isinstance(call["angle"], (int, float)) or not math.isfinite(call["angle"]):
            return "the angle is no finite number"
        center = call["center"]
        return None if center is None or isinstance(center, (list, tuple)) else "the center is no sequence"

    def image(self, source: Spec, call: Call) -> Mapped:
        fill = tuple(fill_of(call["fill"], source.channels).tolist())
        kind = FILTERS[self.mode(call, True)]
        return of_image(source, plan_rotate(
            source, call["angle"], kind, call["expand"], call["center"], fill=fill if len(fill) > 1 else fill[0],
        ))  # fmt: skip

    def tensor(self, source: Spec, call: Call) -> Mapped:
        count, height, width = source.shape
        angle, center, expand = call["angle"], call["center"], call["expand"]
        if self.version == 2:
            angle = angle % 360
            turns = {0: 0, 180: 2} | ({90: 1, 270: 3} if expand or width == height else {})
            if center is None and angle in turns:
                size = (width, height) if turns[angle] % 2 else (height, width)
                return of_tensor(source, (count, *size), ("turn", turns[angle]))
        middle = from_middle(center, width, height)
        matrix = inverse_affine(middle, -angle, [0.0, 0.0], 1.0, [0.0, 0.0], self.version)
        size = (height, width)
        if expand:
            from torchvision.transforms import _functional_tensor as first
            from torchvision.transforms.v2.functional import _geometry as second

            find = (first if self.version == 1 else second)._compute_affine_output_size
            size = find(matrix, width, height)[::-1]
        return self.gridded(source, call, matrix, size)

    def examples(self, random: np.random.Generator) -> Calls:
        for data in self.inputs(random, 3):
            angle = float(random.choice([0, 180, random.uniform(-400, 400)]))
            keywords = self.random_fill(random, data) | {"expand": bool(random.random() < 0.3)}
            if random.random() < 0.3:
                keywords["center"] = random.uniform(0, 9, 2).tolist()
            yield (data, angle), keywords


@functional
class Affine(Grid):
    names = (("affine",), ("affine",))
    rest = "angle, translate, scale, shear, interpolation='nearest', fill=None, center=None"

    def limits(self, call: Call) -> str | None:
        if not isinstance(call["angle"], (int, float)) or not call["scale"] > 0:
            return "the angle is no number, or the scale not above 0"
        if not isinstance(call["translate"], (list, tuple)) or len(call["translate"]) != 2:
            return "translations are two numbers"
        shear, center = call["shear"], call["center"]
        if not isinstance(shear, numbers.Number) and len(shear) not in (1, 2):
            return "shears are one number or two"
        return None if center is None or isinstance(center, (list, tuple)) else "the center is no sequence"

    def shear(self, call: Call) -> list[float]:
        shear = call["shear"]
        if isinstance(shear, numbers.Number):
            return [shear, 0.0]
        return [shear[0], shear[0]] if len(shear) == 1 else list(shear)

    def image(self, source: Spec, call: Call) -> Mapped:
        width, height = size_of(source)
        center = [width * 0.5, height * 0.5] if call["center"] is None else call["center"]
        matrix = inverse_affine(
            center, float(call["angle"]), list(call["translate"]), call["scale"], self.shear(call), self.version
        )
        fill = tuple(fill_of(call["fill"], source.channels).tolist())
        kind = FILTERS[self.mode(call, True)]
        return of_image(
            source, plan_transform(source, (width, height), "affine", matrix, kind, fill if len(fill) > 1 else fill[0])
        )

    def tensor(self, source: Spec, call: Call) -> Mapped:
        _, height, width = source.shape
        middle = from_middle(call["center"], width, height)
        translate = [1.0 * distance for distance in call["translate"]]
        matrix = inverse_affine(middle, float(call["angle"]), translate, call["scale"], self.shear(call), self.version)
        return self.gridded(source, call, matrix, (height, width))

    def examples(self, random: np.random.Generator) -> Calls:
        for data in self.inputs(random, 3):
            keywords = self.random_fill(random, data)
            if random.random() < 0.3:
                keywords["center"] = random.uniform(0, 9, 2).tolist()
            shear = random.uniform(-30, 30, 2).tolist()
            yield (data, float(random.uniform(-180, 180)), random.integers(-4, 5, 2).tolist(),
                   float(random.uniform(0.5, 1.5)), shear if random.random() < 0.5 else shear[0]), keywords  # fmt: skip


@functional
class Perspective(Grid):
    names = (("perspective",), ("perspective",))
    rest = (
        "startpoints, endpoints, interpolation='bilinear', fill=None",
        "startpoints, endpoints, interpolation='bilinear', fill=None, coefficients=None",
    )

    def coefficients(self, call: Call) -> Sequence[float]:
        given = call["coefficients"] if self.version == 2 else None
        start, end = call["startpoints"], call["endpoints"]
        if given is not None and start is None and end is None and len(given) == 8:
            return given
        if given is not None or start is None or end is None or len(start) != 4 or len(end) != 4:
            raise Unsupported("there are not four points, or eight coefficients")
        from torchvision.transforms.functional import _get_perspective_coeffs as solve

        return solve(start, end)

    def image(self, source: Spec, call: Call) -> Mapped:
        fill = tuple(fill_of(call["fill"], source.channels).tolist())
        kind = FILTERS[self.mode(call, True)]
        return of_image(source, plan_transform(
            source, size_of(source), "perspective", self.coefficients(call), kind, fill if len(fill) > 1 else fill[0],
        ))  # fmt: skip

    def tensor(self, source: Spec, call: Call) -> Mapped:
        return self.gridded(source, call, self.coefficients(call), source.shape[1:])

    def grid(self, matrix: torch.Tensor, source: tuple[int, int], size: tuple[int, int]) -> torch.Tensor:
        return tensors.grid_perspective(matrix, size)

    def examples(self, random: np.random.Generator) -> Calls:
        for data in self.inputs(random, 4):
            height, width = data.shape[1:] if isinstance(data, torch.Tensor) else data.size[::-1]
            start = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
            end = [[x + int(random.integers(-1, 2)), y + int(random.integers(-1, 2))] for x, y in start]
            yield (data, start, end), self.random_fill(random, data)


@functional
class GaussianBlur(Geometry):
    names = (("gaussian_blur",), ("gaussian_blur",))
    rest = "kernel_size, sigma=None"
    tolerance = NEARLY
    bytes_tolerance = Tolerance(absolute=0.0, outliers=1e-3, note="sums of floats in another order, rounded")
    as_tensors = True

    def settings(self, source: Spec, call: Call, height: int, width: int) -> tuple[tuple[int, int], tuple[Any, ...]]:
        size, sigma = call["kernel_size"], call["sigma"]
        size = (size, size) if isinstance(size, int) else tuple(size)
        if len(size) != 2 or min(size) < 1 or not all(length % 2 for length in size):
            raise Unsupported("kernel sizes are odd")
        if size[0] // 2 >= width or size[1] // 2 >= height:
            raise Unsupported("the kernel is larger than the image")
        if sigma is None:
            sigma = [length * 0.15 + 0.35 for length in size]
        sigma = [float(entry) for entry in (sigma if isinstance(sigma, (list, tuple)) else [sigma])]
        sigma = sigma * 2 if len(sigma) == 1 else sigma
        if len(sigma) != 2 or min(sigma) <= 0:
            raise Unsupported("deviations are one or two numbers above 0")
        return size, (np.array(sigma),)

    def image(self, source: Spec, call: Call) -> Mapped:
        return Mapped(source, *self.settings(source, call, *source.shape[:2]))

    def tensor(self, source: Spec, call: Call) -> Mapped:
        static, sample = self.settings(source, call, *source.shape[1:])
        return of_tensor(source, static=static, sample=sample)

    def run_image(self, images: list[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return channels_last(tensors.blur(channels_first(images[0]), static, sample[0], self.version))

    def run_tensor(self, inputs: Sequence[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return tensors.blur(inputs[0], static, sample[0], self.version)

    def examples(self, random: np.random.Generator) -> Calls:
        for number, data in enumerate(self.inputs(random, 6)):
            if number % 3 == 0:
                size = random.choice([1, 3, 5, 7, 9], 2).tolist()
            sigma: Any = random.uniform(0.1, 3, 2).tolist()
            sigma = sigma if random.random() < 0.5 else sigma[0]
            yield (data, size), {} if random.random() < 0.2 else {"sigma": sigma}


@functional
class Elastic(Grid):
    names = (("elastic_transform",), ("elastic", "elastic_transform"))
    rest = "displacement, interpolation='bilinear', fill=None"
    more = ("displacement",)
    as_tensors = True

    def limits(self, call: Call) -> str | None:
        source, moved = call[self.data[0]], call["displacement"]
        size = source.shape[:2] if source.kind == "image" else source.shape[1:]
        if not isinstance(moved, Spec) or moved.kind != "tensor" or moved.shape != (1, *size, 2):
            return "the displacement is no tensor [1, height, width, 2]"
        return None if moved.dtype == torch.float32 else "displacements of other elements stay on the CPU"

    def common(self, source: Spec, call: Call) -> tuple[Any, tuple[np.ndarray, ...]]:
        channels = dataclasses.replace(source, shape=(source.channels,)) if source.kind == "image" else source
        return self.mode(call, False), self.fill(channels, call)

    def image(self, source: Spec, call: Call) -> Mapped:
        return Mapped(source, *self.common(source, call))

    def tensor(self, source: Spec, call: Call) -> Mapped:
        static, sample = self.common(source, call)
        return of_tensor(source, static=static, sample=sample)

    def run_image(self, images: list[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return channels_last(self.run_tensor([channels_first(images[0]), images[1]], static, sample))

    def run_tensor(self, inputs: Sequence[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        images, moved = inputs
        grid = tensors.grid_identity(tuple(images.shape[2:]), images.device) + moved[:, 0]
        return tensors.transform(images, grid, static, sample[0] if sample else None, self.version)

    def examples(self, random: np.random.Generator) -> Calls:
        for data in self.inputs(random, 3):
            size = data.shape[1:] if isinstance(data, torch.Tensor) else data.size[::-1]
            moved = torch.from_numpy(random.normal(0, 0.1, (1, *size, 2)).astype(np.float32))
            keywords = self.random_fill(random, data)
            if keywords["interpolation"].value == "bicubic":
                del keywords["interpolation"]
            yield (data, moved), keywords
