"""cv2: images that are looked up at other places: resized, warped, remapped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from torch_hetero.migration.spec import Spec
from torch_hetero.migration.strategies.opencv import (
    BYTES_AND_FLOATS,
    Arguments,
    OpenCV,
    by_operator,
    example_image,
    is_number,
    is_whole,
    known_border,
    result,
    scalar_of,
    squeezed,
)
from torch_hetero.migration.strategy import EXACT, Call, Mapped, Tolerance, register

NEAREST, LINEAR, CUBIC = 0, 1, 2


def known_size(size: Any) -> str | None:
    """Returns a reason not to migrate if a size (width, height) is unusual."""
    if not isinstance(size, (list, tuple)) or len(size) != 2 or not all(map(is_whole, size)):
        return "dsize= is no pair of integers"
    return None if min(size) > 0 and max(size) < 2**15 - 1 else "dsize= is empty or too large"


@register
class Resize(OpenCV):
    target = "cv2.resize"
    parameters = "src, dsize, dst=None, fx=0, fy=0, interpolation=1"
    dtypes = BYTES_AND_FLOATS
    channels = range(1, 65)
    ragged = True
    tolerance = Tolerance(1, note="INTER_CUBIC is Intel's for bytes, and off by one; all else of bytes is exact")

    def tolerance_of(self, static: Any, outputs: Sequence[Spec]) -> Tolerance:
        _, interpolation, dtype = static
        if dtype == torch.float32:
            return Tolerance(3e-4, note="floats, of images between 0 and 1")
        return self.tolerance if interpolation == CUBIC else EXACT

    def limits(self, call: Call) -> str | None:
        interpolation, source = call["interpolation"], call["src"]
        if not is_whole(interpolation) or interpolation not in range(7):
            return f"interpolation={interpolation} stays on the CPU"
        if interpolation == 5 and source.dtype != torch.uint8:
            return "INTER_LINEAR_EXACT of floats stays on the CPU"
        if not is_number(call["fx"]) or not is_number(call["fy"]):
            return "fx= or fy= is no finite number"
        if call["dsize"] is not None and tuple(call["dsize"]) != (0, 0):
            return known_size(call["dsize"])
        if min(call["fx"], call["fy"]) <= 0:
            return "neither dsize= nor fx= and fy= are given"
        height, width = self.size(call)
        if height < 1 or width < 1 or height != source.shape[0] * call["fy"] or width != source.shape[1] * call["fx"]:
            return "factors that do not give a whole size stay on the CPU"
        return None

    def size(self, call: Call) -> tuple[int, int]:
        """Returns the result's height and width."""
        if call["dsize"] is not None and tuple(call["dsize"]) != (0, 0):
            return int(call["dsize"][1]), int(call["dsize"][0])
        return round(call["src"].shape[0] * call["fy"]), round(call["src"].shape[1] * call["fx"])

    def map(self, call: Call) -> Mapped:
        size, source = self.size(call), call["src"]
        return Mapped(result(source, size), static=(size, int(call["interpolation"]), source.dtype))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        size, interpolation, _ = static
        return by_operator("cv_resize", inputs[0], size, interpolation)

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        channels = [int(fixed.choice([0, 1, 3, 4]))]
        dtype, interpolation = str(fixed.choice(["uint8", "uint8", "float32"])), int(fixed.integers(7))
        interpolation = 1 if interpolation == 5 and dtype == "float32" else interpolation
        size = tuple(fixed.integers(1, 30, 2).tolist())
        image = example_image(random, random, channels, [dtype])
        image = image if dtype == "uint8" else random.random(image.shape).astype(np.float32)
        if fixed.integers(4) == 0:
            return (image, None), {"fx": 2, "fy": 3.0, "interpolation": interpolation}
        return (image, size), {"interpolation": interpolation} if fixed.integers(4) else {}


class Warp(OpenCV):
    """A warp by a matrix, to one size."""

    channels = range(1, 5)
    ragged = True
    rows: int

    def limits(self, call: Call) -> str | None:
        matrix, flags, size = call["M"], call["flags"], call["src"].shape
        if not isinstance(matrix, np.ndarray) or matrix.shape != (self.rows, 3) or matrix.dtype not in ("f4", "f8"):
            return f"M= is no matrix of floats [{self.rows}, 3]"
        if not np.isfinite(matrix).all():
            return "M= is not finite"
        if not is_whole(flags) or flags not in (0, 1, 16, 17):
            return f"flags={flags} stay on the CPU"
        if max(size[:2]) >= 2**15 - 1:
            return "the image is too large"
        if call["borderValue"] is not None and scalar_of(call["borderValue"]) is None:
            return "borderValue= is neither a number nor up to four"
        reason = known_size(call["dsize"]) or known_border(call["borderMode"])
        return reason or ("border type 16 stays on the CPU" if int(call["borderMode"]) & 16 else None)

    def map(self, call: Call) -> Mapped:
        width, height = map(int, call["dsize"])
        value = (0.0,) * 4 if call["borderValue"] is None else tuple(scalar_of(call["borderValue"]).tolist())
        static = ((height, width), int(call["flags"]), int(call["borderMode"]), value)
        matrix = np.array(call["M"], dtype=np.float64)
        return Mapped(result(call["src"], (height, width)), static=static, sample=(matrix,))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        size, flags, border, value = static
        name = "cv_warp_affine" if self.rows == 2 else "cv_warp_perspective"
        return by_operator(name, inputs[0], sample[0], size, flags, border, list(value))

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        image = example_image(random, random, [int(fixed.choice([0, 1, 2, 3, 4]))])
        angle, scale = random.random() * 6.3, random.random() + 0.5
        turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]) * scale
        matrix = np.concatenate([turn, random.random((2, 1)) * 12], 1)
        if self.rows == 3:
            matrix = np.concatenate([matrix, [[*random.normal(size=2) * 0.01, 1.0]]])
        keywords = {"flags": int(fixed.choice([0, 1, 16, 17])), "borderMode": int(fixed.integers(5))}
        if fixed.integers(2):
            keywords["borderValue"] = tuple(fixed.integers(0, 256, 4).tolist())
        matrix = matrix.astype(str(fixed.choice(["float32", "float64"])))
        return (image, matrix, tuple(fixed.integers(1, 30, 2).tolist())), keywords if fixed.integers(4) else {}


@register
class WarpAffine(Warp):
    target = "cv2.warpAffine"
    parameters = "src, M, dsize, dst=None, flags=1, borderMode=0, borderValue=None"
    rows = 2


@register
class WarpPerspective(Warp):
    target = "cv2.warpPerspective"
    parameters = "src, M, dsize, dst=None, flags=1, borderMode=0, borderValue=None"
    rows = 3


def border_index(index: torch.Tensor, size: int, border: int) -> torch.Tensor:
    """Returns places within a dimension for places anywhere. For a constant border they are whatever is nearest."""
    if border in (0, 1) or size == 1:
        return index.clamp(0, size - 1)
    if border == 3:
        return torch.remainder(index, size)
    period = 2 * size if border == 2 else 2 * size - 2
    index = torch.remainder(index, period)
    return torch.where(index < size, index, period - index - int(border == 2))


def pixels_at(
    images: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, border: int, value: torch.Tensor
) -> torch.Tensor:
    """Returns pixels [batch, count, channels], as int32, at places [batch, count].

    Args:
        images: [batch, height, width, channels].
        rows: Row numbers, int64, which may be outside of the images.
        columns: Column numbers.
        border: cv2's border type.
        value: Of a constant border, [batch, 1, channels], int32.
    """
    batch, height, width, channels = images.shape
    places = border_index(rows, height, border) * width + border_index(columns, width, border)
    places = places.unsqueeze(2).expand(-1, -1, channels)
    pixels = images.reshape(batch, height * width, channels).gather(1, places).to(torch.int32)
    if border != 0:
        return pixels
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    return torch.where(inside.unsqueeze(2), pixels, value)


def rounded(places: torch.Tensor, factor: int) -> torch.Tensor:
    """Returns places times a factor as integers. Those that are no numbers are far away."""
    places = torch.where(places == places, places, -1e9) * factor
    return places.clamp(-1e9, 1e9).round().to(torch.int64)


@register
class Remap(OpenCV):
    """Places are rounded to 1/32 of a pixel."""

    target = "cv2.remap"
    parameters = "src, map1, map2, interpolation, dst=None, borderMode=0, borderValue=None"
    data = ("src", "map1", "map2")
    channels = range(1, 5)

    def supports(self, call: Call) -> str | None:
        source, maps = call["src"], (call["map1"], call["map2"])
        if not isinstance(source, Spec):
            return "src= is no array"
        reason = self.unsupported(source)
        if reason is not None:
            return reason
        if max(source.shape[:2]) >= 2**15 - 1:
            return "the image is too large"
        if not all(isinstance(entry, Spec) and entry.kind == "array" for entry in maps):
            return "map1= and map2= are no arrays of floats"
        if any(len(entry.shape) != 2 or entry.dtype != torch.float32 or 0 in entry.shape for entry in maps):
            return "map1= and map2= are no matrices of float32"
        if maps[0].shape != maps[1].shape:
            return "map1= and map2= differ in size"
        if not is_whole(call["interpolation"]) or call["interpolation"] not in (NEAREST, LINEAR):
            return f"interpolation={call['interpolation']} stays on the CPU"
        if call["borderValue"] is not None and scalar_of(call["borderValue"]) is None:
            return "borderValue= is neither a number nor up to four"
        reason = known_border(call["borderMode"])
        return reason or ("border type 16 stays on the CPU" if int(call["borderMode"]) & 16 else call.given("dst"))

    def map(self, call: Call) -> Mapped:
        value = np.zeros(4) if call["borderValue"] is None else scalar_of(call["borderValue"])
        static = (int(call["interpolation"]), int(call["borderMode"]))
        value = np.rint(value.clip(0, 255)).astype(np.int64)
        return Mapped(result(call["src"], call["map1"].shape), static=static, sample=(value,))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        (images, columns, rows), (interpolation, border) = inputs, static
        images = images.unsqueeze(3) if images.dim() == 3 else images
        size, batch = columns.shape[1:], len(images)
        value = sample[0][:, : images.shape[3]].to(torch.int32).unsqueeze(1)
        if interpolation == NEAREST:
            y, x = (rounded(entry.reshape(batch, -1), 1) for entry in (rows, columns))
            pixels = pixels_at(images, y, x, border, value)
        else:
            y, x = (rounded(entry.reshape(batch, -1), 32) for entry in (rows, columns))
            down, right = ((entry & 31).to(torch.int32).unsqueeze(2) for entry in (y, x))
            y, x = y >> 5, x >> 5
            corners = [pixels_at(images, y + i, x + j, border, value) for i in (0, 1) for j in (0, 1)]
            upper = (32 - right) * corners[0] + right * corners[1]
            lower = (32 - right) * corners[2] + right * corners[3]
            pixels = ((32 - down) * upper + down * lower + 512) >> 10
        return squeezed(pixels.to(torch.uint8).view(batch, *size, -1))

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        image = example_image(fixed, random)
        height, width = image.shape[:2]
        size = tuple(fixed.integers(1, 20, 2).tolist())
        columns, rows = (
            ((random.random(size) * 1.6 - 0.3) * entry).round(int(random.choice([1, 9]))).astype(np.float32)
            for entry in (width, height)
        )
        keywords = {"borderMode": int(fixed.integers(5)), "borderValue": tuple(random.integers(0, 256, 4).tolist())}
        return (image, columns, rows, int(fixed.integers(2))), keywords if fixed.integers(4) else {}


@register
class GetRectSubPix(OpenCV):
    target = "cv2.getRectSubPix"
    parameters = "image, patchSize, center, patch=None, patchType=-1"
    data = ("image",)
    channels = (1, 3)
    tolerance = Tolerance(1, note="one channel is Intel's, and off by one; three channels are exact")

    def tolerance_of(self, static: Any, outputs: Sequence[Spec]) -> Tolerance:
        return self.tolerance if static[2] == 1 else EXACT

    def limits(self, call: Call) -> str | None:
        reason = known_size(call["patchSize"])
        if reason is not None:
            return reason.replace("dsize", "patchSize")
        center = call["center"]
        if not isinstance(center, (list, tuple)) or len(center) != 2 or not all(map(is_number, center)):
            return "center= is no pair of finite numbers"
        if not is_whole(call["patchType"]) or call["patchType"] not in (-1, 0):
            return f"patchType={call['patchType']} stays on the CPU"
        x, y, _ = self.window(call)
        (width, height), source = call["patchSize"], call["image"].shape
        if x < 0 or y < 0 or x + width >= source[1] or y + height >= source[0]:
            return "patches at the image's border stay on the CPU"
        return call.given("patch")

    def window(self, call: Call) -> tuple[int, int, np.ndarray]:
        """Returns the left column, the upper row and the weights of four pixels, of 65536."""
        single = np.float32
        x, y = (
            single(at) - single((size - 1) * 0.5) for at, size in zip(call["center"], call["patchSize"], strict=True)
        )
        left, upper = int(np.floor(x)), int(np.floor(y))
        right, down = single(x - left), single(y - upper)
        one = single(1)
        weights = [(one - right) * (one - down), right * (one - down), (one - right) * down, right * down]
        return left, upper, np.rint(np.array(weights) * single(65536)).astype(np.int64)

    def map(self, call: Call) -> Mapped:
        (width, height), source = map(int, call["patchSize"]), call["image"]
        left, upper, weights = self.window(call)
        return Mapped(
            result(source, (height, width)), static=(height, width, source.channels), sample=(left, upper, weights)
        )

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        (images,), (left, upper, weights), (height, width, _) = inputs, sample, static
        images = images.unsqueeze(3) if images.dim() == 3 else images
        batch, _, stride, channels = images.shape
        flat = images.reshape(batch, -1, channels)
        rows, columns = (torch.arange(entry).to(images.device) for entry in (height, width))
        first = (upper * stride + left).view(-1, 1) + (rows.view(-1, 1) * stride + columns).view(1, -1)
        total = 1 << 15
        for index, offset in enumerate((0, 1, stride, stride + 1)):
            places = (first + offset).unsqueeze(2).expand(-1, -1, channels)
            total = total + flat.gather(1, places).to(torch.int32) * weights[:, index].to(torch.int32).view(-1, 1, 1)
        return squeezed((total >> 16).to(torch.uint8).view(batch, height, width, channels))

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        height, width = fixed.integers(6, 24, 2).tolist()
        size = tuple(fixed.integers(1, 5, 2).tolist())
        center = (random.random(2) * (width - size[0] - 1, height - size[1] - 1) + np.array(size) / 2).round(3)
        image = example_image(fixed, random, (0, 1, 3), size=(height, width))
        return (image, size, tuple(center.tolist())), {}
