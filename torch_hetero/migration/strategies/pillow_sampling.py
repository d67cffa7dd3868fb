"""Pillow's resampling for batches: resize, reduce, crops and transforms.

Images are bytes [batch, height, width, bands]. Sizes of results are one for a batch; boxes and matrices are a sample's
own. The functions repeat `Resample.c`, `Reduce.c` and `Geometry.c` of libImaging: coefficients of 22 bits with bytes
between the passes, 16.16 fixed point for nearest neighbours, and doubles for interpolation. On the CPU and on hetero,
`torch.ops.hetero.pil_resize` and `pil_affine` do the same faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from torch_hetero.migration.strategies.pillow_pixels import clip

__all__ = [
    "FILTERS", "NEAREST", "Axis", "Span", "along_axes", "crop", "has_kernels", "nearest_places", "pick", "positions",
    "reduce", "resample", "resample_parts", "sample_bicubic", "sample_bilinear", "sample_fixed", "sample_nearest",
    "spans_of", "taps", "vertical_first", "weighted_rows", "weights",
]  # fmt: skip

NEAREST = 0


def box(x: torch.Tensor) -> torch.Tensor:
    return torch.where((x > -0.5) & (x <= 0.5), 1.0, 0.0)


def bilinear(x: torch.Tensor) -> torch.Tensor:
    return (1.0 - x.abs()).clamp(min=0.0)


def hamming(x: torch.Tensor) -> torch.Tensor:
    x = x.abs()
    angle = torch.where(x == 0.0, 1.0, x) * math.pi
    window = angle.sin() / angle * (float(np.float32(0.54)) + float(np.float32(0.46)) * angle.cos())
    return torch.where(x == 0.0, 1.0, torch.where(x >= 1.0, 0.0, window))


def bicubic(x: torch.Tensor) -> torch.Tensor:
    x = x.abs()
    near = ((-0.5 + 2.0) * x - (-0.5 + 3.0)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * -0.5
    return torch.where(x < 1.0, near, torch.where(x < 2.0, far, 0.0))


def sinc(x: torch.Tensor) -> torch.Tensor:
    angle = torch.where(x == 0.0, 1.0, x) * math.pi
    return torch.where(x == 0.0, 1.0, angle.sin() / angle)


def lanczos(x: torch.Tensor) -> torch.Tensor:
    return torch.where((x >= -3.0) & (x < 3.0), sinc(x) * sinc(x / 3), 0.0)


# By Pillow's number: a function of the distance, and how far it reaches.
FILTERS: dict[int, tuple[Callable[[torch.Tensor], torch.Tensor], float]] = {
    1: (lanczos, 3.0), 2: (bilinear, 1.0), 3: (bicubic, 2.0), 4: (box, 0.5), 5: (hamming, 1.0),
}  # fmt: skip


@dataclass(frozen=True)
class Span:
    """The part of an axis that is resized, for each sample: [batch] in float64.

    Attributes:
        start: Where it begins, from `offset` on.
        length: How long it is.
        offset: The first pixel that may be read.
        limit: How many pixels may be read.
    """

    start: torch.Tensor
    length: torch.Tensor
    offset: torch.Tensor
    limit: torch.Tensor


def taps(kind: int, length: float, out: int) -> int:
    """Returns how many pixels a pixel of the result reads at most, if `length` or fewer become `out` pixels."""
    return math.ceil(FILTERS[kind][1] * max(length / out, 1.0)) * 2 + 1


def weights(kind: int, span: Span, out: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the first pixel [batch, out] that each pixel reads and weights [batch, out, count] in float64."""
    function, reach = FILTERS[kind]
    device = span.start.device
    scale = (span.length / out)[:, None]
    stretch = scale.clamp(min=1.0)
    center = span.start[:, None] + (torch.arange(out, dtype=torch.float64, device=device) + 0.5) * scale
    support = reach * stretch
    low = (center - support + 0.5).trunc().clamp(min=0.0)
    size = torch.minimum((center + support + 0.5).trunc(), span.limit[:, None]) - low
    inverse = 1.0 / stretch
    columns = []
    total = torch.zeros_like(center)
    for tap in range(count):
        distance = ((tap + low) - center + 0.5) * inverse
        weight = torch.where(tap < size, function(distance), 0.0)
        total = total + weight
        columns.append(weight)
    total = torch.where(total != 0.0, total, 1.0)[..., None]
    return (low + span.offset[:, None]).to(torch.int64), torch.stack(columns, 2) / total


def fixed_point(parts: torch.Tensor, bits: int = 22) -> torch.Tensor:
    """Returns weights as integers, rounded half away from zero."""
    wide = parts * (1 << bits)
    return torch.where(parts < 0, wide - 0.5, wide + 0.5).to(torch.int32)


def weighted_rows(
    rows: torch.Tensor, first: torch.Tensor, parts: torch.Tensor, start: int | torch.Tensor | None
) -> torch.Tensor:
    """Returns sums of rows: [batch, n, m] to [batch, out, m].

    Args:
        rows: What is summed.
        first: The first row of each sum, [batch, out].
        parts: Weights [batch, out, count]; sums have their dtype.
        start: What is added to integers, for rounding; None for floats, whose products are added without rounding.
    """
    batch, length, width = rows.shape
    flat = rows.reshape(batch * length, width)
    starts = torch.arange(batch, device=rows.device)[:, None] * length
    total = None
    for tap in range(parts.shape[2]):
        index = ((first + tap).clamp(max=length - 1) + starts).reshape(-1)
        picked = flat.index_select(0, index).reshape(batch, -1, width).to(parts.dtype)
        if total is None:
            total = picked * parts[:, :, tap, None]
            total = total if start is None else total + start
        elif start is None:
            total = torch.addcmul(total, picked, parts[:, :, tap, None])
        else:
            total = total + picked * parts[:, :, tap, None]
    return total


Axis = Callable[[torch.Tensor], torch.Tensor]  # [batch, n, m] to [batch, out, m]


def along_axes(
    images: torch.Tensor, horizontal: Axis | None, vertical: Axis | None, vertical_first: bool = False
) -> torch.Tensor:
    """Applies a function along the width of images, and one along their height."""

    def across(images: torch.Tensor) -> torch.Tensor:
        batch, height, width, bands = images.shape
        columns = horizontal(images.transpose(1, 2).reshape(batch, width, height * bands))
        return columns.reshape(batch, -1, height, bands).transpose(1, 2)

    if horizontal is not None and not vertical_first:
        images = across(images)
    if vertical is not None:
        batch, height, width, bands = images.shape
        images = vertical(images.reshape(batch, height, width * bands)).reshape(batch, -1, width, bands)
    return across(images) if horizontal is not None and vertical_first else images


def has_kernels(device: torch.device) -> bool:
    """Whether `torch.ops.hetero` has kernels for images on a device; the formulas here run anywhere."""
    return device.type in ("cpu", "hetero")


def resample(
    images: torch.Tensor, kind: int, size: tuple[int, int], counts: tuple[int, int], boxes: torch.Tensor,
    vertical_first: bool,
) -> torch.Tensor:  # fmt: skip
    """Resizes images.

    Args:
        images: Bytes.
        kind: Pillow's number of a filter.
        size: Height and width of the results.
        counts: `taps` along the height and the width; 0 for an axis that stays as it is.
        boxes: What is resized: left, top, right and bottom of each image, [batch, 4] in float64.
        vertical_first: Whether the height is resized before the width: see `vertical_first`.
    """
    zero = torch.zeros_like(boxes[:, 0])
    edges = boxes.to(torch.float32)
    lengths = (edges[:, 2:] - edges[:, :2]).to(torch.float64)
    spans = [
        Span(boxes[:, 1 - axis], lengths[:, 1 - axis], zero, torch.full_like(zero, images.shape[1 + axis]))
        for axis in range(2)
    ]
    return resample_spans(images, kind, size, counts, spans, vertical_first)


def resample_parts(
    images: torch.Tensor, kind: int, size: tuple[int, int], counts: tuple[int, int], parts: torch.Tensor,
    vertical_first: bool,
) -> torch.Tensor:  # fmt: skip
    """Resizes parts of images as if each was an image.

    Args:
        images: Bytes.
        kind: Pillow's number of a filter.
        size: Height and width of the results.
        counts: `taps` along the height and the width, for the whole image.
        parts: Top, left, height and width of each part, int64 [batch, 4].
        vertical_first: Whether the height is resized before the width.
    """
    return resample_spans(images, kind, size, counts, spans_of(parts), vertical_first)


def resize_parts_of_list(
    images: Sequence[torch.Tensor], kind: int, size: tuple[int, int], parts: torch.Tensor
) -> torch.Tensor:
    """Does the same by an operator, for images of any sizes where there is one."""
    places = parts.tolist()  # settings of samples come from the host: nothing is waited for
    views = [image[top : top + h, left : left + w] for image, (top, left, h, w) in zip(images, places, strict=True)]
    boxes = torch.tensor([[0, 0, w, h] for _, _, h, w in places], dtype=torch.float64, device=parts.device)
    return torch.ops.hetero.pil_resize(views, boxes, size, kind)


def spans_of(parts: torch.Tensor) -> tuple[Span, Span]:
    """Returns parts (top, left, height, width) as spans along both axes."""
    top, left, height, width = parts.to(torch.float64).unbind(1)
    zero = torch.zeros_like(top)
    return Span(zero, height, top, height), Span(zero, width, left, width)


def resample_spans(
    images: torch.Tensor, kind: int, size: tuple[int, int], counts: tuple[int, int], spans: Sequence[Span],
    vertical_first: bool,
) -> torch.Tensor:  # fmt: skip
    """Resizes spans of images."""

    def axis(number: int) -> Axis | None:
        if counts[number] == 0:
            return None
        first, parts = weights(kind, spans[number], size[number], counts[number])
        parts = fixed_point(parts)
        return lambda rows: clip(weighted_rows(rows, first, parts, 1 << 21) >> 22)

    return along_axes(images, axis(1), axis(0), vertical_first)


def vertical_first(source: tuple[int, int], size: tuple[int, int]) -> bool:
    """Whether Pillow resizes heights before widths; sizes are (width, height). It does since version 13."""
    lost = source[1] - size[1]
    return lost > 0 and lost > 2 * (source[0] - size[0])


def nearest_places(start: float, step: float, out: int, limit: int) -> np.ndarray:
    """Returns the pixel that each of `out` pixels takes, -1 outside: libImaging adds up the steps as doubles."""
    places = np.add.accumulate(np.concatenate([[start], np.full(max(out - 1, 0), step)]))[:out]
    whole = np.where(places < 0, -1, np.trunc(places)).astype(np.int64)
    return np.where(whole >= limit, -1, whole)


def pick(
    images: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, fill: torch.Tensor | None = None
) -> torch.Tensor:
    """Returns the pixels at rows [batch, height] and columns [batch, width].

    Args:
        images: Anything [batch, n, m, ...].
        rows: Indices; -1 is outside if `fill` is given.
        columns: Likewise.
        fill: The colour outside, [batch, bands].
    """
    numbers = torch.arange(len(images), device=images.device)[:, None, None]
    if fill is None:
        return images[numbers, rows[:, :, None], columns[:, None, :]]
    inside = (rows >= 0)[:, :, None] & (columns >= 0)[:, None, :]
    picked = images[numbers, rows.clamp(min=0)[:, :, None], columns.clamp(min=0)[:, None, :]]
    return torch.where(inside[..., None], picked, fill[:, None, None, :].to(images.dtype))


def crop(
    images: torch.Tensor, top: torch.Tensor, left: torch.Tensor, size: tuple[int, int], inside: bool
) -> torch.Tensor:
    """Cuts out a part of each image, at its own place; pixels outside of it are 0.

    Args:
        images: Anything [batch, height, width, bands].
        top: The first row, [batch].
        left: The first column.
        size: Height and width of the parts.
        inside: Whether all parts are within the images.
    """
    rows = top.to(torch.int64)[:, None] + torch.arange(size[0], device=images.device)
    columns = left.to(torch.int64)[:, None] + torch.arange(size[1], device=images.device)
    if inside:
        return pick(images, rows, columns)
    rows = torch.where(rows < images.shape[1], rows, -1)
    columns = torch.where(columns < images.shape[2], columns, -1)
    fill = torch.zeros(len(images), images.shape[3], dtype=images.dtype, device=images.device)
    return pick(images, rows, columns, fill)


# Transforms.


def positions(kind: str, size: tuple[int, int], matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns where each pixel of the result comes from, x and y [batch, height, width] in float64.

    Args:
        kind: "affine", "perspective" or "quad".
        size: Height and width of the results.
        matrix: Coefficients [batch, 6 or 8].
    """
    y = (torch.arange(size[0], dtype=torch.float64, device=matrix.device) + 0.5)[:, None]
    x = torch.arange(size[1], dtype=torch.float64, device=matrix.device) + 0.5
    a = [entry[:, None, None] for entry in matrix.unbind(1)]
    if kind == "affine":
        return a[0] * x + a[1] * y + a[2], a[3] * x + a[4] * y + a[5]
    if kind == "perspective":
        divisor = a[6] * x + a[7] * y + 1
        return (a[0] * x + a[1] * y + a[2]) / divisor, (a[3] * x + a[4] * y + a[5]) / divisor
    return a[0] + a[1] * x + a[2] * y + a[3] * x * y, a[4] + a[5] * x + a[6] * y + a[7] * x * y


class Pixels:
    """Pixels of a batch by their place."""

    def __init__(self, images: torch.Tensor) -> None:
        self.flat = images.reshape(-1, images.shape[3])
        self.height, self.width = images.shape[1:3]
        self.starts = torch.arange(len(images), device=images.device)[:, None, None] * (self.height * self.width)

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Returns the pixels at x and y [batch, height, width], which are moved to the edge if they are outside."""
        x, y = x.clamp(0, self.width - 1), y.clamp(0, self.height - 1)
        index = (self.starts + y * self.width + x).reshape(-1)
        return self.flat.index_select(0, index).reshape(*x.shape, -1)

    def inside(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Whether places are in the image."""
        return (x >= 0) & (x < self.width) & (y >= 0) & (y < self.height)

    def filled(self, x: torch.Tensor, y: torch.Tensor, result: torch.Tensor, fill: torch.Tensor) -> torch.Tensor:
        """Returns a colour [batch, bands] where places are outside."""
        return torch.where(self.inside(x, y)[..., None], result, fill.to(torch.uint8)[:, None, None, :])


def sample_fixed(images: torch.Tensor, size: tuple[int, int], matrix: torch.Tensor, fill: torch.Tensor) -> torch.Tensor:
    """Transforms images with nearest neighbours in 16.16 fixed point; `matrix` is int64 [batch, 6]."""
    pixels = Pixels(images)
    a = [entry[:, None, None] for entry in matrix.unbind(1)]
    y = torch.arange(size[0], device=images.device)[:, None]
    x = torch.arange(size[1], device=images.device)
    x, y = (a[2] + y * a[1] + x * a[0]) >> 16, (a[5] + y * a[4] + x * a[3]) >> 16
    return pixels.filled(x, y, pixels(x, y), fill)


def sample_nearest(images: torch.Tensor, x: torch.Tensor, y: torch.Tensor, fill: torch.Tensor) -> torch.Tensor:
    """Returns the pixels at places, a colour outside."""
    pixels = Pixels(images)
    return pixels.filled(x, y, pixels(x.to(torch.int64), y.to(torch.int64)), fill)


def sample_bilinear(images: torch.Tensor, x: torch.Tensor, y: torch.Tensor, fill: torch.Tensor) -> torch.Tensor:
    """Interpolates between four pixels."""
    pixels = Pixels(images)
    left, top = (x - 0.5).floor(), (y - 0.5).floor()
    across, down = ((x - 0.5) - left)[..., None], ((y - 0.5) - top)[..., None]
    left, top = left.to(torch.int64), top.to(torch.int64)

    def row(number: int) -> torch.Tensor:
        first, second = (pixels(left + tap, top + number).to(torch.float64) for tap in range(2))
        return first + (second - first) * across

    upper, lower = row(0), row(1)
    return pixels.filled(x, y, (upper + (lower - upper) * down).to(torch.uint8), fill)


def sample_bicubic(images: torch.Tensor, x: torch.Tensor, y: torch.Tensor, fill: torch.Tensor) -> torch.Tensor:
    """Interpolates between sixteen pixels."""
    pixels = Pixels(images)
    left, top = (x - 0.5).floor(), (y - 0.5).floor()
    across, down = ((x - 0.5) - left)[..., None], ((y - 0.5) - top)[..., None]
    left, top = left.to(torch.int64) - 1, top.to(torch.int64) - 1

    def cubic(values: Sequence[torch.Tensor], place: torch.Tensor) -> torch.Tensor:
        v1, v2, v3, v4 = values
        p2, p3, p4 = -v1 + v3, 2 * (v1 - v2) + v3 - v4, -v1 + v2 - v3 + v4
        return v2 + place * (p2 + place * (p3 + place * p4))

    def row(number: int) -> torch.Tensor:
        return cubic([pixels(left + tap, top + number).to(torch.float64) for tap in range(4)], across)

    return pixels.filled(x, y, clip(cubic([row(number) for number in range(4)], down)), fill)


def reduce(images: torch.Tensor, factor: tuple[int, int], region: tuple[int, int, int, int]) -> torch.Tensor:
    """Returns averages of blocks of `factor` = (width, height) pixels in a region (left, top, right, bottom)."""
    left, top, right, bottom = region
    across, down = factor
    part = images[:, top:bottom, left:right].to(torch.int64)
    batch, height, width, bands = part.shape
    rows, columns = -(-height // down), -(-width // across)
    part = torch.nn.functional.pad(part, (0, 0, 0, columns * across - width, 0, rows * down - height))
    sums = part.reshape(batch, rows, down, columns, across, bands).sum((2, 4))
    tall = np.minimum(down, height - np.arange(rows) * down)
    wide = np.minimum(across, width - np.arange(columns) * across)
    pixels = tall[:, None] * wide[None, :]
    # libImaging divides as floats.
    multipliers = (np.float32(2.0**32) / (pixels * 256).astype(np.float32)).astype(np.int64)
    add, multiply = (
        torch.from_numpy(np.ascontiguousarray(table))[..., None].to(images.device)
        for table in (pixels // 2, multipliers)
    )
    return ((sums + add) * multiply >> 24).to(torch.uint8)
