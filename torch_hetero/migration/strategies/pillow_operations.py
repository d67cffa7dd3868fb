"""PIL.ImageOps and PIL.ImageChops."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from torch_hetero.migration.spec import Spec
from torch_hetero.migration.strategies import pillow_pixels as pixels
from torch_hetero.migration.strategies.pillow import (
    Calls,
    Pair,
    Pillow,
    Plan,
    Single,
    colour_of,
    plan_copy,
    plan_crop,
    plan_resize,
    plan_transpose,
    random_images,
    run_plan,
    size_of,
)
from torch_hetero.migration.strategy import Call, Mapped, Unsupported, register

__all__ = ["borders", "filled_around", "random_sizes"]


def borders(border: Any) -> tuple[int, int, int, int]:
    """Returns left, top, right and bottom of a border as ImageOps takes it."""
    if not isinstance(border, tuple):
        return border, border, border, border
    if len(border) == 2:
        return border[0], border[1], border[0], border[1]
    if len(border) == 4:
        return border
    raise Unsupported("a border is an integer, or two or four of them")


def filled_around(images: torch.Tensor, edges: tuple[int, int, int, int], fill: torch.Tensor) -> torch.Tensor:
    """Returns images with a colour [batch, bands] around them; `edges` are left, top, right and bottom."""
    left, top, right, bottom = edges
    batch, height, width, bands = images.shape
    canvas = fill.to(images.dtype)[:, None, None, :].expand(batch, top + height + bottom, left + width + right, bands)
    middle = torch.cat([canvas[:, :height, :left], images, canvas[:, :height, :right]], 2)
    return torch.cat([canvas[:, :top], middle, canvas[:, :bottom]], 1)


def random_sizes(random: np.random.Generator, images: Iterator[Any], largest: int = 24) -> Iterator[tuple[Any, tuple]]:
    """Yields images, and sizes that change from time to time."""
    for number, image in enumerate(images):
        if number % 3 == 0:
            size = tuple(int(length) for length in random.integers(1, largest, 2))
        yield image, size


class Pointwise(Pillow):
    """An operation of ImageOps on each pixel: images that are grey or RGB."""

    modes = ("L", "RGB")
    data = ("image",)

    def map(self, call: Call) -> Mapped:
        return Mapped(call["image"], sample=self.settings(call))

    def settings(self, call: Call) -> tuple[Any, ...]:
        """Returns the settings of a sample."""
        return ()

    def examples(self, random: np.random.Generator) -> Calls:
        for image in random_images(random, self.modes):
            yield (image,), {}


@register
class Invert(Pointwise):
    target = "PIL.ImageOps.invert"
    parameters = "image"

    def pixels(self, images: list[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return 255 - images[0]


@register
class Posterize(Pointwise):
    target = "PIL.ImageOps.posterize"
    parameters = "image, bits"

    def limits(self, call: Call) -> str | None:
        return None if call["bits"] in range(1, 9) else "bits are 1 to 8"

    def settings(self, call: Call) -> tuple[Any, ...]:
        return (np.uint8(256 - 2 ** (8 - call["bits"])),)

    def pixels(self, images: list[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return images[0] & pixels.per_sample(sample[0], images[0])

    def examples(self, random: np.random.Generator) -> Calls:
        for image in random_images(random, self.modes):
            yield (image, int(random.integers(1, 9))), {}


@register
class Solarize(Pointwise):
    target = "PIL.ImageOps.solarize"
    parameters = "image, threshold=128"

    def settings(self, call: Call) -> tuple[Any, ...]:
        return (float(call["threshold"]),)

    def pixels(self, images: list[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        (image,) = images
        return torch.where(image < pixels.per_sample(sample[0], image), image, 255 - image)

    def examples(self, random: np.random.Generator) -> Calls:
        for image in random_images(random, self.modes):
            yield (image,), {} if random.random() < 0.2 else {"threshold": float(random.choice([0, 100, 127.5, 256]))}


@register
class Equalize(Pointwise):
    target = "PIL.ImageOps.equalize"
    parameters = "image, mask=None"

    def limits(self, call: Call) -> str | None:
        return call.given("mask")

    def pixels(self, images: list[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return pixels.equalize(images[0])

    def examples(self, random: np.random.Generator) -> Calls:
        for image in random_images(random, self.modes, 60):
            yield (image,), {}


@register
class AutoContrast(Pointwise):
    target = "PIL.ImageOps.autocontrast"
    parameters = "image, cutoff=0, ignore=None, mask=None, preserve_tone=False"

    def limits(self, call: Call) -> str | None:
        return call.given("ignore", "mask")

    def map(self, call: Call) -> Mapped:
        source, cutoff = call["image"], call["cutoff"]
        low, high = cutoff if isinstance(cutoff, tuple) else (cutoff, cutoff)
        count = source.shape[0] * source.shape[1]
        if not (0 <= low <= 100 and 0 <= high <= 100):
            raise Unsupported("cutoffs are percentages")
        cut = (int(count * low // 100), int(count * high // 100))
        return Mapped(source, (cut, bool(call["preserve_tone"]) and source.mode == "RGB"))

    def pixels(self, images: list[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        (image,), (cut, tone) = images, static
        return pixels.stretch(image, *pixels.levels(pixels.luma(image) if tone else image, cut))

    def examples(self, random: np.random.Generator) -> Calls:
        for image in random_images(random, self.modes):
            image = image.point(lambda value: 60 + value // 3) if random.random() < 0.6 else image
            keywords = {"preserve_tone": True} if random.random() < 0.2 else {}
            if random.random() < 0.4:
                yield (image,), keywords
            else:
                cutoff = (float(random.integers(0, 60)), int(random.integers(0, 60)))
                yield (image, cutoff if random.random() < 0.5 else cutoff[0]), keywords


@register
class Colorize(Pillow):
    target = "PIL.ImageOps.colorize"
    parameters = "image, black, white, mid=None, blackpoint=0, whitepoint=255, midpoint=127"
    data = ("image",)
    modes = ("L",)

    def limits(self, call: Call) -> str | None:
        low, middle, high = (call[name] for name in ("blackpoint", "midpoint", "whitepoint"))
        return (
            None
            if 0 <= low <= high <= 255 and (call["mid"] is None or low <= middle <= high)
            else "the points are not in order"
        )

    def map(self, call: Call) -> Mapped:
        low, middle, high = (call[name] for name in ("blackpoint", "midpoint", "whitepoint"))
        black, white = (colour_of("RGB", call[name]) for name in ("black", "white"))
        wedges = [(low, high, black, white)]
        if call["mid"] is not None:
            mid = colour_of("RGB", call["mid"])
            wedges = [(low, middle, black, mid), (middle, high, mid, white)]
        parts = [np.tile(black[:, None], (1, low))]
        for start, stop, first, last in wedges:
            steps = np.arange(stop - start)
            parts.append(first[:, None] + steps * (last - first)[:, None] // max(stop - start, 1))
        parts.append(np.tile(white[:, None], (1, 256 - high)))
        table = np.concatenate(parts, 1).astype(np.uint8)
        return Mapped(Spec.image(size_of(call["image"]), "RGB"), sample=(table,))

    def pixels(self, images: list[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return pixels.lookup(pixels.grey_to_rgb(images[0]), sample[0])

    def examples(self, random: np.random.Generator) -> Calls:
        for image in random_images(random, self.modes):
            colours = [tuple(random.integers(0, 256, 3).tolist()) for _ in range(3)]
            low, middle, high = (int(point) for point in sorted(random.integers(0, 256, 3)))
            keywords: dict[str, Any] = {"blackpoint": low, "whitepoint": high, "midpoint": middle}
            if random.random() < 0.5:
                keywords["mid"] = colours[2]
            yield (image, colours[0], "white" if random.random() < 0.2 else colours[1]), keywords


@register
class Grayscale(Pillow):
    target = "PIL.ImageOps.grayscale"
    parameters = "image"
    data = ("image",)

    def map(self, call: Call) -> Mapped:
        source = call["image"]
        way = ("L",) if source.mode == "L" else pixels.conversion(source.mode, "L")
        return Mapped(Spec.image(size_of(source), "L"), way)

    def pixels(self, images: list[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return pixels.convert(images[0], static)

    def examples(self, random: np.random.Generator) -> Calls:
        for image in random_images(random):
            yield (image,), {}


class Planned(Single):
    """An operation of ImageOps by a plan."""

    parameters = "image"
    data = ("image",)

    def examples(self, random: np.random.Generator) -> Calls:
        for image in random_images(random):
            yield (image,), {}


@register
class Flip(Planned):
    target = "PIL.ImageOps.flip"

    def plan(self, source: Spec, call: Call) -> Plan:
        return plan_transpose(source, 1)


@register
class Mirror(Planned):
    target = "PIL.ImageOps.mirror"

    def plan(self, source: Spec, call: Call) -> Plan:
        return plan_transpose(source, 0)


@register
class CropBorder(Planned):
    target = "PIL.ImageOps.crop"
    parameters = "image, border=0"

    def plan(self, source: Spec, call: Call) -> Plan:
        left, top, right, bottom = borders(call["border"])
        width, height = size_of(source)
        return plan_crop(source, left, top, width - right, height - bottom)

    def examples(self, random: np.random.Generator) -> Calls:
        for image in random_images(random, smallest=7):
            border = tuple(random.integers(-2, 4, 4).tolist())
            yield (image,), {} if random.random() < 0.1 else {"border": border[: int(random.choice([2, 4]))]}


@register
class Scale(Planned):
    target = "PIL.ImageOps.scale"
    parameters = "image, factor, resample=3"

    def plan(self, source: Spec, call: Call) -> Plan:
        factor = call["factor"]
        if factor == 1:
            return plan_copy(source)
        if factor <= 0:
            raise Unsupported("the factor is not above 0")
        return plan_resize(source, [round(factor * length) for length in size_of(source)], call["resample"])

    def examples(self, random: np.random.Generator) -> Calls:
        for image in random_images(random, smallest=5):
            yield (image, float(random.choice([0.3, 0.5, 1, 1.7]))), {"resample": int(random.choice([0, 2, 3]))}


def contained(source: tuple[int, int], size: Sequence[int], cover: bool) -> tuple[int, int]:
    """Returns the largest size within `size`, or the smallest that covers it, with the source's ratio of sides."""
    width, height = source
    size = (size[0], size[1])
    if 0 in size:
        raise Unsupported("the result has no pixels")
    ratio, wanted = width / height, size[0] / size[1]
    if ratio == wanted:
        return size
    if (ratio > wanted) != cover:
        return size[0], round(height / width * size[0])
    return round(width / height * size[1]), size[1]


@register
class Contain(Planned):
    target = "PIL.ImageOps.contain"
    parameters = "image, size, method=3"
    cover: ClassVar[bool] = False

    def plan(self, source: Spec, call: Call) -> Plan:
        return plan_resize(source, contained(size_of(source), call["size"], self.cover), call["method"])

    def examples(self, random: np.random.Generator) -> Calls:
        for image, size in random_sizes(random, random_images(random, smallest=3)):
            if min(contained(image.size, size, self.cover)) > 0:
                yield (image, size), {}


@register
class Cover(Contain):
    target = "PIL.ImageOps.cover"
    cover = True


@register
class Fit(Planned):
    target = "PIL.ImageOps.fit"
    parameters = "image, size, method=3, bleed=0.0, centering=(0.5, 0.5)"

    def plan(self, source: Spec, call: Call) -> Plan:
        size, bleed = call["size"], call["bleed"]
        if min(size) < 1:
            raise Unsupported("the result has no pixels")
        center_x, center_y = (share if 0.0 <= share <= 1.0 else 0.5 for share in call["centering"])
        bleed = bleed if 0.0 <= bleed < 0.5 else 0.0
        width, height = size_of(source)
        trim = (bleed * width, bleed * height)
        live = (width - trim[0] * 2, height - trim[1] * 2)
        ratio, wanted = live[0] / live[1], size[0] / size[1]
        if ratio == wanted:
            kept = live
        elif ratio >= wanted:
            kept = (wanted * live[1], live[1])
        else:
            kept = (live[0], live[0] / wanted)
        left = trim[0] + (live[0] - kept[0]) * center_x
        top = trim[1] + (live[1] - kept[1]) * center_y
        return plan_resize(source, size, call["method"], (left, top, left + kept[0], top + kept[1]))

    def examples(self, random: np.random.Generator) -> Calls:
        for image, size in random_sizes(random, random_images(random)):
            keywords: dict[str, Any] = {"method": int(random.choice([0, 2, 3]))}
            if random.random() < 0.4:
                keywords |= {"bleed": float(random.choice([0.1, 0.3])), "centering": (0.2, float(random.random()))}
            yield (image, size), keywords


class Around(Pillow):
    """An operation of ImageOps that puts a colour around an image."""

    data = ("image",)

    def pixels(self, images: list[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        edges, plan = static
        return filled_around(run_plan(images[0], plan, sample[1:]), edges, sample[0])


@register
class Expand(Around):
    target = "PIL.ImageOps.expand"
    parameters = "image, border=0, fill=0"

    def map(self, call: Call) -> Mapped:
        source, edges = call["image"], borders(call["border"])
        if min(edges) < 0:
            raise Unsupported("negative borders stay on the CPU")
        width, height = size_of(source)
        size = (edges[0] + width + edges[2], edges[1] + height + edges[3])
        return Mapped(Spec.image(size, source.mode), (edges, ("copy",)), (colour_of(source.mode, call["fill"]),))

    def examples(self, random: np.random.Generator) -> Calls:
        for image in random_images(random):
            border = tuple(random.integers(0, 5, int(random.choice([2, 4]))).tolist())
            fill = tuple(random.integers(0, 256, len(image.getbands())).tolist())
            yield (image, border if random.random() < 0.7 else 2), {} if random.random() < 0.2 else {"fill": fill}


@register
class Pad(Around):
    target = "PIL.ImageOps.pad"
    parameters = "image, size, method=3, color=None, centering=(0.5, 0.5)"

    def map(self, call: Call) -> Mapped:
        source, size = call["image"], tuple(call["size"])
        inner = contained(size_of(source), size, False)
        plan = plan_resize(source, inner, call["method"])
        left = top = 0
        if inner[0] != size[0]:
            left = round((size[0] - inner[0]) * max(0, min(call["centering"][0], 1)))
        else:
            top = round((size[1] - inner[1]) * max(0, min(call["centering"][1], 1)))
        edges = (left, top, size[0] - inner[0] - left, size[1] - inner[1] - top)
        colour = colour_of(source.mode, call["color"])
        return Mapped(Spec.image(size, source.mode), (edges, (plan.kind, *plan.static)), (colour, *plan.sample))

    def examples(self, random: np.random.Generator) -> Calls:
        for image, size in random_sizes(random, random_images(random, smallest=3)):
            if min(contained(image.size, size, False)) > 0:
                keywords: dict[str, Any] = {"method": int(random.choice([0, 2, 3]))}
                if random.random() < 0.5:
                    colour = tuple(random.integers(0, 256, len(image.getbands())).tolist())
                    keywords |= {"color": colour, "centering": (0.0, float(random.random()))}
                yield (image, size), keywords


# ImageChops: the name, and what it computes of two images as 32-bit integers.


def quotient(values: torch.Tensor, divisor: int) -> torch.Tensor:
    """Divides numbers that are not negative, without a rest."""
    return torch.div(values, divisor, rounding_mode="floor")


def overlaid(left: torch.Tensor, right: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    return torch.where(by < 128, quotient(left * right, 127), 255 - quotient((255 - left) * (255 - right), 127))


CHOPS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "lighter": torch.maximum,
    "darker": torch.minimum,
    "difference": lambda left, right: (left - right).abs(),
    "multiply": lambda left, right: quotient(left * right, 255),
    "screen": lambda left, right: 255 - quotient((255 - left) * (255 - right), 255),
    "add_modulo": lambda left, right: (left + right) & 255,
    "subtract_modulo": lambda left, right: (left - right) & 255,
    "soft_light": lambda left, right: (
        ((255 - left) * left * right >> 16) + quotient(left * (255 - quotient((255 - left) * (255 - right), 255)), 255)
    ),
    "hard_light": lambda left, right: overlaid(left, right, right),
    "overlay": lambda left, right: overlaid(left, right, left),
}


class Chop(Pair):
    """A function of ImageChops on two images."""

    parameters = "image1, image2"
    data = ("image1", "image2")
    operation: ClassVar[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]

    def pixels(self, images: list[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return type(self).operation(*(image.to(torch.int32) for image in images)).to(torch.uint8)


for _name, _operation in CHOPS.items():
    register(
        type(_name.title().replace("_", ""), (Chop,), {
            "__module__": __name__, "target": f"PIL.ImageChops.{_name}", "operation": staticmethod(_operation),
        })
    )  # fmt: skip


@register
class Add(Pair):
    target = "PIL.ImageChops.add"
    parameters = "image1, image2, scale=1.0, offset=0"
    data = ("image1", "image2")
    sign: ClassVar[int] = 1

    def reason(self, call: Call) -> str | None:
        if not isinstance(call["offset"], int) or abs(call["offset"]) >= 1 << 22:
            return "the offset is no small integer"
        return None if np.isfinite(call["scale"]) and call["scale"] else "the scale is 0 or not finite"

    def settings(self, call: Call) -> tuple[Hashable, tuple[Any, ...]]:
        return None, (float(call["scale"]), float(call["offset"]))

    def pixels(self, images: list[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        left, right = (image.to(torch.float32) for image in images)
        scale, offset = (pixels.per_sample(setting.to(torch.float32), left) for setting in sample)
        return pixels.clip((left + right if self.sign > 0 else left - right) / scale + offset)

    def examples(self, random: np.random.Generator) -> Calls:
        for pair in self.pairs(random):
            if random.random() < 0.3:
                yield pair, {}
            else:
                yield (*pair, float(random.choice([0.7, 2, 3, -1.5])), int(random.integers(-200, 200))), {}


@register
class Subtract(Add):
    target = "PIL.ImageChops.subtract"
    sign = -1


@register
class ChopInvert(Pillow):
    target = "PIL.ImageChops.invert"
    parameters = "image"
    data = ("image",)

    def map(self, call: Call) -> Mapped:
        return Mapped(call["image"])

    def pixels(self, images: list[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return 255 - images[0]

    def examples(self, random: np.random.Generator) -> Calls:
        for image in random_images(random):
            yield (image,), {}


@register
class Offset(Pillow):
    target = "PIL.ImageChops.offset"
    parameters = "image, xoffset, yoffset=None"
    data = ("image",)

    def map(self, call: Call) -> Mapped:
        across = call["xoffset"]
        return Mapped(call["image"], (across, across if call["yoffset"] is None else call["yoffset"]))

    def pixels(self, images: list[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return images[0].roll((static[1], static[0]), (1, 2))

    def examples(self, random: np.random.Generator) -> Calls:
        for image, (across, down) in random_sizes(random, random_images(random), 60):
            yield (image, across - 30), {} if random.random() < 0.3 else {"yoffset": down - 30}
